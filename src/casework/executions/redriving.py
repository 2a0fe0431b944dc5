"""Driving a failed execution on: the event at which it failed is taken again, in the state before it.

What the state waited for begins again as new stays: armed timers from now, tasks and children under new keys. What it
no longer waited for stays as it is: a timer that had fired, a task whose result was taken. Delayed sends keep their
time.
"""

from __future__ import annotations

import msgspec

from casework.errors import Misuse
from casework.executions import deferring, failing
from casework.executions.change import Change
from casework.executions.mailbox import Mail, mails_of
from casework.executions.runtime import Runtime
from casework.executions.state import Data, Failure, Kept, State
from casework.kernel.containment import is_interrupt
from casework.kernel.items import Key
from casework.kernel.programs import Program, get
from casework.kernel.schema import EXECUTIONS
from casework.statechart import UnboundFunction, rearm
from casework.statechart import snapshot as chart


def kept_event(rt: Runtime, state: State, data: Data, *, skip: bool) -> Program[Kept | None]:
    """The event that is taken again; None: there is none, or it is skipped. Misuse when it cannot be taken again."""
    failure = data.failure
    if failure is None or not failure.event.is_taken_again:
        return None
    kept, way_out = failure.event, "drive it on without it (skip=True, `casework redrive --skip`)"
    if kept.kind == "start":
        if skip:
            raise Misuse(
                f"execution {state.id!r:.200} failed at its start, and there is nothing to go on from without that; "
                "mend the machine and drive it again, or purge it and start another"
            )
        return kept
    if skip:
        return None
    if not failure.letter:
        return kept
    item = yield from get(Key(EXECUTIONS, state.id, failure.letter))
    if failure.is_lost or item is None:
        why = "was too large to be kept" if failure.is_lost else "was kept as a dead letter, which is gone"
        raise Misuse(
            f"the event {kept.type!r:.80} at which execution {state.id!r:.200} failed cannot be taken again: its "
            f"payload {why}; {way_out}, and send it anew if it is needed"
        )
    (mail,) = mails_of(item, rt)
    return msgspec.structs.replace(kept, type=mail.type, data=mail.data)


def begin_again(change: Change, kept: Kept | None) -> None:
    """Let the execution of ``change`` go on, and take ``kept`` again.

    Where it fails once more, everything is as it was before, but for the error and the count of redrives. Raises
    UnboundFunction when this process lacks a function.
    """
    data = change.data
    failure, data.failure = data.failure, None
    assert failure is not None
    point = failing.point_of(change)
    before = data.snap
    change.ended = False
    change.status = "running"
    data.redrives += 1
    data.snap = msgspec.structs.replace(before, status="running", error=None)
    if not before.configuration:
        _begin(change)
    else:
        armed = {timer.name for timer in change.timers if not timer.event_type}
        change.rearm(rearm(change.machine, data.snap, change.now_us, armed, failure.stopped))
        if kept is not None:
            _take_again(change, kept, before.stays)
    if change.status == "failed":
        _as_before(change, failure, point)
        return
    if failure.letter and kept is not None:
        change.removed.append(Key(EXECUTIONS, change.state.id, failure.letter))
    # It may have failed before it was offered all of them, and repaired guards may take what broken ones did not. One
    # at which it fails now is another event than before: that failure stands, with what was done until then.
    deferring.offer(change)


def _begin(change: Change) -> None:
    try:
        change.begin(change.data.input)
    except UnboundFunction:
        raise
    except BaseException as error:
        if is_interrupt(error):
            raise
        change.poison(error, Kept("start", "start"))


def _take_again(change: Change, kept: Kept, stays: dict[str, int]) -> None:
    """Take the event, in the name of the stay that took the place of its own."""
    stay = kept.stay
    if stay:
        path = next((path for path, number in stays.items() if number == stay), "")
        stay = change.data.snap.stays.get(path, 0)
        if not stay:
            return  # its state is left meanwhile, by a transition that waited for nothing but the repair
    if change.ended:
        change.lost = Mail(kept.type, kept.data, kept.id, kept.source)
        change.lost_why = f"the execution had ended: {change.status}"
        return
    change.step(chart.Event(kept.type, kept.data, kept.id, kept.source, stay, kept.invoke), kept.kind, offers=False)


def _as_before(change: Change, failure: Failure, point: failing.Point) -> None:
    """It failed once more: nothing was begun and nobody is told, but the trace has it, and the error is the new one."""
    error = change.data.failure.error if change.data.failure is not None else failure.error
    events = change.events.copy()
    failing.go_back(change, point)
    change.events = events
    change.data.snap = failing.failed_snapshot(point.snap, error)
    change.data.failure = msgspec.structs.replace(failure, error=error)
    change.lost = None  # its dead letter stands where it stood
