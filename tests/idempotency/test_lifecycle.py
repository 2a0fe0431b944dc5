"""The life of a record where it is hard: lost answers, coarse clocks, records that cannot be read, shared waiting."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from casework import (
    AsyncDynamoDBIdempotencyStore,
    CorruptItem,
    DynamoDBIdempotencyStore,
    IdempotencyStore,
    MemoryIdempotencyStore,
    NewerFormat,
    ResultLost,
    Unavailable,
    idempotent,
)
from casework.backends.drive import run
from casework.backends.dynamodb.clock import ServiceClock
from casework.backends.memory import MemoryBackend
from casework.backends.surroundings import VirtualClock
from casework.idempotency.record import chunk_sort
from casework.kernel.effects import Get, Instant, Transact, Write
from casework.kernel.items import Delete, Put
from casework.kernel.schema import IDEMPOTENCY, TABLES
from tests.servers.clients import dynamodb
from tests.servers.lossy_proxy import LossyProxy, Rule

LOSSES: list[Any] = [
    pytest.param(Rule.drop_request, id="request"),
    pytest.param(Rule.drop_answer, id="answer"),
    pytest.param(Rule.server_error, id="500-before"),
    pytest.param(Rule.server_error_after_applying, id="500-after"),
]


# --- lost answers -----------------------------------------------------------------------------------------------------


@pytest.fixture
def lossy(lossy_proxy: LossyProxy, unique: Callable[[str], str]) -> Any:
    with DynamoDBIdempotencyStore(table=unique("keys"), endpoint_url=lossy_proxy.url) as store:
        store.get("warm")
        lossy_proxy.clear()
        yield store


@pytest.mark.parametrize("lose", LOSSES)
def test_every_step_is_true_or_false_also_when_an_answer_was_lost(
    lossy: Any, lossy_proxy: LossyProxy, lose: Callable[[Rule], Rule]
) -> None:
    lose(lossy_proxy.on("PutItem"))
    claim = lossy.claim("k", "print", 1, 60)
    assert claim.result == "new_claimed"  # its own first attempt does not refuse it
    lose(lossy_proxy.on("UpdateItem"))
    assert lossy.renew("k", claim.token, 60)
    lose(lossy_proxy.on("UpdateItem"))
    assert lossy.release("k", claim.token)
    assert not lossy.release("k", claim.token)
    lose(lossy_proxy.on("PutItem", nth=2))
    claim = lossy.claim("k", "print", 1, 60)
    assert claim.result == "new_claimed"
    lose(lossy_proxy.on("UpdateItem"))
    assert lossy.complete("k", claim.token, 200, None, b"x", 60)
    assert not lossy.complete("k", claim.token, 200, None, b"y", 60)
    assert lossy.claim("k", "print", 1, 60).record.body == b"x"
    big = lossy.claim("big", "print", 1, 60)
    lose(lossy_proxy.on("TransactWriteItems"))
    assert lossy.complete("big", big.token, 200, None, b"x" * 10_000, 60)
    assert len(lossy.claim("big", "print", 1, 60).record.body) == 10_000


def test_a_function_runs_once_although_the_answer_to_its_claim_is_lost(lossy: Any, lossy_proxy: LossyProxy) -> None:
    ran = []

    @idempotent(lossy, key="n")
    def work(n: int) -> int:
        ran.append(n)
        return n

    lossy_proxy.on("PutItem").drop_answer()
    assert (work(1), work(1), ran) == (1, 1, [1])


def test_a_cancelled_caller_whose_claim_lands_later_releases_it(
    lossy_proxy: LossyProxy, ministack_url: str, unique: Callable[[str], str]
) -> None:
    table = unique("keys")

    async def main() -> None:
        store = AsyncDynamoDBIdempotencyStore(table=table, endpoint_url=lossy_proxy.url)
        await store.get("warm")
        held = lossy_proxy.on("PutItem").hold_answer()

        @idempotent(store, key="n")
        async def work(n: int) -> int:
            raise AssertionError("it ran")

        task = asyncio.create_task(work(1))
        await asyncio.to_thread(held.wait_until_it_arrives)
        task.cancel()
        await asyncio.sleep(0)
        held.release()
        with pytest.raises(asyncio.CancelledError):
            await task
        record = await store.get(work.key_of(1))  # type: ignore[attr-defined]
        assert record is not None and record.state == "released"
        await store.close()

    asyncio.run(main())


# --- clocks -----------------------------------------------------------------------------------------------------------


class CoarseBackend(MemoryBackend):
    """A store whose time is known to some seconds only, and off; and a steady clock of the process's own."""

    def __init__(self, error_s: float, skew_s: float) -> None:
        super().__init__()
        self.error_us, self.skew_us = int(error_s * 1e6), int(skew_s * 1e6)
        self.time_us = 1_750_000_000_000_000

    def now(self) -> Instant:
        seen_us = self.time_us + self.skew_us
        return Instant(seen_us - self.error_us, seen_us + self.error_us)


def coarse_store(backend: CoarseBackend, view: CoarseBackend) -> IdempotencyStore:
    view.tables, view._lock = backend.tables, backend._lock
    store = IdempotencyStore(view)
    store.shared.steady_us = lambda: backend.time_us
    return store


@pytest.mark.parametrize("skew_s", [-200.0, -1.0, 0.0, 1.0, 200.0])
def test_a_short_lease_is_neither_stolen_nor_kept_for_ever_whatever_the_clocks_say(skew_s: float) -> None:
    true = CoarseBackend(0, 0)
    true.create_tables(TABLES)
    holder = coarse_store(true, CoarseBackend(300, 0))
    other = coarse_store(true, CoarseBackend(300, skew_s))
    claim = holder.claim("k", "print", 1, 0.5)
    assert other.claim("k", "print", 1, 0.5).result == "already_claimed"  # a first look proves nothing
    for view in (holder, other):
        view.backend.time_us += 400_000  # type: ignore[attr-defined]
    true.time_us += 400_000
    assert other.claim("k", "print", 1, 0.5).result == "already_claimed"
    assert holder.renew("k", str(claim.token), 0.5)
    true.time_us += 400_000
    assert other.claim("k", "print", 1, 0.5).result == "already_claimed"  # renewed, so the look before does not count
    true.time_us += 510_000
    assert other.claim("k", "print", 1, 0.5).result == "lease_reclaimed"
    assert not holder.complete("k", str(claim.token), 200, None, b"late", 60)


def test_a_fresh_process_without_a_sample_of_the_clock_leaves_a_live_lease_alone(
    ministack_url: str, unique: Callable[[str], str]
) -> None:
    table = unique("keys")
    with (
        DynamoDBIdempotencyStore(table=table, endpoint_url=ministack_url) as first,
        DynamoDBIdempotencyStore(
            table=table, endpoint_url=ministack_url, clock=ServiceClock(wall_s=lambda: 9e9)
        ) as fresh,
    ):
        first.claim("k", "print", 1, 30)
        assert fresh.claim("k", "print", 1, 30).result == "already_claimed"


# --- records that cannot be read --------------------------------------------------------------------------------------


@pytest.fixture
def backend() -> MemoryBackend:
    backend = MemoryBackend()
    backend.create_tables(TABLES)
    return backend


def put(backend: MemoryBackend, **changes: Any) -> None:
    item = {
        "key": "k", "part": "0", "format": 1, "state": "claimed", "token": "t", "epoch": 1, "renewals": 0,
        "lease_us": 10**12, "lease_until_us": 10**17, "created_at_us": 1,
    }  # fmt: skip
    item = {name: value for name, value in {**item, **changes}.items() if value is not None}
    backend.execute(Write(Put(IDEMPOTENCY, item)))


CORRUPT: list[dict[str, Any]] = [
    {"token": None}, {"state": "sleeping"}, {"lease_us": "long"}, {"format": None}, {"epoch": True}, {"token": ""},
    {"state": "completed"}, {"state": "completed", "completed_at_us": 1, "status": 1, "size": 9, "body": b"x"},
    {"state": "completed", "completed_at_us": 1, "status": 1, "size": 0, "headers": "{"},
]  # fmt: skip


@pytest.mark.parametrize("changes", CORRUPT, ids=str)
def test_of_many_who_find_a_record_that_cannot_be_read_one_replaces_it(
    backend: MemoryBackend, changes: dict[str, Any]
) -> None:
    put(backend, **changes)
    with pytest.raises(CorruptItem):
        IdempotencyStore(backend).get("k")
    barrier, found = threading.Barrier(10), []

    def claim() -> None:
        store = IdempotencyStore(backend)
        barrier.wait()
        found.append(store.claim("k", "print", 1, 60))

    threads = [threading.Thread(target=claim) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(claim.result for claim in found) == ["already_claimed"] * 9 + ["new_claimed"]
    assert [claim.recovered_from_corrupt for claim in found if claim.token] == [True]


def test_a_record_of_a_newer_format_is_refused_and_left_as_it_is(backend: MemoryBackend) -> None:
    put(backend, format=2, state="dreaming")
    store = IdempotencyStore(backend)
    before = backend.execute(Get(IDEMPOTENCY.key("k", "0")))
    for act in (
        lambda: store.claim("k", "print", 1, 60),
        lambda: store.wait_for_completion("k", 1),
        lambda: store.get("k"),
    ):
        with pytest.raises(NewerFormat):
            act()
    assert backend.execute(Get(IDEMPOTENCY.key("k", "0"))) == before


def test_a_result_that_misses_a_part_is_an_error_and_never_a_second_run(backend: MemoryBackend) -> None:
    store, ran = IdempotencyStore(backend), []

    @idempotent(store, key="n")
    def work(n: int) -> str:
        ran.append(n)
        return "x" * 800_000

    work(1)
    key = work.key_of(1)  # type: ignore[attr-defined]
    record = store.get(key)
    assert record is not None and record.chunks == 3
    backend.execute(Transact([Delete(IDEMPOTENCY.key(key, chunk_sort(record.token, 1)))]))
    for _ in range(2):
        with pytest.raises(ResultLost, match="purge"):
            work(1)
    assert (ran, store.purge(key)) == ([1], 3)
    work(1)
    assert ran == [1, 1]


# --- waiting ----------------------------------------------------------------------------------------------------------


class Counting(MemoryBackend):
    gets = 0

    def execute(self, effect: Any) -> Any:
        if isinstance(effect, Get):
            self.gets += 1
        return super().execute(effect)


def test_fifty_who_wait_share_one_poll_and_a_new_leader_is_found_when_it_leaves() -> None:
    backend = Counting()
    backend.create_tables(TABLES)
    holder, waiters = IdempotencyStore(backend), IdempotencyStore(backend)
    token = str(holder.claim("k", "print", 1, 300).token)
    found: list[Any] = []

    def wait(seconds: float) -> None:
        found.append(waiters.wait_for_completion("k", seconds))

    first = threading.Thread(target=wait, args=(0.3,))
    first.start()
    threads = [threading.Thread(target=wait, args=(60.0,)) for _ in range(50)]
    for thread in threads:
        thread.start()
    first.join(30)
    assert found == [None]
    before = backend.gets
    holder.complete("k", token, 200, None, b"x", 60)
    for thread in threads:
        thread.join(30)
    assert [record.body for record in found[1:]] == [b"x"] * 50
    assert before < 50 and backend.gets - before <= 3
    assert waiters.shared.polls == {}


def test_waiting_ends_in_virtual_time_when_the_lease_does() -> None:
    clock = VirtualClock()
    backend = MemoryBackend(clock=clock)
    backend.create_tables(TABLES)
    store = IdempotencyStore(backend)
    started = clock.now().middle_us
    store.claim("k", "print", 1, 30)
    assert store.wait_for_completion("k", 3600) is None
    assert 30e6 <= clock.now().middle_us - started < 31e6
    assert store.claim("k", "print", 1, 30).result == "lease_reclaimed"


# --- keeping alive ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [False, True])
def test_long_work_keeps_its_claim_and_loses_it_after_the_longest_run(is_async: bool) -> None:
    store = MemoryIdempotencyStore()
    told = threading.Event()
    renewed = threading.Event()
    original = store.records.renew

    def renew(*args: Any) -> bool:
        answer = original(*args)
        found = store.get(args[0])
        if found is not None and found.renewals >= 4:
            renewed.set()
        return answer

    store.records.renew = renew  # type: ignore[method-assign]

    def check() -> str:
        from casework import current_claim

        claim = current_claim()
        assert claim is not None
        claim.when_lost(told.set)
        assert renewed.wait(30)  # four renewals are more than a lease
        assert store.claim(claim.key, "print", 1, 1).result == "already_claimed" and not claim.is_lost
        assert told.wait(30)
        assert claim.is_lost
        return "done"

    if is_async:

        @idempotent(store, key="n", lease_s=0.3, max_run_s=0.6)
        async def later(n: int) -> str:
            return await asyncio.to_thread(check)

        assert asyncio.run(later(1)) == "done"
    else:

        @idempotent(store, key="n", lease_s=0.3, max_run_s=0.6)
        def work(n: int) -> str:
            return check()

        assert work(1) == "done"


# --- the client and the table -----------------------------------------------------------------------------------------


def test_a_failed_set_up_leaks_nothing_and_the_next_call_tries_again(
    lossy_proxy: LossyProxy, unique: Callable[[str], str]
) -> None:
    with DynamoDBIdempotencyStore(table=unique("keys"), endpoint_url=lossy_proxy.url) as store:
        lossy_proxy.on("CreateTable", times=None).error("AccessDeniedException", "not yet")
        with pytest.raises(Unavailable):
            store.claim("k", "print", 1, 60)
        lossy_proxy.clear()
        assert store.claim("k", "print", 1, 60).result == "new_claimed"


def test_ttl_is_switched_on_for_a_table_that_was_there_without_it(
    ministack_url: str, unique: Callable[[str], str]
) -> None:
    table, client = unique("keys"), dynamodb(ministack_url)
    client.create_table(
        TableName=table, BillingMode="PAY_PER_REQUEST",
        KeySchema=[{"AttributeName": "key", "KeyType": "HASH"}, {"AttributeName": "part", "KeyType": "RANGE"}],
        AttributeDefinitions=[{"AttributeName": n, "AttributeType": "S"} for n in ("key", "part")],
    )  # fmt: skip
    with DynamoDBIdempotencyStore(table=table, client=client) as store, warnings.catch_warnings():
        warnings.simplefilter("error")
        claim = store.claim("k", "print", 1, 60)
        store.complete("k", str(claim.token), 200, None, b"x", 60)
    found = client.describe_time_to_live(TableName=table)["TimeToLiveDescription"]
    assert (found["TimeToLiveStatus"], found["AttributeName"]) == ("ENABLED", "expires_at_s")
    item = client.get_item(TableName=table, Key={"key": {"S": "k"}, "part": {"S": "0"}})["Item"]
    assert int(item["expires_at_s"]["N"]) > int(item["expires_at_us"]["N"]) // 1_000_000 + 30  # the grace
    client.close()


def test_one_async_store_works_under_one_loop_after_another(ministack_url: str, unique: Callable[[str], str]) -> None:
    store = AsyncDynamoDBIdempotencyStore(table=unique("keys"), endpoint_url=ministack_url)

    @idempotent(store, key="n")
    async def work(n: int) -> int:
        return n

    async def main() -> int:
        try:
            return await work(1)
        finally:
            await store.close_loop()

    assert [asyncio.run(main()) for _ in range(3)] == [1, 1, 1]
    assert work.guard.counts["claimed"] == 1  # type: ignore[attr-defined]


def test_a_fresh_call_is_two_calls_and_two_write_units_and_a_replay_one_call(
    ministack_url: str, unique: Callable[[str], str]
) -> None:
    from casework.backends.dynamodb import DynamoDBBackend

    with DynamoDBBackend(endpoint_url=ministack_url, prefix=unique("t"), meter=True) as backend:
        backend.create_tables([IDEMPOTENCY])
        backend.now()
        store = IdempotencyStore(backend)
        assert backend.meter is not None

        @idempotent(store, key="n", name="shop.refund")
        def work(n: int) -> dict:  # type: ignore[type-arg]
            return {"refunded": n}

        with backend.meter.label("fresh"):
            work(1)
        with backend.meter.label("replay"):
            work(1)
        used = backend.meter.snapshot()
    assert (used["fresh"].calls, used["fresh"].write_units, used["fresh"].read_units) == (2, 2, 0)
    assert (used["replay"].calls, used["replay"].read_units) == (1, 0)


def test_a_program_of_the_store_runs_under_any_driver(backend: MemoryBackend) -> None:
    from casework.idempotency.lifecycle import claim

    store = IdempotencyStore(backend)
    assert run(claim(store.shared, "k", "print", 1, 5), backend).result == "new_claimed"
