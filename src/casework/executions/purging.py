"""Purging many: what ended before a time, with its descendants, page by page.

Each page is a bounded step; a purge that is interrupted is finished by the next one, whatever filters that has but the
machine's. The walk reads every ended execution of the filters once: the listing is sorted by machine, not by time.
"""

from __future__ import annotations

import msgspec

from casework.errors import CaseworkError, CorruptItem, Misuse, NoSuchExecution, StoreError
from casework.executions.buckets import SETTINGS, note_settings
from casework.executions.control import purge
from casework.executions.cursors import Place, read_place, write_place
from casework.executions.joins import child_id
from casework.executions.runtime import Runtime
from casework.executions.state import ENDED, STATE, State, decode_data, state_of
from casework.kernel.items import Item
from casework.kernel.programs import Program, get, get_many, query
from casework.kernel.schema import EXECUTIONS

PURGEABLE = ("done", "failed", "cancelled")


class PurgedExecution(msgspec.Struct, kw_only=True):
    """An execution that was purged, or would be."""

    id: str
    machine: str
    status: str
    ended_at_us: int
    deleted: int = 0
    """Items, those of its descendants included; 0 when it only would be."""
    problem: str = ""
    """Why it could not be purged; purge again later."""


class Purged(msgspec.Struct, kw_only=True):
    """One page of a purge."""

    items: list[PurgedExecution]
    looked: int
    """Executions that were looked at, purged or not."""
    is_dry_run: bool
    next: str | None
    """Cursor of the next page; None at the end."""


def purge_ended(
    rt: Runtime,
    before_us: int,
    *,
    status: str | None = None,
    machine: str | None = None,
    limit: int = 100,
    cursor: str | None = None,
    is_dry_run: bool = False,
) -> Program[Purged]:
    """Purge a page of the executions that ended before a time, each with its descendants.

    A child goes with its parent only; one whose parent is there no more goes by itself. What an earlier purge has begun
    is finished.

    Args:
        rt: machines and options.
        before_us: the time, in microseconds since the epoch.
        status: ``done``, ``failed`` or ``cancelled``; None: all three.
        machine: only those of this machine.
        limit: look at no more than so many, 1 to 1000.
        cursor: of the page before, with the same filters.
        is_dry_run: purge nothing, only say what would be.

    Raises Misuse for what is wrong with the arguments.
    """
    if status is not None and status not in ENDED:
        raise Misuse(f"status is {status!r:.80}; what has ended is {', '.join(PURGEABLE)}")
    place = read_place(cursor, ["purge", status, machine], limit)
    statuses = (*(PURGEABLE if status is None else (status,)), "purging")
    low, high = (None, None) if machine is None else (f"{machine}/", f"{machine}0")
    page = Purged(items=[], looked=0, is_dry_run=is_dry_run, next=None)
    note_settings(rt, (yield from get(SETTINGS)))
    while place.partition < len(statuses) * rt.read_buckets and page.looked < limit:
        bucket, n = divmod(place.partition, len(statuses))  # more buckets stand behind those that were there
        room = limit - page.looked
        found = yield from query(
            EXECUTIONS, f"{statuses[n]}/{bucket}", index="listing", low=low, high=high, limit=room, after=place.inner
        )
        page.looked += len(found.items)
        items = yield from get_many([EXECUTIONS.key(str(item["id"]), STATE) for item in found.items])
        for item in items:
            one = yield from _purge_one(rt, item, before_us, statuses, machine, is_dry_run)
            if one is not None:
                page.items.append(one)
        place = Place(place.binding, place.partition + (found.next is None), found.next)
    page.next = write_place(place) if place.partition < len(statuses) * rt.read_buckets else None
    return page


def _purge_one(
    rt: Runtime, item: Item | None, before_us: int, statuses: tuple[str, ...], machine: str | None, is_dry_run: bool
) -> Program[PurgedExecution | None]:
    if item is None:
        return None
    try:
        state = state_of(item)
    except CorruptItem as error:
        return PurgedExecution(
            id=str(item["id"]), machine=str(item.get("machine")), status="", ended_at_us=0, problem=str(error)
        )
    is_due = state.status == "purging" or (state.status in statuses and state.updated_at_us < before_us)
    if not is_due or machine not in (None, state.machine) or (yield from _goes_with_another(rt, state)):
        return None
    one = PurgedExecution(id=state.id, machine=state.machine, status=state.status, ended_at_us=state.updated_at_us)
    if not is_dry_run:
        try:
            one.deleted = yield from purge(rt, state.id, tree=state.status != "purging")
        except NoSuchExecution:
            return None  # somebody else did
        except (StoreError, CaseworkError) as error:
            one.problem = f"{type(error).__name__}: {error}"
    return one


def _goes_with_another(rt: Runtime, state: State) -> Program[bool]:
    """Whether it is a child whose parent is there: the one that started it, not a later life of that id."""
    if not state.parent_id:
        return False
    found = yield from get(EXECUTIONS.key(state.parent_id, STATE))
    try:
        parent = decode_data(state, rt.decode(state.data)).parent
    except CorruptItem:
        return found is not None
    if found is None or parent is None:
        return False
    return child_id(parent.id, parent.invoke, parent.stay, parent.ordinal, int(found["created_at_us"])) == state.id
