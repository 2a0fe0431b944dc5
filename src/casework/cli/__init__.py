"""The command line: ``casework ...``. Each module holds one group of commands; ``main`` is all that others import."""

from __future__ import annotations


def main() -> None:
    """Run the command line and exit with its code: 0, 1 for failures, 2 for misuse, 130 for Ctrl-C."""
    from casework.cli.app import run

    run()
