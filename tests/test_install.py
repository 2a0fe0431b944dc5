"""What `pip install casework` brings, with no extra and with the lowest core dependencies: it imports and is small."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from importlib import metadata, resources

EXTRAS = ["boto3", "botocore", "aiobotocore", "litestar", "uvicorn", "opentelemetry"]
WHERE_EXTRAS_LIVE = ("casework.backends.dynamodb", "casework.aws", "casework.console", "casework.relay")
HEAVY = {"aiobotocore", "asyncio", "boto3", "botocore", "rich", "sqlite3", "typer", "yaml"}


def python(program: str) -> list[str]:
    """The words that a fresh interpreter prints."""
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_importing_casework_loads_nothing_heavy() -> None:
    loaded = python("import sys; before = set(sys.modules); import casework; print(*(set(sys.modules) - before))")
    assert "casework" in loaded
    assert not HEAVY.intersection(loaded), "import it inside the function or module that uses it"


def test_every_module_imports_without_the_extras() -> None:
    program = f"""
        import importlib, pkgutil, sys
        sys.modules.update(dict.fromkeys({EXTRAS}))  # None: importing it fails
        import casework
        for module in pkgutil.walk_packages(casework.__path__, "casework."):
            if module.name.startswith({WHERE_EXTRAS_LIVE}) or module.name.endswith("__main__"):
                continue
            importlib.import_module(module.name)
            print(module.name)
    """
    assert "casework.errors" in python(program)


def test_the_core_has_at_most_five_dependencies_and_each_has_a_lower_bound() -> None:
    required = [one for one in metadata.requires("casework") or [] if "extra ==" not in one]
    assert 0 < len(required) <= 5
    assert all(">=" in one and "<" not in one for one in required), "an upper bound breaks other people's upgrades"


def test_types_are_shipped() -> None:
    assert (resources.files("casework") / "py.typed").is_file()
