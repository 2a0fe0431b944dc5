"""Spill: what does not fit one transaction is recorded in it, and delivered in order, once.

A step that causes more writes than a transaction holds stores the rest as ``x/`` items in its own transaction, and
notes in the state where the drain stands. While that is noted, everybody who would write the state drains first. Each
drain moves the note on condition of the version, in the transaction that performs its part, so a part is never
performed twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from casework.errors import ConditionFailed, Contention, CorruptItem, ItemTooLarge
from casework.executions.joins import Fan
from casework.executions.runtime import Runtime
from casework.executions.state import State
from casework.kernel.conditions import Absent, absent
from casework.kernel.items import AnyWrite, Delete, Item, Key, Put
from casework.kernel.limits import MAX_TRANSACTION_WRITES, check_write
from casework.kernel.programs import Program, get, now, transact
from casework.kernel.schema import EXECUTIONS, FORMAT, check_format

SEND_MAX = 60
"""More messages, tasks and children than this in one commit are spilled. The next commit may have to check the
messages that one commit sent (see ``change``), and must still have room for what it takes itself."""

PART_WRITES = 90
"""Writes of one drain; the rest of its transaction is for the state and the spilled item."""

ITEM_BYTES = 250_000
DIRECT_BYTES = 3_000_000


class Spilled(msgspec.Struct, omit_defaults=True):
    """What an ``x/`` item holds: writes as (verb, item), or a fan-out of children."""

    writes: list[tuple[str, dict[str, Any]]] = []
    fan: Fan | None = None

    @property
    def length(self) -> int:
        """How many writes it amounts to."""
        return len(self.fan.inputs) if self.fan is not None else len(self.writes)


class Note(msgspec.Struct, array_like=True):
    """Where a drain stands."""

    version: int
    n: int
    total: int
    offset: int = 0


_decode = msgspec.json.Decoder(Spilled).decode
_decode_note = msgspec.json.Decoder(Note).decode
_encode = msgspec.json.Encoder().encode


def spill_sort(version: int, n: int) -> str:
    """The sort key of a spilled item."""
    return f"x/{version:012d}/{n:06d}"


def fits(with_it: Sequence[AnyWrite], caused: Sequence[AnyWrite], fans: Sequence[Fan]) -> bool:
    """Whether all of it goes into one transaction with the state."""
    if fans or len(caused) > SEND_MAX or len(with_it) + len(caused) >= MAX_TRANSACTION_WRITES:
        return False
    return len(caused) < 8 or sum(check_write(write) for write in caused) < DIRECT_BYTES


def spill_writes(rt: Runtime, state: State, caused: Sequence[AnyWrite], fans: Sequence[Fan]) -> list[AnyWrite]:
    """The writes that record ``caused`` and ``fans``; notes them in ``state``."""
    parts: list[Spilled] = []
    size = ITEM_BYTES
    for write in caused:
        if not isinstance(write, Put):
            raise TypeError(f"only puts are spilled, not {write!r}")
        verb = "start" if isinstance(write.when, Absent) else "put"
        weight = check_write(write)
        if size + weight > ITEM_BYTES:
            parts.append(Spilled([]))
            size = 0
        parts[-1].writes.append((verb, dict(write.item)))
        size += weight
    for fan in fans:
        parts += _split_fan(fan)
    state.spill = _encode(Note(state.version, 0, len(parts))).decode()
    return [
        Put(
            EXECUTIONS,
            {
                "id": state.id,
                "sort": spill_sort(state.version, n),
                "format": FORMAT,
                "spilled": rt.encode(_encode(part).decode()),
            },
        )
        for n, part in enumerate(parts)
    ]


def _split_fan(fan: Fan) -> list[Spilled]:
    """A fan-out in lists of at most ``ITEM_BYTES`` of inputs."""
    parts: list[Spilled] = []
    size = ITEM_BYTES
    for ordinal, value in enumerate(fan.inputs):
        weight = len(_encode(value)) + 1
        if weight > ITEM_BYTES:
            raise ItemTooLarge(
                f"input {ordinal} of invocation {fan.invoke!r} has {weight:,} bytes; "
                "store it elsewhere and pass its place"
            )
        if size + weight > ITEM_BYTES:
            part = Fan(fan.parent, fan.invoke, fan.stay, fan.machine, fan.machine_hash, [], fan.born_us, ordinal)
            parts.append(Spilled(fan=part))
            size = 0
        parts[-1].fan.inputs.append(value)  # type: ignore[union-attr]
        size += weight
    return parts


def drain(rt: Runtime, state: State) -> Program[State]:
    """Perform all that ``state`` has spilled, part by part; the state afterwards.

    Raises ConditionFailed when somebody else moved the state, who then goes on with the drain.
    """
    while state.spill:
        note = _decode_note(state.spill)
        sort = spill_sort(note.version, note.n)
        item = yield from get(Key(EXECUTIONS, state.id, sort))
        if item is None:
            yield from _missing(state, sort)
        spilled = _spilled_of(rt, state, sort, item)
        moment = yield from now()
        writes = _part(rt, spilled, note.offset, moment.middle_us)
        new, removed = _moved_on(state, note, spilled, moment.middle_us)
        yield from _perform(rt, state, new, writes, [Delete(Key(EXECUTIONS, state.id, sort))] if removed else [])
        state = new
    return state


def _perform(rt: Runtime, before: State, after: State, writes: list[Put], deletes: list[Delete]) -> Program[None]:
    """One part's transaction. A start that finds something there is left out: it ran before, or was cancelled."""
    put = Put(EXECUTIONS, after.to_item(rt.options.buckets), before.unchanged())
    while True:
        try:
            yield from transact([put, *deletes, *writes])
            return
        except ConditionFailed as refused:
            if refused.refusals[0] is not None:
                raise
            skip = 1 + len(deletes)
            writes = [write for i, write in enumerate(writes) if refused.refusals[skip + i] is None]


def _missing(state: State, sort: str) -> Program[None]:
    """Raise for a spilled item that is not there: another drain performed it, or it was lost."""
    current = yield from get(state.key)
    if current is None or current["version"] != state.version:
        raise Contention(f"execution {state.id!r}: another drain went ahead")
    raise CorruptItem(
        f"spilled item {sort!r} of execution {state.id!r} is missing, though the state notes it; "
        "restore it from a backup, or purge the execution"
    )


def _spilled_of(rt: Runtime, state: State, sort: str, item: Item | None) -> Spilled:
    where = f"spilled item {sort!r} of execution {state.id!r}"
    assert item is not None
    check_format(item, where)
    try:
        return _decode(rt.decode(str(item["spilled"])))
    except (KeyError, msgspec.DecodeError) as error:
        raise CorruptItem(f"{where} cannot be read: {error}") from None


def _part(rt: Runtime, spilled: Spilled, offset: int, now_us: int) -> list[Put]:
    if spilled.fan is not None:
        return [start.put(rt, now_us) for start in spilled.fan.starts(offset, offset + PART_WRITES)]
    return [
        Put(EXECUTIONS, item, absent() if verb == "start" else None)
        for verb, item in spilled.writes[offset : offset + PART_WRITES]
    ]


def _moved_on(state: State, note: Note, spilled: Spilled, now_us: int) -> tuple[State, bool]:
    """The state after one part, and whether that part was the last of its item."""
    new = msgspec.structs.replace(state, version=state.version + 1, updated_at_us=now_us)
    if note.offset + PART_WRITES < spilled.length:
        new.spill = _encode(Note(note.version, note.n, note.total, note.offset + PART_WRITES)).decode()
        return new, False
    done = note.n + 1 >= note.total
    new.spill = "" if done else _encode(Note(note.version, note.n + 1, note.total)).decode()
    return new, True
