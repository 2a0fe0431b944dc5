"""What operators do to records: look, release by force, purge. None of it is part of a working path."""

from __future__ import annotations

from casework.idempotency import record as records
from casework.idempotency.lifecycle import Shared, check_key, read, release
from casework.idempotency.record import CLAIMED, Record
from casework.kernel.items import Delete, Key
from casework.kernel.programs import Program, query, transact


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
