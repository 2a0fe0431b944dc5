"""``casework start`` and ``casework send``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from casework.cli.application import FromApp, arguments_of
from casework.cli.failures import FAILED, command, say
from casework.cli.opening import (
    MACHINE_FILES,
    AsJson,
    Debug,
    Id,
    Store,
    find_machines,
    open_store,
    print_json,
    read_json,
)
from casework.errors import Misuse

MACHINE_HELP = "Where the machine is: a file, MODULE:NAME, or MODULE; needed when MACHINE is only its name."


@command
def start(
    machine: Annotated[
        str,
        typer.Argument(
            metavar="MACHINE",
            show_default=False,
            help="A file (order.yaml), MODULE:NAME (shop:order), or the name of one of --app or --machine.",
        ),
    ],
    id: Annotated[
        str | None, typer.Option("--id", help="The execution's id [default: a fresh one]", show_default=False)
    ] = None,
    input: Annotated[str | None, typer.Option("--input", metavar="JSON|@FILE", help="The machine's input.")] = None,
    code: Annotated[str | None, typer.Option("--machine", metavar="PLACE", help=MACHINE_HELP)] = None,
    source: FromApp = None,
    store: Store = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Start an execution; prints its id.

    Starting again with the same id, machine and input changes nothing. The first step is taken here, so the machine's
    actions and guards must be there: name the module that registers them. Tasks are left to the workers.

    \b
    casework start order.yaml --id o-1 --input '{"amount": 4200}'
    casework start shop:order --input @order.json
    casework start order --app shop:application
    """
    by_app = {each.name: each for each in arguments_of(source).get("machines", ())}
    if code is None and machine in by_app:
        machines = list(by_app.values())
        wanted: str | None = machine
    else:
        machines = find_machines(code or machine)
        wanted = machine if code else None
    if wanted is None and len(machines) > 1:
        names = ", ".join(each.name for each in machines)
        raise Misuse(f"{machine!r} has several machines ({names}); write `casework start NAME --machine {machine}`")
    chosen = next((each for each in machines if wanted is None or each.name == wanted), None)
    if chosen is None:
        names = ", ".join(each.name for each in machines)
        raise Misuse(f"{code!r} has no machine {wanted!r}; it has: {names}")
    known = chosen.beside([*by_app, *(each.name for each in machines)])
    missing = [what for what in known.missing_functions() if not what.startswith("task")]
    if missing:
        raise Misuse(
            f"machine {chosen.name!r} names {', '.join(missing)}, which {code or source or machine!r} does not "
            f"register; the first step is taken here and may need them: {_cure(chosen.name, code or machine, missing)}"
        )
    value = read_json(input, "--input")
    with open_store(store, source, machines, make=True) as app:
        execution = app.start(chosen.name, id=id, input=value)
    if as_json:
        print_json(execution)
    else:
        print(execution.id)


def _cure(name: str, place: str, missing: Sequence[str]) -> str:
    """What to do about functions and machines that a place lacks."""
    if place.lower().endswith(MACHINE_FILES):
        return "start it from the module that registers them, as MODULE:NAME"
    module, colon, _ = place.partition(":")
    if not any(what.startswith("machine") for what in missing):
        return f"register them in {module!r}"
    there = {f"machine {each.name!r}" for each in find_machines(module)} if colon else set()
    if f"machine {name!r}" in there and there.issuperset(what for what in missing if what.startswith("machine")):
        return f"start it with all machines of its module: `casework start {name} --machine {module}`"
    return "name a place that has them all: a list of machines, or the module that imports them"


@command
def send(
    id: Id,
    event: Annotated[str, typer.Argument(metavar="EVENT", help="The event's type.", show_default=False)],
    data: Annotated[
        str | None, typer.Argument(metavar="[JSON|@FILE]", help="The payload; @- reads stdin.", show_default=False)
    ] = None,
    event_id: Annotated[
        str | None,
        typer.Option(
            "--event-id",
            help="Your id of the event: a repeat has no effect while it is among the last 32 taken.",
        ),
    ] = None,
    priority: Annotated[int, typer.Option(help="0 to 4; higher ones go before those of other executions.")] = 0,
    source: FromApp = None,
    store: Store = None,
    debug: Debug = False,
) -> None:
    """Put an event into an execution's mailbox; a worker takes it.

    Needs no code: the event is checked against the definition that the execution started with.

    \b
    casework send o-1 PaymentReceived '{"ref": "p-77"}' --event-id p-77
    """
    value = read_json(data, "the payload")
    with open_store(store, source) as app:
        app.send(id, event, value, event_id=event_id, priority=priority)
    print(f"{event} is in the mailbox of {id}")


@command
def wait(
    id: Id,
    timeout_s: Annotated[
        float | None,
        typer.Option(min=0, help="Give up after so many seconds; the execution goes on.", show_default=False),
    ] = None,
    source: FromApp = None,
    store: Store = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Wait until an execution has ended, and print its output as JSON.

    Exit code 1 when it failed or was cancelled, and when it takes too long.

    \b
    casework wait o-1 --timeout-s 60
    """
    with open_store(store, source) as app:
        execution = app.wait(id, timeout_s=timeout_s)
    if as_json:
        print_json(execution)
    elif execution.status == "done":
        print_json(execution.output)
    if execution.status != "done":
        message = (execution.error or {}).get("message", "")
        say(f"{id} {execution.status}{f': {message}' if message else ''}")
        raise typer.Exit(FAILED)
