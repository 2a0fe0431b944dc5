"""Named cursors: how far a group of consumers has come in a stream, who holds it, and what it parked.

One item per group and stream, in a partition of its own. Every change of it names the holder's token and the cursor
that it replaces, so that a holder that was taken over changes nothing, and no commit is applied twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from casework.arguments import check_count, check_flag
from casework.errors import ConditionFailed, Contention, CorruptItem, OutcomeUnknown, StoreError
from casework.kernel.conditions import Condition, absent, all_of, any_of, equals, greater_than, less_than, present
from casework.kernel.items import AnyWrite, Delete, Item, Key, Put, Update
from casework.kernel.limits import MAX_INT
from casework.kernel.programs import Program, get, lost_again, now, query_up_to, transact, write
from casework.kernel.retry import DEFAULT_RETRY
from casework.kernel.schema import FORMAT, REGISTRY, STREAMS, check_format
from casework.streams.log import HEAD, Log, Op, check_stream, check_streams
from casework.streams.positions import Start, position_of
from casework.streams.read import read_head

CURSOR_NAMES = "cursors"
"""Partition of the registry in which the names of the groups' cursors stand, as ``group/stream``."""


class Cursor(msgspec.Struct, frozen=True, kw_only=True):
    """How far a group has come in a stream."""

    group: str
    stream: str
    after: int = 0
    """The last operation that was dealt with."""
    mark: str = ""
    """Of that position: the group stops rather than go on in another log."""
    token: str = ""
    """Of the consumer that holds it."""
    lease_end_us: int = 0
    attempts: int = 0
    """Failed attempts at the operation after ``after``."""
    error: str = ""
    """Of the last failed attempt."""
    is_stopped: bool = False
    """An operation failed too often and the group is set to stop, or what it needs was truncated; ``error`` says
    which. ``resume`` lets it go on, after a truncation ``seek`` does."""
    trouble: str = ""
    """What keeps its consumer itself from going on, as far as it could be stored; gone when it goes on."""
    trouble_n: int = 0
    """How often, one after the other."""
    replay: str = ""
    """Parked operations are to be handled once more by whoever takes the cursor next."""


class Lag(msgspec.Struct, frozen=True, kw_only=True):
    """How far a group is behind in a stream."""

    stream: str
    after: int
    last_seq: int
    parked: int
    is_stopped: bool
    group: str = ""
    error: str = ""
    """Why it is stopped, or how the last attempt failed."""
    trouble: str = ""
    """What keeps its consumer itself from going on."""
    trouble_n: int = 0
    """How often, one after the other."""

    @property
    def lag(self) -> int:
        """Operations that it has not dealt with."""
        return max(0, self.last_seq - self.after)


class Parked(msgspec.Struct, frozen=True):
    """An operation that failed too often and was put aside."""

    stream: str
    op: Op
    error: str
    attempts: int
    parked_at_us: int


class Lost(BaseException):
    """The cursor is not this consumer's any more. Control flow, not an error."""


def cursor_key(group: str, stream: str) -> Key:
    """Where the cursor of a group in a stream is."""
    return STREAMS.key(f"@{group}/{stream}", HEAD)


def cursor_of(group: str, stream: str, item: Mapping[str, Any] | None) -> Cursor:
    """The cursor in an item; an absent one stands at the beginning."""
    if item is None:
        return Cursor(group=group, stream=stream)
    check_format(item, f"the cursor of group {group!r} in stream {stream!r}")
    after = item.get("after")
    if type(after) is not int:
        raise CorruptItem(f"the cursor of group {group!r} in stream {stream!r} is {after!r}")
    return Cursor(
        group=group, stream=stream, after=after, token=item.get("token", ""),
        lease_end_us=item.get("lease_end_us", 0), attempts=item.get("attempts", 0), error=item.get("error", ""),
        is_stopped="stopped" in item, trouble=item.get("trouble", ""), trouble_n=item.get("trouble_n", 0),
        replay=item.get("replay", ""), mark=item.get("mark", ""),
    )  # fmt: skip


def read_cursor(group: str, stream: str) -> Program[Cursor]:
    """The cursor as it is stored."""
    check_stream(group, "group")
    check_stream(stream)
    item = yield from get(cursor_key(group, stream))
    return cursor_of(group, stream, item)


def _is(cursor: Cursor) -> Condition:
    """Holds while nobody else has changed the cursor, and it is not stopped: not even its holder goes on then."""
    holder = equals("token", cursor.token) if cursor.token else absent("token")
    position: Condition = equals("after", cursor.after)
    if not cursor.after:
        position = any_of(absent("after"), position)  # of one that is not there yet
    return all_of(holder, position, absent("stopped"))


def take(
    group: str, stream: str, own: str, lease_s: float, *, log: Log | None = None, start: Start = "floor"
) -> Program[Cursor | None]:
    """Take the cursor for ``lease_s`` if nobody holds it; None when somebody does, or it is stopped.

    One that is not there yet begins at ``start``, and is entered among the cursors that there are.
    """
    check_stream(group, "group")
    check_stream(stream)
    item = yield from get(cursor_key(group, stream))
    found = cursor_of(group, stream, item)
    entry: list[AnyWrite] = []
    if item is None:
        after = yield from position_of(log or Log(), stream, start)
        entry = [name_put(group, stream)]
    else:
        after = found.after
    moment = yield from now()
    if found.is_stopped or (found.token and found.token != own and moment.earliest_us <= found.lease_end_us):
        return None
    taken = msgspec.structs.replace(found, after=after, token=own, lease_end_us=moment.latest_us + round(lease_s * 1e6))
    changes: dict[str, Any] = {"after": taken.after, "token": own, "lease_end_us": taken.lease_end_us, "format": FORMAT}
    when = _is(found)
    if found.token:
        when = all_of(when, equals("lease_end_us", found.lease_end_us))
    try:
        yield from transact([Update(cursor_key(group, stream), changes, when=when), *entry])
    except (ConditionFailed, Contention, OutcomeUnknown):
        return None
    return taken


def name_put(group: str, stream: str) -> Put:
    """The entry of a cursor among those that there are."""
    return Put(REGISTRY, {"kind": CURSOR_NAMES, "name": f"{group}/{stream}", "format": FORMAT})


def renew(cursor: Cursor, lease_s: float) -> Program[Cursor]:
    """Hold the cursor on. Raises Lost."""
    moment = yield from now()
    renewed = msgspec.structs.replace(cursor, lease_end_us=moment.latest_us + round(lease_s * 1e6))
    return (yield from _change(cursor, renewed))


def extend(group: str, stream: str, own: str, lease_s: float) -> Program[None]:
    """Hold a cursor on while its operation is handled: the lease alone moves, whatever else becomes of the cursor.

    It never moves back: one that arrives late would end what the cursor's own move has renewed meanwhile, and it does
    not take back what was given back. Raises ConditionFailed when it is another consumer's.
    """
    moment = yield from now()
    lease_end_us = moment.latest_us + round(lease_s * 1e6)
    is_later = all_of(less_than("lease_end_us", lease_end_us), greater_than("lease_end_us", 0))
    when = all_of(equals("token", own), is_later)
    try:
        yield from write(Update(cursor_key(group, stream), {"lease_end_us": lease_end_us}, when=when))
    except ConditionFailed as failed:
        refusal = failed.refusals[0]
        if refusal is None or cursor_of(group, stream, refusal.item).token != own:
            raise


def advance(cursor: Cursor, after: int, writes: Sequence[AnyWrite], lease_s: float, mark: str = "") -> Program[Cursor]:
    """Move the cursor to ``after``, which has that mark, together with ``writes``: all of it, once, or nothing.

    Raises Lost when the cursor is another consumer's; ConditionFailed when one of ``writes`` was refused.
    """
    moment = yield from now()
    moved = msgspec.structs.replace(
        cursor, after=after, mark=mark, attempts=0, error="", trouble="", trouble_n=0,
        lease_end_us=moment.latest_us + round(lease_s * 1e6),
    )  # fmt: skip
    return (yield from _change(cursor, moved, writes))


def note_failure(
    cursor: Cursor, after: int, error: str, lease_s: float, *, mark: str = "", stop: bool = False
) -> Program[Cursor]:
    """Count a failed attempt at the operation behind ``after``, and hold the cursor on for the next one. Raises Lost.

    The cursor moves to ``after`` where numbers that hold nothing are in between: what is skipped is the number behind
    the cursor, and that must be the operation that failed.
    """
    moment = yield from now()
    failed = msgspec.structs.replace(
        cursor, after=after, mark=mark, attempts=cursor.attempts + 1, error=error[:1000], is_stopped=stop,
        lease_end_us=moment.latest_us + round(lease_s * 1e6),
    )  # fmt: skip
    return (yield from _change(cursor, failed))


def note_trouble(cursor: Cursor, error: str, trouble_n: int) -> Program[Cursor]:
    """Store what keeps a consumer from going on, where its holder can still store anything, for whoever looks."""
    noted = msgspec.structs.replace(cursor, trouble=error[:1000], trouble_n=trouble_n)
    changes: dict[str, Any] = {"trouble": noted.trouble, "trouble_n": trouble_n}
    try:
        yield from write(Update(cursor_key(cursor.group, cursor.stream), changes, when=equals("token", cursor.token)))
    except StoreError:
        pass  # it is another one's by now, or the store has trouble of its own
    return noted


def park(cursor: Cursor, op: Op, error: str, lease_s: float, mark: str = "") -> Program[Cursor]:
    """Put an operation aside and move past it, in one transaction. Raises Lost."""
    moment = yield from now()
    item: Item = {
        "stream_id": cursor_key(cursor.group, cursor.stream).partition, "seq": op.seq, "format": FORMAT, "id": op.id,
        "data": op.data, "at_us": op.at_us, "error": error[:1000], "attempts": cursor.attempts + 1,
        "parked_at_us": moment.middle_us,
    }  # fmt: skip
    return (yield from advance(cursor, op.seq, [Put(STREAMS, item)], lease_s, mark))


def parked_items(cursor: Cursor, after: int) -> Program[list[Item]]:
    """A page of what was put aside, behind number ``after``; empty at the end."""
    partition = cursor_key(cursor.group, cursor.stream).partition
    return (yield from query_up_to(50, STREAMS, partition, low=after + 1))


def parked_of(stream: str, item: Mapping[str, Any]) -> Parked:
    """The operation in an item that was put aside."""
    op = Op(item["id"], item["data"], item["seq"], item["at_us"])
    return Parked(stream, op, item["error"], item["attempts"], item["parked_at_us"])


def settle_parked(cursor: Cursor, seq: int, writes: Sequence[AnyWrite], lease_s: float) -> Program[Cursor]:
    """Forget a parked operation together with what its handler wrote: once, or not at all.

    Raises Lost when the cursor is another consumer's; ConditionFailed when one of ``writes`` was refused.
    """
    moment = yield from now()
    key = STREAMS.key(cursor_key(cursor.group, cursor.stream).partition, seq)
    held = msgspec.structs.replace(cursor, lease_end_us=moment.latest_us + round(lease_s * 1e6))
    try:
        return (yield from _change(cursor, held, [Delete(key, when=present()), *writes]))
    except ConditionFailed as failed:
        if failed.refusals[1] is None:
            raise
        return held  # it is gone: this very change, whose answer was lost, or somebody has dealt with it


def park_again(cursor: Cursor, item: Item, error: str, lease_s: float) -> Program[Cursor]:
    """Keep a parked operation that was tried once more, with what it failed with now. Raises Lost."""
    moment = yield from now()
    key = STREAMS.key(cursor_key(cursor.group, cursor.stream).partition, int(item["seq"]))
    held = msgspec.structs.replace(cursor, lease_end_us=moment.latest_us + round(lease_s * 1e6))
    changes: dict[str, Any] = {
        "error": error[:1000],
        "attempts": int(item["attempts"]) + 1,
        "parked_at_us": moment.middle_us,
    }
    try:
        return (yield from _change(cursor, held, [Update(key, changes, ["replay"], when=present())]))
    except ConditionFailed:
        return cursor  # somebody has dealt with it


def end_replay(cursor: Cursor, lease_s: float) -> Program[Cursor]:
    """All that was to be handled once more has been. Raises Lost."""
    moment = yield from now()
    lease_end_us = moment.latest_us + round(lease_s * 1e6)
    return (yield from _change(cursor, msgspec.structs.replace(cursor, replay="", lease_end_us=lease_end_us)))


def release(cursor: Cursor) -> Program[None]:
    """Let somebody else take the cursor at once."""
    try:
        yield from _change(cursor, msgspec.structs.replace(cursor, lease_end_us=0))
    except (Lost, StoreError):
        pass  # its lease ends by itself


def _change(before: Cursor, after: Cursor, writes: Sequence[AnyWrite] = ()) -> Program[Cursor]:
    key = cursor_key(before.group, before.stream)
    changes: dict[str, Any] = {"after": after.after, "lease_end_us": after.lease_end_us, "attempts": after.attempts}
    removed = []
    words = {"error": after.error, "trouble": after.trouble, "trouble_n": after.trouble_n, "replay": after.replay}
    words["mark"] = after.mark
    for name, value in words.items():
        if value:
            changes[name] = value
        else:
            removed.append(name)
    if after.is_stopped:
        changes["stopped"] = True
    update = Update(key, changes, removed, when=_is(before))
    lost = 0
    while True:
        try:
            yield from transact([update, *writes])
            return after
        except ConditionFailed as failed:
            if failed.refusals[0] is None:
                raise
            found = cursor_of(before.group, before.stream, failed.refusals[0].item)
            changed = (after.after, after.is_stopped) != (before.after, before.is_stopped)
            is_there = (found.token, found.after, found.is_stopped) == (after.token, after.after, after.is_stopped)
            if changed and is_there:
                return after  # it was applied, and its answer was lost
            raise Lost from None
        except (Contention, OutcomeUnknown) as error:
            lost = yield from lost_again(lost, DEFAULT_RETRY, error)


# --- for people -------------------------------------------------------------------------------------------------------


def resume(group: str, stream: str, *, skip: bool = False) -> Program[Cursor]:
    """Let a stopped group go on, at the operation that failed, or with ``skip`` behind it; nothing when it goes.

    A group that stopped since the log is another one goes on in the log that there is, from its number.

    Whoever held the cursor holds it no more: what it sent before the stop must not stop the group again. Of several
    who resume one stop, one does it, whichever of them skips.
    """
    check_flag("skip", skip)
    found = yield from read_cursor(group, stream)
    if not found.is_stopped:
        return found
    update = Update(
        cursor_key(group, stream),
        {"after": found.after + 1 if skip else found.after, "attempts": 0, "lease_end_us": 0, "format": FORMAT},
        ["stopped", "error", "token", "mark"],
        when=all_of(
            present("stopped"),
            equals("after", found.after),
            equals("token", found.token) if found.token else absent("token"),
        ),
    )
    lost = 0
    while True:
        try:
            yield from transact([update])
            break
        except ConditionFailed:
            break  # another one's, or this one before its answer was lost: a second one would skip what comes next
        except (Contention, OutcomeUnknown) as error:
            lost = yield from lost_again(lost, DEFAULT_RETRY, error)
    return (yield from read_cursor(group, stream))


def parked_ops(group: str, stream: str, *, limit: int = 100, after: int = 0) -> Program[list[Parked]]:
    """What a group put aside, in order, from behind number ``after`` on."""
    check_stream(group, "group")
    check_stream(stream)
    check_count("limit", limit, 1, 10_000)
    check_count("after", after, 0, MAX_INT - 1)
    items = yield from query_up_to(limit, STREAMS, cursor_key(group, stream).partition, low=after + 1)
    return [parked_of(stream, item) for item in items]


def unpark(group: str, stream: str, seq: int) -> Program[None]:
    """Forget an operation that was put aside, once it has been dealt with."""
    check_stream(group, "group")
    check_stream(stream)
    check_count("seq", seq, 1)
    yield from transact([Delete(STREAMS.key(cursor_key(group, stream).partition, seq))])


def lag(log: Log, group: str, streams: Sequence[str]) -> Program[list[Lag]]:
    """How far a group is behind in each of some streams. Up to 1,000 parked operations are counted."""
    check_stream(group, "group")
    check_streams(streams)
    found = []
    for stream in streams:
        found.append((yield from lag_of(log, group, stream)))
    return found


def lag_of(log: Log, group: str, stream: str) -> Program[Lag]:
    """How far a group is behind in one stream."""
    cursor = yield from read_cursor(group, stream)
    head = yield from read_head(log, stream)
    aside = yield from query_up_to(1000, STREAMS, cursor_key(group, stream).partition, low=1)
    return Lag(
        group=group, stream=stream, after=cursor.after, last_seq=head.last_seq, parked=len(aside),
        is_stopped=cursor.is_stopped, error=cursor.error, trouble=cursor.trouble, trouble_n=cursor.trouble_n,
    )  # fmt: skip
