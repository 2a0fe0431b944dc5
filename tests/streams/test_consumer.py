"""Consumers: named cursors, writes that take effect once, shared streams, poison."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import casework
from casework.backends.drive import run
from casework.backends.surroundings import VirtualClock
from casework.errors import OutcomeUnknown
from casework.kernel.conditions import absent
from casework.kernel.effects import Flag, Handle, Race, Transact
from casework.kernel.items import Table
from casework.kernel.programs import get, query_all
from casework.streams import cursors
from casework.streams.append import append
from casework.streams.consumer import Consumer, ConsumerOptions, HandlerWrites, consume, follow, keep_held
from casework.streams.log import Op
from tests.executions.stepping import LosesAnswers, Stepped, fresh_backend
from tests.streams.stores import log, ops, put

SEEN = Table(name="seen", partition="place")


def record(op: Op, writes: HandlerWrites) -> None:
    """A handler whose every operation can be stored once only."""
    writes.put(SEEN, {"place": f"{op.seq:06}", "id": op.id}, absent())


def backend_with(*names: str) -> Any:
    backend = fresh_backend(clock=VirtualClock())
    backend.create_tables([SEEN])
    if names:
        put(backend, *names)
    return backend


def recorded(backend: Any, count: int) -> list[str]:
    found = [run(get(SEEN.key(f"{n:06}")), backend) for n in range(1, count + 1)]
    return [item["id"] for item in found if item is not None]


def follower(backend: Any, handler: Any = record, leave: Flag | None = None, **options: Any) -> tuple[Consumer, Any]:
    consumer = Consumer(log(), "g", ["s"], handler, ConsumerOptions(**options))
    consumer.token = "me"
    cursor = run(cursors.take("g", "s", "me", 30), backend)
    assert cursor is not None
    return consumer, follow(consumer, cursor, leave or Flag())


def until_done(leave: Flag, last: str, handler: Any = record) -> Any:
    """The handler, which tells the follower to leave after the operation ``last``."""

    def handle(op: Op, writes: HandlerWrites) -> None:
        handler(op, writes)
        if op.id == last:
            leave.set()

    return handle


def test_a_handler_that_could_take_no_operation_is_refused_at_once() -> None:
    for handler in (lambda op: None, lambda: None, lambda op, writes, more: None):
        with pytest.raises(casework.Misuse, match="cannot be called with an operation and its writes"):
            Consumer(log(), "g", ["s"], handler)  # type: ignore[arg-type]
    for handler in (lambda op, writes: None, lambda *all: None, lambda op, writes, more=1: None):
        assert Consumer(log(), "g", ["s"], handler).handler is handler  # type: ignore[arg-type]


def test_the_cursor_moves_with_what_the_handler_wrote() -> None:
    backend, leave = backend_with("a", "b", "c"), Flag()
    consumer, program = follower(backend, until_done(leave, "c"), leave)
    run(program, backend)
    assert recorded(backend, 3) == ["a", "b", "c"] and consumer.handled_n == 3
    assert run(cursors.read_cursor("g", "s"), backend).after == 3


def test_a_consumer_that_dies_before_its_commit_leaves_nothing_and_the_next_one_does_it_all_once() -> None:
    backend = backend_with("a", "b")
    _, program = follower(backend)
    dying = Stepped(program, backend).until(Transact)
    dying.program.close()
    assert recorded(backend, 2) == []
    backend.clock.advance(60)
    leave = Flag()
    _, program = follower(backend, until_done(leave, "b"), leave)
    run(program, backend)
    assert recorded(backend, 2) == ["a", "b"]


def test_a_consumer_that_was_taken_over_changes_nothing_any_more() -> None:
    backend = backend_with("a", "b")
    _, program = follower(backend)
    slow = Stepped(program, backend).until(Transact)
    backend.clock.advance(60)
    assert run(cursors.take("g", "s", "another", 30), backend) is not None
    slow.finish()
    assert recorded(backend, 2) == []
    assert run(cursors.read_cursor("g", "s"), backend).token == "another"


def test_nobody_takes_a_cursor_whose_lease_runs() -> None:
    backend = backend_with("a")
    assert run(cursors.take("g", "s", "one", 30), backend) is not None
    assert run(cursors.take("g", "s", "two", 30), backend) is None
    backend.clock.advance(31)
    assert run(cursors.take("g", "s", "two", 30), backend) is not None


def test_a_commit_whose_answer_was_lost_takes_effect_once() -> None:
    backend, leave = backend_with("a"), Flag()
    consumer = Consumer(log(), "g", ["s"], until_done(leave, "a"))
    consumer.token = "me"
    cursor = run(cursors.take("g", "s", "me", 30), backend)
    assert cursor is not None
    run(follow(consumer, cursor, leave), LosesAnswers(backend, [1]))
    assert recorded(backend, 1) == ["a"] and run(cursors.read_cursor("g", "s"), backend).after == 1


def test_a_lost_answer_is_no_reason_to_apply_the_writes_twice() -> None:
    backend = backend_with("a", "b")
    cursor = run(cursors.take("g", "s", "me", 30), backend)
    assert cursor is not None
    late = Stepped(cursors.advance(cursor, 1, (), 30), backend).until(Transact).effect
    moved = run(cursors.advance(cursor, 1, (), 30), backend)
    with pytest.raises(Exception, match="condition failed"):
        backend.execute(late)
    assert moved.after == 1
    assert isinstance(OutcomeUnknown("x"), Exception)


def test_poison_is_parked_after_its_attempts_and_the_stream_goes_on() -> None:
    backend, leave = backend_with("a", "bad", "c"), Flag()
    tries: list[str] = []

    def handle(op: Op, writes: HandlerWrites) -> None:
        tries.append(op.id)
        if op.id == "bad":
            raise ValueError("cannot be handled")
        record(op, writes)

    consumer, program = follower(backend, until_done(leave, "c", handle), leave, attempts_max=3)
    run(program, backend)
    assert recorded(backend, 3) == ["a", "c"] and tries.count("bad") == 3 and tries.count("a") == 1
    (parked,) = run(cursors.parked_ops("g", "s"), backend)
    assert (parked.op.id, parked.op.data, parked.attempts) == ("bad", b"bad", 3)
    assert parked.error == "ValueError: cannot be handled" and consumer.parked_n == 1
    (lag,) = run(cursors.lag(log(), "g", ["s"]), backend)
    assert (lag.lag, lag.parked, lag.is_stopped) == (0, 1, False)
    run(cursors.unpark("g", "s", 2), backend)
    assert run(cursors.parked_ops("g", "s"), backend) == []


def test_poison_stops_the_stream_where_that_is_wanted_until_somebody_resumes_it() -> None:
    backend = backend_with("bad", "b")

    def handle(op: Op, writes: HandlerWrites) -> None:
        raise ValueError("no")

    _, program = follower(backend, handle, attempts_max=2, on_poison="stop")
    run(program, backend)
    (lag,) = run(cursors.lag(log(), "g", ["s"]), backend)
    assert (lag.lag, lag.is_stopped) == (2, True)
    assert run(cursors.take("g", "s", "other", 30), backend) is None
    assert run(cursors.resume("g", "s", skip=True), backend).after == 1
    leave = Flag()
    _, program = follower(backend, until_done(leave, "b"), leave)
    run(program, backend)
    assert recorded(backend, 2) == ["b"]


def test_a_pause_longer_than_the_lease_is_kept_and_the_stream_is_held_meanwhile() -> None:
    backend, tried_us, leases_us = backend_with("a"), [], []

    def handle(op: Op, writes: HandlerWrites) -> None:
        tried_us.append(backend.clock.now().middle_us)
        if len(tried_us) == 2:
            leave.set()
        raise ValueError("no")

    leave = Flag()
    retry = casework.Pauses(first_pause_s=1000.0, max_pause_s=1000.0)
    _, program = follower(backend, handle, leave, lease_s=6.0, retry=retry)
    stepped = Stepped(program, backend)
    while not stepped.done:
        if isinstance(stepped.effect, Race) and tried_us:
            lease_end_us = run(cursors.read_cursor("g", "s"), backend).lease_end_us
            leases_us.append(lease_end_us - backend.clock.now().middle_us)
            assert run(cursors.take("g", "s", "another", 6.0), backend) is None
        stepped.step()
    paused_s = (tried_us[1] - tried_us[0]) / 1e6
    assert 6.0 < paused_s < 1000.0
    assert min(leases_us) > 3_000_000


def test_attempts_are_counted_over_crashes() -> None:
    backend = backend_with("bad")

    def handle(op: Op, writes: HandlerWrites) -> None:
        raise ValueError("no")

    for _ in range(2):
        leave = Flag()
        leave_after = Stepped(follower(backend, handle, leave, attempts_max=3)[1], backend)
        leave_after.until(Transact).step()
        leave_after.program.close()
        backend.clock.advance(60)
    assert run(cursors.read_cursor("g", "s"), backend).attempts == 2
    leave = Flag()
    _, program = follower(backend, handle, leave, attempts_max=3)
    Stepped(program, backend).until(Transact).step()
    assert len(run(cursors.parked_ops("g", "s"), backend)) == 1


def test_writes_that_are_refused_together_are_tried_one_by_one_until_the_one_to_blame_is_found() -> None:
    backend, leave = backend_with("a", "b", "c"), Flag()
    run(_put_seen("000002"), backend)
    tries: list[str] = []

    def handle(op: Op, writes: HandlerWrites) -> None:
        tries.append(op.id)
        record(op, writes)
        if tries.count("c") == 2:
            leave.set()

    consumer, program = follower(backend, handle, leave, attempts_max=2)
    run(program, backend)
    assert tries == ["a", "b", "c", "a", "b", "b", "c"]
    assert recorded(backend, 3) == ["a", "taken", "c"] and consumer.parked_n == 1


def _put_seen(place: str) -> Any:
    from casework.kernel.items import Put

    yield Transact([Put(SEEN, {"place": place, "id": "taken"})])


def test_a_handler_that_writes_what_cannot_be_written_is_a_failed_attempt() -> None:
    backend = backend_with("a")

    def handle(op: Op, writes: HandlerWrites) -> None:
        writes.put(SEEN, {"no": "key"})

    consumer, program = follower(backend, handle, attempts_max=1, on_poison="stop")
    run(program, backend)
    assert consumer.failed_n == 1 and "key" in run(cursors.read_cursor("g", "s"), backend).error


def test_consumers_of_one_group_share_its_streams_and_handle_each_operation_once() -> None:
    from casework.app.streams_aio import AsyncStreamStore
    from casework.backends.memory import MemoryBackend
    from casework.backends.threaded import ThreadedBackend
    from casework.kernel.schema import TABLES

    blocking = MemoryBackend(seed=1)
    blocking.create_tables([*TABLES, SEEN])
    streams = [f"s{n}" for n in range(6)]

    async def main() -> list[set[str]]:
        store = AsyncStreamStore(ThreadedBackend(blocking))
        left = asyncio.Event()
        seen: list[set[str]] = [set(), set()]
        total: list[str] = []

        def handler(n: int) -> Any:
            def handle(op: Op, writes: HandlerWrites) -> None:
                writes.put(SEEN, {"place": op.id}, absent())
                seen[n].add(op.id.split("/")[0])
                total.append(op.id)
                if len(total) >= 60:
                    loop.call_soon_threadsafe(left.set)

            return handle

        loop = asyncio.get_running_loop()
        options = {"heartbeat_s": 0.02, "lease_s": 5.0}
        async with (
            store.consumer("g", streams, handler(0), **options) as first,
            store.consumer("g", streams, handler(1), **options) as second,
        ):
            while not (len(first.held) == 3 and len(second.held) == 3):  # noqa: ASYNC110 - it is the consumers' own
                await asyncio.sleep(0.01)
            for stream in streams:
                await store.append(stream, [Op(f"{stream}/{n}", b"") for n in range(10)])
            await asyncio.wait_for(left.wait(), 60)
        assert len(total) == len(set(total)) == 60
        await store.close()
        return seen

    first, second = asyncio.run(main())
    assert first | second == set(streams) and not first & second


def test_a_consumer_sits_out_a_store_that_is_down_and_leaves_when_told() -> None:
    from casework.backends.drive_async import run_async
    from casework.backends.threaded import ThreadedBackend
    from casework.errors import Unavailable

    class Down:
        def __init__(self) -> None:
            self.asked = 0
            self.inner = fresh_backend()

        def execute(self, effect: Any) -> Any:
            self.asked += 1
            if self.asked > 3:
                consumer.stop.set()
            raise Unavailable("nobody answers")

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    consumer = Consumer(log(), "g", ["s"], record, ConsumerOptions(heartbeat_s=0.01))
    down = Down()

    async def main() -> None:
        backend = ThreadedBackend(down)  # type: ignore[arg-type]
        await run_async(consume(consumer), backend, step_limit=None)
        await backend.close()

    asyncio.run(main())
    assert down.asked > 3


def test_the_partition_of_a_cursor_is_no_streams() -> None:
    backend = backend_with("a")
    run(cursors.take("g", "s", "me", 30), backend)
    run(append(log(), "g", ops("x")), backend)
    from casework.kernel.schema import STREAMS

    assert len(run(query_all(STREAMS, "@g/s"), backend)) == 1


# --- handlers that take their time ------------------------------------------------------------------------------------


def ticks(consumer: Consumer, backend: Any, seconds: float) -> Callable[[], None]:
    """Lets so much time pass, and the keeper of the lease of ``s`` wake once."""
    keeper = Stepped(keep_held(consumer, "s", Handle("follower")), backend)

    def tick() -> None:
        keeper.until(Race)
        backend.clock.advance(seconds)
        keeper.effect = keeper.program.send(None)
        keeper.until(Race)

    return tick


def test_the_lease_is_renewed_while_the_handler_runs_and_no_longer_than_it_may() -> None:
    backend = backend_with("a")
    consumer, _ = follower(backend, lease_s=30.0, handler_max_s=100.0)
    tick = ticks(consumer, backend, 10.0)

    def can_be_taken() -> bool:
        tick()
        return run(cursors.take("g", "s", "another", 30), backend) is not None

    consumer.handling["s"] = backend.clock.now().middle_us
    looks = [can_be_taken() for _ in range(15)]
    assert not any(looks[:12])
    assert any(looks[12:]), "after 100 seconds it is renewed no more"


def test_a_lease_that_nobody_works_under_is_left_to_the_cursors_own_moves() -> None:
    backend = backend_with("a")
    consumer, _ = follower(backend, lease_s=30.0)
    before = run(cursors.read_cursor("g", "s"), backend)
    tick = ticks(consumer, backend, 10.0)
    for _ in range(3):
        tick()
    assert run(cursors.read_cursor("g", "s"), backend) == before


def test_a_slow_handler_keeps_its_stream_from_the_others_of_its_group(tmp_path: Any) -> None:
    """On an SQLite file, with two consumers on threads: the handler takes several leases."""
    handled: list[str] = []
    done = threading.Event()
    with casework.open(f"sqlite:///{tmp_path}/a.db", create=True) as app:
        app.streams.append("s", [Op("a", b""), Op("b", b"")])

        def handle(op: Op, writes: HandlerWrites) -> None:
            handled.append(op.id)
            if op.id == "a":
                threading.Event().wait(1.5)
            else:
                done.set()

        options: dict[str, Any] = {"lease_s": 0.3, "heartbeat_s": 0.1, "batch_max": 1}
        with app.streams.consumer("g", ["s"], handle, **options), app.streams.consumer("g", ["s"], handle, **options):
            assert done.wait(60)
    assert handled == ["a", "b"]
