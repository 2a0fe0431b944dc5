"""Streams that are truncated while they are written and read, with snapshots for those who come too late."""

from __future__ import annotations

from collections.abc import Generator, Iterable

import msgspec

from casework.errors import CursorTooOld, Misuse
from casework.kernel.effects import Effect
from casework.kernel.programs import sleep
from casework.kernel.schema import REGISTRY, STREAM_CLAIMS, STREAMS
from casework.simulation.carrier import Process
from casework.simulation.faults import ROUGH
from casework.simulation.runner import Scenario
from casework.simulation.scenarios.streams import OPTIONS, TRANSIENT
from casework.streams.log import Log, Op
from casework.streams.read import read_head, read_page
from casework.streams.retention import get_snapshot, put_snapshot, truncate
from casework.streams.writer import Writer


class Truncations(Scenario):
    """A writer that dies and pushes again, two keepers that snapshot and truncate, two readers that come late.

    A reader's state is what it read, or a snapshot and what it read after it; it must be all operations in order. Hosts
    stand still for less than the window in which a repeated push is recognised: that is what the window is for.
    """

    name = "truncations"
    faults = msgspec.structs.replace(ROUGH, pause_s_max=2.0)
    window_s = 30.0
    tables = (STREAMS, STREAM_CLAIMS, REGISTRY)
    ops_n, keepers, readers = 12, 2, 2
    stream = "s"

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
                yield from writer.append(self.stream, [Op(f"{self.written}", b"x")])
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
                    yield from put_snapshot(log, self.stream, after, " ".join(state).encode())
                    head = yield from read_head(log, self.stream)
                    done = yield from truncate(log, self.stream, head.snapshot_seq, repush_window_s=self.window_s)
                    self.floor = max(self.floor, done.floor_seq)
            except (*TRANSIENT, Misuse):
                pass
            yield from sleep(2.0)

    def follow(self, log: Log, state: list[str], after: int) -> Generator[Effect, None, int]:
        """Read on from a cursor; from the newest snapshot where that is too old."""
        try:
            page = yield from read_page(log, self.stream, after, 3)
        except CursorTooOld:
            snapshot = yield from get_snapshot(log, self.stream)
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


ALL = (Truncations,)
