"""Listing executions and dead letters, page by page, through the ``listing`` index.

The index is spread over buckets and lags; each item of a page is read from the table again and filtered again. A page
may be short: only a cursor of None ends it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from casework.errors import CorruptItem, Misuse
from casework.executions.cursors import Place, read_place, write_place
from casework.executions.deliver import Execution, view
from casework.executions.mailbox import DEAD_BEGIN, DEAD_END, mails_of
from casework.executions.runtime import Runtime
from casework.executions.state import STATE, STATUSES, state_of
from casework.kernel.items import Item
from casework.kernel.programs import Program, get_many, query, query_all
from casework.kernel.schema import EXECUTIONS


class Listed(msgspec.Struct):
    """A page of executions."""

    items: list[Execution]
    next: str | None
    """Cursor of the next page; None at the end."""
    unreadable: list[str] = []
    """Ids of executions on this page whose state cannot be read, each with the reason."""


class DeadLetter(msgspec.Struct):
    """A message that nobody could take."""

    execution_id: str
    reason: str
    at_us: int
    events: list[dict[str, Any]]


class DeadLetters(msgspec.Struct):
    """A page of dead letters."""

    items: list[DeadLetter]
    next: str | None


def list_executions(
    rt: Runtime,
    *,
    status: str | None = None,
    machine: str | None = None,
    parent: str | None = None,
    limit: int = 100,
    cursor: str | None = None,
) -> Program[Listed]:
    """A page of executions.

    Args:
        rt: machines and options.
        status: only those with this status; None: all.
        machine: only those of this machine.
        parent: only children of this execution (a page of all children is read for it).
        limit: at most so many, 1 to 1000.
        cursor: of the page before, with the same filters.

    Raises Misuse for an unknown status, a limit out of bounds, or a cursor of another listing.
    """
    if status is not None and status not in STATUSES:
        raise Misuse(f"status is {status!r}; it must be one of {', '.join(STATUSES)}")
    statuses = STATUSES if status is None else (status,)
    partitions = [f"{s}/{bucket}" for s in statuses for bucket in range(rt.options.buckets)]
    low, high = (None, None) if machine is None else (f"{machine}/", f"{machine}0")
    place = read_place(cursor, ["executions", status, machine, parent], limit)
    listed = Listed([], None)
    while place.partition < len(partitions):
        room = limit - len(listed.items)
        page = yield from query(
            EXECUTIONS, partitions[place.partition], index="listing", low=low, high=high, limit=room, after=place.inner
        )
        items = yield from get_many([EXECUTIONS.key(str(item["id"]), STATE) for item in page.items])
        for item in items:
            _admit(rt, listed, item, status, machine, parent)
        place = Place(place.binding, place.partition + (page.next is None), page.next)
        if len(listed.items) >= limit or page.next is not None:
            break
    listed.next = write_place(place) if place.partition < len(partitions) else None
    return listed


def _admit(
    rt: Runtime, listed: Listed, item: Item | None, status: str | None, machine: str | None, parent: str | None
) -> None:
    """Put one item on the page if it still matches: the index lags behind the table."""
    if item is None or (status is not None and item.get("status") != status):
        return
    if parent is not None and item.get("parent_id") != parent:
        return
    try:
        execution = view(rt, state_of(item))
    except CorruptItem as error:
        listed.unreadable.append(f"{item['id']!r}: {error}")
        return
    if machine in (None, execution.machine) and all(other.id != execution.id for other in listed.items):
        listed.items.append(execution)


def list_dead_letters(rt: Runtime, *, limit: int = 100, cursor: str | None = None) -> Program[DeadLetters]:
    """A page of dead letters of all executions, oldest first within a bucket."""
    place = read_place(cursor, ["dead"], limit)
    found = DeadLetters([], None)
    while place.partition < rt.options.buckets:
        room = limit - len(found.items)
        page = yield from query(EXECUTIONS, f"dead/{place.partition}", index="listing", limit=room, after=place.inner)
        items = yield from get_many([EXECUTIONS.key(str(item["id"]), str(item["sort"])) for item in page.items])
        found.items += [dead_letter_of(item, rt) for item in items if item is not None]
        place = Place(place.binding, place.partition + (page.next is None), page.next)
        if len(found.items) >= limit or page.next is not None:
            break
    found.next = write_place(place) if place.partition < rt.options.buckets else None
    return found


def dead_letters_of(id: str, rt: Runtime | None = None) -> Program[list[DeadLetter]]:
    """The dead letters of one execution, oldest first."""
    items = yield from query_all(EXECUTIONS, id, low=DEAD_BEGIN, high=DEAD_END)
    return [dead_letter_of(item, rt) for item in items]


def dead_letter_of(item: Item, rt: Runtime | None = None) -> DeadLetter:
    """The dead letter in ``item``; its events are shown as far as they can be read."""
    try:
        mails = mails_of(item, rt)
        events = [{"type": mail.type, "data": mail.data, "id": mail.id, "source": mail.source} for mail in mails]
    except (CorruptItem, msgspec.DecodeError):
        events = [{"unreadable": str(item["mails"])[:200]}]
    return DeadLetter(str(item["id"]), str(item["reason"]), int(str(item["sort"])[2:19]), events)
