"""A result in parts: it is whole for whoever gets it, also while it becomes visible and while old ones are deleted.

Found by the simulator's scenario "idempotency: one key, kept for a while"; each is the smallest schedule of a failure.
"""

from __future__ import annotations

from typing import Any

import pytest

from casework import IdempotencyStore
from casework.backends.drive import run
from casework.backends.memory import MemoryBackend
from casework.backends.surroundings import VirtualClock
from casework.errors import Contention, ResultLost
from casework.idempotency import lifecycle, operating
from casework.kernel.effects import Get, GetMany, Query, Transact
from casework.kernel.items import Check, Delete
from casework.kernel.schema import IDEMPOTENCY, TABLES
from tests.executions.watching import ByHand

BODY = b"x" * 10_000


class Showing(MemoryBackend):
    """A store that shows the parts of a result later than its record, as a transaction's items may appear."""

    hides, tries = 0, 0

    def execute(self, effect: Any) -> Any:
        if isinstance(effect, GetMany) and self.hides:
            return [None for _ in effect.keys]
        if isinstance(effect, Transact) and isinstance(effect.writes[0], Check) and self.hides:
            self.hides -= 1
            self.tries += 1
            raise Contention("an item is in another transaction")
        return super().execute(effect)


@pytest.fixture
def backend() -> Showing:
    backend = Showing(clock=VirtualClock())
    backend.create_tables(TABLES)
    return backend


def completed(store: IdempotencyStore, body: bytes = BODY) -> str:
    claim = store.claim("k", "print", 1, 60)
    assert claim.token is not None and store.complete("k", claim.token, 0, None, body, 5)
    return claim.token


def items(backend: Any) -> list[Any]:
    return list(backend.execute(Query(IDEMPOTENCY, "k")).items)


def test_a_part_that_does_not_show_yet_is_looked_for_again(backend: Showing) -> None:
    store = IdempotencyStore(backend)
    completed(store)
    backend.hides = 3
    assert store.claim("k", "print", 1, 60).record.body == BODY and backend.tries == 3
    backend.hides = 1
    record = run(lifecycle.load_body(store.shared, store.get("k")), backend)  # type: ignore[arg-type]
    assert record is not None and record.body == BODY


def test_a_result_that_is_deleted_while_it_is_read_is_none(backend: Showing) -> None:
    store = IdempotencyStore(backend)
    completed(store)
    claiming = ByHand(lifecycle.claim(store.shared, "k", "print", 1, 60.0), backend)
    claiming.up_to(lambda effect: isinstance(effect, GetMany))
    assert store.purge("k") == 2
    claiming.finish()
    assert claiming.value.result == "new_claimed"


def test_a_part_that_has_another_length_is_lost_at_once(backend: Showing) -> None:
    store = IdempotencyStore(backend)
    completed(store)
    (part,) = [item for item in items(backend) if item["part"] != "0"]
    backend.tables.stored(IDEMPOTENCY).store(IDEMPOTENCY.key_of(part), {**part, "body": b"x"})
    with pytest.raises(ResultLost):
        store.claim("k", "print", 1, 60)
    assert backend.tries == 0


def test_an_old_result_is_deleted_with_its_own_parts_and_no_others(backend: Showing) -> None:
    store = IdempotencyStore(backend, lease_grace_seconds=0)
    completed(store)
    backend.sleep(10)
    old = backend.execute(Get(IDEMPOTENCY.key("k", "0")))
    purging = ByHand(operating.purge_expired(store.shared, [old]), backend).up_to()
    assert [type(write) for write in purging.waiting.writes] == [Delete, Delete]
    completed(store, BODY + b"new")
    assert purging.finish() == 0
    assert store.claim("k", "print", 1, 60).record.body == BODY + b"new"
    backend.sleep(10)
    assert store.purge_expired(items(backend)) == 2
    assert all(item["part"] != "0" for item in items(backend))


def test_old_records_that_cannot_be_read_go_and_those_of_a_newer_format_stay(backend: Showing) -> None:
    store = IdempotencyStore(backend, lease_grace_seconds=0)
    completed(store, b"small")
    backend.sleep(10)
    old = backend.execute(Get(IDEMPOTENCY.key("k", "0")))
    place = IDEMPOTENCY.key("k", "0")
    backend.tables.stored(IDEMPOTENCY).store(place, {**old, "format": 99})
    assert store.purge_expired(items(backend)) == 0 and len(items(backend)) == 1
    backend.tables.stored(IDEMPOTENCY).store(place, {**old, "status": "what"})
    assert store.purge_expired(items(backend)) == 1 and items(backend) == []
