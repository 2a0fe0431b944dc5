"""Streams under crashes, lost answers and contention: no hole, one order, each operation once; and their consumers."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any

from casework.errors import AppendStopped, Contention, OutcomeUnknown, Throttled, Unavailable
from casework.kernel.conditions import absent
from casework.kernel.effects import Effect
from casework.kernel.items import Table
from casework.kernel.programs import Program, query_all, race, sleep, spawn
from casework.kernel.schema import REGISTRY, STREAM_CLAIMS, STREAMS
from casework.simulation.carrier import Process
from casework.simulation.runner import Scenario
from casework.streams.consumer import Consumer, ConsumerOptions, HandlerWrites, consume
from casework.streams.log import Log, Op, StreamOptions, segment_of
from casework.streams.read import read_page
from casework.streams.writer import Writer

TRANSIENT = (AppendStopped, Contention, OutcomeUnknown, Throttled, Unavailable)

HANDLED = Table(name="handled", partition="place")

OPTIONS = StreamOptions(lost_rounds_max=50)


class Appends(Scenario):
    """Three processes append to one stream, two callers in each; they die and push again. Two readers look on."""

    name = "appends"
    tables = (STREAMS, STREAM_CLAIMS, REGISTRY)
    writers, callers, batches = 3, 2, 3
    options = OPTIONS
    stream = "s"

    def begin(self) -> None:
        """Start writers and readers."""
        self.answers: dict[str, int] = {}
        self.wanted: set[str] = set()
        self.left: set[str] = set()
        self.seen: list[list[Op]] = [[], []]
        for n in range(self.writers):
            self.left.add(f"writer-{n}")
            self.world.process(f"writer-{n}", self.writer)
        for n in range(len(self.seen)):
            self.world.process(f"reader-{n}", self.reader, may_crash=False)

    def writer(self, process: Process) -> Generator[Effect, Any, Any]:
        """Push everything from the beginning; after a crash the claims answer what was stored."""
        writer = Writer(Log(self.options))
        handles = []
        for caller in range(self.callers):
            handles.append((yield from spawn(self.push(writer, f"{process.name}/{caller}"), f"caller {caller}")))
        for handle in handles:
            while handle.outcome is None:
                yield from race(handle)
            handle.outcome.result()
        self.left.discard(process.name)

    def push(self, writer: Writer, name: str) -> Program[None]:
        """Batches one after the other, each until it is stored; one operation is everybody's."""
        for batch in range(self.batches):
            ops = [Op(f"{name}/{batch}/{n}", f"{n}".encode()) for n in range(1 + batch)]
            if batch == 1:
                ops.insert(1, Op("common", b"common"))
            self.wanted |= {op.id for op in ops}
            while True:
                try:
                    answers = yield from writer.append(self.stream, ops)
                except TRANSIENT:
                    yield from sleep(0.1)
                    continue
                break
            for answer in answers:
                if self.answers.setdefault(answer.id, answer.seq) != answer.seq:
                    raise AssertionError(f"{answer.id} was answered with {self.answers[answer.id]} and {answer.seq}")

    def reader(self, process: Process) -> Generator[Effect, Any, Any]:
        """Read on from what was read."""
        log, mine = Log(self.options), self.seen[int(process.name[-1])]
        while self.left or len(mine) < len(self.wanted):
            try:
                page = yield from read_page(log, self.stream, mine[-1].seq if mine else 0, 4)
                mine += page.ops
            except TRANSIENT:
                pass
            yield from sleep(0.05)

    def is_over(self) -> bool:
        """Everything is stored and was read."""
        return not self.left and not self.world.store.locks and all(len(mine) >= len(self.wanted) for mine in self.seen)

    def problems(self) -> Iterable[str]:
        """No hole, no operation lost or doubled, and readers and writers were told the same."""
        for mine in self.seen:
            numbers = [op.seq for op in mine]
            if numbers != list(range(1, len(mine) + 1)):
                yield f"a reader was handed the numbers {numbers}"
            if sorted(op.id for op in mine) != sorted(self.wanted):
                yield "a reader was handed other operations than were appended, or one of them twice"
            if wrong := [op.id for op in mine if self.answers.get(op.id, op.seq) != op.seq]:
                yield f"the writer of {wrong[0]} was told another number"


class NaiveReader(Appends):
    """The same with a reader that takes whatever stands above its cursor: a planted fault."""

    name = "appends, reader without contiguity"

    def reader(self, process: Process) -> Generator[Effect, Any, Any]:
        """Read on, holes or not."""
        mine = self.seen[int(process.name[-1])]
        while self.left or len(mine) < len(self.wanted):
            items = yield from query_all(STREAMS, self.stream, low=(mine[-1].seq if mine else 0) + 1)
            mine += [op for item in items for op in segment_of(item).ops()]
            if mine and mine[-1].seq >= len(self.wanted):
                break
            yield from sleep(0.05)

    def is_over(self) -> bool:
        """The end was read."""
        return not self.left and all(mine and mine[-1].seq >= len(self.wanted) for mine in self.seen)


class Consumers(Scenario):
    """Two consumers of one group share two streams, die, and are started again; every operation is handled once."""

    name = "consumers"
    tables = (STREAMS, STREAM_CLAIMS, REGISTRY, HANDLED)
    streams, ops_n = ("s", "t"), 8

    def begin(self) -> None:
        """Start the writer and the consumers."""
        self.written = False
        self.consumers: list[Consumer] = []
        self.handled = 0
        self.world.process("writer", lambda process: self.writer(), may_crash=False)
        for n in range(2):
            self.world.process(f"consumer-{n}", lambda process: self.consumer())
        self.world.process("watcher", lambda process: self.watcher(), may_crash=False)

    def writer(self) -> Generator[Effect, Any, Any]:
        """Append to both streams."""
        writer = Writer(Log(OPTIONS))
        for n in range(self.ops_n):
            for stream in self.streams:
                while True:
                    try:
                        yield from writer.append(stream, [Op(f"{n}", b"")])
                    except TRANSIENT:
                        yield from sleep(0.1)
                        continue
                    break
        self.written = True

    def consumer(self) -> Generator[Effect, Any, Any]:
        """A consumer, whose writes would be refused the second time."""

        def handle(op: Op, writes: HandlerWrites) -> None:
            writes.put(HANDLED, {"place": f"{op.at_us}/{op.id}/{op.seq}"}, absent())

        options = ConsumerOptions(lease_s=5.0, heartbeat_s=1.0, batch_max=3, attempts_max=1000)
        consumer = Consumer(Log(OPTIONS), "g", self.streams, handle, options)
        self.consumers.append(consumer)
        yield from consume(consumer)

    def watcher(self) -> Generator[Effect, Any, Any]:
        """Look how much was handled, and let the consumers go when it is all."""
        from casework.streams.cursors import read_cursor

        while not self.written or self.handled < len(self.streams) * self.ops_n:
            yield from sleep(0.5)
            done = 0
            for stream in self.streams:
                cursor = yield from read_cursor("g", stream)
                done += cursor.after
            self.handled = done
        for consumer in self.consumers:
            consumer.stop.set()

    def is_over(self) -> bool:
        """Everything was handled."""
        return self.handled >= len(self.streams) * self.ops_n and not self.world.store.locks

    def problems(self) -> Iterable[str]:
        """Nothing was parked, and each operation left its one mark."""
        failed = sum(consumer.parked_n for consumer in self.consumers)
        if failed:
            yield f"{failed} operations were parked: something was handled twice"


ALL = (Appends, Consumers)
