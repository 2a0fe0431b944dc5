"""Buffered writers: what flush acknowledged is stored, in the order in which it was put, and once."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any

import msgspec

from casework.kernel.effects import Effect
from casework.kernel.programs import sleep
from casework.kernel.schema import REGISTRY, STREAM_CLAIMS, STREAMS
from casework.simulation.carrier import Process
from casework.simulation.faults import ROUGH
from casework.simulation.runner import Scenario
from casework.simulation.scenarios.streams import TRANSIENT
from casework.streams.log import Log, Op, StreamOptions, segment_of
from casework.streams.writer import Writer


class Buffered(Scenario):
    """Processes that put and flush; after an error, or when they start again, they put again what was not flushed.

    An append gives up after two lost rounds, so that errors come in the middle of what is put.
    """

    name = "buffered"
    tables = (STREAMS, STREAM_CLAIMS, REGISTRY)
    faults = msgspec.structs.replace(ROUGH, unknown=0.03, throttled=0.03, slow=0.02)
    options = StreamOptions(lost_rounds_max=2)
    writers, puts, flush_every, ops_a_put = 2, 7, 4, 32
    """Three puts are a transaction's worth."""

    def begin(self) -> None:
        """Start the writers."""
        self.flushed = [0] * self.writers
        """Puts of each writer that a flush acknowledged: what its process knows when it starts again."""
        for n in range(self.writers):
            self.world.process(f"writer-{n}", self.writer)

    def writer(self, process: Process) -> Generator[Effect, Any, Any]:
        """Put and flush until all of it is stored."""
        n = int(process.name[-1])
        writer = Writer(Log(self.options))
        while self.flushed[n] < self.puts:
            first = self.flushed[n]
            last = min(self.puts, first + self.flush_every)
            try:
                for number in range(first, last):
                    yield from writer.put("s", [Op(id, b"") for id in self.ids(n, number)])
                yield from writer.flush()
            except TRANSIENT:
                yield from sleep(0.1)
                continue
            self.flushed[n] = last

    def ids(self, writer: int, put: int) -> list[str]:
        """The operations of one put."""
        return [f"{writer}/{put}/{n}" for n in range(self.ops_a_put)]

    def is_over(self) -> bool:
        """Everything was flushed."""
        return min(self.flushed) >= self.puts and not self.world.store.locks

    def waits_for(self) -> str:
        """How far the writers are."""
        return f"{self.puts} puts of each writer: {self.flushed} flushed"

    def problems(self) -> Iterable[str]:
        """All of it is there, once, and each writer's operations in the order in which they were put."""
        items = self.world.store.tables.stored(STREAMS).items
        segments = [segment_of(items["s", seq]) for seq in sorted(int(seq or 0) for _, seq in items) if seq]
        stored = [op.id for segment in segments for op in segment.ops()]
        for n in range(self.writers):
            mine = [id for id in stored if id.startswith(f"{n}/")]
            wanted = [id for put in range(self.puts) for id in self.ids(n, put)]
            if lost := [id for id in wanted if id not in set(mine)]:
                yield f"{len(lost)} operations were flushed and are not stored, {lost[0]} first"
            elif len(mine) > len(wanted):
                yield f"writer {n} put {len(wanted)} operations, and {len(mine)} are stored"
            elif mine != wanted:
                wrong = next(id for id, other in zip(mine, wanted, strict=True) if id != other)
                yield f"{wrong} is stored out of the order in which it was put"


ALL = (Buffered,)
