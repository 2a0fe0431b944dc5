"""How a stream is stored: operations, segments, claims, the head; and what one process remembers of its streams.

A segment is one item that holds one or many operations, compressed, at sort key = its last sequence number. The head,
at sort key ``0``, holds the last number given out. A claim per operation id makes a repeat harmless. All three are
written in one transaction, so a number is never taken before its operation is stored.
"""

from __future__ import annotations

import collections
import hashlib
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import msgspec

from casework.arguments import check_count, check_flag, check_instance, check_seconds, shown
from casework.errors import CorruptItem, ItemTooLarge, Misuse
from casework.kernel.effects import Flag
from casework.kernel.items import Item, Key, Scalar
from casework.kernel.limits import MAX_INT
from casework.kernel.schema import FORMAT, STREAM_CLAIMS, STREAM_ID, STREAM_ID_SAYS, STREAMS, check_format

HEAD = 0
"""Sort key of a stream's head."""

STREAM_NAMES = "stream"
"""Partition of the registry in which the names of streams stand."""

BATCH_OPS_MAX = 95
"""Operations of one transaction: with head, segment, predecessor and the stream's name at most 99 writes."""

BATCH_BYTES_MAX = 350_000
"""Bytes of operations in one segment, before compression; one larger operation is a segment of its own."""

OP_BYTES_MAX = 380_000
"""Bytes of one operation's data: a segment of it alone still fits an item of 400 KB."""

OP_ID_BYTES_MAX = 512

RIVAL_MEMORY_US = 2_000_000
"""Another writer is reckoned with for so long after its name was seen."""

RIVALS_MAX = 64

SHARE = 0.8
"""Of a round trip, for each writer that contends."""

_COMPRESS_ABOVE = 200
"""Bytes: below that, compression saves no write unit."""


class Op(msgspec.Struct, frozen=True):
    """An operation of a stream.

    ``id`` is its writer's own name for it: 1 to 512 bytes of printable text, stored once in the stream however often it
    is appended. ``data`` is opaque here, at most 380,000 bytes.
    """

    id: str
    data: bytes
    seq: int = 0
    """Its place in the stream, from 1; 0 while it is not stored."""
    at_us: int = 0
    """When it was stored, in microseconds since the epoch, by the clock of its writer; 0 while it is not stored."""


class Appended(msgspec.Struct, frozen=True):
    """What became of one operation."""

    id: str
    seq: int
    """Its sequence number in the stream."""
    is_duplicate: bool = False
    """It had been stored before."""


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The head of a stream. Operations up to ``last_seq`` are stored, though the newest may not be readable yet."""

    stream: str
    last_seq: int = 0
    floor_seq: int = 0
    """Operations up to this one were truncated."""
    snapshot_seq: int = 0
    """The snapshot holds everything up to this one; 0: there is none."""
    at_us: int = 0


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the streams of one store; the same in every process that uses them."""

    foreign_readers: bool = False
    """Somebody reads the table without casework: transactions become visible in order, at the price of one check."""
    foreign_writers: bool = False
    """Older writers take numbers with ADD before they write: their holes are crossed."""
    grace_s: float = 10.0
    """So long a hole may be an append in flight; after it, it is a foreign writer's or damage."""
    claims_expire_s: float | None = None
    """Claims may be forgotten after so long: longer than any client stays offline. None: never."""
    jitter_s: float = 0.25
    """A writer that met others waits at most so long before a round; see :meth:`Log.pause_bound_s`."""
    lost_rounds_max: int = 200
    """An append gives up after so many lost rounds in a row."""

    def __post_init__(self) -> None:
        """Misuse for what cannot be."""
        check_flag("foreign_readers", self.foreign_readers)
        check_flag("foreign_writers", self.foreign_writers)
        check_seconds("grace_s", self.grace_s)
        if self.claims_expire_s is not None:
            check_seconds("claims_expire_s", self.claims_expire_s, above=True)
        check_seconds("jitter_s", self.jitter_s)
        check_count("lost_rounds_max", self.lost_rounds_max, 1)


class Counts(msgspec.Struct):
    """What the appends of this process did."""

    ops_n: int = 0
    duplicates_n: int = 0
    rounds_n: int = 0
    lost_rounds_n: int = 0
    longest_wait_us: int = 0
    """The longest that one append took."""


class Place(msgspec.Struct, frozen=True):
    """Where the next append goes, as far as this process knows; replaced, never changed."""

    head: int
    """What the head's condition names."""
    top: int
    """The next operation gets the number above it: the head, or the highest item where that stands above the head."""
    cross: bool = False
    """The operation at ``top`` is a foreign writer's that is not there: put a marker for it."""
    wins: int = 0
    """Rounds won since the last pause."""


class Log:
    """What the programs of one process share about the streams of one store.

    Everything here is a hint or a wake-up: losing it costs a read.
    """

    def __init__(self, options: StreamOptions | None = None, *, streams_max: int = 10_000) -> None:
        self.options = options or StreamOptions()
        self.counts = Counts()
        self._places: collections.OrderedDict[str, Place] = collections.OrderedDict()
        self._streams_max = streams_max
        self.name = ""
        """Of this process, in the heads that it writes."""
        self.round_trip_s = 0.01
        self._rivals: dict[str, dict[str, int]] = {}
        self.watches: dict[str, Watch] = {}
        self.seat: collections.deque[None] = collections.deque([None])
        """Of those who wait for a stream one at a time has it, and looks for all."""
        self.idle: dict[Watcher, None] = {}
        """Those who wait now, without the seat."""
        self.new_watch = Flag()
        """Set for whoever has the seat: a stream more is to be looked at."""
        self.holes: dict[tuple[str, int], int] = {}

    def place(self, stream: str) -> Place | None:
        """Where the next append of ``stream`` goes; None: look."""
        return self._places.get(stream)

    def remember(self, stream: str, place: Place | None) -> None:
        """Keep, or forget, where the next append goes."""
        if place is None:
            self._places.pop(stream, None)
            return
        self._places[stream] = place
        if len(self._places) > self._streams_max:
            try:
                self._places.popitem(last=False)
            except KeyError:
                pass

    def note_rival(self, stream: str, name: object, now_us: int) -> None:
        """Somebody's name was seen in the head."""
        if isinstance(name, str) and name not in ("", self.name):
            rivals = self._rivals.setdefault(stream, {})
            rivals[name] = now_us
            if len(self._rivals) > self._streams_max:
                self._rivals.pop(next(iter(tuple(self._rivals))), None)
            if len(rivals) > RIVALS_MAX:
                rivals.pop(next(iter(rivals)), None)

    def rivals(self, stream: str, now_us: int) -> int:
        """How many other processes were seen to append to ``stream`` lately."""
        rivals = self._rivals.get(stream)
        if not rivals:
            return 0
        count = sum(seen_us > now_us - RIVAL_MEMORY_US for seen_us in tuple(rivals.values()))
        if not count:
            self._rivals.pop(stream, None)
        return count

    def pause_bound_s(self, rivals: int) -> float:
        """Bound of a pause among so many rivals: constant for all of them, whoever won or lost.

        A round trip's worth for each. A backoff that grows with one's own losses starves whoever lost first.
        """
        return min(self.options.jitter_s, SHARE * self.round_trip_s * (rivals + 1))

    def note_round_trip(self, seconds: float) -> None:
        """A round took so long."""
        self.round_trip_s += (max(0.001, min(seconds, 1.0)) - self.round_trip_s) / 8

    def ring(self, stream: str) -> None:
        """Wake those who wait for ``stream`` in this process."""
        watch = self.watches.get(stream)
        if watch is not None:
            watch.ring()


FIRST_POLL_S = 0.02
LAST_POLL_S = 0.5
"""A waiting reader looks again after pauses that grow between these, unless this process itself appends."""


class Look:
    """A page that is being read, or was just read, for all who want the very same."""

    __slots__ = ("began_us", "over", "page")

    def __init__(self, began_us: int) -> None:
        self.began_us = began_us
        self.over = Flag()
        self.page: Any = None


class Watch:
    """Those of one process who wait for a stream, and when its head is looked at next."""

    __slots__ = ("due_us", "looks", "pause_s", "watchers")

    def __init__(self) -> None:
        self.watchers: list[Watcher] = []
        self.looks: dict[Any, Look] = {}
        self.pause_s = FIRST_POLL_S
        self.due_us = 0

    def ring(self) -> None:
        """Something was appended by this process: wake all, and look again soon."""
        self.pause_s = FIRST_POLL_S
        self.wake()

    def wake(self) -> None:
        """Have all who wait read; what was read before counts no more."""
        self.looks = {}
        for watcher in tuple(self.watchers):
            watcher.flag.set()


class Watcher:
    """One who waits for a stream, once or again and again; between two waits it misses nothing. For ``with``."""

    __slots__ = ("_log", "after", "flag", "is_new", "stream", "watch")

    def __init__(self, log: Log, stream: str) -> None:
        self._log, self.stream = log, stream
        self.flag = Flag()
        """There may be something new."""
        self.flag.set()
        self.is_new = True
        self.after = 0
        self.watch = log.watches.setdefault(stream, Watch())
        self.watch.watchers.append(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Wait no more."""
        self.watch.watchers.remove(self)
        if not self.watch.watchers and self._log.watches.get(self.stream) is self.watch:
            self._log.watches.pop(self.stream, None)


# --- checking ---------------------------------------------------------------------------------------------------------


def check_stream(stream: object, what: str = "stream") -> None:
    """Misuse unless ``stream`` can be a stream's id, or a group's."""
    if not isinstance(stream, str) or not STREAM_ID.match(stream):
        raise Misuse(f"{what}: {shown(stream)} is not a {what.removesuffix('s')} id; use {STREAM_ID_SAYS}")


def check_streams(streams: Any) -> None:
    """Misuse unless these are several streams' ids, one at least."""
    if not isinstance(streams, list | tuple | set | frozenset) or not streams:
        raise Misuse(f"streams is {shown(streams)}; give a list of stream ids")
    for stream in streams:
        check_stream(stream, "streams")


def check_stop(stop: Any) -> None:
    """Misuse unless ``stop`` can end a reader."""
    if stop is not None:
        check_instance("stop", stop, Flag, "a casework.kernel.effects.Flag, or None")


def check_ops(given: Any) -> Sequence[Op]:
    """The operations of one call; Misuse when they are not in a list."""
    if isinstance(given, Op | str | bytes) or not isinstance(given, Iterable):
        raise Misuse(f"ops is {given!r:.80}; give a list: append(stream, [casework.Op('its id', b'...')])")
    return given if isinstance(given, Sequence) else list(given)


def check_limit(limit: Any) -> None:
    """Misuse unless ``limit`` can bound a reader's operations."""
    if limit is not None and (type(limit) is not int or not 1 <= limit <= MAX_INT):
        raise Misuse(f"limit is {limit!r:.40}; it is the number of operations at most, 1 or more; None: to the end")


def check_op(given: Op, position: int) -> None:
    """Misuse unless ``given`` can be appended; ItemTooLarge when its data is over the limit."""
    if not isinstance(given, Op):
        raise Misuse(f"operation {position}: {given!r:.80} is not a casework.Op; write Op('its id', b'its data')")
    op: Any = given  # what its annotations say is checked here
    if not isinstance(op.id, str) or not op.id or not op.id.isprintable():
        raise Misuse(f"operation {position}: {op.id!r:.80} is not an operation id; use printable text")
    if len(op.id.encode()) > OP_ID_BYTES_MAX:
        raise Misuse(f"operation {position}: its id has more than {OP_ID_BYTES_MAX} bytes: {op.id!r:.80}")
    if not isinstance(op.data, bytes):
        raise Misuse(f"operation {op.id!r:.80}: its data is a {type(op.data).__name__}; encode it to bytes")
    if len(op.data) > OP_BYTES_MAX:
        raise ItemTooLarge(
            f"operation {op.id!r:.80} has {len(op.data):,} bytes, the limit is {OP_BYTES_MAX:,}; store less in it"
        )


def check_after(after: Any) -> None:
    """Misuse unless ``after`` can be a reader's cursor."""
    if type(after) is not int or not 0 <= after < MAX_INT:
        raise Misuse(f"after is {after!r:.40}; it is the number of the last operation read, or 0")


# --- items ------------------------------------------------------------------------------------------------------------


def head_key(stream: str) -> Key:
    """Where a stream's head is."""
    return STREAMS.key(stream, HEAD)


def head_of(stream: str, item: Mapping[str, Any] | None, *, foreign: bool = False) -> Head:
    """The head in an item; an absent one is the head of an empty stream. CorruptItem when it cannot be read."""
    if item is None:
        return Head(stream=stream)
    what = f"the head of stream {stream!r}"
    if not foreign or "format" in item:
        check_format(item, what)
    values = {
        name: item.get(name, 0) for name in ("last_seq", "floor_seq", "snapshot_seq", "at_us")
    }  # fmt: skip
    if any(type(value) is not int or value < 0 for value in values.values()):
        raise CorruptItem(f"{what} cannot be read: {values}")
    return Head(stream=stream, **values)


def claim_key(stream: str, id: str) -> Key:
    """Where the claim of an operation is."""
    return STREAM_CLAIMS.key(f"{stream} {id}")


def digest(data: bytes) -> bytes:
    """What tells the content of two operations with one id apart."""
    return hashlib.blake2b(data, digest_size=16).digest()


def segment_item(stream: str, first: int, ops: Sequence[Op], at_us: int) -> Item:
    """The segment that holds ``ops`` from number ``first`` on."""
    body = msgspec.msgpack.encode([[op.id for op in ops], [op.data for op in ops]])
    item: Item = {
        "stream_id": stream, "seq": first + len(ops) - 1, "format": FORMAT, "first": first, "at_us": at_us,
        "body": body,
    }  # fmt: skip
    if len(body) > _COMPRESS_ABOVE:
        packed = zlib.compress(body, 6)
        if len(packed) < len(body):
            item |= {"body": packed, "zlib": True}
    return item


def marker_item(stream: str, first: int, last: int, at_us: int) -> Item:
    """A segment without operations: the numbers from ``first`` to ``last`` hold nothing and never will."""
    return {"stream_id": stream, "seq": last, "format": FORMAT, "first": first, "at_us": at_us, "marker": True}


class Segment(msgspec.Struct, frozen=True):
    """A segment as it was read; its operations are decoded when they are asked for."""

    stream: str
    first: int
    last: int
    at_us: int
    item: Mapping[str, Scalar]

    @property
    def is_marker(self) -> bool:
        """Whether it holds no operation."""
        return "marker" in self.item

    def ops(self) -> list[Op]:
        """Its operations. Raises CorruptItem when they cannot be read."""
        if self.is_marker:
            return []
        if "body" not in self.item:
            return [_foreign_op(self)]
        body: Any = self.item["body"]
        try:
            ids, datas = _BODY.decode(zlib.decompress(body) if "zlib" in self.item else body)
        except (zlib.error, msgspec.DecodeError, TypeError) as error:
            raise CorruptItem(f"the segment at {self.last} of stream {self.stream!r} cannot be read: {error}") from None
        if len(ids) != len(datas) or len(ids) != self.last - self.first + 1:
            raise CorruptItem(
                f"the segment at {self.last} of stream {self.stream!r} begins at {self.first} and holds {len(ids)} "
                "operations"
            )
        return [Op(id, data, self.first + n, self.at_us) for n, (id, data) in enumerate(zip(ids, datas, strict=True))]


_BODY = msgspec.msgpack.Decoder(tuple[list[str], list[bytes]])


def segment_of(item: Mapping[str, Any]) -> Segment:
    """The segment in an item. CorruptItem when it cannot be one, NewerFormat when newer code wrote it.

    An item without ``first`` is a foreign writer's: one operation, in the attributes ``id`` and ``data``.
    """
    stream, last = item["stream_id"], item["seq"]
    what = f"the segment at {last} of stream {stream!r}"
    if "first" not in item and "id" in item:
        return Segment(stream, last, last, int(item.get("at_us", 0)), item)
    check_format(item, what)
    first = item.get("first")
    if type(first) is not int or not 1 <= first <= last:
        raise CorruptItem(f"{what} says that it begins at {first!r}")
    return Segment(stream, first, last, int(item.get("at_us", 0)), item)


def _foreign_op(segment: Segment) -> Op:
    id, data = segment.item.get("id"), segment.item.get("data", b"")
    if isinstance(data, str):
        data = data.encode()
    if not isinstance(id, str) or not isinstance(data, bytes):
        raise CorruptItem(f"the operation at {segment.last} of stream {segment.stream!r} has no readable id and data")
    return Op(id, data, segment.last, segment.at_us)
