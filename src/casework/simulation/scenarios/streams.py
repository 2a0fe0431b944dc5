"""Streams under crashes, lost answers and contention: no hole, one order, each operation once; and their consumers."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from functools import partial
from typing import Any

import msgspec

from casework.errors import AppendStopped, ConditionFailed, Contention, OutcomeUnknown, Throttled, Unavailable
from casework.kernel.conditions import absent
from casework.kernel.effects import Effect
from casework.kernel.items import Item, Key, Put, Table, Update
from casework.kernel.programs import Program, get, query_all, race, sleep, spawn, write
from casework.kernel.schema import REGISTRY, STREAM_CLAIMS, STREAMS
from casework.simulation.carrier import Process
from casework.simulation.faults import HARSH, ROUGH
from casework.simulation.runner import Scenario
from casework.streams.append import head_is
from casework.streams.consumer import Consumer, ConsumerOptions, HandlerWrites, consume
from casework.streams.cursors import read_cursor
from casework.streams.log import Log, Op, StreamOptions, head_key, segment_of
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


class ForeignReaders(Appends):
    """Somebody reads the table without casework, and takes whatever stands above its cursor.

    Writers that know of it make their transactions visible in order. A query that sees its first items earlier than its
    last ones would mislead such a reader all the same; here it sees them at one instant.
    """

    name = "appends, foreign readers"
    options = msgspec.structs.replace(OPTIONS, foreign_readers=True)
    faults = msgspec.structs.replace(ROUGH, torn_reads=0.0)
    writers, callers, batches = 2, 2, 2

    def reader(self, process: Process) -> Generator[Effect, Any, Any]:
        """Read on, holes or not."""
        mine = self.seen[int(process.name[-1])]
        while self.left or not mine or mine[-1].seq < len(self.wanted):
            items = yield from query_all(STREAMS, self.stream, low=(mine[-1].seq if mine else 0) + 1)
            mine += [op for item in items for op in segment_of(item).ops()]
            yield from sleep(0.05)

    def is_over(self) -> bool:
        """The end was read."""
        return not self.left and all(mine and mine[-1].seq >= len(self.wanted) for mine in self.seen)


class OlderWriters(Appends):
    """A rolling upgrade: older writers take a number first and put their operation afterwards, or die in between.

    They name each attempt anew, since they have no claims: one whose answer was lost may be there beside the next.
    """

    name = "appends, older writers"
    options = msgspec.structs.replace(OPTIONS, foreign_writers=True, grace_s=0.1)
    faults = msgspec.structs.replace(
        ROUGH, unknown=0.05, crash=0.01, pause=0.03, pause_s_max=1.0, skew_s_max=0.1, clock_error_s=0.05
    )
    writers, callers, batches = 2, 1, 3
    older, older_ops = 2, 3

    def begin(self) -> None:
        """Start all of them."""
        self.attempts: set[str] = set()
        self.stored = [0] * self.older
        self.cursors = [0, 0]
        super().begin()
        for n in range(self.older):
            self.left.add(f"older-{n}")
            self.world.process(f"older-{n}", partial(self.older_writer, n))

    def older_writer(self, n: int, process: Process) -> Generator[Effect, Any, Any]:
        """ADD, then put where there is nothing; again with a new number when there is. One dies for good."""
        while self.stored[n] < self.older_ops and (n or process.starts_n == 1):
            id = f"{process.name}/{self.stored[n]}/{len(self.attempts)}"
            self.attempts.add(id)
            try:
                number = yield from self.add_one()
                item: Item = {"stream_id": self.stream, "seq": number, "id": id, "data": b"old"}
                yield from write(Put(STREAMS, item, when=absent()))
            except (ConditionFailed, *TRANSIENT):
                yield from sleep(0.05)
                continue
            self.wanted.add(id)
            self.stored[n] += 1
        self.left.discard(process.name)

    def add_one(self) -> Program[int]:
        """What ADD does: one more than whatever it is."""
        while True:
            item = yield from get(head_key(self.stream))
            last = int(item.get("last_seq", 0)) if item else 0
            try:
                yield from write(Update(head_key(self.stream), {"last_seq": last + 1}, when=head_is(last)))
            except ConditionFailed:
                continue
            return last + 1

    def reader(self, process: Process) -> Generator[Effect, Any, Any]:
        """Read on; numbers may hold nothing."""
        n = int(process.name[-1])
        log, mine = Log(self.options), self.seen[n]
        while not self.is_over():
            try:
                page = yield from read_page(log, self.stream, self.cursors[n], 4)
                mine += page.ops
                self.cursors[n] = page.next_after
            except TRANSIENT:
                pass
            yield from sleep(0.05)

    def is_over(self) -> bool:
        """Everything that is stored was read."""
        if self.left or self.world.store.locks:
            return False
        keys = self.world.store.tables.stored(STREAMS).items
        return min(self.cursors) >= max(int(sort or 0) for _, sort in keys)

    def problems(self) -> Iterable[str]:
        """Nothing that was acknowledged is missing, nothing is there twice, both read the same, in order."""
        items = self.world.store.tables.stored(STREAMS).items
        end = 0
        for sort in sorted(int(sort) for _, sort in items if sort):
            segment = segment_of(items[self.stream, sort])
            if segment.first != end + 1:
                yield f"the segment {segment.first} to {segment.last} follows on {end}"
            end = segment.last
        first, second = self.seen
        if first != second:
            yield "two readers were handed different operations"
        ids = [op.id for op in first]
        if len(set(ids)) < len(ids):
            yield "a reader was handed an operation twice"
        if lost := self.wanted - set(ids):
            yield f"{sorted(lost)} were acknowledged and never read"
        if strangers := set(ids) - self.wanted - self.attempts:
            yield f"{sorted(strangers)} were read and never written"
        if wrong := [op.id for op in first if self.answers.get(op.id, op.seq) != op.seq]:
            yield f"the writer of {wrong[0]} was told another number"


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
        self.stolen: list[str] = []
        self.world.store.watch = self.see
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
                        yield from writer.append(stream, [Op(f"{stream}{n}", b"")])
                    except TRANSIENT:
                        yield from sleep(0.1)
                        continue
                    break
        self.written = True

    def consumer(self) -> Generator[Effect, Any, Any]:
        """A consumer, whose writes would be refused the second time."""

        def handle(op: Op, writes: HandlerWrites) -> None:
            writes.put(HANDLED, {"place": op.id}, absent())

        options = ConsumerOptions(lease_s=5.0, heartbeat_s=1.0, batch_max=3, attempts_max=1000)
        consumer = Consumer(Log(OPTIONS), "g", self.streams, handle, options)
        self.consumers.append(consumer)
        yield from consume(consumer)

    def watcher(self) -> Generator[Effect, Any, Any]:
        """Look how much was handled, and let the consumers go when it is all."""
        while not self.written or self.handled < len(self.streams) * self.ops_n:
            yield from sleep(0.5)
            done = 0
            for stream in self.streams:
                try:
                    cursor = yield from read_cursor("g", stream)
                except Throttled:
                    break
                done += cursor.after
            self.handled = done
        for consumer in self.consumers:
            consumer.stop.set()

    def see(self, key: Key, before: Item | None, after: Item | None) -> None:
        """A cursor changed hands: nobody may be overtaken within its lease, however wrong the clocks are."""
        if key.partition.startswith("@") and before is not None and after is not None:
            end_us = int(before.get("lease_end_us", 0))
            if before["token"] != after["token"] and end_us > self.world.now_us:
                left_s = (end_us - self.world.now_us) / 1e6
                self.stolen.append(
                    f"{after['token']!r} took {key.partition} from {before['token']!r} {left_s:g} s early"
                )

    def is_over(self) -> bool:
        """Everything was handled."""
        return self.handled >= len(self.streams) * self.ops_n and not self.world.store.locks

    def problems(self) -> Iterable[str]:
        """Nothing was parked, each operation left its one mark, and no lease was cut short."""
        failed = sum(consumer.parked_n for consumer in self.consumers)
        if failed:
            yield f"{failed} operations were parked: something was handled twice"
        marks = {place for place, _ in self.world.store.tables.stored(HANDLED).items}
        if lost := {f"{stream}{n}" for stream in self.streams for n in range(self.ops_n)} - marks:
            yield f"{sorted(lost)} were passed and never handled"
        yield from self.stolen[:1]


class AppendsHarsh(Appends):
    """The same with throttled reads, partition limits and clocks known from answers."""

    name = "appends, harsh"
    faults = HARSH
    callers, batches = 1, 2


class ConsumersHarsh(Consumers):
    """The same with throttled reads, partition limits and clocks known from answers."""

    name = "consumers, harsh"
    faults = HARSH
    ops_n = 5


ALL = (Appends, AppendsHarsh, ForeignReaders, OlderWriters, Consumers, ConsumersHarsh)
