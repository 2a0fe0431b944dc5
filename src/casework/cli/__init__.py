"""The command line: ``casework ...``. Each module holds one group of commands; ``main`` is all that others import."""

from __future__ import annotations


def main() -> None:
    """Run the command line and exit with its code: 0, 1 for failures, 2 for misuse, 130 for Ctrl-C."""
    import sys

    try:
        from casework.cli.app import run

        run()
    except KeyboardInterrupt:  # before a command has begun, which sees to it itself
        print("casework: interrupted", file=sys.stderr)
        sys.exit(130)
