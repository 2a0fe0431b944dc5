"""The stream store and ``app.streams``, blocking and on an event loop, and the readers that wait."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import casework
from casework.app.streams import StreamStore
from casework.app.streams_aio import AsyncStreamStore
from casework.backends.drive import run
from casework.backends.drive_async import run_async
from casework.backends.surroundings import VirtualClock
from casework.backends.threaded import ThreadedBackend
from casework.errors import AppendTimeout, ItemTooLarge, Misuse
from casework.kernel.effects import Flag, GetMany, Query, Transact
from casework.streams.log import OP_BYTES_MAX, Op
from casework.streams.waiting import wait_page
from tests.executions.stepping import fresh_backend
from tests.streams.stores import Counted, ids, log, ops, put


def test_the_public_face_appends_and_reads(tmp_path: Path) -> None:
    with casework.open(f"sqlite:///{tmp_path}/shop.db") as app:
        answers = app.streams.append("orders", [casework.Op("op-1", b"one"), casework.Op("op-2", b"two")])
        assert [(one.id, one.seq, one.is_duplicate) for one in answers] == [("op-1", 1, False), ("op-2", 2, False)]
        assert [(op.id, op.data, op.seq) for op in app.streams.read("orders")] == [
            ("op-1", b"one", 1), ("op-2", b"two", 2),
        ]  # fmt: skip
        assert all(op.at_us > 0 for op in app.streams.read("orders"))
        assert app.streams.head("orders").last_seq == 2
        assert app.streams.list().streams == ["orders"]
    with casework.open(f"sqlite:///{tmp_path}/shop.db") as app:
        assert [op.seq for op in app.streams.read("orders", after=1)] == [2]


def test_the_async_face_does_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        async with casework.open_async(f"sqlite:///{tmp_path}/shop.db") as app:
            await app.streams.append("orders", ops("a", "b", "c"))
            assert [op.id async for op in app.streams.read("orders", after=1)] == ["b", "c"]
            assert [op.id async for op in app.streams.read("orders", limit=2)] == ["a", "b"]
            async with app.streams.writer() as writer:
                for n in range(150):
                    await writer.put("bulk", *ops(f"{n:03}"))
            assert (await app.streams.head("bulk")).last_seq == 150

    asyncio.run(main())


def test_reading_goes_through_all_pages_and_a_limit_ends_it() -> None:
    store = StreamStore(fresh_backend())
    with store.writer() as writer:
        for n in range(2500):
            writer.put("s", *ops(f"{n:04}"))
    assert [op.seq for op in store.read("s")] == list(range(1, 2501))
    assert [op.seq for op in store.read("s", after=10, limit=1500)] == list(range(11, 1511))


@pytest.mark.parametrize("limit", [0, -1, 1.5, "7", True])
def test_a_limit_that_cannot_be_is_refused_at_once(limit: Any) -> None:
    with pytest.raises(Misuse, match=r"limit is .* 1 or more; None"):
        StreamStore(fresh_backend()).read("s", limit=limit)


@pytest.mark.parametrize("given", [Op("o", b"1"), "text", None, 5])
def test_operations_that_are_not_in_a_list_are_refused(given: Any) -> None:
    with pytest.raises(Misuse, match=r"give a list: append\(stream, \[casework.Op"):
        StreamStore(fresh_backend()).append("s", given)


@pytest.mark.parametrize("after", [0, 1, 50, 94, 95, 96, 189, 190])
@pytest.mark.parametrize("limit", [1, 2, 95, 96, 200])
def test_a_page_begins_anywhere_in_a_segment_and_ends_at_its_limit(after: int, limit: int) -> None:
    store = StreamStore(fresh_backend())
    store.append("s", ops(*(f"{n:03}" for n in range(190))))
    page = store.page("s", after, limit)
    assert [op.seq for op in page.ops] == list(range(after + 1, min(190, after + limit) + 1))
    assert page.next_after == max(after, min(190, after + limit))


def test_a_page_ends_at_its_bytes_but_holds_one_operation() -> None:
    store = StreamStore(fresh_backend())
    store.append("s", [Op(f"{n}", bytes(1000)) for n in range(10)])
    assert len(store.page("s", max_bytes=3500).ops) == 3
    assert len(store.page("s", max_bytes=10).ops) == 1


def test_large_operations_are_split_by_bytes_and_come_back_as_they_were(store: Any) -> None:
    import random

    dice = random.Random(1)
    given = [Op(f"{n}", dice.randbytes(size)) for n, size in enumerate([OP_BYTES_MAX, 1, 200_000, 200_000, 0, 300_000])]
    streams = StreamStore(store)
    streams.append("s", given)
    assert [(op.id, op.data) for op in streams.read("s")] == [(op.id, op.data) for op in given]


@pytest.mark.parametrize(
    ("op", "error"),
    [
        (Op("x", bytes(OP_BYTES_MAX + 1)), ItemTooLarge),
        (Op("", b""), Misuse),
        (Op("a\nb", b""), Misuse),
        (Op("x" * 513, b""), Misuse),
        (Op(7, b""), Misuse),  # type: ignore[arg-type]
        (Op("x", "text"), Misuse),  # type: ignore[arg-type]
        (("x", b""), Misuse),
    ],
)
def test_what_cannot_be_stored_is_refused_before_anything_is_written(op: Any, error: type[Exception]) -> None:
    backend = fresh_backend()
    with pytest.raises(error):
        StreamStore(backend).append("s", [Op("fine", b""), op])
    assert ids(backend) == []


@pytest.mark.parametrize("stream", ["", "@x", "a/b", "a b", "a\n", "é", "x" * 201, None, 7, "-x"])
def test_a_stream_id_that_cannot_be_one_is_refused_by_every_operation(stream: Any) -> None:
    store = StreamStore(fresh_backend())
    calls: list[Any] = [
        lambda: store.append(stream, ops("a")),
        lambda: list(store.read(stream)),
        lambda: store.head(stream),
        lambda: store.truncate(stream, 0),
        lambda: store.load_snapshot(stream),
        lambda: store.lag("g", [stream]),
    ]
    for call in calls:
        with pytest.raises(Misuse, match="is not a stream id"):
            call()


@pytest.mark.parametrize(("after", "limit"), [(-1, 1), ("1", 1), (True, 1), (0, 0), (0, 10_001), (2**63, 1)])
def test_a_cursor_or_limit_that_cannot_be_one_is_refused(after: Any, limit: Any) -> None:
    store = StreamStore(fresh_backend())
    with pytest.raises(Misuse):
        store.page("s", after, limit)
    assert store.page("s").ops == []


def test_a_stream_at_the_integer_limit_is_loud_and_stores_nothing() -> None:
    from casework.errors import StreamFull
    from casework.kernel.items import Put
    from casework.kernel.schema import STREAMS

    backend = fresh_backend()
    last = 2**63 - 3
    backend.execute(Transact([Put(STREAMS, {"stream_id": "s", "seq": 0, "format": 1, "last_seq": last, "at_us": 1})]))
    assert put(backend, "last") == [last + 1]
    with pytest.raises(StreamFull, match="begin another stream"):
        put(backend, "over")
    assert ids(backend, after=last) == ["last"]


def test_a_newer_format_is_refused_and_left_as_it_is() -> None:
    from casework.errors import NewerFormat
    from casework.kernel.items import Update
    from casework.streams.log import head_key

    backend = fresh_backend()
    put(backend, "a")
    process = log()
    put(backend, "b", of=process)
    backend.execute(Transact([Update(head_key("s"), {"format": 99, "last_seq": 5})]))
    for one in (process, log()):
        with pytest.raises(NewerFormat):
            put(backend, "c", of=one)


# --- waiting ------------------------------------------------------------------------------------------------


def test_a_reader_that_waits_is_woken_by_an_append_of_its_process_and_polls_little_before() -> None:
    counted = Counted(fresh_backend(clock=VirtualClock()))
    process = log()
    assert run(wait_page(process, "s", wait_s=60), counted).ops == []
    looks = sum(isinstance(effect, GetMany | Query) for effect in counted.effects)
    assert looks < 60 / 0.5 + 60 / 5 * 2 + 20, "an idle minute is some two looks a second"


def test_readers_of_one_process_share_one_poll() -> None:
    counted = Counted(fresh_backend())

    async def main() -> list[int]:
        backend = ThreadedBackend(counted)
        store = AsyncStreamStore(backend)
        waiting = [asyncio.create_task(store.wait("s", wait_s=30)) for _ in range(50)]
        while len(store.log.watches.get("s", _Nobody).watchers) < 50:  # noqa: ASYNC110 - it is the readers' own
            await asyncio.sleep(0.001)
        before = len(counted.effects)
        await asyncio.sleep(0.3)
        polls = len(counted.effects) - before
        await store.append("s", ops("a"))
        pages = await asyncio.gather(*waiting)
        await backend.close()
        return [polls, *(len(page.ops) for page in pages)]

    polls, *found = asyncio.run(main())
    assert found == [1] * 50
    assert polls <= 150, "fifty readers do not poll fifty times"


class _Nobody:
    watchers: tuple[()] = ()


def test_a_reader_that_waits_sees_what_another_process_appends() -> None:
    backend = fresh_backend()
    reader, found = StreamStore(backend), []
    thread = threading.Thread(target=lambda: found.extend(reader.wait("s", wait_s=30).ops))
    thread.start()
    StreamStore(backend).append("s", ops("a"))
    thread.join(30)
    assert [op.id for op in found] == ["a"]


def test_a_tail_goes_on_over_pages_until_it_is_stopped() -> None:
    store, stop, seen = StreamStore(fresh_backend()), Flag(), []
    store.append("s", ops("a", "b"))
    for op in store.tail("s", stop=stop):
        seen.append(op.id)
        if op.id == "b":
            store.append("s", ops("c"))
        if op.id == "c":
            stop.set()
    assert seen == ["a", "b", "c"] and store.log.watches == {}


def test_a_deadline_is_raced_against_the_round_in_flight() -> None:
    """The store hangs: the caller is answered all the same, and told what may have been stored."""
    inner = fresh_backend()
    gate = threading.Event()

    class Hangs:
        def execute(self, effect: Any) -> Any:
            if isinstance(effect, Transact):
                gate.wait(60)
            return inner.execute(effect)

        def __getattr__(self, name: str) -> Any:
            return getattr(inner, name)

    async def main() -> AppendTimeout:
        backend = ThreadedBackend(Hangs())  # type: ignore[arg-type]
        store = AsyncStreamStore(backend)
        with pytest.raises(AppendTimeout) as raised:
            await store.append("s", ops("a", "b"), deadline_s=0.05)
        gate.set()
        await store.settle()
        again = await store.append("s", ops("a", "b"))
        assert [(one.seq, one.is_duplicate) for one in again] == [(1, True), (2, True)]
        await backend.close()
        return raised.value

    error = asyncio.run(main())
    assert error.unknown == ("a", "b") and error.stored == ()


def test_run_async_and_run_read_the_same() -> None:
    backend = fresh_backend()
    put(backend, "a")

    async def main() -> list[str]:
        threaded = ThreadedBackend(backend)
        page = await run_async(wait_page(log(), "s", wait_s=0), threaded)
        await threaded.close()
        return [op.id for op in page.ops]

    assert asyncio.run(main()) == ids(backend) == ["a"]
