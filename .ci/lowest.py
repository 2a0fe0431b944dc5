"""Print the core dependencies of pyproject.toml pinned to their lower bounds, one requirement a line."""

import re
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text("utf-8"))["project"]
for requirement in project["dependencies"]:
    match = re.fullmatch(r"([A-Za-z0-9._-]+)>=([0-9.]+)", requirement)
    if match is None:
        raise SystemExit(f"a core dependency is written NAME>=VERSION, so that CI can test it: {requirement!r}")
    print(f"{match[1]}=={match[2]}")
