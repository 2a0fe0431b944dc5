"""The execution store as a component keeps its contract: in memory, on SQLite, on DynamoDB blocking and on a loop."""

from __future__ import annotations

import asyncio
import math
import secrets
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import casework
from casework.app.execution_store import (
    AsyncDynamoDBStore,
    AsyncExecutionStore,
    DynamoDBStore,
    ExecutionStore,
    SqliteStore,
)
from casework.backends.memory import MemoryBackend
from casework.backends.threaded import ThreadedBackend
from casework.errors import CorruptItem, Misuse, NewerFormat, OutcomeUnknown, StoreConflict, Unavailable
from casework.executions import store as programs
from casework.executions import store_purging
from casework.executions.store import Shared
from casework.executions.store_items import StoredExecution
from casework.kernel.effects import Get, Transact, Write
from casework.kernel.schema import EXECUTIONS, TABLES
from casework.testing.store_contract import ExecutionStoreContract
from tests.executions.watching import ByHand, WatchedBackend, overwrite
from tests.servers.clients import dynamodb, dynamodb_async

OpenStore = Callable[..., Any]


class TestInMemory(ExecutionStoreContract):
    @pytest.fixture
    def open_store(self) -> OpenStore:
        backend = MemoryBackend()
        backend.create_tables(TABLES)
        return lambda **options: ExecutionStore(backend, **options)


class TestOnALoop(ExecutionStoreContract):
    @pytest.fixture
    def open_store(self) -> OpenStore:
        backend = MemoryBackend()
        backend.create_tables(TABLES)

        async def make(**options: Any) -> AsyncExecutionStore:
            return AsyncExecutionStore(ThreadedBackend(backend), **options)

        return make


class TestSqlite(ExecutionStoreContract):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        return lambda **options: SqliteStore(tmp_path / "store.db", **options)


@pytest.fixture(scope="module", params=["ministack", "roto"])
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.fixture(scope="module")
def prefix(url: str) -> str:
    """Tables that the tests of this module share: making them takes longer than a test."""
    name = f"store-{secrets.token_hex(4)}"
    DynamoDBStore.create(url, "us-east-1", name).close()
    return name


@pytest.mark.servers
class TestDynamoDB(ExecutionStoreContract):
    @pytest.fixture
    def open_store(self, url: str, prefix: str) -> OpenStore:
        client = dynamodb(url)
        return lambda **options: DynamoDBStore(client, prefix, **options)


@pytest.mark.servers
class TestDynamoDBOnALoop(ExecutionStoreContract):
    @pytest.fixture
    def open_store(self, url: str, prefix: str) -> OpenStore:
        async def make(**options: Any) -> AsyncDynamoDBStore:
            return await AsyncDynamoDBStore.create(url, "us-east-1", prefix, create_tables=False, **options)

        return make


# --- what only one of them can show -----------------------------------------------------------------------------------


@pytest.fixture
def watched() -> WatchedBackend:
    backend = WatchedBackend()
    backend.create_tables(TABLES)
    return backend


def test_an_execution_is_loaded_for_an_event_in_one_call(watched: WatchedBackend) -> None:
    store = ExecutionStore(watched)
    store.commit(StoredExecution("x", "data"), processed_event_id="e")
    watched.forget()
    assert store.load_for_event("x", "e")[1] and watched.calls() == ["GetMany"]


def test_a_commit_after_a_load_is_one_call(watched: WatchedBackend) -> None:
    store = ExecutionStore(watched)
    store.save(StoredExecution("x", "data"))
    exe = store.load("x")
    watched.forget()
    store.commit(exe, [(None, "event")], processed_event_id="e", trace={"n": 1}, spawns=[("c", "r", "x")])
    assert watched.calls() == ["Transact"]


def test_a_commit_whose_answer_is_lost_is_resolved_by_its_writer(watched: WatchedBackend) -> None:
    shared = Shared(16)
    for applied in (True, False):
        exe = StoredExecution(f"x{applied}", "data")
        commit = ByHand(programs.commit(shared, exe, [(None, "event")]), watched)
        commit.up_to(lambda effect: isinstance(effect, Transact))
        if applied:
            commit.lose_answer(OutcomeUnknown("lost"), applied=True)
            assert len(commit.finish()) == 1 and exe.version == 1
        else:
            commit.lose_answer(OutcomeUnknown("lost"), applied=False)
            with pytest.raises(OutcomeUnknown):
                commit.finish()
            assert exe.version == 0


def test_a_commit_that_somebody_else_overtook_is_not_taken_for_its_own(watched: WatchedBackend) -> None:
    store = ExecutionStore(watched)
    store.save(StoredExecution("x", "data"))
    exe = store.load("x")
    commit = ByHand(programs.commit(Shared(16), exe), watched).up_to(lambda effect: isinstance(effect, Transact))
    store.save(store.load("x"))
    commit.lose_answer(OutcomeUnknown("lost"), applied=False)
    with pytest.raises((StoreConflict, OutcomeUnknown)):
        commit.finish()
    assert exe.version == 1


class Weighed(WatchedBackend):
    """Adds up the write units of what is written."""

    weight = 0

    def execute(self, effect: Any) -> Any:
        answer = super().execute(effect)
        if isinstance(effect, Transact | Write):
            writes = effect.writes if isinstance(effect, Transact) else [effect.write]
            for write in writes:
                stored = self.tables.get(write.key)
                size = 0 if stored is None else sum(len(str(name)) + len(str(value)) for name, value in stored.items())
                self.weight += max(1, math.ceil(size / 1024)) * (2 if isinstance(effect, Transact) else 1)
        return answer


@pytest.mark.parametrize("count", [120, 500, 2000])
def test_emits_of_one_commit_are_acknowledged_one_by_one_at_one_unit_each(count: int) -> None:
    backend = Weighed()
    backend.create_tables(TABLES)
    store = ExecutionStore(backend)
    seqs = store.commit(StoredExecution("x", "data"), [("y", f"{n}: {'x' * 100}") for n in range(count)])
    backend.weight = 0
    for seq in seqs:
        store.ack_outbox(seq)
    assert store.pending_outbox() == []
    assert count <= backend.weight <= count * 1.1 + 10


def test_a_late_entry_of_the_trace_does_not_come_to_stand_in_the_next_life(watched: WatchedBackend) -> None:
    store = ExecutionStore(watched)
    for stops_at in ("marked", "gone", "reborn"):
        store.save(StoredExecution("x", "data"))
        late = ByHand(programs.append_trace(Shared(16), "x", {"late": True}), watched).up_to()
        if stops_at == "marked":
            ByHand(store_purging.purge(Shared(16), "x", 1), watched).up_to(lambda effect: isinstance(effect, Transact))
        else:
            store.purge("x", 1)
        if stops_at == "reborn":
            store.save(StoredExecution("x", "data"))
        if stops_at == "reborn":  # a repeat sees the new life, and belongs to it
            assert late.finish() == 0
            assert len(store.read_trace("x")) == 1
        else:
            with pytest.raises(StoreConflict):
                late.finish()
            store.purge("x", 1)
            store.save(StoredExecution("x", "data"))
            assert store.read_trace("x") == []
        store.purge("x", 1)


def test_a_purge_that_was_interrupted_is_found_and_completed(watched: WatchedBackend) -> None:
    store = ExecutionStore(watched)
    store.save(StoredExecution("x", "data", status="done"))
    ByHand(store_purging.purge(Shared(16), "x", 1), watched).up_to(lambda effect: isinstance(effect, Transact))
    (found,) = store.list_executions(status="purging").items
    assert found.id == "x" and store.list_executions(status="done").items == []
    assert store.purge("x", found.version)
    assert store.list_executions(status="purging").items == []


def test_a_first_page_is_not_empty_while_there_is_something_to_list(watched: WatchedBackend) -> None:
    store = ExecutionStore(watched)
    store.save(StoredExecution("x", "data", status="zz-last"))
    page = store.list_executions()
    assert [found.id for found in page.items] == ["x"]


def test_a_store_makes_its_tables() -> None:
    store = ExecutionStore(MemoryBackend())
    store.create_tables()
    store.create_tables()
    store.save(StoredExecution("x", "data"))
    assert store.load("x") is not None

    async def play() -> None:
        store = AsyncExecutionStore(ThreadedBackend(MemoryBackend()))
        await store.create_tables()
        await store.save(StoredExecution("x", "data"))

    asyncio.run(play())


def test_our_runtime_and_another_engine_do_not_share_tables(watched: WatchedBackend) -> None:
    machine = casework.Machine.from_dict({"id": "m", "initial": "a", "states": {"a": {}}})
    ExecutionStore(watched).save(StoredExecution("x", "data"))
    with pytest.raises(Misuse, match="another engine keeps its executions in these tables"):
        casework.open(watched, machines=[machine])
    with casework.open(watched) as app:  # streams and keys only
        app.streams.append("s", [casework.Op("1", b"x")])
    ExecutionStore(watched).save(StoredExecution("y", "data"))
    other = WatchedBackend()
    with casework.open(other, machines=[machine], create=True) as app:
        app.start("m", id="ours")
        with pytest.raises(Misuse, match=r"casework.open has used these tables.*Nothing was written"):
            ExecutionStore(other).save(StoredExecution("x", "data"))
        assert [found.id for found in app.list().items] == ["ours"]


def test_a_purge_that_is_late_removes_nothing_of_the_ids_next_life(watched: WatchedBackend) -> None:
    store = ExecutionStore(watched)
    store.commit(StoredExecution("x", "data"), trace={"n": 1})
    late = ByHand(store_purging.purge(Shared(16), "x", 1), watched).up_to(lambda effect: isinstance(effect, Transact))
    assert store.purge("x", 1)
    watched.sleep(1)
    store.commit(StoredExecution("x", "data"), trace={"n": 2})
    assert late.finish() is False
    assert [entry["n"] for entry in store.read_trace("x")] == [2]


def test_what_cannot_be_read_is_said_and_left_as_it_is(watched: WatchedBackend) -> None:
    store = ExecutionStore(watched)
    store.save(StoredExecution("x", "data"))
    item = watched.execute(Get(EXECUTIONS.key("x", "0")))
    for change, error in (({"format": 99}, NewerFormat), ({"data": None}, CorruptItem)):
        damaged = {name: value for name, value in {**item, **change}.items() if value is not None}
        overwrite(watched, damaged)
        with pytest.raises(error):
            store.load("x")
        with pytest.raises(error):
            store.load_for_event("x", "e")
        assert watched.execute(Get(EXECUTIONS.key("x", "0"))) == damaged


@pytest.fixture
def dead_url() -> Iterator[str]:
    """A port of this machine on which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.parametrize("create_tables", [True, False])
def test_a_store_that_nobody_serves_is_unavailable_and_named(dead_url: str, create_tables: bool) -> None:
    with pytest.raises(Unavailable, match=dead_url):
        DynamoDBStore.create(dead_url, "us-east-1", create_tables=create_tables, wait_seconds=0.1)

    async def on_a_loop() -> None:
        await AsyncDynamoDBStore.create(dead_url, "us-east-1", create_tables=create_tables, wait_seconds=0.1)

    with pytest.raises(Unavailable, match=dead_url):
        asyncio.run(on_a_loop())


@pytest.mark.servers
def test_a_store_belongs_to_its_loop(url: str, prefix: str) -> None:
    made: list[AsyncDynamoDBStore] = []

    async def make() -> None:
        made.append(await AsyncDynamoDBStore.create(url, "us-east-1", prefix, create_tables=False))
        assert await made[0].load("nobody") is None

    async def use() -> None:
        await made[0].load("nobody")

    async def close() -> None:
        await made[0].close()
        await made[0].close()

    with asyncio.Runner() as first:
        first.run(make())
        with pytest.raises(Misuse, match="loop"):
            asyncio.run(use())
        first.run(close())


@pytest.mark.servers
def test_a_client_that_was_given_stays_open(url: str, prefix: str) -> None:
    client = dynamodb(url)
    with DynamoDBStore(client, prefix) as store:
        store.save(StoredExecution("given", "data"))
    assert client.list_tables()["TableNames"]

    async def on_a_loop() -> int:
        async with dynamodb_async(url) as given:
            async with AsyncDynamoDBStore(given, prefix) as store:
                loaded = await store.load("given")
            await store.close()
            assert (await given.list_tables())["TableNames"]
            return 0 if loaded is None else loaded.version

    assert asyncio.run(on_a_loop()) == 1
