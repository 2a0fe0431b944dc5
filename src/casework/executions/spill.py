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
from casework.executions.joins import Fan, Recall
from casework.executions.runtime import Runtime
from casework.executions.state import State
from casework.kernel.conditions import Absent, absent
from casework.kernel.items import AnyWrite, Check, Delete, Item, Key, Put
from casework.kernel.limits import MAX_TRANSACTION_WRITES, check_write
from casework.kernel.programs import Program, get, now, transact
from casework.kernel.schema import EXECUTIONS, FORMAT, check_format

ITEM_BYTES = 250_000
DIRECT_BYTES = 3_000_000


class Spilled(msgspec.Struct, omit_defaults=True):
    """What an ``x/`` item holds: writes as (verb, item), a fan-out of children, or the children to recall."""

    writes: list[tuple[str, dict[str, Any]]] = []
    fan: Fan | None = None
    recall: Recall | None = None

    @property
    def length(self) -> int:
        """How many writes it amounts to."""
        if self.recall is not None:
            return len(self.recall.ordinals())
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


def fits(rt: Runtime, with_it: Sequence[AnyWrite], caused: Sequence[AnyWrite]) -> bool:
    """Whether all of it goes into one transaction with the state."""
    if len(caused) > rt.options.spill_above or len(with_it) + len(caused) >= MAX_TRANSACTION_WRITES:
        return False
    return len(caused) < 8 or sum(check_write(write) for write in caused) < DIRECT_BYTES


def spill_writes(
    rt: Runtime, state: State, caused: Sequence[AnyWrite], fans: Sequence[Fan], recalls: Sequence[Recall]
) -> list[AnyWrite]:
    """The writes that record all of these; notes them in ``state``."""
    parts: list[Spilled] = []
    size = ITEM_BYTES
    for write in caused:
        if not isinstance(write, Put | Delete):
            raise TypeError(f"only puts and deletes are spilled, not {write!r}")
        item = dict(write.item) if isinstance(write, Put) else {"id": write.key.partition, "sort": write.key.sort}
        verb = "delete" if isinstance(write, Delete) else "start" if isinstance(write.when, Absent) else "put"
        weight = check_write(write)
        if size + weight > ITEM_BYTES:
            parts.append(Spilled([]))
            size = 0
        parts[-1].writes.append((verb, item))
        size += weight
    for fan in fans:
        parts += _split_fan(fan)
    parts += [Spilled(recall=recall) for recall in recalls]
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
        new, removed = _moved_on(state, note, spilled, rt.options.spill_part, moment.middle_us)
        yield from _perform(rt, state, new, writes, [Delete(Key(EXECUTIONS, state.id, sort))] if removed else [])
        state = new
    return state


def _perform(
    rt: Runtime, before: State, after: State, writes: Sequence[Put | Delete], deletes: list[Delete]
) -> Program[None]:
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
    """Raise for a spilled item that is not there: not visible yet, performed by another drain, or lost.

    The note can become visible before the item that it names, since a transaction's items need not appear at one
    instant. Checking the item tells: while its transaction is under way the check conflicts with it.
    """
    checks = [Check(Key(EXECUTIONS, state.id, sort), absent()), Check(state.key, state.unchanged())]
    try:
        yield from transact(checks)
    except ConditionFailed:
        raise Contention(f"execution {state.id!r:.200}: another drain went ahead") from None
    raise CorruptItem(
        f"spilled item {sort!r} of execution {state.id!r:.200} is missing, though the state notes it; "
        "restore it from a backup, or purge the execution"
    )


def _spilled_of(rt: Runtime, state: State, sort: str, item: Item | None) -> Spilled:
    where = f"spilled item {sort!r} of execution {state.id!r:.200}"
    assert item is not None
    check_format(item, where)
    try:
        return _decode(rt.decode(str(item["spilled"])))
    except (KeyError, msgspec.DecodeError) as error:
        raise CorruptItem(f"{where} cannot be read: {error}") from None


def _part(rt: Runtime, spilled: Spilled, offset: int, now_us: int) -> Sequence[Put | Delete]:
    if spilled.recall is not None:
        return spilled.recall.puts(rt, offset, offset + rt.options.spill_part, now_us)
    if spilled.fan is not None:
        return [start.put(rt, now_us) for start in spilled.fan.starts(offset, offset + rt.options.spill_part)]
    return [
        Delete(EXECUTIONS.key_of(item))
        if verb == "delete"
        else Put(EXECUTIONS, item, absent() if verb == "start" else None)
        for verb, item in spilled.writes[offset : offset + rt.options.spill_part]
    ]


def _moved_on(state: State, note: Note, spilled: Spilled, part: int, now_us: int) -> tuple[State, bool]:
    """The state after one part, and whether that part was the last of its item."""
    new = msgspec.structs.replace(state, version=state.version + 1, updated_at_us=now_us)
    if note.offset + part < spilled.length:
        new.spill = _encode(Note(note.version, note.n, note.total, note.offset + part)).decode()
        return new, False
    done = note.n + 1 >= note.total
    new.spill = "" if done else _encode(Note(note.version, note.n + 1, note.total)).decode()
    return new, True
