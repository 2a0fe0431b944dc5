"""Retention: what keeps a stream from growing for ever.

Truncation first moves the floor, then removes what is below it, lowest first, each segment with its claims in one
transaction. Whoever dies in between leaves a prefix removed; the next truncation goes on. A reader below the floor is
told so, with the snapshot to go on from.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from casework.arguments import check_count, check_flag
from casework.errors import ConditionFailed, Contention, CorruptItem, Misuse, OutcomeUnknown
from casework.kernel.conditions import absent, all_of, any_of, equals, less_than, present
from casework.kernel.items import AnyWrite, Check, Delete, Item, Put, Update
from casework.kernel.programs import Program, lost_again, now, query, query_all, sleep, token, transact, write
from casework.kernel.retry import DEFAULT_RETRY
from casework.kernel.schema import FORMAT, REGISTRY, STREAMS, check_format
from casework.streams.append import head_is
from casework.streams.log import (
    STREAM_NAMES,
    Head,
    Log,
    Segment,
    claim_key,
    head_key,
    marker_item,
    segment_of,
)
from casework.streams.read import read_head

REPUSH_WINDOW_S = 7 * 86_400.0
"""A claim is kept so long at least, since a client may push again what it pushed before it went offline."""

CHUNK_BYTES = 350_000
SNAPSHOT_BYTES_MAX = 3_500_000
"""A snapshot is stored in one transaction; so many compressed bytes at most."""


class Truncated(msgspec.Struct, frozen=True):
    """What a truncation did."""

    floor_seq: int
    """Readers find nothing up to this number."""
    removed_ops: int
    kept_ops: int
    """Below the floor, but younger than the window for repeated pushes: removed by a later truncation."""


class Snapshot(msgspec.Struct, frozen=True):
    """What a reader needs instead of the operations up to ``seq``."""

    seq: int
    data: bytes


class StreamPage(msgspec.Struct, frozen=True):
    """Names of streams."""

    streams: list[str]
    next_cursor: str | None


def list_streams(log: Log, *, limit: int = 1000, cursor: str | None = None) -> Program[StreamPage]:
    """The ids of the streams that there are, in order. Only a ``next_cursor`` of None ends the listing."""
    check_count("limit", limit, 1, 10_000)
    page = yield from query(REGISTRY, STREAM_NAMES, limit=limit, after=cursor)
    return StreamPage([str(item["name"]) for item in page.items], page.next)


# --- truncation -------------------------------------------------------------------------------------------------------


def truncate(log: Log, stream: str, upto: int, *, repush_window_s: float = REPUSH_WINDOW_S) -> Program[Truncated]:
    """Remove the operations up to number ``upto``. Can be repeated, and goes on where another run of it ended.

    The segment that ends at the head stays, and so does what is younger than ``repush_window_s``, with its claims:
    until then a repeated push is recognised. Both are below the floor all the same.

    Raises Misuse when ``upto`` is above the head.
    """
    head = yield from read_head(log, stream)
    if type(upto) is not int or not 0 <= upto <= head.last_seq:
        raise Misuse(f"stream {stream!r}: upto is {upto!r:.40}; it must be 0 to {head.last_seq}, the head")
    floor = yield from _raise_floor(stream, head, upto)
    moment = yield from now()
    oldest_kept_us = moment.earliest_us - round(repush_window_s * 1e6)
    removed = kept = 0
    position = 0
    while position < min(floor, head.last_seq - 1):
        page = yield from query(STREAMS, stream, low=position + 1, high=min(floor, head.last_seq - 1), limit=25)
        if not page.items:
            break
        for item in page.items:
            segment = segment_of(item)
            position = segment.last
            if kept or segment.at_us > oldest_kept_us:
                kept += len(segment.ops())
            else:
                removed += yield from _remove(stream, segment)
    return Truncated(floor, removed, kept)


def _raise_floor(stream: str, head: Head, upto: int) -> Program[int]:
    if upto <= head.floor_seq:
        return head.floor_seq
    lower = any_of(absent("floor_seq"), less_than("floor_seq", upto))
    try:
        yield from write(Update(head_key(stream), {"floor_seq": upto}, when=all_of(present(), lower)))
    except ConditionFailed:
        return upto  # another truncation went further; this one removes only what it was asked to
    return upto


def _remove(stream: str, segment: Segment) -> Program[int]:
    """Remove one segment with its claims; a claim that belongs to a later operation of the same id is left."""
    ops = segment.ops()
    left = {op.id: op.seq for op in ops}
    lost = 0
    while True:
        writes: list[AnyWrite] = [Delete(STREAMS.key(stream, segment.last))]
        ids = list(left)
        writes += [
            Delete(claim_key(stream, id), when=any_of(absent("seq"), equals("seq", left[id]))) for id in ids
        ]  # fmt: skip
        try:
            yield from transact(writes)
            return len(ops)
        except ConditionFailed as failed:
            for id, refusal in zip(ids, failed.refusals[1:], strict=True):
                if refusal is not None:
                    del left[id]
        except (Contention, OutcomeUnknown) as error:
            lost = yield from lost_again(lost, DEFAULT_RETRY, error)


# --- snapshots --------------------------------------------------------------------------------------------------------


def put_snapshot(log: Log, stream: str, seq: int, data: bytes) -> Program[None]:
    """Store what a reader needs instead of the operations up to number ``seq``; replaces an older snapshot.

    An older or equal ``seq`` than the stored one changes nothing. Raises Misuse when ``seq`` is above the head, or
    the data has more than 3,500,000 bytes compressed.
    """
    if not isinstance(data, bytes):
        raise Misuse(f"data is {type(data).__name__}; a snapshot is bytes: encode it")
    packed = zlib.compress(data, 6)
    if len(packed) > SNAPSHOT_BYTES_MAX:
        raise Misuse(
            f"the snapshot has {len(packed):,} bytes compressed, the limit is {SNAPSHOT_BYTES_MAX:,}; "
            "keep it elsewhere and store its address"
        )
    chunks = [packed[start : start + CHUNK_BYTES] for start in range(0, len(packed), CHUNK_BYTES)]
    for _ in range(10):
        head = yield from read_head(log, stream)
        if type(seq) is not int or not 1 <= seq <= head.last_seq:
            raise Misuse(f"stream {stream!r}: seq is {seq!r:.40}; it must be 1 to {head.last_seq}, the head")
        if seq <= head.snapshot_seq:
            return
        old = yield from query_all(STREAMS, stream, low=-100, high=-1)
        last = head.snapshot_seq
        same = equals("snapshot_seq", last) if last else absent("snapshot_seq")
        writes: list[AnyWrite] = [Update(head_key(stream), {"snapshot_seq": seq}, when=all_of(present(), same))]
        for number, chunk in enumerate(chunks, 1):
            writes.append(Put(STREAMS, _chunk_item(stream, number, len(chunks), seq, chunk)))
        stale = sorted(int(item["seq"]) for item in old if int(item["seq"]) < -len(chunks))
        writes += [Delete(STREAMS.key(stream, sort)) for sort in stale]
        try:
            yield from transact(writes)
            return
        except (ConditionFailed, Contention, OutcomeUnknown):
            dice = yield from token()
            yield from sleep(DEFAULT_RETRY.pause_s(3, dice))
    raise Contention(f"stream {stream!r}: others stored snapshots 10 times meanwhile; try again")


def _chunk_item(stream: str, number: int, of: int, seq: int, chunk: bytes) -> dict[str, Any]:
    return {"stream_id": stream, "seq": -number, "format": FORMAT, "chunks": of, "snapshot_seq": seq, "body": chunk}


def get_snapshot(log: Log, stream: str) -> Program[Snapshot | None]:
    """The newest snapshot, or None.

    The head is read first: the snapshot that it names may become visible later, when an older one is of no use.
    """
    for attempt in range(1, 11):
        head = yield from read_head(log, stream)
        items = yield from query_all(STREAMS, stream, low=-100, high=-1)
        if not items and not head.snapshot_seq:
            return None
        items.reverse()  # chunk 1 stands at -1
        for item in items:
            check_format(item, f"a snapshot of stream {stream!r}")
        if items and _is_whole(items, head.snapshot_seq):
            body = b"".join(item["body"] for item in items if isinstance(item["body"], bytes))
            return Snapshot(int(items[0]["snapshot_seq"]), zlib.decompress(body))
        dice = yield from token()
        yield from sleep(DEFAULT_RETRY.pause_s(attempt, dice))  # another one is becoming visible
    raise CorruptItem(f"the snapshot of stream {stream!r} has chunks that do not belong together; store a new one")


def _is_whole(chunks: Sequence[Item], least_seq: int) -> bool:
    """Whether these are all chunks of one snapshot, and it is no older than the head says."""
    first = chunks[0]
    is_one = len(chunks) == first["chunks"] and all(item["snapshot_seq"] == first["snapshot_seq"] for item in chunks)
    return is_one and int(first["snapshot_seq"]) >= least_seq


# --- repair -----------------------------------------------------------------------------------------------------------


class Finding(msgspec.Struct, frozen=True):
    """Something that is wrong with a stream."""

    kind: Literal["hole", "overlap", "unreadable", "head too low", "head too high"]
    first: int
    last: int
    repaired: bool = False

    def __str__(self) -> str:
        done = {
            True: "marked as lost" if self.kind in ("hole", "head too high") else "corrected",
            False: "not repaired",
        }
        return f"{self.kind}: {self.first} to {self.last} ({done[self.repaired]})"


def repair(log: Log, stream: str, *, apply: bool = False) -> Program[list[Finding]]:
    """What is wrong with a stream; with ``apply``, mark holes as lost and set a head that is too low.

    A marker says for ever that its numbers hold nothing, so that readers pass. Overlaps and unreadable segments are
    only reported: which of the operations are right, no program can know. Run it when no append is in flight: what it
    then sees may not be damage. Raises Contention when somebody changed meanwhile what it was about to correct.
    """
    check_flag("apply", apply)
    head = yield from read_head(log, stream)
    moment = yield from now()
    try:
        findings, last = yield from _look_through(stream, head, moment, apply)
        position = max(last, head.floor_seq)
        if position > head.last_seq:
            findings.append((yield from _set_head(stream, head, position, apply)))
        elif position < head.last_seq:
            mark = _mark(stream, head, "head too high", position + 1, head.last_seq, moment, apply)
            findings.append((yield from mark))
    except ConditionFailed:
        raise Contention(f"stream {stream!r} has changed meanwhile; repair it again") from None
    log.remember(stream, None)
    return findings


def _look_through(stream: str, head: Head, moment: Any, apply: bool) -> Program[tuple[list[Finding], int]]:
    """What is wrong with the segments, and the last number that one of them has.

    Below the floor a truncation removes the lowest first, and may leave some for now: what is missing there is no hole.
    """
    findings: list[Finding] = []
    position, after = 0, None
    while True:
        page = yield from query(STREAMS, stream, low=1, limit=200, after=after)
        for item in page.items:
            try:
                segment = segment_of(item)
                segment.ops()
            except CorruptItem:
                findings.append(Finding("unreadable", int(item["seq"]), int(item["seq"])))
                position = max(position, int(item["seq"]))
                continue
            begin = max(position, head.floor_seq) + 1
            if segment.first > begin:
                findings.append((yield from _mark(stream, head, "hole", begin, segment.first - 1, moment, apply)))
            elif segment.first <= position:
                findings.append(Finding("overlap", segment.first, min(position, segment.last)))
            position = max(position, segment.last)
        after = page.next
        if after is None:
            return findings, position


def _mark(stream: str, head: Head, kind: Any, first: int, last: int, moment: Any, apply: bool) -> Program[Finding]:
    """Put a marker, unless the floor has moved: over what a truncation removed, a reader would pass unawares."""
    if apply:
        marker = Put(STREAMS, marker_item(stream, first, last, moment.middle_us), when=absent())
        same_floor = equals("floor_seq", head.floor_seq) if head.floor_seq else absent("floor_seq")
        yield from transact([marker, Check(head_key(stream), same_floor)])
    return Finding(kind, first, last, apply)


def _set_head(stream: str, head: Head, last_seq: int, apply: bool) -> Program[Finding]:
    if apply:
        changes = {"last_seq": last_seq, "format": FORMAT}
        yield from write(Update(head_key(stream), changes, when=head_is(head.last_seq)))
    return Finding("head too low", head.last_seq + 1, last_seq, apply)
