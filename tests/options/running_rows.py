"""What each option of workers, of consumers and of streams changes: in a simulated world where time matters."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any

import casework
from casework import Op, Pauses, StreamOptions
from casework.app.workers import WorkerTask, WorkerThread
from casework.backends.drive import run
from casework.backends.memory import MemoryBackend
from casework.backends.surroundings import VirtualClock
from casework.backends.threaded import ThreadedBackend
from casework.errors import Contention
from casework.executions import deliver
from casework.executions.runtime import Options, Runtime
from casework.executions.worker import Worker, WorkerOptions, sweep, work
from casework.kernel.effects import Flag, Sleep, Transact
from casework.kernel.items import Check, Update
from casework.kernel.programs import sleep, write
from casework.kernel.schema import EXECUTIONS, REGISTRY, STREAM_CLAIMS, STREAMS, TABLES
from casework.simulation.world import START_US, World
from casework.streams import cursors
from casework.streams.append import append
from casework.streams.consumer import Consumer, ConsumerOptions, HandlerWrites, consume, follow
from casework.streams.log import HEAD, Log
from casework.streams.retention import truncate
from casework.streams.writer import Writer
from tests.executions.stepping import Stepped, fresh_backend
from tests.options.applications import World as AppWorld
from tests.options.applications import machines
from tests.options.sites import in_thread
from tests.options.table import SOMETHING, OnLoop, Rows, refusal, row

Main = Callable[[Any], Generator[Any, Any, Any]]

TASK = {"id": "one", "initial": "on", "states": {"on": {"invoke": {"src": {"task": "t"}}}}}


def carried(*mains: Main, until: Callable[[World], bool]) -> World:
    """A world after these processes have come as far as that."""
    world = World(0, TABLES)
    for n, main in enumerate(mains):
        world.process(f"process-{n}", main, may_crash=False)
    assert world.run(lambda: until(world), steps_max=20_000), "it did not come so far"
    return world


def seconds(world: World) -> float:
    """What time it is in a world, from its beginning."""
    return (world.now_us - START_US) / 1e6


def stored(world: World, table: Any) -> list[Any]:
    return list(world.store.tables.stored(table).items.values())


# --- workers ----------------------------------------------------------------------------------------------------------


def working(executions: int, perform: Any, **options: Any) -> tuple[Worker, Main]:
    """A worker, and a process that starts executions with a task each, and carries it to its end."""
    machine = casework.Machine.from_dict(TASK)
    machine.task(name="t")(lambda task: None)
    rt = Runtime([machine], Options(buckets=1))
    worker = Worker(rt, WorkerOptions(**options), perform=perform)

    def main(process: Any) -> Generator[Any, Any, None]:
        for n in range(executions):
            yield from deliver.start(rt, "one", f"x-{n}", None)
        yield from work(worker)

    return worker, main


def looks_after_s(poll_s: float) -> bool:
    """Whether a worker finds within five seconds what another process sends."""
    sent_s: list[float] = []
    own, other = (Runtime(machines(), Options(buckets=1)) for _ in range(2))

    def user(process: Any) -> Generator[Any, Any, None]:
        yield from deliver.start(other, "second", "x", None)
        yield from sleep(3.0)
        yield from deliver.send(other, "x", "End", None)
        sent_s.append(seconds(process.world))

    world = carried(
        lambda process: work(Worker(own, WorkerOptions(poll_s=poll_s))), user,
        until=lambda world: bool(sent_s) and any(item.get("status") == "done" for item in stored(world, EXECUTIONS)),
    )  # fmt: skip
    return seconds(world) - sent_s[0] < 5.0


def tasks_at_once(concurrency: int) -> int:
    most: list[int] = []

    def perform(runner: Any) -> Generator[Any, Any, None]:
        yield from sleep(1.0)
        most.append(len(worker.running))

    worker, main = working(3, perform, concurrency=concurrency)
    carried(main, until=lambda world: len(most) == 3)
    return max(most)


def looked_at_together(group: int) -> int:
    """How many executions a sweep looks at side by side."""
    backend = fresh_backend(clock=VirtualClock())
    rt = Runtime(machines(), Options(buckets=1))
    worker = Worker(rt, WorkerOptions(group=group))
    for n in range(3):
        run(deliver.start(rt, "second", f"x-{n}", None), backend)
        run(deliver.send(rt, f"x-{n}", "End", None), backend)
    execute_many, sizes = backend.execute_many, []

    def count(effects: Any) -> Any:
        sizes.append(sum(isinstance(effect, Transact) for effect in effects))
        return execute_many(effects)

    backend.execute_many = count  # type: ignore[method-assign]
    run(sweep(worker), backend)
    return max(sizes)


def drained(drain_s: float) -> bool:
    """Whether a task of ten seconds ends when its worker leaves meanwhile."""
    ended: list[bool] = []

    def perform(runner: Any) -> Generator[Any, Any, None]:
        worker.stop.set()
        yield from sleep(10.0)
        ended.append(True)

    worker, main = working(1, perform, drain_s=drain_s)

    def to_its_end(process: Any) -> Generator[Any, Any, None]:
        yield from main(process)
        ended.append(False)

    carried(to_its_end, until=lambda world: False in ended)
    return ended[0]


def lease_of_task(lease_s: float) -> Any:
    def perform(runner: Any) -> Generator[Any, Any, None]:
        yield from sleep(1000.0)

    _, main = working(1, perform, lease_s=lease_s)
    world = carried(main, until=lambda world: any("lease_us" in item for item in stored(world, EXECUTIONS)))
    return [item["lease_us"] for item in stored(world, EXECUTIONS) if "lease_us" in item]


def taken_for_living_s(heartbeat_s: float) -> list[float]:
    """How long others take a worker for living after a heartbeat."""
    _, main = working(0, None, heartbeat_s=heartbeat_s)
    world = carried(main, until=lambda world: any("until_us" in item for item in stored(world, REGISTRY)))
    return [(each["until_us"] - each["heard_us"]) / 1e6 for each in stored(world, REGISTRY) if "until_us" in each]


def ended_in_time(make: Any, timeout_s: float | None) -> bool:
    """Whether a worker that ends once somebody waits for it is seen to end."""
    with casework.open("memory:") as app:
        waiting, worker = make(app), None
        worker, began = waiting.worker, threading.Event()
        when_ended = worker.when_ended
        worker.when_ended = lambda callback: (when_ended(callback), began.set())

        def wait() -> bool:
            found = waiting.wait(timeout_s)
            return asyncio.run(found) if asyncio.iscoroutine(found) else found

        answer = in_thread(wait)
        assert began.wait(20)
        if timeout_s == 0.0:
            return bool(answer())
        worker.has_ended(None)
        return bool(answer())


def told_of_end(first: bool) -> list[str]:
    worker, said = Worker(Runtime()), []
    worker.when_ended((lambda error: said.append("first")) if first else (lambda error: said.append("other")))
    worker.has_ended(None)
    return said


WORKERS: Rows = {
    "WorkerOptions": {
        "poll_s": row(looks_after_s, (1.0, True), (30.0, False)),
        "concurrency": row(tasks_at_once, (1, 1), (2, 2)),
        "group": row(looked_at_together, (1, 1), (2, 2)),
        "drain_s": row(drained, (5.0, False), (30.0, True)),
        "lease_s": row(lease_of_task, (5.0, [5_000_000]), (6.0, [6_000_000])),
        "heartbeat_s": row(taken_for_living_s, (1.0, [3.0]), (2.0, [6.0])),
    },
    "WorkerThread.wait": {
        "timeout_s": row(
            lambda timeout_s: ended_in_time(lambda app: WorkerThread(app, WorkerOptions()), timeout_s),
            (0.0, False),
            (None, True),
        ),
    },
    "WorkerThread.wait, async": {
        "timeout_s": row(
            lambda timeout_s: ended_in_time(lambda app: WorkerTask(app, WorkerOptions()), timeout_s),
            (0.0, False),
            (None, True),
        ),
    },
    "Worker.when_ended": {"callback": row(told_of_end, (True, ["first"]), (False, ["other"]))},
}


def details_of(details: Any) -> Any:
    """What the next attempt of a task is told, after one that crashed."""
    found: list[Any] = []

    def perform(runner: Any) -> Generator[Any, Any, None]:
        found.append(runner.context.details)
        runner.context.heartbeat(details)
        yield from sleep(1.0 if len(found) > 1 else 1000.0)

    _, main = working(1, perform, lease_s=1.0)
    world = World(0, TABLES)
    process = world.process("worker", main)
    assert world.run(lambda: any(str(details) in str(item.get("details")) for item in stored(world, EXECUTIONS)),
                     steps_max=20_000)  # fmt: skip
    world.crash(process)
    assert world.run(lambda: len(found) == 2, steps_max=20_000)
    return found[1]


WORKERS["TaskContext.heartbeat"] = {"details": row(details_of, (17, 17), (18, 18))}  # type: ignore[index]


# --- consumers --------------------------------------------------------------------------------------------------------


def store(**options: Any) -> tuple[MemoryBackend, VirtualClock]:
    clock = VirtualClock()
    return fresh_backend(clock=clock, **options), clock


def followed(ids: str = "abc", *, fails: str = "", floor: int = 0, **options: Any) -> Any:
    """What a consumer is handed of a stream, until it stops or comes to its end; its cursor, and the store."""
    backend, clock = store()
    log, leave, seen = Log(), Flag(), []
    for id in ids:
        run(append(log, "s", [Op(id, b"")]), backend)

    def handle(op: Op, writes: HandlerWrites) -> None:
        seen.append(op.id)
        if op.id == ids[-1]:
            leave.set()
        if op.id in fails:
            raise ValueError("no")

    consumer = Consumer(log, "g", ["s"], handle, ConsumerOptions(**options))
    consumer.token = "me"
    cursor = run(cursors.take("g", "s", "me", 30), backend)
    assert cursor is not None
    if floor:
        clock.advance(10_000.0)
        run(truncate(log, "s", floor, repush_window_s=1.0), backend)
        cursor = run(cursors.take("g", "s", "me", 30), backend)
        assert cursor is not None
    began_us = clock.now().middle_us
    transactions: list[Any] = []
    execute = backend.execute

    def count(effect: Any) -> Any:
        transactions.append(effect)
        return execute(effect)

    backend.execute = count  # type: ignore[method-assign]
    run(follow(consumer, cursor, leave), backend)
    state = run(cursors.read_cursor("g", "s"), backend)
    passed_s = (clock.now().middle_us - began_us) / 1e6
    return "".join(seen), state, sum(type(each) is Transact for each in transactions), passed_s


def began_at(start: Any) -> str:
    """What a new group is handed of a stream of three operations, and one that comes later."""
    seen: list[str] = []
    consumer = Consumer(Log(), "g", ["s"], lambda op, writes: seen.append(op.id), ConsumerOptions(start=start))

    def main(process: Any) -> Generator[Any, Any, None]:
        yield from append(Log(), "s", [Op(id, b"") for id in "abc"])
        yield from consume(consumer)

    def later(process: Any) -> Generator[Any, Any, None]:
        yield from sleep(2.0)
        yield from append(Log(), "s", [Op("z", b"")])

    carried(main, later, until=lambda world: "z" in seen)
    return "".join(seen)


def consuming(until: Callable[[World, list[float]], bool], takes_s: float = 0.0, n: int = 1, **options: Any) -> Any:
    """A world with consumers of one operation; when the handler was given it."""
    began: list[float] = []

    def main(process: Any) -> Generator[Any, Any, None]:
        def handle(op: Op, writes: HandlerWrites) -> Generator[Any, Any, None]:
            began.append(seconds(process.world))
            yield from sleep(takes_s)

        yield from append(Log(), "s", [Op("a", b"")])
        yield from consume(Consumer(Log(), "g", ["s"], handle, ConsumerOptions(**options)))

    return carried(*[main] * n, until=lambda world: until(world, began)), began


def is_held_for_long(lease_s: float) -> bool:
    """Whether a stream is a consumer's for more than ten seconds, should it die now."""
    world, _ = consuming(lambda world, began: bool(began), takes_s=100.0, lease_s=lease_s)
    (item,) = [item for item in stored(world, STREAMS) if "lease_end_us" in item]
    return bool(item["lease_end_us"] > world.now_us + 10_000_000)


def handled_by_others(handler_max_s: float) -> int:
    """How many consumers have begun with an operation whose handler takes a hundred seconds, after sixty."""
    _, began = consuming(
        lambda world, began: seconds(world) > 60, takes_s=100.0, n=2, lease_s=5.0, heartbeat_s=1.0,
        handler_max_s=handler_max_s,
    )  # fmt: skip
    return len(began)


def heard_of(heartbeat_s: float) -> bool:
    """Whether a consumer was heard of in the last five seconds of twenty."""
    world, _ = consuming(lambda world, began: seconds(world) > 20, heartbeat_s=heartbeat_s)
    (item,) = [item for item in stored(world, REGISTRY) if "heard_us" in item]
    return bool(item["heard_us"] > world.now_us - 5_000_000)


def paused_s(**pauses: float) -> float:
    """How long an operation that fails twice takes."""
    return float(followed("ab", fails="a", attempts_max=3, retry=Pauses(**pauses))[3])


CONSUMERS: Rows = {
    "ConsumerOptions": {
        "batch_max": row(lambda n: followed(batch_max=n)[2], (1, 4), (50, 2)),
        "attempts_max": row(lambda n: followed("ab", fails="a", attempts_max=n)[0], (1, "ab"), (3, "aaab")),
        "on_poison": row(
            lambda what: followed(fails="b", attempts_max=1, on_poison=what)[0], ("park", "abc"), ("stop", "ab")
        ),
        "start": row(began_at, ("floor", "abcz"), ("head", "z"), (2, "cz")),
        "on_truncated": row(lambda what: followed(floor=1, on_truncated=what)[0], ("stop", ""), ("floor", "bc")),
        "retry": row(lambda s: paused_s(first_pause_s=s) > 0.1, (0.001, False), (1.0, True)),
        "lease_s": row(is_held_for_long, (10.0, False), (20.0, True)),
        "handler_max_s": row(handled_by_others, (10.0, 2), (900.0, 1)),
        "heartbeat_s": row(heard_of, (1.0, True), (100.0, False)),
    },
    "Pauses": {
        "first_pause_s": row(lambda s: paused_s(first_pause_s=s, max_pause_s=200.0) > 50, (1.0, False), (200.0, True)),
        "max_pause_s": row(lambda s: paused_s(first_pause_s=200.0, max_pause_s=s) > 50, (1.0, False), (200.0, True)),
    },
}


# --- streams ----------------------------------------------------------------------------------------------------------


def checks(foreign_readers: bool) -> int:
    """How many conditions without a write the second transaction has."""
    backend, _ = store()
    streams = casework.StreamStore(backend, options=StreamOptions(foreign_readers=foreign_readers))
    streams.append("s", [Op("a", b"")])
    seen: list[Any] = []
    execute = backend.execute
    backend.execute = lambda effect: seen.append(effect) or execute(effect)  # type: ignore[method-assign, func-returns-value]
    streams.append("s", [Op("b", b"")])
    return sum(isinstance(one, Check) for each in seen if isinstance(each, Transact) for one in each.writes)


def behind_hole(age_s: float = 60.0, **options: Any) -> Any:
    """What is read where the head says that there is another operation, since so long; or the error."""
    backend, clock = store()
    streams = casework.StreamStore(backend, options=StreamOptions(**options))
    streams.append("s", [Op("a", b"")])
    run(write(Update(STREAMS.key("s", HEAD), {"last_seq": 2})), backend)
    clock.advance(age_s)
    return refusal(lambda: streams.page("s", 1))


def waits_for_rivals(jitter_s: float) -> bool:
    """Whether a writer among others waits before it writes."""
    backend, clock = store()
    log = Log(StreamOptions(jitter_s=jitter_s))
    run(append(log, "s", [Op("a", b"")]), backend)
    log.note_rival("s", "another", clock.now().middle_us)
    paused = Stepped(append(log, "s", [Op("b", b"")]), backend).until(Sleep).effect
    assert isinstance(paused, Sleep)
    return paused.seconds > 0


def rounds(lost_rounds_max: int) -> int:
    """How often an append is tried while others hold what it needs."""
    backend, _ = store()
    tried: list[Any] = []
    execute = backend.execute

    def refuse(effect: Any) -> Any:
        if isinstance(effect, Transact):
            tried.append(effect)
            raise Contention("others hold it")
        return execute(effect)

    backend.execute = refuse  # type: ignore[method-assign]
    streams = casework.StreamStore(backend, options=StreamOptions(lost_rounds_max=lost_rounds_max))
    assert refusal(lambda: streams.append("s", [Op("a", b"")])) == "AppendContention"
    return len(tried)


def expiring(backend: MemoryBackend) -> list[bool]:
    """Of each claim whether it expires."""
    return ["expires_at_s" in item for item in backend.tables.stored(STREAM_CLAIMS).items.values()]


def expiry(claims_expire_s: float | None) -> list[bool]:
    backend, _ = store()
    casework.StreamStore(backend, options=StreamOptions(claims_expire_s=claims_expire_s)).append("s", [Op("a", b"")])
    return expiring(backend)


@contextlib.contextmanager
def made(kind: str, backend: MemoryBackend, **options: Any) -> Iterator[Any]:
    """A store of streams, as a test calls it."""
    if kind == "StreamStore":
        yield casework.StreamStore(backend, **options)
        return
    with asyncio.Runner() as runner:
        yield OnLoop(casework.AsyncStreamStore(ThreadedBackend(backend), **options), runner)


def in_backend(kind: str, other: bool) -> list[int]:
    backends = [store()[0] for _ in range(2)]
    with made(kind, backends[other]) as streams:
        streams.append("s", [Op("a", b"")])
    return [len(each.tables.stored(STREAMS).items) for each in backends]


def with_options(kind: str, options: Any) -> list[bool]:
    backend, _ = store()
    with made(kind, backend, options=options) as streams:
        streams.append("s", [Op("a", b"")])
    return expiring(backend)


def known_to_both(kind: str, shared: bool) -> int:
    """How often a store looks at the head of a stream to which another of its process has appended."""
    backend, _ = store()
    writers = Writer(Log()), Writer(Log())
    with made(kind, backend, writer=writers[0]) as streams:
        streams.append("s", [Op("a", b"")])
    looked: list[Any] = []
    execute = backend.execute
    backend.execute = lambda effect: looked.append(effect) or execute(effect)  # type: ignore[method-assign, func-returns-value]
    with made(kind, backend, writer=writers[0 if shared else 1]) as streams:
        streams.append("s", [Op("b", b"")])
    return sum(not isinstance(each, Transact) for each in looked)


def buffered(stream: str = "s", ids: str = "a") -> Any:
    backend, _ = store()
    streams = casework.StreamStore(backend)
    with streams.writer() as writer:
        writer.put(stream, *[Op(id, b"") for id in ids])
    return ["".join(op.id for op in streams.read(each)) for each in ("s", "t")]


def read_back(op: Op) -> Op:
    streams = casework.StreamStore(store()[0])
    streams.append("s", [op])
    return next(streams.read("s"))


def mark_at(position: int) -> bool:
    streams = casework.StreamStore(store()[0])
    streams.append("s", [Op("a", b""), Op("b", b"")])
    return streams.page("s").mark_at(position) == streams.mark("s", 1)


def stores(kind: str) -> Rows:
    return {
        kind: {
            "backend": row(lambda other: in_backend(kind, other), (False, [2, 0]), (True, [0, 2])),
            "options": row(
                lambda options: with_options(kind, options),
                (None, [False]),
                (StreamOptions(claims_expire_s=5.0), [True]),
            ),
            "writer": row(lambda shared: known_to_both(kind, shared), (True, 0), (False, SOMETHING)),
        }
    }


STREAMING: Rows = {
    "StreamOptions": {
        "foreign_readers": row(checks, (False, 0), (True, 1)),
        "foreign_writers": row(lambda there: behind_hole(foreign_writers=there), (False, "StreamDamaged"), (True, "")),
        "grace_s": row(lambda s: behind_hole(grace_s=s), (10.0, "StreamDamaged"), (100.0, "")),
        "claims_expire_s": row(expiry, (None, [False]), (5.0, [True])),
        "jitter_s": row(waits_for_rivals, (0.0, False), (0.25, True)),
        "lost_rounds_max": row(rounds, (2, 2), (5, 5)),
    },
    **stores("StreamStore"),
    **stores("AsyncStreamStore"),
    "BufferedWriter.put": {
        "stream": row(buffered, ("s", ["a", ""]), ("t", ["", "a"])),
        "ops": row(lambda ids: buffered(ids=ids)[0], ("a", "a"), ("ab", "ab")),
    },
    "Op": {
        "id": row(lambda id: read_back(Op(id, b"")).id, ("a", "a"), ("b", "b")),
        "data": row(lambda data: read_back(Op("a", data)).data, (b"1", b"1"), (b"2", b"2")),
    },
    "OpPage.mark_at": {"position": row(mark_at, (1, True), (2, False))},
}

RUNNING: Rows = {**WORKERS, **CONSUMERS, **STREAMING}


# --- on an application ------------------------------------------------------------------------------------------------

WORKER = {
    "poll_s": (1.0, 2.0),
    "concurrency": (1, 2),
    "group": (1, 2),
    "drain_s": (1.0, 2.0),
    "lease_s": (5.0, 6.0),
    "heartbeat_s": (1.0, 2.0),
}

CONSUMER = {
    "batch_max": (1, 2),
    "attempts_max": (1, 2),
    "on_poison": ("park", "stop"),
    "start": ("floor", "head"),
    "on_truncated": ("stop", "floor"),
    "retry": (Pauses(), Pauses(first_pause_s=1.0)),
    "lease_s": (5.0, 6.0),
    "handler_max_s": (5.0, 6.0),
    "heartbeat_s": (1.0, 2.0),
}


def of_worker(w: AppWorld, option: str, value: Any) -> Any:
    return getattr(w.app.worker(**{option: value}).worker.options, option)


def consumer_of(w: AppWorld, **given: Any) -> Any:
    arguments = {"group": "g", "streams": ["s"], "handler": print, **given}
    return w.app.streams.consumer(**arguments).consumer


def handed_on(names: dict[str, tuple[Any, Any]], see: Callable[..., Any]) -> dict[str, Any]:
    """The options of a struct of their own, given by name: they are what ``see`` finds there."""
    return {
        name: row(lambda w, value, name=name: see(w, name, value), *[(value, value) for value in values])
        for name, values in names.items()
    }


ON_AN_APPLICATION: Rows = {
    "app.worker": handed_on(WORKER, of_worker),
    "streams.consumer": {
        **handed_on(CONSUMER, lambda w, name, value: getattr(consumer_of(w, **{name: value}).options, name)),
        "group": row(lambda w, group: consumer_of(w, group=group).group, ("g", "g"), ("h", "h")),
        "streams": row(lambda w, names: consumer_of(w, streams=names).streams, (["s"], ("s",)), (["t"], ("t",))),
        "handler": row(lambda w, handler: consumer_of(w, handler=handler).handler, (print, print), (max, max)),
    },
}
"""What the struct's options change is in the tables above."""
