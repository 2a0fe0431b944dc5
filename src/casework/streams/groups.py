"""Groups of consumers, for those who look after them: which there are, and moving them; all while consumers run."""

from __future__ import annotations

from typing import Any

import msgspec

from casework.arguments import check_count
from casework.errors import ConditionFailed, Contention, Misuse, OutcomeUnknown
from casework.kernel.conditions import Condition, absent, all_of, equals, present
from casework.kernel.items import AnyWrite, Update
from casework.kernel.programs import Program, get, lost_again, query, token, transact, write
from casework.kernel.retry import DEFAULT_RETRY
from casework.kernel.schema import FORMAT, REGISTRY, STREAMS
from casework.streams.cursors import (
    CURSOR_NAMES,
    Cursor,
    Lag,
    cursor_key,
    cursor_of,
    lag_of,
    name_put,
    parked_ops,
    read_cursor,
)
from casework.streams.log import Log, check_stream
from casework.streams.positions import Start, check_start, position_of
from casework.streams.read import read_head


class GroupPage(msgspec.Struct, frozen=True):
    """Groups, each with one of its streams."""

    groups: list[Lag]
    next_cursor: str | None


def list_groups(log: Log, *, limit: int = 100, cursor: str | None = None) -> Program[GroupPage]:
    """How far each group is in each stream of its own, in order. Only a ``next_cursor`` of None ends the listing."""
    check_count("limit", limit, 1, 1000)
    page = yield from query(REGISTRY, CURSOR_NAMES, limit=limit, after=cursor)
    found = []
    for item in page.items:
        group, _, stream = str(item["name"]).partition("/")
        found.append((yield from lag_of(log, group, stream)))
    return GroupPage(found, page.next)


def seek(log: Log, group: str, stream: str, to: Start) -> Program[Cursor]:
    """Move a group in a stream, on or back; one that is stopped goes on from there. The cursor afterwards.

    Whoever holds the cursor holds it no more: what it handles now is not stored, and a consumer takes it up at the new
    place within its heartbeat. What lies between is handled again after a move back, and never after a move on.

    Args:
        log: what this process knows of its streams.
        group: its name; one that has not begun yet begins there.
        stream: the stream.
        to: ``"floor"``, ``"snapshot"``, ``"head"``, a number (the next operation is the one behind it), or a datetime
            with its zone: the first operation that was stored then or later.

    Raises Misuse for a place that the stream does not have.
    """
    check_stream(group, "group")
    check_start("to", to)
    after = yield from position_of(log, stream, to)
    if isinstance(to, int):
        head = yield from read_head(log, stream)
        if not head.floor_seq <= after <= head.last_seq:
            raise Misuse(
                f"stream {stream!r}: a group cannot go on behind {after}; the stream has what is behind "
                f"{head.floor_seq}, its floor, up to {head.last_seq}, its head"
            )
    yield from _loosen(
        group, stream, {"after": after, "attempts": 0}, ["stopped", "error", "trouble", "trouble_n", "mark"]
    )
    return (yield from read_cursor(group, stream))


def replay_parked(log: Log, group: str, stream: str, seq: int | None = None) -> Program[int]:
    """Let a group handle what it parked once more, with the handler that it has now; how many operations that are.

    A consumer of the group does it, before it goes on, each operation once: one that succeeds is parked no more, one
    that fails again stays, with its new error. They are handled in their order, but out of the stream's order. A group
    that is stopped in the stream does it when it goes on.

    Args:
        log: what this process knows of its streams.
        group: its name.
        stream: the stream.
        seq: the number of the one; None: all that are parked now.

    Raises Misuse when none is parked at ``seq``.
    """
    if seq is not None:
        check_count("seq", seq, 1)
    marked, after = 0, 0 if seq is None else seq - 1
    partition = cursor_key(group, stream).partition
    while True:
        page = yield from parked_ops(group, stream, limit=100 if seq is None else 1, after=after)
        for parked in page:
            after = parked.op.seq
            if seq is not None and after != seq:
                continue
            try:
                yield from write(Update(STREAMS.key(partition, after), {"replay": True}, when=present()))
                marked += 1
            except ConditionFailed:
                pass  # somebody has dealt with it meanwhile
        if not page or seq is not None:
            break
    if marked:
        name = yield from token()
        yield from _loosen(group, stream, {"replay": name}, [])
    elif seq is not None:
        raise Misuse(
            f"group {group!r} has nothing parked at {seq} of stream {stream!r}; `casework streams parked` lists"
        )
    return marked


def _loosen(group: str, stream: str, changes: dict[str, Any], removed: list[str]) -> Program[None]:
    """Change the cursor once, whoever holds it, and take it from its holder: what that one sent before is refused."""
    key = cursor_key(group, stream)
    own = yield from token()
    lost = 0
    while True:
        item = yield from get(key)
        found = cursor_of(group, stream, item)
        if item is not None and item.get("moved") == own:
            return  # it was done, and its answer was lost
        when: Condition = absent()
        entry: list[AnyWrite] = [name_put(group, stream)]
        if item is not None:
            holder = equals("token", found.token) if found.token else absent("token")
            when, entry = all_of(holder, equals("after", found.after)), []
        changed = {"after": found.after, **changes, "lease_end_us": 0, "moved": own, "format": FORMAT}
        try:
            yield from transact([Update(key, changed, [*removed, "token"], when=when), *entry])
            return
        except (ConditionFailed, Contention, OutcomeUnknown) as error:
            lost = yield from lost_again(lost, DEFAULT_RETRY, error)
