"""Marks: what a reader keeps with its position, so that it notices when the log is not the one that it has read.

A mark is a short text about the last operation up to a position. A log that gives the same mark at a position is the
one that was read up to there; another mark, or none because the log ends before, says that the store was restored from
a backup, or that the stream was made again. Marks come from pages and from :func:`mark_of`; only compare them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

from casework.errors import Misuse
from casework.kernel.programs import Program, query
from casework.kernel.schema import STREAMS
from casework.streams.log import Log, Op, Segment, check_after, check_stream, digest, segment_of

MARK = re.compile(r"[o][0-9a-f]{32}")
MARK_MAX = 33


def check_mark(mark: Any) -> None:
    """Misuse unless ``mark`` can be the mark of a position, or empty: none is known."""
    if not isinstance(mark, str) or (mark and not MARK.fullmatch(mark)):
        raise Misuse(f"mark is {mark!r:.60}; hand in the mark that came with the page, or nothing")


def op_digest(op: Op) -> bytes:
    """What tells an operation at its place from every other one, and from itself stored at another time."""
    numbers = op.seq.to_bytes(8, "big") + op.at_us.to_bytes(8, "big")
    return hashlib.blake2b(numbers + digest(op.data) + op.id.encode(), digest_size=16).digest()


def marks_in(segment: Segment) -> Iterator[tuple[int, str]]:
    """The number and mark of each operation of a segment."""
    for op in segment.ops():
        yield op.seq, f"o{op_digest(op).hex()}"


def mark_in(segment: Segment, position: int) -> str:
    """The mark of a position by a segment that holds or precedes it; empty when it does not say."""
    found = ""
    for seq, mark in marks_in(segment):
        if seq > position:
            break
        found = mark
    return found


def mark_among(segments: Sequence[Segment], position: int) -> str:
    """The mark of a position by the last of contiguous segments that says something about it."""
    for segment in reversed(segments):
        if segment.first <= position:
            found = mark_in(segment, position)
            if found:
                return found
    return ""


def differs(segment: Segment, position: int, mark: str) -> bool:
    """Whether the first segment at or behind a position shows that the log there is not the one of ``mark``."""
    if not mark or segment.is_marker or segment.first > position:
        return False
    return mark_in(segment, position) != mark


def mark_of(log: Log, stream: str, after: int) -> Program[str]:
    """The mark of a position that was read before; empty when the stream does not say, since it was truncated there."""
    check_stream(stream)
    check_after(after)
    page = yield from query(STREAMS, stream, low=max(1, after), limit=1)
    segments = [segment_of(item) for item in page.items]
    return mark_among(segments, after)
