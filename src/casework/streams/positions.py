"""Where in a stream to begin: at its floor, its snapshot, its head, behind a number, or at a time."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from casework.arguments import wrong
from casework.errors import Misuse
from casework.kernel.limits import MAX_INT
from casework.kernel.programs import Program, query
from casework.kernel.schema import STREAMS
from casework.streams.log import Log, check_stream, segment_of
from casework.streams.read import read_head

Start = Literal["floor", "snapshot", "head"] | int | datetime
"""``floor``: the first operation that was not truncated. ``snapshot``: behind the snapshot, or the floor where that is
above it. ``head``: only what comes from now on. A number: behind that one. A time, with its zone: what was stored then
and later, by the clocks of the writers."""

WORDS = ("floor", "snapshot", "head")

_WANTED = "'floor', 'snapshot', 'head', the number of an operation, or a datetime with its zone"


def check_start(what: str, value: Any) -> None:
    """Misuse unless it can be a place to begin at."""
    if isinstance(value, str) and value in WORDS:
        return
    if type(value) is int and 0 <= value < MAX_INT:
        return
    if isinstance(value, datetime) and value.utcoffset() is not None:
        return
    raise wrong(what, value, _WANTED)


def start_of(text: str) -> Start:
    """The place that a word, a number or a time in text names. Misuse where it names none."""
    if text.isascii() and text.isdigit():
        place: Any = int(text)
    elif text in WORDS:
        place = text
    else:
        try:
            place = datetime.fromisoformat(text)
        except ValueError:
            raise Misuse(
                f"{text!r:.60} is no place in a stream; write floor, snapshot, head, the number of an operation, or a "
                "time such as 2026-05-01T08:00:00Z"
            ) from None
    check_start("the place", place)
    return place  # type: ignore[no-any-return]


def position_of(log: Log, stream: str, start: Start) -> Program[int]:
    """The number behind which ``start`` begins. A number is itself, whether it is in the stream or not."""
    check_stream(stream)
    check_start("start", start)
    if isinstance(start, int):
        return start
    head = yield from read_head(log, stream)
    if start == "floor":
        return head.floor_seq
    if start == "snapshot":
        return max(head.floor_seq, head.snapshot_seq)
    if start == "head":
        return head.last_seq
    assert isinstance(start, datetime)
    return (yield from _before(stream, head.floor_seq, head.last_seq, round(start.timestamp() * 1e6)))


def _before(stream: str, floor: int, last: int, at_us: int) -> Program[int]:
    """The last number between ``floor`` and ``last`` that was stored before a time; one small read for each halving."""
    low, high = floor, last
    while low < high:
        middle = (low + high) // 2
        page = yield from query(STREAMS, stream, low=middle + 1, limit=1)
        segment = segment_of(page.items[0]) if page.items else None
        if segment is None:
            high = middle
        elif segment.at_us >= at_us:
            high = max(low, min(middle, segment.first - 1))
        else:
            low = segment.last
    return low
