"""Writes docs/reference/cli.md from each command's `--help`: `.venv/bin/python .ci/cli_reference.py`.

tests/docs/test_cli_reference.py fails when the page is out of date.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "cli.md"

HEAD = """\
# Command line

<!-- Written by .ci/cli_reference.py from the commands themselves; edit their help texts instead. -->

`casework COMMAND --help` says the same. The store is given with `--store` or in the variable `CASEWORK_STORE`; or, with
the machines and the codec, by a function of your program: `--app MODULE:FUNCTION` or the variable `CASEWORK_APP` ([what it
returns](open.md#one-place-that-says-what-an-application-is)).

| exit code | means |
|---|---|
| 0 | done |
| 1 | failed: the store is not available, a proof or a check does not hold |
| 2 | the call cannot work as it was made, and nothing was written: bad JSON, an unknown id or event, a broken definition, a store that cannot work, missing tables |
| 3 | a worker has ended as it was asked to, and functions of yours had not returned |
| 130 | interrupted |

Errors are one line on stderr; `--debug` adds the traceback. `casework --install-completion` teaches your shell the
commands.
"""  # noqa: E501


def help_of(*command: str) -> str:
    """What ``casework COMMAND --help`` prints, 100 columns wide."""
    from casework.cli import main

    out = io.StringIO()
    variables = {"COLUMNS": "100", "TERMINAL_WIDTH": "100", "NO_COLOR": "1"}
    with (
        mock.patch.dict(os.environ, variables),
        mock.patch.object(sys, "argv", ["casework", *command, "--help"]),
        contextlib.redirect_stdout(out),
        contextlib.suppress(SystemExit),
    ):
        main()
    return "\n".join(line.rstrip() for line in out.getvalue().strip("\n").splitlines()) + "\n"


def commands(*group: str) -> Iterator[tuple[str, ...]]:
    """Every command, groups followed by what is in them, as their help lists them."""
    listed = help_of(*group).partition("Commands:\n")[2]
    for line in listed.splitlines():
        if line.startswith("  ") and not line.startswith("   "):
            command = (*group, line.split()[0])
            yield command
            yield from commands(*command)


def page() -> str:
    """The whole page."""
    parts = [HEAD, "\n## casework\n\n```text\n" + help_of() + "```\n"]
    for command in commands():
        depth = "#" * (len(command) + 1)
        parts.append(f"\n{depth} casework {' '.join(command)}\n\n```text\n{help_of(*command)}```\n")
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
    print(PAGE)
