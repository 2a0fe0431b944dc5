"""Reading: contiguous operations only.

A transaction's items need not become visible at one instant, and a query may see a part of them. What protects a reader
is that it takes a segment only if it begins right after what it has; at a gap it stops and looks why.
"""

from __future__ import annotations

import itertools

import msgspec

from casework.arguments import check_count
from casework.errors import (
    ConditionFailed,
    Contention,
    CursorAhead,
    CursorTooOld,
    LogChanged,
    Misuse,
    OutcomeUnknown,
    StreamDamaged,
)
from casework.kernel.conditions import absent
from casework.kernel.items import Put
from casework.kernel.programs import Program, get, now, query, sleep, write
from casework.kernel.schema import STREAMS
from casework.streams.log import (
    Head,
    Log,
    Op,
    Segment,
    check_after,
    check_stream,
    head_key,
    head_of,
    marker_item,
    segment_of,
)
from casework.streams.marks import check_mark, differs, mark_among, marks_in

CONFIRMATIONS = 3
CONFIRM_AFTER_S = 0.3
"""Before a hole is called damage it is looked at again so often. The time in a segment is that of its writer's plan;
it may have stood still before it was sent: an old segment does not say that nothing below it is on its way."""

PAGE_OPS_MAX = 10_000
"""Operations of one page at most."""


class OpPage(msgspec.Struct, frozen=True):
    """Contiguous operations of a stream."""

    ops: list[Op]
    next_after: int
    """The cursor for the next page. It may stand above the last operation: numbers can be marked as holding nothing."""
    segments: tuple[Segment, ...] = ()
    """Where the operations came from."""
    known: str = ""
    """The mark that the reader handed in."""

    @property
    def mark(self) -> str:
        """The mark of ``next_after``, to be handed in for the next page; empty when none is known."""
        return self.mark_at(self.next_after)

    def mark_at(self, position: int) -> str:
        """The mark of a position up to ``next_after``, but not before the page."""
        return mark_among(self.segments, position) or self.known

    def marks(self) -> list[str]:
        """The mark of each operation."""
        known = dict(itertools.chain.from_iterable(marks_in(segment) for segment in self.segments))
        return [known[op.seq] for op in self.ops]


def read_page(
    log: Log, stream: str, after: int = 0, limit: int = 1000, *, max_bytes: int | None = None, mark: str = ""
) -> Program[OpPage]:
    """The operations after number ``after``, without a hole; an empty page when there is nothing more to read now.

    Args:
        log: what this process knows of its streams.
        stream: its id.
        after: the cursor, 0 at the beginning.
        limit: at most so many, 1 to 10,000.
        max_bytes: end the page when its data has so many bytes; it holds one operation at least.
        mark: of the cursor, from the page that ended there; empty: the log is taken for the one that was read.

    Raises:
        LogChanged: the log is not the one of ``mark``.
        CursorTooOld: what comes after the cursor was truncated.
        CursorAhead: the stream ends before the cursor.
        StreamDamaged: a hole that stays, or segments that overlap.
        Misuse: an argument is wrong.
    """
    _check_page(stream, after, limit, max_bytes, mark)
    mark = mark if after else ""
    ops: list[Op] = []
    segments: list[Segment] = []
    position, items_n, size = after, 2 + limit // 50 + bool(mark), 0
    looked = False

    def so_far() -> OpPage:
        return OpPage(ops, position, tuple(segments), mark)

    while True:
        # With a mark the segment at the cursor is read, too, in the same call.
        low = position if mark and position == after else position + 1
        page = yield from query(STREAMS, stream, low=low, limit=items_n)
        for item in page.items:
            segment = segment_of(item)
            if position == after and differs(segment, after, mark):
                raise LogChanged(stream, after, (yield from read_head(log, stream)).last_seq)
            if segment.first > position + 1:
                if ops or looked:
                    return so_far()
                looked = True
                if not (yield from _explain_gap(log, stream, position, segment)):
                    return so_far()
                break  # something moved or was filled: look again
            _check_overlap(segment, position, after)
            for op in segment.ops():
                if op.seq <= position:
                    continue
                size += len(op.data)
                if ops and (len(ops) == limit or (max_bytes is not None and size > max_bytes)):
                    return so_far()
                if not segments or segments[-1] is not segment:
                    segments.append(segment)
                ops.append(op)
                position = op.seq
            position = max(position, segment.last)
        else:
            if len(page.items) < items_n and page.next is None:
                if not ops and position == after and not looked:
                    looked = True
                    if (yield from _explain_end(log, stream, after, mark)):
                        continue
                return so_far()
            if len(ops) == limit:
                return so_far()
        items_n = min(items_n * 2, 500)


def _check_page(stream: str, after: int, limit: int, max_bytes: int | None, mark: str) -> None:
    check_stream(stream)
    check_after(after)
    if type(limit) is not int or not 1 <= limit <= PAGE_OPS_MAX:
        raise Misuse(f"limit is {limit!r:.40}; it must be 1 to {PAGE_OPS_MAX:,}")
    if max_bytes is not None:
        check_count("max_bytes", max_bytes, 1)
    check_mark(mark)


def _check_overlap(segment: Segment, position: int, after: int) -> None:
    """Below the cursor's own segment nothing may overlap: every later segment begins right behind its predecessor."""
    if segment.first <= position and position != after:
        raise StreamDamaged(
            f"stream {segment.stream!r}: the segment {segment.first} to {segment.last} overlaps the one that ends at "
            f"{position}; `casework streams repair {segment.stream}` shows what is wrong"
        )


def read_head(log: Log, stream: str) -> Program[Head]:
    """The head of a stream; that of an empty one where there is none."""
    check_stream(stream)
    item = yield from get(head_key(stream))
    return head_of(stream, item, foreign=log.options.foreign_writers)


def _explain_end(log: Log, stream: str, after: int, mark: str) -> Program[bool]:
    """Nothing stands above the cursor: is that the end? True: look again. Raises when it is not the end."""
    head = yield from read_head(log, stream)
    if after < head.floor_seq:
        raise CursorTooOld(stream, after, head.floor_seq, head.snapshot_seq)
    if head.last_seq == after:
        return False
    page = yield from query(STREAMS, stream, limit=1, reverse=True)
    top = int(page.items[0]["seq"]) if page.items else 0
    if top > after:
        return True
    if head.last_seq < after:
        if top < after and mark:
            raise LogChanged(stream, after, max(top, head.last_seq))
        if top < after:
            raise CursorAhead(f"stream {stream!r} ends at {max(top, head.last_seq)}, the cursor is {after}; is it of "
                              "another stream, or was the store restored?")  # fmt: skip
        return False  # the segment is visible, its head is not yet
    if log.options.foreign_writers:
        return False  # a number was taken, its operation is on its way; the next writer crosses it
    moment = yield from now()
    if moment.earliest_us - head.at_us > log.options.grace_s * 1e6:
        if (yield from _has_changed(stream, after, 0)):
            return True
        raise StreamDamaged(
            f"stream {stream!r} has nothing after {after}, but its head is {head.last_seq}; "
            f"`casework streams repair {stream}` shows what is wrong"
        )
    return False


def _explain_gap(log: Log, stream: str, position: int, above: Segment) -> Program[bool]:
    """Why the segment ``above`` does not follow on ``position``. True: look again. Raises when it is no passing gap."""
    head = yield from read_head(log, stream)
    if position < head.floor_seq:
        raise CursorTooOld(stream, position, head.floor_seq, head.snapshot_seq)
    moment = yield from now()
    seen_us = log.holes.setdefault((stream, position), moment.earliest_us)
    if len(log.holes) > 1000:
        log.holes.pop(next(iter(log.holes)))
    since_us = above.at_us or seen_us
    if moment.earliest_us - since_us <= log.options.grace_s * 1e6:
        return False
    if (yield from _has_changed(stream, position, above.first, once=log.options.foreign_writers)):
        return True
    if not log.options.foreign_writers:
        raise StreamDamaged(
            f"stream {stream!r} has a hole: nothing between {position} and {above.first}; "
            f"`casework streams repair {stream}` shows what is wrong"
        )
    return (yield from fill_hole(stream, position, above.first, moment.middle_us))


def _has_changed(stream: str, position: int, first_above: int, *, once: bool = False) -> Program[bool]:
    """Whether something else than before stands above ``position``, at one of several looks (``once``: at one)."""
    for _ in range(1 if once else CONFIRMATIONS):
        if not once:
            yield from sleep(CONFIRM_AFTER_S)
        page = yield from query(STREAMS, stream, low=position + 1, limit=1)
        found = segment_of(page.items[0]).first if page.items else 0
        if found != first_above:
            return True
    return False


def fill_hole(stream: str, position: int, first_above: int, at_us: int) -> Program[bool]:
    """Mark the numbers between ``position`` and ``first_above`` as holding nothing, one at a time, from above.

    From above, because then each number stands right below a segment that was seen: whatever is still in flight and
    ends there conflicts with the marker, so the two never overlap. False when something is in flight.
    """
    for number in range(first_above - 1, max(position, first_above - 101), -1):
        try:
            yield from write(Put(STREAMS, marker_item(stream, number, number, at_us), when=absent()))
        except (ConditionFailed, OutcomeUnknown):
            return True  # it has landed
        except Contention:
            return False
    return True
