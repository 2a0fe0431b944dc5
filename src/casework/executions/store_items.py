"""What the execution store hands out and takes in, and how its emits and spawns lie in a partition.

An emit is an item at ``o/...`` in its target's partition (its sender's when it has no target), a spawn one at ``n/...``
in the parent's. Where one commit causes more of them than a transaction holds, several are packed: a small head in the
same place notes which are acknowledged, and a body beside it holds them, written once and deleted with the last. So an
acknowledgement costs the same however many were packed. ``seq`` says where an entry is, so that it is acknowledged
without a search; it sorts by commit time, then version, then position.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from casework.arguments import check_instance, check_list, check_text
from casework.errors import CorruptItem, ItemTooLarge, Misuse
from casework.executions.deliver import check_id
from casework.executions.mailbox import short
from casework.executions.state import STATE, Timer, decode_timers, encode_timers
from casework.kernel.containment import shown
from casework.kernel.items import Item, Key, Put
from casework.kernel.schema import EXECUTIONS, FORMAT, bucket_of, check_format
from casework.statechart.jsonable import check_json

DUE, OUT, SPAWN = "due", "out", "spawn"
"""Classes of the ``pending`` index; none of them is one that our own workers look at."""

PACKED_BYTES = 250_000
PACKED_ENTRIES = 500


class StoredExecution(msgspec.Struct):
    """An execution as another engine stores it."""

    id: str
    data: str
    """The engine's own text; opaque to the store."""
    version: int = 0
    """0: not stored yet."""
    machine: str = ""
    machine_hash: str = ""
    status: str = "running"
    parent_id: str | None = None
    created_at_us: int = 0
    updated_at_us: int = 0
    trace_n: int = 0
    trace_low: int = 1
    recent_ids: bytes = b""
    last_commit_us: int = 0
    known_timers: str | None = None
    """The timers as they were read; None: not read yet. The store's own."""
    bucket: int = 0
    """In which bucket it was listed when it was read. The store's own."""

    @property
    def key(self) -> Key:
        """Where it is stored."""
        return Key(EXECUTIONS, self.id, STATE)


class TimerOp(msgspec.Struct, frozen=True):
    """A change of one timer: ``schedule`` at ``fire_at`` (epoch seconds), or ``cancel``."""

    action: str
    path: str
    fire_at: float = 0.0


class OutboxEntry(msgspec.Struct, frozen=True):
    """An emit that was not acknowledged."""

    seq: str
    target_id: str | None
    event: str


class SpawnEntry(msgspec.Struct, frozen=True):
    """A child to start that was not acknowledged."""

    seq: str
    parent_id: str
    child_id: str
    root_path: str
    context: Any
    """As it was given: text, or JSON."""


class Page(msgspec.Struct):
    """A page of a listing; only a ``next_cursor`` of None ends it."""

    items: list[StoredExecution]
    next_cursor: str | None


def check_stored(exe: StoredExecution) -> None:
    """Misuse when the execution cannot be stored as it is. Text of an enumeration becomes plain text."""
    check_instance("exe", exe, StoredExecution, "a casework.StoredExecution(...)")
    check_id(exe.id)
    if type(exe.version) is not int or exe.version < 0:
        raise Misuse(
            f"execution {exe.id!r:.200}: version is {exe.version!r}; it is 0 for a new one, else as it was loaded"
        )
    if exe.parent_id is not None:
        check_id(exe.parent_id)
    for name in ("data", "machine", "machine_hash", "status"):
        value = getattr(exe, name)
        if not isinstance(value, str):
            raise Misuse(f"execution {exe.id!r:.200}: {name} is {shown(value)}; it must be text")
        check_json(str.__str__(value), f"execution {exe.id!r:.200}: {name}")
    exe.id = check_text("id", exe.id)
    for name in ("data", "machine", "machine_hash", "status"):
        setattr(exe, name, check_text(name, getattr(exe, name), 1_000_000_000, may_be_empty=True))
    if exe.parent_id is not None:
        exe.parent_id = check_text("parent_id", exe.parent_id)
    if not exe.status or "/" in exe.status or exe.status == "purging":
        raise Misuse(
            f"execution {exe.id!r:.200}: status is {exe.status!r}; use a word without a slash, and not 'purging'"
        )


def check_timers(timers: Any) -> None:
    """Misuse unless these are changes of timers."""
    check_list("timers", timers, _check_timer, "a list of casework.TimerOp")


def _check_timer(what: str, given: Any) -> None:
    check_instance(what, given, TimerOp, "a casework.TimerOp('schedule', path, fire_at), or ('cancel', path)")
    check_text(f"the path of {what}", given.path)


def stored_of(item: Mapping[str, Any]) -> StoredExecution:
    """The execution in a state item; CorruptItem, NewerFormat when it cannot be read."""
    check_format(item, f"the state of execution {item.get('id')!r}")
    try:
        return StoredExecution(
            id=item["id"],
            data=item["data"],
            version=item["version"],
            machine=item["machine"],
            machine_hash=item["machine_hash"],
            status=item["status"],
            parent_id=item.get("parent_id"),
            created_at_us=item.get("created_at_us", 0),
            updated_at_us=item.get("updated_at_us", 0),
            trace_n=item.get("trace_n", 0),
            trace_low=item.get("trace_low", 1),
            recent_ids=item.get("recent_ids", b""),
            last_commit_us=item.get("last_sent_us", 0),
            known_timers=item.get("timers", ""),
            bucket=listed_in(item),
        )
    except KeyError as error:
        raise CorruptItem(f"the state of execution {item.get('id')!r} lacks {error}") from None


def listed_in(item: Mapping[str, Any]) -> int:
    """The bucket in which a state item is listed."""
    return int(str(item.get("listing", "/0")).rpartition("/")[2])


def to_us(seconds: Any, what: str) -> int:
    """Epoch seconds as microseconds; Misuse when they are no time."""
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, int | float)
        or not math.isfinite(seconds)
        or abs(seconds) > 9e12
    ):
        raise Misuse(f"{what} is {seconds!r}; it must be a number of seconds since the epoch")
    return round(seconds * 1_000_000)


def timers_after(text: str, ops: Sequence[TimerOp]) -> str:
    """The stored timers after some changes: one timer per path, of several changes to a path the last one counts."""
    armed = {timer.name: timer for timer in decode_timers(text)}
    for op in ops:
        if op.action == "cancel":
            armed.pop(op.path, None)
        elif op.action == "schedule":
            armed[op.path] = Timer(to_us(op.fire_at, f"fire_at of timer {op.path!r}"), op.path)
        else:
            raise Misuse(f"timer {op.path!r}: action is {op.action!r}; it must be 'schedule' or 'cancel'")
    return encode_timers(list(armed.values()))


# --- emits and spawns -------------------------------------------------------------------------------------------------


def make_seq(at_us: int, version: int, n: int, position: int, total: int, key: Key) -> str:
    """Where an entry is, as sortable text: ``n`` is its number among all that its commit caused."""
    head = f"{at_us:017d}.{version:010d}.{n:05d}"
    place = msgspec.json.encode([key.partition, key.sort, position, total])
    return f"{head}.{base64.urlsafe_b64encode(place).decode().rstrip('=')}"


def read_seq(seq: str) -> tuple[Key, int, int]:
    """The item of an entry, its position in it, and how many entries the item had; Misuse when it is no seq."""
    try:
        text = seq.split(".", 3)[3]
        place = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        partition, sort, position, total = msgspec.json.decode(place, type=tuple[str, str, int, int])
    except (AttributeError, IndexError, ValueError, binascii.Error, msgspec.DecodeError):
        raise Misuse(f"{seq!r:.80} is not the seq of an entry; pass the one that was handed out, unchanged") from None
    return Key(EXECUTIONS, partition, sort), position, total


def outgoing(
    exe: StoredExecution, version: int, at_us: int, emits: Sequence[tuple[str | None, str]],
    spawns: Sequence[tuple[str, str, str]], buckets: int, room: int,
) -> tuple[list[Put], list[str]]:  # fmt: skip
    """The writes for emits and spawns, in at most ``room`` items, and the seq of each emit, in order."""
    pack = len(emits) + len(spawns) > room
    by_place: dict[str, list[tuple[int, Any]]] = {}
    for n, (target, event) in enumerate(emits):
        place = f"{OUT}/{target or exe.id}" if pack else f"{OUT}/{target or exe.id}/{n}"
        by_place.setdefault(place, []).append((n, [target, event]))
    for n, (child, root, context) in enumerate(spawns):
        by_place.setdefault(SPAWN if pack else f"{SPAWN}/{n}", []).append((n, [child, root, context]))
    puts: list[Put] = []
    seqs = [""] * len(emits)
    for place, entries in by_place.items():
        for chunk in _chunks(entries):
            put, *body = _outgoing_items(exe, version, at_us, len(puts), place.split("/")[0], chunk, buckets)
            puts += [put, *body]
            if place.startswith(OUT):
                for position, (n, _) in enumerate(chunk):
                    seqs[n] = make_seq(at_us, version, n, position, len(chunk), put.key)
    if len(puts) > room:
        raise ItemTooLarge(
            f"execution {exe.id!r:.200}: a commit with emits to {len(by_place)} targets does not fit one transaction "
            f"(room for {room}); emit in several commits"
        )
    return puts, seqs


def _chunks(entries: list[tuple[int, Any]]) -> list[list[tuple[int, Any]]]:
    chunks: list[list[tuple[int, Any]]] = []
    size = PACKED_BYTES
    for entry in entries:
        weight = len(msgspec.json.encode(entry[1]))
        if size + weight > PACKED_BYTES or len(chunks[-1]) >= PACKED_ENTRIES:
            chunks.append([])
            size = 0
        chunks[-1].append(entry)
        size += weight
    return chunks


def check_caused(emits: Any, spawns: Any) -> None:
    """Misuse, NotJson with the path, for what would not come back as it was given."""
    for name, given, shape in (("emits", emits, "(target, event)"), ("spawns", spawns, "(child, root path, context)")):
        check_instance(name, given, (list, tuple), f"a list of {shape}")
    for n, emit in enumerate(emits):
        if not isinstance(emit, tuple | list) or len(emit) != 2:
            raise Misuse(f"emit {n} is {shown(emit)}; it is a pair of the target, or None, and the event's text")
        target, event = emit
        if target is not None:
            check_id(target)
        if not isinstance(event, str):
            raise Misuse(f"emit {n} is a {type(event).__name__}; encode events as text first")
        check_json(event, f"emit {n}")
    for n, spawn in enumerate(spawns):
        if not isinstance(spawn, tuple | list) or len(spawn) != 3:
            raise Misuse(f"spawn {n} is {shown(spawn)}; it is the child's id, its root path and its context")
        check_id(spawn[0])
        if not isinstance(spawn[1], str):
            raise Misuse(f"spawn {n}: the root path is a {type(spawn[1]).__name__}; give text")
        check_json(spawn[1], f"root path of spawn {n}")
        check_json(spawn[2], f"context of spawn {n}")


def body_key(key: Key) -> Key:
    """Where the entries are that the head at ``key`` counts."""
    return Key(key.table, key.partition, f"{key.sort}/b")


def _outgoing_items(
    exe: StoredExecution, version: int, at_us: int, n: int, kind: str, chunk: list[tuple[int, Any]], buckets: int
) -> list[Put]:
    _, body = chunk[0]
    partition = (body[0] or exe.id) if kind == OUT else exe.id
    letter = "o" if kind == OUT else "n"
    item: Item = {
        "id": partition,
        "sort": f"{letter}/{at_us:017d}/{short(exe.id)}/{version:010d}/{n:05d}",
        "format": FORMAT,
        "at_us": at_us,
        "version": version,
        "source": exe.id,
        "pending": f"{kind}/{bucket_of(partition, buckets)}",
        "rank_us": at_us,
    }
    entries = msgspec.json.encode([[n, *entry] for n, entry in chunk]).decode()
    if len(chunk) == 1:
        return [Put(EXECUTIONS, {**item, "entries": entries})]
    place = body_key(EXECUTIONS.key_of(item))
    body_item: Item = {"id": partition, "sort": str(place.sort), "format": FORMAT, "entries": entries}
    return [Put(EXECUTIONS, {**item, "total": len(chunk)}), Put(EXECUTIONS, body_item)]


def _entries(item: Mapping[str, Any]) -> list[tuple[str, Any]]:
    where = f"entry {item['sort']!r} of execution {item['id']!r}"
    check_format(item, where)
    try:
        bodies = msgspec.json.decode(item["entries"])
        acked = _acked(item)
        key = Key(EXECUTIONS, item["id"], item["sort"])
        return [
            (make_seq(item["at_us"], item["version"], body[0], position, len(bodies), key), body[1:])
            for position, body in enumerate(bodies)
            if not acked >> position & 1
        ]
    except (KeyError, msgspec.DecodeError, TypeError) as error:
        raise CorruptItem(f"{where} cannot be read: {error}") from None


def outbox_entries(item: Mapping[str, Any]) -> list[OutboxEntry]:
    """The emits in an item that were not acknowledged."""
    return [OutboxEntry(seq, body[0], body[1]) for seq, body in _entries(item)]


def spawn_entries(item: Mapping[str, Any]) -> list[SpawnEntry]:
    """The spawns in an item that were not acknowledged."""
    return [SpawnEntry(seq, item["source"], body[0], body[1], body[2]) for seq, body in _entries(item)]


def _acked(item: Mapping[str, Any]) -> int:
    """Which entries are acknowledged, as the bits of a number."""
    return int(item.get("acked") or "0", 16)


def without(item: Mapping[str, Any], position: int) -> str | None:
    """What a head notes as acknowledged after ``position`` is; None when that was the last entry."""
    acked = _acked(item) | 1 << position
    return None if acked == (1 << int(item["total"])) - 1 else f"{acked:x}"
