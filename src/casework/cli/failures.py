"""Errors as a user meets them: one line on stderr and an exit code; the traceback only with ``--debug``."""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import typer

from casework.errors import CaseworkError, InvalidMachine, MissingTable, Misuse

P = ParamSpec("P")
T = TypeVar("T")

FAILED, MISUSE, INTERRUPTED = 1, 2, 130

UNRETURNED = 3
"""A worker's: it has ended as it was asked to, and functions of the user's had not returned by then."""


def command(function: Callable[P, T]) -> Callable[P, T]:
    """A command whose errors end the process with a line and a code; ``debug=True`` among its arguments shows more."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except typer.Exit:
            raise
        except KeyboardInterrupt:
            say("interrupted")
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            # Whoever read our output has left, as `head` does; nothing is left to be said to it.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(FAILED) from None
        except Exception as error:  # noqa: BLE001 - the last stop before the user
            if kwargs.get("debug"):
                traceback.print_exc()
            _explain(error)
            raise typer.Exit(exit_code(error)) from None

    return wrapper


def exit_code(error: BaseException) -> int:
    """2 when the call cannot work as it was made, else 1."""
    return MISUSE if isinstance(error, Misuse | MissingTable) else FAILED


def say(line: str) -> None:
    """A line on stderr."""
    print(f"casework: {line}", file=sys.stderr, flush=True)


def _explain(error: Exception) -> None:
    if isinstance(error, InvalidMachine):
        for problem in error.problems:
            print(problem, file=sys.stderr)
    elif isinstance(error, CaseworkError):
        say(" ".join(str(error).split()))
    else:
        say(f"{type(error).__name__}: {' '.join(str(error).split())} (--debug shows where)")
