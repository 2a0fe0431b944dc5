"""What commands share: their common options, opening a store, finding machines, reading JSON."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from casework.errors import MissingTable, Misuse

if TYPE_CHECKING:
    from casework.app.sync import App
    from casework.statechart import Machine

Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        envvar="CASEWORK_STORE",
        show_default=False,
        metavar="URL",
        help="sqlite:///shop.db, or dynamodb://?region=...&prefix=...&endpoint=... [default: sqlite:///casework.db]",
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Id = Annotated[str, typer.Argument(metavar="ID", help="The execution.", show_default=False)]

MACHINE_FILES = (".yaml", ".yml", ".json", ".scxml", ".xml")


def open_store(store: str | None, machines: Sequence[Machine] = (), *, make: bool = False, **options: Any) -> App:
    """The application on a store.

    Args:
        store: its URL; None is the default.
        machines: the machines that the command needs.
        make: make the file, where the store is one that does not exist yet.
        options: those of ``casework.open``.

    Raises Misuse for a file that does not exist, MissingTable for one without casework's tables, unless they are to be
    made: a typing error must not leave a new file, nor tables in somebody else's.
    """
    import casework

    url = command_url(store, make=make)
    try:
        return casework.open(url, machines=machines, create=None if make else False, **options)
    except MissingTable as error:
        if not url.startswith("sqlite:"):
            raise
        raise MissingTable(
            f"{url} lacks tables (no execution was started there yet, or an earlier casework made it); "
            "`casework start` and `casework worker` make them"
        ) from error


def command_url(store: str | None, *, make: bool = False) -> str:
    """The URL of a store that commands can work on; ``make``: also one that is not there yet.

    Raises Misuse for one that they cannot, MissingTable for a database in which casework has never been.
    """
    from casework.app.stores import sqlite_path, store_url

    url = store_url(store)
    if url.startswith("memory:"):
        raise Misuse("memory: ends with this process, so a command would see nothing in it; use sqlite:///file.db")
    if url.startswith("sqlite:") and not make:
        path = sqlite_path(url)
        if not Path(path).exists():
            raise Misuse(f"there is no database {path!r:.300}; give --store, or begin with `start`")
        from casework.backends.sqlite.connections import foreign_tables

        others = foreign_tables(path)
        if others is not None:
            holds = f"it holds {', '.join(others)}"[:200] if others else "it is empty"
            raise MissingTable(
                f"{path!r:.300} has no tables of casework's ({holds}); give --store, or begin with `start`"
            )
    return url


def find_machines(place: str) -> list[Machine]:
    """The machines at ``place``: a file, ``MODULE:NAME``, or ``MODULE`` with all the machines in it.

    ``NAME`` is a machine, a sequence of machines, or a function without arguments that returns either.
    Raises Misuse, InvalidMachine.
    """
    from casework.statechart import Machine

    if place.lower().endswith(MACHINE_FILES):
        return [Machine.load(place)]
    module_name, _, name = place.partition(":")
    module = _import(module_name, place)
    if not name:
        found = [value for value in vars(module).values() if isinstance(value, Machine)]
        if not found:
            raise Misuse(f"module {module_name!r} has no machine; write {module_name}:NAME, or name a file (.yaml)")
        return list(dict.fromkeys(found))
    value: Any = module
    for part in name.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            known = ", ".join(sorted(key for key, each in vars(module).items() if isinstance(each, Machine)))
            raise Misuse(f"module {module_name!r} has no {name!r}; its machines: {known or 'none'}") from None
    return _machines_in(value, place)


def _import(module_name: str, place: str) -> Any:
    if not module_name or not all(part.isidentifier() for part in module_name.split(".")):
        raise Misuse(
            f"{place!r} names no machine{_file_meant(place)}; write a file (order.yaml), a module (shop), or "
            "MODULE:NAME (shop:order)"
        )
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
            meant = _file_meant(module_name)
            raise Misuse(f"there is no module {module_name!r} here or in what is installed{meant}") from None
        raise Misuse(f"module {module_name!r} imports {error.name!r}, which is not installed") from error
    except (Misuse, KeyboardInterrupt):
        raise
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        line = f"{Path(where.filename).name}:{where.lineno}"
        raise Misuse(f"module {module_name!r} cannot be imported: {line}: {type(error).__name__}: {error}") from error


def _file_meant(name: str) -> str:
    """A hint, where a file of that name is there and only its ending was left out."""
    for ending in MACHINE_FILES:
        if Path(name + ending).is_file():
            return f" (did you mean {name + ending}?)"
    return ""


def _machines_in(value: Any, place: str) -> list[Machine]:
    from casework.statechart import Machine

    if callable(value):
        function: Callable[[], Any] = value
        value = function()
    if isinstance(value, Machine):
        return [value]
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        found = list(value)
        if found and all(isinstance(each, Machine) for each in found):
            return found
    raise Misuse(f"{place!r} is {type(value).__name__}, not a machine, a list of machines or a function returning them")


def read_text(path: Path, what: str) -> str:
    """The text of a file that an argument names; Misuse when it cannot be read."""
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        raise Misuse(f"{what}: there is no file {str(path)!r:.300} (paths are relative to this folder)") from None
    except UnicodeDecodeError as error:
        raise Misuse(f"{what}: {str(path)!r:.300} is not UTF-8 text: {error}") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise Misuse(f"{what}: {str(path)!r:.300} cannot be read: {why}") from None


def read_json(text: str | None, what: str) -> Any:
    """The value of a JSON argument, ``@file`` or ``@-`` for stdin; None for none. Misuse when it is not JSON."""
    import json

    if text is None:
        return None
    source = what
    if text.startswith("@"):
        source = f"{what}: {text[1:]}"
        text = sys.stdin.read() if text == "@-" else read_text(Path(text[1:]), what)
    from casework.statechart import check_json

    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        hint = """ (write '{"amount": 5}', with quotes around the whole for the shell)"""
        raise Misuse(f"{source}: {text!r:.60} is not JSON: {error}{hint}") from None
    check_json(value, source)
    return value


def counted(number: int, noun: str) -> str:
    """``1 event``, ``2 events``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def print_json(value: Any) -> None:
    """One JSON document on stdout, with stable keys."""
    import json

    import msgspec

    print(json.dumps(msgspec.to_builtins(value), indent=2, ensure_ascii=False))
