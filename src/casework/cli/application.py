"""``--app MODULE:FUNCTION``: what an application is, taken from the program itself.

The function returns the arguments of ``casework.open`` as a mapping (``casework.OpenArguments``): store, machines,
codec, options. So a command has what the program's own processes have, without a word on the command line that could be
forgotten. What is given on the command line as well goes first.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from casework.errors import Misuse

if TYPE_CHECKING:
    from casework.app.arguments import OpenArguments
    from casework.statechart import Machine

FromApp = Annotated[
    str | None,
    typer.Option(
        "--app",
        envvar="CASEWORK_APP",
        show_default=False,
        metavar="MODULE:FUNCTION",
        help="Take store, machines, codec and options from a function that returns casework.open's arguments.",
    ),
]


def arguments_of(place: str | None) -> OpenArguments:
    """The arguments that the function at ``place`` returns; none for None. Raises Misuse, and what ``open`` raises."""
    if place is None:
        return {}
    module_name, _, name = place.partition(":")
    if not name:
        raise Misuse(f"--app is {place!r}; write MODULE:FUNCTION, such as shop:application")
    value = attribute_of(import_module(module_name, place), name, place)
    if callable(value):
        value = _called(value, place)
    if not isinstance(value, Mapping):
        raise Misuse(
            f"--app: {place!r} gives {type(value).__name__}; it must return the arguments of casework.open as a "
            'mapping, such as {"store": "sqlite:///shop.db", "machines": [order]}'
        )
    from casework.app.arguments import OpenArguments
    from casework.statechart.suggestions import suggestion

    known = OpenArguments.__annotations__
    for key in value:
        if key not in known:
            raise Misuse(
                f"--app: {place!r} gives {key!r}, which casework.open does not take ({suggestion(str(key), known)})"
            )
    arguments: OpenArguments = {**value}  # type: ignore[typeddict-item]
    return arguments


def _called(function: Any, place: str) -> Any:
    """What a function of the user's returns; Misuse that says where it failed."""
    try:
        return function()
    except (Misuse, KeyboardInterrupt):
        raise
    except Exception as error:
        raise Misuse(f"{place!r} cannot be called: {_line_of(error)}: {type(error).__name__}: {error}") from error


def machines_of(place: str | None) -> list[Machine]:
    """The machines of the application at ``place``; Misuse where it has none."""
    found = list(arguments_of(place).get("machines", ()))
    if not found:
        raise Misuse(f"--app: the application at {place!r} has no machines")
    return found


def with_machines(arguments: OpenArguments, machines: Sequence[Machine]) -> list[Machine]:
    """The machines named on the command line, and those of the application that have other names."""
    named = {machine.name for machine in machines}
    return [*machines, *(each for each in arguments.get("machines", ()) if getattr(each, "name", None) not in named)]


def import_module(module_name: str, place: str, hint: str = "") -> Any:
    """A module of the user's, found from the working directory too. Misuse when it cannot be had."""
    if not module_name or not all(part.isidentifier() for part in module_name.split(".")):
        raise Misuse(f"{place!r} names no module{hint}; write MODULE:NAME, such as shop:order")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise Misuse(f"there is no module {module_name!r} here or in what is installed{hint}") from None
        raise Misuse(f"module {module_name!r} imports {error.name!r}, which is not installed") from error
    except (Misuse, KeyboardInterrupt):
        raise
    except Exception as error:
        what = f"{_line_of(error)}: {type(error).__name__}: {error}"
        raise Misuse(f"module {module_name!r} cannot be imported: {what}") from error


def _line_of(error: BaseException) -> str:
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(where.filename).name}:{where.lineno}"


def attribute_of(module: Any, name: str, place: str, known: Sequence[str] = ()) -> Any:
    """What a module has under a name, which may have dots. Misuse when there is nothing."""
    value = module
    for part in name.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            has = f"; its machines: {', '.join(known)}" if known else ""
            raise Misuse(f"module {place.partition(':')[0]!r} has no {name!r}{has}") from None
    return value
