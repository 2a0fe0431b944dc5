"""What commands share: their common options, opening a store, finding machines, reading JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from casework.cli.application import arguments_of, attribute_of, import_module, with_machines
from casework.errors import MissingTable, Misuse

if TYPE_CHECKING:
    from casework.app.arguments import OpenArguments
    from casework.app.sync import App
    from casework.backends.port import Backend
    from casework.statechart import Machine

Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        show_default=False,
        metavar="URL",
        help="sqlite:///shop.db, or dynamodb://?region=...&prefix=...&endpoint=... "
        "[env: CASEWORK_STORE; default: sqlite:///casework.db]",
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Id = Annotated[str, typer.Argument(metavar="ID", help="The execution.", show_default=False)]

MACHINE_FILES = (".yaml", ".yml", ".json", ".scxml", ".xml")


def open_store(
    store: str | None,
    source: str | None = None,
    machines: Sequence[Machine] = (),
    *,
    make: bool = False,
    executions: bool = True,
    trace_max: int | None = None,
) -> App:
    """The application on a store.

    Args:
        store: its URL; None is the application's, else the default.
        source: where the application's arguments come from, as ``--app`` names it.
        machines: the machines that the command was given; the application's are added.
        make: make the file, where the store is one that does not exist yet.
        executions: the command has to do with executions, so the store's codec is needed.
        trace_max: as for ``casework.open``, before the application's.

    Raises Misuse for a file that does not exist, MissingTable for one without casework's tables, unless they are to be
    made: a typing error must not leave a new file, nor tables in somebody else's.
    """
    from casework.app.arguments import check_rest, make_options
    from casework.app.core import Core
    from casework.app.sync import open_core

    arguments = arguments_of(source)
    target = command_store(store, arguments, make=make)
    options: dict[str, Any] = {name: value for name, value in arguments.items() if name not in _NO_OPTIONS}
    if trace_max is not None:
        options["trace_max"] = trace_max
    check_rest(arguments.get("create"), arguments.get("streams"))
    known = with_machines(arguments, machines) if executions else []
    core = Core(known, make_options(**options), arguments.get("codec"), arguments.get("streams"))
    core.reads_executions = executions
    try:
        return open_core(core, target, arguments.get("create") if make else False, owns=True)
    except MissingTable as error:
        if not str(target).startswith("sqlite:"):
            raise
        raise MissingTable(
            f"{target} lacks tables (no execution was started there yet, or an earlier casework made it); "
            "`casework start` and `casework worker` make them"
        ) from error


_NO_OPTIONS = ("store", "machines", "create", "codec", "streams")


def command_store(store: str | None, arguments: OpenArguments, *, make: bool = False) -> str | Backend:
    """The URL or backend that a command works on: the one on its line, else the application's, else the default."""
    from casework.backends.port import Backend

    given = arguments.get("store")
    if store is None and given is not None and not isinstance(given, str):
        if not isinstance(given, Backend):
            raise Misuse(f"the application's store is {given!r:.80}; commands take a URL or a blocking backend")
        return given
    return command_url(given if store is None else store, make=make)  # type: ignore[arg-type]


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
    module = import_module(module_name, place, _hint(module_name, place))
    if not name:
        found = [value for value in vars(module).values() if isinstance(value, Machine)]
        if not found:
            raise Misuse(f"module {module_name!r} has no machine; write {module_name}:NAME, or name a file (.yaml)")
        return list(dict.fromkeys(found))
    known = sorted(key for key, each in vars(module).items() if isinstance(each, Machine))
    value = attribute_of(module, name, place, known)
    return _machines_in(value, place)


def _hint(module_name: str, place: str) -> str:
    """A hint, where a file of that name is there and only its ending was left out."""
    for name in (place, module_name):
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
