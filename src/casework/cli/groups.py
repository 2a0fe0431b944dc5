"""``casework streams groups``, ``seek``, ``resume``, ``parked``, ``replay``: look after groups of consumers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from casework.cli.application import FromApp
from casework.cli.failures import command
from casework.cli.opening import AsJson, Debug, Store, counted, open_store, print_json

Stream = Annotated[str, typer.Argument(metavar="STREAM", help="The stream.", show_default=False)]
Group = Annotated[str, typer.Argument(metavar="GROUP", help="The group of consumers.", show_default=False)]


def state_of(lag: Any) -> str:
    """One line on a group in a stream: where it is, and what is wrong."""
    state = "stopped" if lag.is_stopped else "in trouble" if lag.trouble else "going"
    line = f"at {lag.after}, {lag.lag} behind, {lag.parked} parked, {state}"
    if lag.error:
        line += f"; {lag.error}"
    if lag.trouble:
        line += f"; {lag.trouble} ({counted(lag.trouble_n, 'time')} in a row)"
    return line


@command
def groups(source: FromApp = None, store: Store = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """List the groups of consumers: how far each is in its streams, what it parked, why it does not go on.

    \b
    casework streams groups
    """
    found: list[Any] = []
    cursor = None
    with open_store(store, source, executions=False) as opened:
        while True:
            page = opened.streams.groups(cursor=cursor)
            found += page.groups
            cursor = page.next_cursor
            if cursor is None:
                break
    if as_json:
        print_json(found)
    else:
        for lag in found:
            print(f"{lag.group}  {lag.stream}: {state_of(lag)}")


@command
def seek(
    group: Group,
    stream: Stream,
    to: Annotated[
        str,
        typer.Option(
            metavar="PLACE", show_default=False,
            help="floor, snapshot, head, the number behind which it goes on, or a time: 2026-05-01T08:00:00Z.",
        ),
    ],
    source: FromApp = None,
    store: Store = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:  # fmt: skip
    """Move a group of consumers in a stream, on or back; one that is stopped goes on from there.

    \b
    casework streams seek mailer orders --to floor
    casework streams seek mailer orders --to 2026-05-01T08:00:00Z
    """
    from casework.streams.positions import start_of

    place = start_of(to)
    with open_store(store, source, executions=False) as opened:
        cursor = opened.streams.seek(group, stream, place)
    if as_json:
        print_json(cursor)
    else:
        print(f"{group}  {stream}: goes on behind {cursor.after}")


@command
def resume(
    group: Group,
    stream: Stream,
    skip: Annotated[bool, typer.Option("--skip", help="Go on behind the operation that failed.")] = False,
    source: FromApp = None,
    store: Store = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Let a group that is stopped in a stream go on, at the operation that failed or behind it.

    \b
    casework streams resume mailer orders --skip
    """
    with open_store(store, source, executions=False) as opened:
        cursor = opened.streams.resume(group, stream, skip=skip)
    if as_json:
        print_json(cursor)
    else:
        print(f"{group}  {stream}: goes on behind {cursor.after}")


@command
def parked(
    group: Group,
    stream: Stream,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many.")] = 100,
    after: Annotated[int, typer.Option(min=0, help="Begin behind this number.")] = 0,
    source: FromApp = None,
    store: Store = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List the operations that a group put aside, and why.

    \b
    casework streams parked mailer orders
    """
    with open_store(store, source, executions=False) as opened:
        found = opened.streams.parked(group, stream, limit=limit, after=after)
    if as_json:
        print_json(found)
    else:
        for one in found:
            print(f"{one.op.seq}  {one.op.id}  {counted(one.attempts, 'attempt')}  {one.error}")


@command
def replay(
    group: Group,
    stream: Stream,
    seq: Annotated[
        int | None, typer.Argument(metavar="[NUMBER]", min=1, help="The one; else all that are parked.")
    ] = None,
    source: FromApp = None,
    store: Store = None,
    debug: Debug = False,
) -> None:
    """Let a group handle what it put aside once more; its consumers do it.

    \b
    casework streams replay mailer orders 17
    """
    with open_store(store, source, executions=False) as opened:
        count = opened.streams.replay_parked(group, stream, seq)
    print(f"{group}  {stream}: {counted(count, 'operation')} will be handled once more")


COMMANDS: dict[str, Callable[..., None]] = {
    "groups": groups,
    "seek": seek,
    "resume": resume,
    "parked": parked,
    "replay": replay,
}
"""Part of ``casework streams``."""
