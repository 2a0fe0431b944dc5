"""Planted faults in consumers whose handlers fail or take long, in who looks after their groups, and in buffering."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock

import msgspec

from casework.kernel.conditions import absent, equals
from casework.kernel.items import Put, Update
from casework.kernel.programs import Program, now, transact, write
from casework.kernel.schema import STREAM_CLAIMS
from casework.simulation.faults import ROUGH
from casework.simulation.scenarios.buffering import Buffered
from casework.simulation.scenarios.consuming import Failures, OverrunHandlers, SlowHandlers
from casework.streams import consumer, cursors
from casework.streams.cursors import Cursor
from casework.streams.writer import Writer
from tests.simulation.planting import ALWAYS, Fault, patched, together
from tests.simulation.stream_mutations import unconditional

_note_failure, _change, _handle_page = cursors.note_failure, cursors._change, consumer._handle_page


def _where_it_stands(cursor: Cursor, after: int, error: str, lease_s: float, *, stop: bool = False) -> Program[Cursor]:
    """A group stops where its cursor is, with numbers that hold nothing before the operation that failed."""
    return (yield from _note_failure(cursor, cursor.after, error, lease_s, stop=stop))


def _without_renewal(cursor: Cursor, after: int, error: str, lease_s: float, *, stop: bool = False) -> Program[Cursor]:
    """A failed attempt leaves the lease as its holder knows it."""
    failed = msgspec.structs.replace(
        cursor, after=after, attempts=cursor.attempts + 1, error=error, is_stopped=stop
    )  # fmt: skip
    return (yield from _change(cursor, failed))


def _holder_only(cursor: Cursor) -> Any:
    """A cursor that nobody holds is taken wherever it stands by now."""
    holder = equals("token", cursor.token) if cursor.token else absent("token")
    at = equals("after", cursor.after) if cursor.token else ALWAYS
    return cursors.all_of(holder, at, absent("stopped"))


def _resumed_whatever(group: str, stream: str, *, skip: bool = False) -> Program[Cursor]:
    """Whoever resumes moves the cursor on from where it saw it, whatever has become of it."""
    found = yield from cursors.read_cursor(group, stream)
    after = found.after + 1 if skip and found.is_stopped else found.after
    changes: Any = {"after": after, "attempts": 0, "lease_end_us": 0}
    yield from transact([Update(cursors.cursor_key(group, stream), changes, ["stopped", "error", "token"])])
    return (yield from cursors.read_cursor(group, stream))


def _forgotten(cursor: Cursor, op: Any, error: str, lease_s: float) -> Program[Cursor]:
    """What is put aside is put aside nowhere."""
    return (yield from cursors.advance(cursor, op.seq, (), lease_s))


def _never_alone(*args: Any) -> Program[Any]:
    """Of writes that were refused together nobody looks for the one to blame."""
    cursor, _ = yield from _handle_page(*args)
    return cursor, 0


def _whosever(group: str, stream: str, own: str, lease_s: float) -> Program[None]:
    """A lease is renewed whoever has it by now, and the cursor is its renewer's again."""
    moment = yield from now()
    changes: Any = {"lease_end_us": moment.latest_us + round(lease_s * 1e6), "token": own}
    yield from write(Update(cursors.cursor_key(group, stream), changes))


def _not_at_all(*args: Any) -> Program[None]:
    """A lease is not renewed while the handler runs."""
    return
    yield


def _takes_what_was_refused(before: Cursor, after: Cursor, writes: Sequence[Any] = ()) -> Program[Cursor]:
    """A holder that was taken over takes its move for done."""
    try:
        return (yield from _change(before, after, writes))
    except cursors.Lost:
        return after


# --- buffered writers -------------------------------------------------------------------------------------------------


def _goes_on(self: Writer, lane: Any, group: list[Any]) -> list[Any]:
    """What is put behind something that failed is stored."""
    return group


def _unsaid(self: Writer, entry: Any) -> None:
    """What a put failed with is told nobody."""


def _at_once(self: Writer) -> Program[None]:
    """A flush stores what waits, and not what is being stored."""
    for stream, lane in tuple(self._lanes.items()):
        if lane.queue and lane.seat:
            lane.seat.pop()
            yield from self._lead(stream, lane)


class OftenPaused(Failures):
    """Hosts that stand still more often, and shorter: between a look at a free cursor and its take, too."""

    faults = msgspec.structs.replace(ROUGH, pause=0.03, pause_s_max=10.0)


FAULTS = (
    Fault("a group stops at numbers that hold nothing", Failures, patched(cursors, "note_failure", _where_it_stands)),
    Fault("a free cursor is taken wherever it stands", OftenPaused, patched(cursors, "_is", _holder_only)),
    Fault(
        "a resume moves whatever it finds",
        Failures,
        lambda: mock.patch("casework.simulation.scenarios.consuming.resume", _resumed_whatever),
    ),
    Fault("what is parked is lost", Failures, patched(cursors, "park", _forgotten)),
    Fault("nobody looks for the one to blame", Failures, patched(consumer, "_handle_page", _never_alone)),
    Fault("a failed attempt ends the lease", SlowHandlers, patched(cursors, "note_failure", _without_renewal)),
    Fault("a lease is not renewed while the handler runs", SlowHandlers, patched(cursors, "extend", _not_at_all)),
    Fault("a renewal takes the cursor back", OverrunHandlers, patched(cursors, "extend", _whosever)),
    Fault("what is put behind something that failed is stored", Buffered, patched(Writer, "_without_broken", _goes_on)),
    Fault("a flush does not say what failed", Buffered, patched(Writer, "_note_failure", _unsaid)),
    Fault("a flush does not wait and says nothing", Buffered, patched(Writer, "flush", _at_once)),
    Fault("a buffered operation's claim is put without asking", Buffered, unconditional(Put, STREAM_CLAIMS)),
    Fault(
        "a holder that was taken over takes its move for done",
        OverrunHandlers,
        lambda: together(
            mock.patch.object(cursors, "_change", _takes_what_was_refused),
            mock.patch.object(cursors, "_is", return_value=ALWAYS),
        ),
    ),
)
