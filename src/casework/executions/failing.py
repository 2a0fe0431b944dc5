"""When a step fails its execution: nothing of that step counts, and the event is kept with the state before it.

A guard, an action or an expression raised, and no transition took the error; or the chart did not come to rest. The
commit that ends the execution as failed holds what the events before this one caused, and nothing of what this one
half did. ``redrive`` takes the event again, with the repaired code.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from casework.errors import CaseworkError
from casework.executions.mailbox import Mail
from casework.executions.runtime import Runtime
from casework.executions.state import Failure, Invoke, Kept, Timer
from casework.kernel.containment import in_words, text_of, type_of
from casework.statechart import snapshot as chart

MAX_FAILURE_BYTES = 64 * 1024
"""An event at which an execution failed is kept in the state up to this size, else as a dead letter."""

MAX_TYPE = 1000

_KINDS = {
    "": "event", "given": "event", "result": "result", "child": "report", "machine": "result", "cancel": "event",
    "offer": "event",
}  # fmt: skip


class Point(NamedTuple):
    """What a change held before a step, to go back to."""

    snap: chart.Snapshot
    timers: list[Timer]
    invokes: dict[str, Invoke]
    outbox: dict[str, list[Mail]]
    tasks: dict[str, Any]
    removed: list[Any]
    starts: list[Any]
    fans: list[Any]
    recalls: list[Any]
    left: list[Any]
    published: int
    events: int
    logs: int
    cancel: str
    deferred: list[Kept]
    refused: int


def point_of(change: Any) -> Point:
    """What ``change`` holds now."""
    return Point(
        change.data.snap, change.timers.copy(), change.data.invokes.copy(),
        {target: mails.copy() for target, mails in change.outbox.items()}, change.tasks.copy(), change.removed.copy(),
        change.starts.copy(), change.fans.copy(), change.recalls.copy(), change.left.copy(), len(change.published),
        len(change.events), len(change.logs), change.data.cancel, change.data.deferred,
        len(change.refused),
    )  # fmt: skip


def go_back(change: Any, point: Point) -> None:
    """Make as if nothing had happened since ``point``."""
    change.data.snap, change.timers, change.data.invokes = point.snap, point.timers, point.invokes
    change.outbox, change.tasks, change.removed = point.outbox, point.tasks, point.removed
    change.starts, change.fans, change.recalls, change.left = point.starts, point.fans, point.recalls, point.left
    del change.published[point.published :], change.events[point.events :], change.logs[point.logs :]
    change.data.cancel, change.data.deferred = point.cancel, point.deferred
    del change.refused[point.refused :]
    change.later = []


def error_of(error: BaseException, where: str, *, is_brief: bool = False) -> dict[str, Any]:
    """An exception as an execution keeps it."""
    most = 200 if is_brief else 1000
    message = text_of(error, most) if isinstance(error, CaseworkError) else in_words(error, most)
    return {"message": message, "type": type_of(error), "where": where}


def kept_of(rt: Runtime, what: Mail | Timer | None) -> Kept:
    """What is kept of a mail, a timer or a start of which the chart did not even hear."""
    if what is None:
        return Kept("start", "start")
    if isinstance(what, Timer):
        if not what.event_type:
            return Kept("timer", what.name, stay=what.stay)
        return Kept("delayed", what.event_type, rt.decode_value(what.data), is_taken_again=False)
    again = what.kind in ("", "given")
    return Kept(
        _KINDS[what.kind], what.type, what.data, what.id, what.source, what.stay, what.invoke, is_taken_again=again
    )


def kept_event(kind: str, event: chart.Event, *, is_taken_again: bool) -> Kept:
    """What is kept of an event of the chart."""
    return Kept(kind, event.type, event.data, event.id, event.source, event.stay, event.invoke, is_taken_again)


def put_aside(kept: Kept, *, is_brief: bool) -> tuple[Kept, Mail | None]:
    """The event as the state keeps it, and what is kept as a dead letter beside it, where it is too large."""
    if not is_brief and len(msgspec.json.encode(kept)) <= MAX_FAILURE_BYTES:
        return kept, None
    type = kept.type[:MAX_TYPE]
    letter = Mail(type, kept.data, kept.id, kept.source, kept.stay, kept.invoke)
    return msgspec.structs.replace(kept, type=type[:200] if is_brief else type, data=None), letter


def failed_snapshot(snap: chart.Snapshot, error: Any) -> chart.Snapshot:
    """A chart that failed where it stood."""
    return chart.Snapshot(
        snap.configuration, snap.context, "failed", snap.history, snap.stays, snap.stay_n, None, error
    )  # fmt: skip


def failure_of(kept: Kept, error: dict[str, Any], invokes: dict[str, Invoke]) -> Failure:
    """What a failed execution keeps, so that it can be driven again."""
    stopped = list(invokes)
    if not kept.is_taken_again and kept.invoke and kept.invoke not in invokes:
        stopped.append(kept.invoke)  # the one that failed begins again
    return Failure(kept, error, stopped)
