"""Planted faults in streams and their consumers: our own programs with one guard taken out.

Some are a scenario with a guard less instead: a reader without the contiguity check, a truncation beyond a reader.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from casework.errors import ConditionFailed, Contention, OutcomeUnknown, UnexpectedSeq
from casework.kernel.conditions import absent, equals
from casework.kernel.effects import Instant
from casework.kernel.items import AnyWrite, Check, Put, Update
from casework.kernel.programs import Program, now, transact, write
from casework.kernel.schema import FORMAT, STREAM_CLAIMS, STREAMS
from casework.simulation.faults import ROUGH
from casework.simulation.scenarios.deciding import Deciding
from casework.simulation.scenarios.streams import (
    OPTIONS,
    Appends,
    Consumers,
    ForeignReaders,
    OlderWriters,
)
from casework.simulation.scenarios.truncation import Truncation, TruncationAtOnce
from casework.streams import append, cursors, read, retention
from tests.simulation.planting import ALWAYS, Fault, Plant, patched

# --- appends ----------------------------------------------------------------------------------------------------------


def sent_as(change: Callable[[Sequence[AnyWrite]], list[AnyWrite]]) -> Plant:
    """The transaction of an append is changed before it is sent."""
    return patched(append, "transact", lambda writes: transact(change(writes)))


def unconditional(kind: Any, table: Any = None) -> Plant:
    """Writes of this kind to the table, or to any, ask for nothing; a Check is left out."""

    def change(writes: Sequence[AnyWrite]) -> list[AnyWrite]:
        hit = [type(one) is kind and table in (None, one.key.table) for one in writes]
        return [
            msgspec.structs.replace(one, when=None) if is_hit else one
            for one, is_hit in zip(writes, hit, strict=True)
            if not (is_hit and kind is Check)
        ]

    return sent_as(change)


def _head_and_segment(writes: Sequence[AnyWrite]) -> list[AnyWrite]:
    """The first two, head and segment, ask for nothing."""
    return [msgspec.structs.replace(one, when=None) if n < 2 else one for n, one in enumerate(writes)]


def _without_markers_condition(writes: Sequence[AnyWrite]) -> list[AnyWrite]:
    """The marker that crosses an older writer's number overwrites what is there: the third item of ``STREAMS``."""
    return [
        msgspec.structs.replace(one, when=None) if n > 1 and isinstance(one, Put) and one.key.table is STREAMS else one
        for n, one in enumerate(writes)
    ]


def _number_first(writes: Sequence[AnyWrite]) -> Program[None]:
    """The head is moved by itself; what it counts is stored afterwards."""
    head, *others = writes
    try:
        yield from transact([head])
    except ConditionFailed as refused:
        raise ConditionFailed([*refused.refusals, *[None] * len(others)]) from None
    try:
        yield from transact(others)
    except ConditionFailed as refused:
        raise ConditionFailed([None, *refused.refusals]) from None


def _believed(writes: Sequence[AnyWrite]) -> Program[None]:
    """An answer that was lost is taken for a success."""
    try:
        yield from transact(writes)
    except OutcomeUnknown:
        pass


def _never_crossed(log: Any, stream: str, place: Any) -> Any:
    """An older writer's number that holds nothing is waited for."""
    return place


def _never_filled(stream: str, position: int, first_above: int, at_us: int) -> Program[bool]:
    """A reader waits for what an older writer took a number for."""
    return False
    yield


def _filled_blindly(put: Any) -> Program[None]:
    """A marker overwrites what has landed meanwhile."""
    yield from write(msgspec.structs.replace(put, when=None))


_look = append.look


def _anywhere(log: Any, stream: str, batch: Any, expected_seq: int) -> Program[Any]:
    """Wherever the stream ends is as it was expected."""
    return (yield from _look(log, stream))


def _by_what_shows(log: Any, stream: str, batch: Any, expected_seq: int) -> Program[Any]:
    """A claim that does not show yet is one that is not there."""
    place = yield from _look(log, stream)
    if place.top == expected_seq:
        return place
    yield from append.resolve(log, stream, batch)
    if any(pending.outcome is not None for pending in batch):
        return None
    raise UnexpectedSeq(stream, expected_seq, place.top)


class NaiveReader(ForeignReaders):
    """A reader that takes whatever stands above its cursor, beside writers who do not know of it."""

    options = OPTIONS
    faults = ROUGH


# --- consumers --------------------------------------------------------------------------------------------------------

_change = cursors._change


def _cursor_first(before: Any, after: Any, writes: Sequence[AnyWrite] = ()) -> Program[Any]:
    """The cursor is moved, then the handler's writes are applied."""
    moved = yield from _change(before, after)
    if writes:
        yield from transact(list(writes))
    return moved


def _effects_first(before: Any, after: Any, writes: Sequence[AnyWrite] = ()) -> Program[Any]:
    """The handler's writes are applied, then the cursor is moved."""
    if writes:
        yield from transact(list(writes))
    return (yield from _change(before, after))


def _anybodys(cursor: Any) -> Any:
    return ALWAYS


def _own_whatever_it_says(cursor: Any) -> Any:
    """A cursor is known by its holder only, so that a repeat after a lost answer holds twice."""
    return equals("token", cursor.token) if cursor.token else absent("token")


def _late() -> Program[Instant]:
    """The time by its upper bound."""
    moment = yield from now()
    return Instant(moment.latest_us, moment.latest_us)


def _steals(group: str, stream: str, own: str, lease_s: float) -> Program[Any]:
    """A cursor is taken whoever holds it; who held it is fenced off all the same."""
    found = yield from cursors.read_cursor(group, stream)
    moment = yield from now()
    taken = msgspec.structs.replace(found, token=own, lease_end_us=moment.latest_us + round(lease_s * 1e6))
    changes: Any = {"after": taken.after, "token": own, "lease_end_us": taken.lease_end_us, "format": FORMAT}
    try:
        yield from transact([Update(cursors.cursor_key(group, stream), changes, when=cursors._is(found))])
    except (ConditionFailed, Contention, OutcomeUnknown):
        return None
    return taken


# --- retention --------------------------------------------------------------------------------------------------------


class BeyondTheSlowest(TruncationAtOnce):
    """What the fastest reader has read is removed."""

    def slowest(self) -> int:
        return max(self.cursors)


class ForgetsEarly(Truncation):
    """Claims are removed while somebody may still push again."""

    repush_window_s = 0.0


def _floor_unsaid(stream: str, head: Any, upto: int) -> Program[int]:
    """What is removed is not noted in the head."""
    return upto
    yield


def _head_one_more(log: Any, stream: str) -> Program[Any]:
    """The segment that ends at the head is removed, too."""
    head = yield from read.read_head(log, stream)
    return msgspec.structs.replace(head, last_seq=head.last_seq + 1)


FAULTS = (
    Fault("the head is moved without asking", Appends, patched(append, "head_is", lambda last_seq: ALWAYS)),
    Fault("a segment and its head are stored without asking", Appends, sent_as(_head_and_segment)),
    Fault("an operation's claim is put without asking", Appends, unconditional(Put, STREAM_CLAIMS)),
    Fault("the number is taken before the transaction", Appends, patched(append, "transact", _number_first)),
    Fault("an append's lost answer is taken for a success", Appends, patched(append, "transact", _believed)),
    Fault("an append is stored wherever the stream ends", Deciding, patched(append, "expected_place", _anywhere)),
    Fault("a claim that does not show yet is not there", Deciding, patched(append, "expected_place", _by_what_shows)),
    Fault("a reader passes holes", NaiveReader),
    Fault("no check of the predecessor for a foreign reader", ForeignReaders, unconditional(Check)),
    Fault("a segment overwrites an older writer's operation", OlderWriters, unconditional(Put, STREAMS)),
    Fault("a crossing marker is put without asking", OlderWriters, sent_as(_without_markers_condition)),
    Fault("a hole is filled without asking", OlderWriters, patched(read, "write", _filled_blindly)),
    Fault("an older writer's number is never crossed", OlderWriters, patched(append, "_crossing", _never_crossed)),
    Fault("an older writer's hole is never filled", OlderWriters, patched(read, "fill_hole", _never_filled)),
    Fault("a cursor moves before its effects", Consumers, patched(cursors, "_change", _cursor_first)),
    Fault("effects are applied before their cursor moves", Consumers, patched(cursors, "_change", _effects_first)),
    Fault("a cursor is anybody's to move", Consumers, patched(cursors, "_is", _anybodys)),
    Fault("a cursor is fenced by its holder only", Consumers, patched(cursors, "_is", _own_whatever_it_says)),
    Fault("a cursor's lease ends by the upper bound of the clock", Consumers, patched(cursors, "now", _late)),
    Fault("a cursor is taken from whoever holds it", Consumers, patched(cursors, "take", _steals)),
    Fault("a truncation beyond the slowest reader", BeyondTheSlowest),
    Fault("claims are forgotten while repeats may come", ForgetsEarly),
    Fault("a truncation does not say where it ends", Truncation, patched(retention, "_raise_floor", _floor_unsaid)),
    Fault("the segment at the head is truncated", TruncationAtOnce, patched(retention, "read_head", _head_one_more)),
)
