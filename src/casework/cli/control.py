"""``casework cancel``, ``terminate``, ``suspend``, ``resume``, ``redrive``, ``purge``, ``migrate``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from casework.cli.application import FromApp
from casework.cli.failures import command
from casework.cli.opening import Debug, Id, Store, counted, find_machines, open_store
from casework.errors import Misuse

Code = Annotated[
    str | None,
    typer.Option(
        "--machine", metavar="PLACE", help="A file, MODULE:NAME or MODULE with the machine.", show_default=False
    ),
]


def _check_code(code: str | None, source: str | None) -> None:
    if not code and not source:
        raise Misuse("name the machine: --machine shop:order, or the application: --app shop:application")


def _said(execution: Any) -> None:
    where = ", ".join(execution.configuration)
    print(f"{execution.id} is {execution.status}{f' in {where}' if where and not execution.has_ended else ''}")


@command
def cancel(id: Id, code: Code = None, source: FromApp = None, store: Store = None, debug: Debug = False) -> None:
    """Ask an execution to end.

    With --machine, and where the machine knows an event named cancel, that event is handled; else it is terminated.

    \b
    casework cancel o-1
    casework cancel o-1 --machine shop:order
    """
    with open_store(store, source, find_machines(code) if code else ()) as app:
        _said(app.cancel(id))


@command
def terminate(id: Id, source: FromApp = None, store: Store = None, debug: Debug = False) -> None:
    """End an execution now, whatever its machine says; its tasks and children are stopped, its parent is told.

    \b
    casework terminate o-1
    """
    with open_store(store, source) as app:
        _said(app.terminate(id))


@command
def suspend(id: Id, source: FromApp = None, store: Store = None, debug: Debug = False) -> None:
    """Stop an execution where it stands: events wait, timers do not fire, no task starts. Running tasks go on.

    \b
    casework suspend o-1
    """
    with open_store(store, source) as app:
        _said(app.suspend(id))


@command
def resume(id: Id, source: FromApp = None, store: Store = None, debug: Debug = False) -> None:
    """Let a suspended execution go on; timers that came due meanwhile fire now.

    \b
    casework resume o-1
    """
    with open_store(store, source) as app:
        _said(app.resume(id))


@command
def redrive(
    id: Id,
    code: Code = None,
    source: FromApp = None,
    store: Store = None,
    debug: Debug = False,
) -> None:
    """Let a failed execution go on from the states in which it failed; their tasks and timers begin again.

    Its tasks get new idempotency keys.

    \b
    casework redrive o-1 --machine shop:order
    """
    _check_code(code, source)
    with open_store(store, source, find_machines(code) if code else ()) as app:
        _said(app.redrive(id))


@command
def purge(
    id: Id,
    force: Annotated[bool, typer.Option("--force", help="Also one that has not ended.")] = False,
    source: FromApp = None,
    store: Store = None,
    debug: Debug = False,
) -> None:
    """Delete an ended execution and everything of it; then its id is free. Its children stay until they are purged.

    \b
    casework purge o-1
    """
    with open_store(store, source) as app:
        count = app.purge(id, force=force)
    print(f"{id} is gone: {counted(count, 'item')} deleted")


@command
def migrate(
    id: Id,
    code: Code = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="NAME", help="Another machine of that place.", show_default=False)
    ] = None,
    source: FromApp = None,
    store: Store = None,
    debug: Debug = False,
) -> None:
    """Let an execution go on with another definition of its machine; refused when its states do not fit.

    \b
    casework migrate o-1 --machine order-v2.yaml
    """
    _check_code(code, source)
    with open_store(store, source, find_machines(code) if code else ()) as app:
        execution = app.migrate(id, to=to)
    print(f"{id} runs {execution.machine} {execution.machine_hash[:12]}")


COMMANDS: dict[str, Callable[..., None]] = {
    "cancel": cancel,
    "terminate": terminate,
    "suspend": suspend,
    "resume": resume,
    "redrive": redrive,
    "purge": purge,
    "migrate": migrate,
}
