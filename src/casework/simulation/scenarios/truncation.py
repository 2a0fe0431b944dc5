"""Streams that are truncated while they are in use: nobody misses anything unawares, and no repeat counts twice."""

from __future__ import annotations

from collections.abc import Generator, Iterable

import msgspec

from casework.errors import CursorTooOld, Misuse
from casework.kernel.effects import Effect
from casework.kernel.programs import Program, sleep
from casework.kernel.schema import REGISTRY, STREAM_CLAIMS, STREAMS
from casework.simulation.carrier import Main, Process
from casework.simulation.faults import ROUGH
from casework.simulation.runner import Scenario
from casework.simulation.scenarios.streams import OPTIONS, TRANSIENT
from casework.streams.append import append
from casework.streams.log import Log, Op
from casework.streams.read import read_head, read_page
from casework.streams.retention import get_snapshot, put_snapshot, truncate
from casework.streams.writer import Writer

STREAM = "s"


class Truncation(Scenario):
    """A writer that pushes some things twice, a fast reader and a slow one, and one that begins at a snapshot.

    Somebody stores snapshots, and truncates up to where the slowest reader is. Clocks are about right here, and nobody
    stands still: the window for repeated pushes is a length of time between two hosts.
    """

    name = "truncation"
    tables = (STREAMS, STREAM_CLAIMS, REGISTRY)
    faults = msgspec.structs.replace(ROUGH, skew_s_max=0.0, clock_error_s=0.05, pause=0.0)
    options = msgspec.structs.replace(OPTIONS, foreign_readers=True, grace_s=0.5)
    ops_n = 7
    repush_window_s = 6.0
    repush_age_s = 2.0
    """What is no older than this may be pushed again: well within the window."""
    reader_pauses_s = (0.1, 0.8)

    def begin(self) -> None:
        """Start all of them."""
        self.left = {"writer", "late"}
        self.stored: dict[str, tuple[int, int]] = {}
        self.pushed = 0
        self.cursors = [0] * len(self.reader_pauses_s)
        self.seen: list[list[Op]] = [[] for _ in self.reader_pauses_s]
        self.late_has: list[str] = []
        self.world.process("writer", self.writer)
        for n, pause_s in enumerate(self.reader_pauses_s):
            self.world.process(f"reader-{n}", self.reader_of(n, pause_s))
        self.world.process("truncator", self.truncator)
        self.world.process("late", self.late)

    def slowest(self) -> int:
        """Up to where everybody has read; what is below may go."""
        return min(self.cursors)

    def writer(self, process: Process) -> Generator[Effect, None, None]:
        """One operation after the other; some are pushed again a little later, by a process that knows nothing."""
        log = Log(self.options)
        while self.pushed < self.ops_n:
            yield from self.push(log, Op(f"op-{self.pushed}", b"x"))
            self.pushed += 1
            yield from sleep(0.1 * self.world.choices.below(20))
            again = f"op-{max(0, self.pushed - 2)}"
            youngest_us = self.world.now_us - round(self.repush_age_s * 1e6)
            if self.world.choices.below(2) == 0 and self.stored[again][1] > youngest_us:
                yield from self.push(Log(self.options), Op(again, b"x"))
        self.left.discard("writer")

    def push(self, log: Log, op: Op) -> Program[None]:
        """Until it is stored; the same number each time."""
        begun_us = self.world.now_us
        while True:
            try:
                answers = yield from append(log, STREAM, [op])
            except TRANSIENT:
                yield from sleep(0.1)
                continue
            break
        seq = answers[0].seq
        before, _ = self.stored.setdefault(op.id, (seq, begun_us))
        if before != seq:
            raise AssertionError(f"{op.id} is stored at {before} and at {seq}")

    def reader_of(self, n: int, pause_s: float) -> Main:
        """What the process of one reader runs."""
        return lambda process: self.reader(n, pause_s)

    def reader(self, n: int, pause_s: float) -> Generator[Effect, None, None]:
        """Read on from a cursor that is kept."""
        log = Log(self.options)
        while self.cursors[n] < self.ops_n:
            try:
                page = yield from read_page(log, STREAM, self.cursors[n], 2)
                self.seen[n] += page.ops
                self.cursors[n] = page.next_after
            except TRANSIENT:
                pass
            yield from sleep(pause_s)

    def truncator(self, process: Process) -> Generator[Effect, None, None]:
        """Store a snapshot, then remove what everybody has read, again and again."""
        log = Log(self.options)
        while not self.is_over():
            upto = self.slowest()
            if upto:
                names = [op.id for op in max(self.seen, key=len)[:upto]]
                try:
                    yield from put_snapshot(log, STREAM, upto, " ".join(names).encode())
                    yield from truncate(log, STREAM, upto, repush_window_s=self.repush_window_s)
                except TRANSIENT:
                    pass
                except Misuse:
                    pass  # the head is not visible to this host yet
            yield from sleep(0.3)

    def late(self, process: Process) -> Generator[Effect, None, None]:
        """Begin with nothing, again after each crash: with the snapshot where the beginning is gone."""
        log, has, after = Log(self.options), [], 0
        while after < self.ops_n:
            try:
                page = yield from read_page(log, STREAM, after, 3)
                has += [op.id for op in page.ops]
                after = page.next_after
            except CursorTooOld as gone:
                try:
                    snapshot = yield from get_snapshot(log, STREAM)
                except TRANSIENT:
                    continue
                if snapshot is None or snapshot.seq < gone.floor_seq:
                    raise AssertionError(f"truncated up to {gone.floor_seq}, the snapshot is {snapshot}") from gone
                has, after = snapshot.data.decode().split(), snapshot.seq
            except TRANSIENT:
                pass
            if self.world.choices.below(4) == 0:
                has, after = [], 0
            yield from sleep(0.4)
        self.late_has = has
        self.left.discard("late")

    def is_over(self) -> bool:
        """Everybody has everything."""
        return not self.left and min(self.cursors) >= self.ops_n and not self.world.store.locks

    def problems(self) -> Iterable[str]:
        """Everybody was handed everything, once and in order."""
        wanted = [f"op-{n}" for n in range(self.ops_n)]
        for n, mine in enumerate(self.seen):
            if [op.id for op in mine] != wanted:
                yield f"reader {n} was handed {[op.id for op in mine]}"
        if self.late_has != wanted:
            yield f"who began late has {self.late_has}"


class TruncationAtOnce(Truncation):
    """Nothing is pushed again, so that what was read is removed at once."""

    name = "truncation at once"
    repush_window_s = 0.0
    repush_age_s = 0.0


class Keepers(Scenario):
    """A writer that dies and pushes again, two keepers that snapshot and truncate, two readers that come late.

    A reader's state is what it read, or a snapshot and what it read after it; it must be all operations in order. Hosts
    stand still for less than the window in which a repeated push is recognised: that is what the window is for.
    """

    name = "keepers"
    faults = msgspec.structs.replace(ROUGH, pause_s_max=2.0)
    window_s = 30.0
    tables = (STREAMS, STREAM_CLAIMS, REGISTRY)
    ops_n, keepers, readers = 12, 2, 2

    def begin(self) -> None:
        """Start everybody."""
        self.written = 0
        self.floor = 0
        self.states: list[list[str]] = [[] for _ in range(self.readers)]
        self.cursors = [0] * self.readers
        self.jumps = 0
        self.world.process("writer", self.write)
        for n in range(self.keepers):
            self.world.process(f"keeper-{n}", self.keep)
        for n in range(self.readers):
            self.world.process(f"reader-{n}", self.reader, may_crash=False)

    def write(self, process: Process) -> Generator[Effect, None, None]:
        """Append one after the other; after a crash the last one again."""
        writer = Writer(Log(OPTIONS))
        while self.written < self.ops_n:
            try:
                yield from writer.append(STREAM, [Op(f"{self.written}", b"x")])
            except TRANSIENT:
                yield from sleep(0.1)
                continue
            self.written += 1
            yield from sleep(2.0 * self.world.choices.below(4))

    def keep(self, process: Process) -> Generator[Effect, None, None]:
        """Read up to the head, store a snapshot of it, truncate what it covers. For ever."""
        log = Log(OPTIONS)
        state: list[str] = []
        after = 0
        while True:
            try:
                after = yield from self.follow(log, state, after)
                if after:
                    yield from put_snapshot(log, STREAM, after, " ".join(state).encode())
                    head = yield from read_head(log, STREAM)
                    done = yield from truncate(log, STREAM, head.snapshot_seq, repush_window_s=self.window_s)
                    self.floor = max(self.floor, done.floor_seq)
            except (*TRANSIENT, Misuse):
                pass
            yield from sleep(2.0)

    def follow(self, log: Log, state: list[str], after: int) -> Generator[Effect, None, int]:
        """Read on from a cursor; from the newest snapshot where that is too old."""
        try:
            page = yield from read_page(log, STREAM, after, 3)
        except CursorTooOld:
            snapshot = yield from get_snapshot(log, STREAM)
            if snapshot is None or snapshot.seq <= after:
                return after  # a newer one is on its way
            state[:] = snapshot.data.decode().split()
            self.jumps += 1
            return snapshot.seq
        state += [op.id for op in page.ops]
        return page.next_after

    def reader(self, process: Process) -> Generator[Effect, None, None]:
        """Read on, slowly."""
        log, n = Log(OPTIONS), int(process.name[-1])
        while True:
            try:
                self.cursors[n] = yield from self.follow(log, self.states[n], self.cursors[n])
            except TRANSIENT:
                pass
            yield from sleep(3.0 * self.world.choices.below(4))

    def is_over(self) -> bool:
        """All is written, truncated and read."""
        done = self.written == self.ops_n and self.floor >= self.ops_n and not self.world.store.locks
        return done and self.segments_n() <= 1 and all(len(state) >= self.ops_n for state in self.states)

    def segments_n(self) -> int:
        """Segments that were not removed; the head's own stays."""
        return sum(1 for _, seq in self.world.store.tables.stored(STREAMS).items if isinstance(seq, int) and seq > 0)

    def waits_for(self) -> str:
        """How far everybody is."""
        kept = f"floor {self.floor}, {self.segments_n()} segments"
        return f"{self.ops_n} operations: {self.written} written, {kept}, readers at {self.cursors}"

    def problems(self) -> Iterable[str]:
        """Every reader's state is every operation, once and in order."""
        wanted = [f"{n}" for n in range(self.ops_n)]
        for state in self.states:
            if state != wanted:
                yield f"a reader made of the stream {state}"


ALL = (Truncation, TruncationAtOnce, Keepers)
