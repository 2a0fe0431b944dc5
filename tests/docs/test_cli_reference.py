"""docs/reference/cli.md holds the help of every command as it is."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]
WRITER = runpy.run_path(str(ROOT / ".ci" / "cli_reference.py"))


def test_the_reference_of_the_command_line_is_up_to_date() -> None:
    written = (ROOT / "docs" / "reference" / "cli.md").read_text("utf-8")
    assert WRITER["page"]() == written, "run .venv/bin/python .ci/cli_reference.py"


def test_every_command_has_an_example() -> None:
    commands = list(WRITER["commands"]())
    groups = {command[:-1] for command in commands}
    for command in commands:
        text = WRITER["help_of"](*command)
        if command not in groups:
            assert f"  casework {' '.join(command)}" in text.partition("Options:")[0].partition("\n")[2], command
