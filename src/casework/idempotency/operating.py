"""What operators do to records: look, release by force, purge. None of it is part of a working path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from casework.arguments import check_instance, check_list
from casework.errors import ConditionFailed, CorruptItem, NewerFormat
from casework.idempotency import record as records
from casework.idempotency.lifecycle import Shared, check_key, read, release
from casework.idempotency.record import CLAIMED, Record
from casework.kernel.items import Delete, Item, Key
from casework.kernel.programs import Program, now, query, transact


def get_record(shared: Shared, key: str) -> Program[Record | None]:
    """The record of a key as it is stored; a large body is left where it is (``chunks`` is above 0 then).

    Raises CorruptItem, NewerFormat when it cannot be read.
    """
    return (yield from read(shared, key))


def force_release(shared: Shared, key: str) -> Program[bool]:
    """Release whatever claim stands on the key, so that the next caller begins at once; False when none does.

    Its holder is fenced: what it completes later is refused. Be sure that it works no more.
    """
    record = yield from read(shared, key)
    if record is None or record.state != CLAIMED:
        return False
    return (yield from release(shared, key, record.token))


def _check_item(what: str, given: object) -> None:
    check_instance(what, given, Mapping, "an item as it is stored")


def purge_expired(shared: Shared, items: Sequence[Item]) -> Program[int]:
    """Delete those of the records whose time is over, with their chunks; how many items were deleted.

    For stores that do not do it by themselves, such as a file. A record that moved meanwhile is left alone.
    """
    check_list("items", items, _check_item, "a list of items as they are stored")
    moment = yield from now()
    deleted = 0
    for item in items:
        expires_at_s = item.get("expires_at_s")
        if item.get("part") != records.RECORD or type(expires_at_s) is not int:
            continue
        if expires_at_s * 1_000_000 > moment.earliest_us:
            continue
        # Only its own chunks, and with it: somebody may claim the key at once, and complete it with chunks of its own.
        try:
            chunks = [Delete(place) for place in records.chunk_keys(shared.table, records.record_of(item))]
        except NewerFormat:
            continue
        except CorruptItem:
            chunks = []
        try:
            yield from transact([Delete(shared.table.key_of(item), records.same_item(item)), *chunks])
        except ConditionFailed:
            continue
        deleted += 1 + len(chunks)
    return deleted


def purge(shared: Shared, key: str) -> Program[int]:
    """Delete the record of a key and its chunks, whatever is in them; how many items were deleted.

    The next call with this key runs again.
    """
    check_key(key)
    if shared.direct is not None:
        return int(shared.direct.remove(key))
    deleted = 0
    while True:
        page = yield from query(shared.table, key, limit=90)
        keys = [Key(shared.table, key, str(item["part"])) for item in page.items]
        if not keys:
            shared.nudge(key)
            return deleted
        keys.sort(key=lambda place: place.sort != records.RECORD)  # the record first: no record without its chunks
        yield from transact([Delete(place) for place in keys])
        deleted += len(keys)
