"""Listing executions and dead letters, page by page, through the ``listing`` index.

The index is spread over buckets and lags; each item of a page is read from the table again and filtered again. Children
have an entry in the index only when they failed, or an operator moved them; the others are found from their parents
(:mod:`casework.executions.branches`). A page may be short: only a cursor of None ends it.

The number of buckets is read with each page, after its index entries. So a listing whose process was opened, or which
was begun, before the number was raised ends only when it has been through all of them: whatever left a bucket before
it was read stands in a later one, and whoever put it there had raised the number before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from casework.arguments import check_choice, check_text
from casework.errors import CorruptItem
from casework.executions.branches import NOTES, Branch, branches_of, chunks, noted_branch, open_branches
from casework.executions.buckets import SETTINGS, note_settings
from casework.executions.cursors import Place, read_place, write_place
from casework.executions.deliver import Execution, view
from casework.executions.mailbox import DEAD_BEGIN, DEAD_END, mails_of
from casework.executions.runtime import Runtime
from casework.executions.state import STATE, STATUSES, State, is_id, state_of
from casework.kernel.effects import Page as QueryPage
from casework.kernel.items import Item, Key
from casework.kernel.programs import Program, get, get_many, query, query_all
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
    """A page of executions, children included.

    Args:
        rt: machines and options.
        status: only those with this status; None: all.
        machine: only those of this machine.
        parent: only children of this execution, those of earlier stays included.
        limit: at most so many, 1 to 1000.
        cursor: of the page before, with the same filters.

    Raises Misuse for an unknown status, a limit out of bounds, or a cursor of another listing.
    """
    if status is not None:
        check_choice("status", status, STATUSES)
    for name, given in (("machine", machine), ("parent", parent)):
        if given is not None:
            check_text(name, given)
    place = read_place(cursor, ["executions", status, machine, parent], limit)
    page = _Page(rt, status, machine, limit, Listed([], None))
    if parent is not None:
        yield from _children_of(page, parent, place)
        return page.listed
    walks = _walks(page)
    while place.partition < len(walks) * rt.read_buckets and not page.is_full:
        bucket, n = divmod(place.partition, len(walks))  # more buckets stand behind those that were there
        place = yield from walks[n](bucket, page, place)
    page.listed.next = write_place(place) if place.partition < len(walks) * rt.read_buckets else None
    return page.listed


class _Page:
    """One page in the making, and what may stand on it."""

    def __init__(self, rt: Runtime, status: str | None, machine: str | None, limit: int, listed: Listed) -> None:
        self.rt = rt
        self.status = status
        self.machine = machine
        self.limit = limit
        self.listed = listed
        self.looked = 0
        self.seen: set[str] = set()

    @property
    def room(self) -> int:
        return self.limit - len(self.listed.items)

    @property
    def is_full(self) -> bool:
        """Whether it has as many as it may, or enough was looked at in vain: it is handed back short then."""
        return self.room <= 0 or self.looked >= LOOKED_MAX

    def admit(self, item: Item | None) -> State | None:
        """Put one item on the page if it matches (the index lags behind the table); its state, if it can be read."""
        state = self.state_in(item)
        if state is None or self.status not in (None, state.status) or self.machine not in (None, state.machine):
            return state
        try:
            execution = view(self.rt, state)
        except CorruptItem as error:
            self.listed.unreadable.append(f"{state.id!r}: {error}")
            return None
        if state.id not in self.seen:
            self.seen.add(state.id)
            self.listed.items.append(execution)
        return state

    def state_in(self, item: Item | None) -> State | None:
        """The state in an item; None when there is none, or it cannot be read, which the page then says."""
        try:
            return None if item is None else state_of(item)
        except CorruptItem as error:
            self.listed.unreadable.append(f"{item['id'] if item else ''!r}: {error}")
            return None

    def branch_in(self, item: Item | None) -> Branch | None:
        """The branch in a note, in the same way."""
        try:
            return None if item is None else noted_branch(item)
        except CorruptItem as error:
            self.listed.unreadable.append(str(error))
            return None


Walk = Callable[[int, _Page, Place], Program[Place]]

LEFT = (None, "done", "cancelled")
"""Filters that children match whose parents wait no longer: what had not ended by then was told to."""

OPEN = (None, "pending", "running", "done", "cancelled")
"""Filters that children match which stand in no index and whose parents wait for them."""

LOOKED_MAX = 2_000
"""A page is handed back short after so many looks in vain."""

CHUNK = 100
"""So many states are read at once."""


def _walks(page: _Page) -> list[Walk]:
    """What is walked for a page in each bucket, one partition of the index after the other.

    An execution is found in one way only: by its own entry in the index; or, a child without one, from the parent that
    waits for it, or from the note of a parent that waits no longer.
    """
    statuses = STATUSES if page.status is None else (page.status,)
    parents = ("running", "suspended") if page.status in OPEN else ()
    walks: list[Walk] = []
    for status in statuses:
        at_once = status in parents and page.machine is None
        walks.append(partial(_walk_entries, status, True, at_once))
    for status in parents:
        if page.machine is not None or status not in statuses:
            walks.append(partial(_walk_entries, status, False, True))
    if page.status in LEFT:
        walks.append(_walk_notes)
    return walks


def _walk_entries(status: str, own: bool, children: bool, bucket: int, page: _Page, place: Place) -> Program[Place]:
    """A page of the index: the executions that stand there (``own``), and those that they wait for (``children``)."""
    found = yield from _entries(page, f"{status}/{bucket}", place, page.machine if own else None)
    items = yield from _read_again(page.rt, [EXECUTIONS.key(str(item["id"]), STATE) for item in found.items])
    for entry, item in zip(found.items, items, strict=True):
        path = _path_in(entry, place)
        if page.is_full and not path:
            return _at(place, entry)
        page.looked += 1
        state = page.admit(item) if own and not path else page.state_in(item)
        if children and state is not None and not state.ended:
            path = yield from _descend(page, state, path)
            if path:
                return _at(place, entry, path)
    return _behind(place, found)


def _walk_notes(bucket: int, page: _Page, place: Place) -> Program[Place]:
    """A page of notes: the children of which they tell."""
    found = yield from _entries(page, f"{NOTES}/{bucket}", place, page.machine)
    keys = [EXECUTIONS.key(str(item["id"]), str(item["sort"])) for item in found.items]
    items = yield from _read_again(page.rt, keys)
    for entry, item in zip(found.items, items, strict=True):
        page.looked += 1
        branch = page.branch_in(item)
        if branch is not None:
            path = _path_in(entry, place)
            path = yield from _walk_branch(page, branch, path, deep=True, listed=False)
            if path:
                return _at(place, entry, path)
    return _behind(place, found)


def _entries(page: _Page, partition: str, place: Place, machine: str | None) -> Program[QueryPage]:
    """A page of the index from where the listing stands; by the entry's own key, since it may stand inside one."""
    low, high = (None, None) if machine is None else (f"{machine}/", f"{machine}0")
    size = min(CHUNK, max(page.room, 1))
    return (yield from query(EXECUTIONS, partition, index="listing", low=place.inner or low, high=high, limit=size))


def _read_again(rt: Runtime, keys: Sequence[Key]) -> Program[list[Item | None]]:
    """The items of a page of the index as they are now, and with them the number of buckets."""
    settings, *items = yield from get_many([SETTINGS, *keys])
    note_settings(rt, settings)
    return items


def _path_in(entry: Item, place: Place) -> Path:
    """Where inside an entry the page before ended."""
    return place.path if entry["listed"] == place.inner else []


def _at(place: Place, entry: Item, path: Path | None = None) -> Place:
    return Place(place.binding, place.partition, str(entry["listed"]), path=path or [])


def _behind(place: Place, found: QueryPage) -> Place:
    """The place after a page of the index: the next key that there may be, or the next partition."""
    if found.next is None:
        return Place(place.binding, place.partition + 1, None)
    return Place(place.binding, place.partition, str(found.items[-1]["listed"]) + "\x01")


Path = list[tuple[int, str, int]]
"""The child that comes next, with those above it, as in :class:`~casework.executions.cursors.Place`; empty: none."""


def _descend(page: _Page, state: State, path: Path) -> Program[Path]:
    """Children that an execution waits for, and those that they wait for; the path of the next, empty at the end."""
    try:
        branches = open_branches(page.rt, state)
    except CorruptItem:
        return []  # said where its own turn comes
    for branch in branches:
        if path and branch.order < (path[0][0], path[0][1]):
            continue
        rest = path if path and branch.order == (path[0][0], path[0][1]) else []
        path = yield from _walk_branch(page, branch, rest, deep=True, listed=False)
        if path:
            return path
    return []


def _walk_branch(page: _Page, branch: Branch, path: Path, *, deep: bool, listed: bool) -> Program[Path]:
    """Children of one branch from ``path`` on; the path of the next one, empty at the end.

    ``deep``: with those that they wait for. ``listed``: with those that stand in the index themselves.
    """
    first, inside = (path[0][2], path[1:]) if path else (0, [])
    for begin, end in chunks(first, branch.total, min(CHUNK, max(page.room, 10))):
        items = yield from get_many([EXECUTIONS.key(id, STATE) for id in branch.children(begin, end)])
        for ordinal, item in enumerate(items, begin):
            here = (branch.stay, branch.invoke, ordinal)
            if page.is_full and not inside:
                return [here]
            page.looked += 1
            if item is not None and (listed or "listing" not in item):
                state = page.state_in(item) if inside else page.admit(item)
                if deep and state is not None and not state.ended:
                    below = yield from _descend(page, state, inside)
                    if below:
                        return [here, *below]
            inside = []
    return []


def _children_of(page: _Page, parent: str, place: Place) -> Program[None]:
    """Children of one execution, in the order in which they were started."""
    item = yield from get(EXECUTIONS.key(parent, STATE)) if is_id(parent) else _nothing()
    state = page.state_in(item)
    if state is None:
        return
    for branch in (yield from branches_of(page.rt, state)):
        path = place.path
        if path and branch.order < (path[0][0], path[0][1]):
            continue
        rest = path if path and branch.order == (path[0][0], path[0][1]) else []
        left = yield from _walk_branch(page, branch, rest, deep=False, listed=True)
        if left:
            page.listed.next = write_place(Place(place.binding, 0, None, path=left))
            return


def _nothing() -> Program[None]:
    yield from ()
    return None


def list_dead_letters(rt: Runtime, *, limit: int = 100, cursor: str | None = None) -> Program[DeadLetters]:
    """A page of dead letters of all executions, oldest first within a bucket."""
    place = read_place(cursor, ["dead"], limit)
    found = DeadLetters([], None)
    while place.partition < rt.read_buckets:
        room = limit - len(found.items)
        page = yield from query(EXECUTIONS, f"dead/{place.partition}", index="listing", limit=room, after=place.inner)
        items = yield from _read_again(rt, [EXECUTIONS.key(str(item["id"]), str(item["sort"])) for item in page.items])
        found.items += [dead_letter_of(item, rt) for item in items if item is not None]
        place = Place(place.binding, place.partition + (page.next is None), page.next)
        if len(found.items) >= limit or page.next is not None:
            break
    found.next = write_place(place) if place.partition < rt.read_buckets else None
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
