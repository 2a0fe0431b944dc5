"""Appends that are decided on what a stream holds: each is stored right behind that, or not at all."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any

from casework.errors import UnexpectedSeq
from casework.kernel.effects import Effect
from casework.kernel.programs import Program, sleep
from casework.kernel.schema import REGISTRY, STREAM_CLAIMS, STREAMS
from casework.simulation.carrier import Process
from casework.simulation.runner import Scenario
from casework.simulation.scenarios.streams import OPTIONS, TRANSIENT
from casework.streams.log import Log, Op, segment_of
from casework.streams.read import read_page
from casework.streams.writer import Writer


class Deciding(Scenario):
    """Three processes read a stream, and append what they decided, with the number of the last that they read as data.

    Who lost the answer asks again with the same; who died decides anew, unless the operation is there.
    """

    name = "deciding"
    tables = (STREAMS, STREAM_CLAIMS, REGISTRY)
    writers, decisions = 3, 3
    stream = "s"

    def begin(self) -> None:
        """Start the writers."""
        self.left = {f"writer-{n}" for n in range(self.writers)}
        self.refused: list[tuple[str, int]] = []
        for name in sorted(self.left):
            self.world.process(name, self.writer)

    def writer(self, process: Process) -> Generator[Effect, Any, Any]:
        """Decide one after the other."""
        writer = Writer(Log(OPTIONS))
        for n in range(self.decisions):
            yield from self.decide(writer, f"{process.name}/{n}")
        self.left.discard(process.name)

    def decide(self, writer: Writer, id: str) -> Program[None]:
        """Read, and append behind what was read; again, where somebody was faster."""
        while True:
            try:
                found = yield from self.read(writer.log)
                if id in found:
                    return
                yield from self.append(writer, Op(id, str(len(found)).encode()), len(found))
            except UnexpectedSeq as error:
                self.refused.append((id, error.expected_seq))
            except TRANSIENT:
                yield from sleep(0.1)
            else:
                return

    def append(self, writer: Writer, op: Op, expected_seq: int) -> Program[None]:
        """As it was decided, until the answer is there."""
        while True:
            try:
                yield from writer.append(self.stream, [op], expected_seq=expected_seq)
                return
            except TRANSIENT:
                yield from sleep(0.05)

    def read(self, log: Log) -> Program[list[str]]:
        """The ids in the stream, in order."""
        found: list[str] = []
        while True:
            page = yield from read_page(log, self.stream, len(found))
            if not page.ops:
                return found
            found += [op.id for op in page.ops]

    def is_over(self) -> bool:
        """All decisions are taken."""
        return not self.left and not self.world.store.locks

    def problems(self) -> Iterable[str]:
        """Each stands where it was decided on, once; and nobody was told otherwise."""
        items = self.world.store.tables.stored(STREAMS).items.values()
        segments = sorted((item for item in items if item["seq"]), key=lambda item: int(item["seq"]))
        ops = [op for item in segments for op in segment_of(item).ops()]
        if wrong := [op for op in ops if int(op.data) != op.seq - 1]:
            yield f"{wrong[0].id} was decided on {wrong[0].data.decode()} and stands at {wrong[0].seq}"
        wanted = sorted(f"writer-{n}/{k}" for n in range(self.writers) for k in range(self.decisions))
        if sorted(op.id for op in ops) != wanted:
            yield f"the stream has {[op.id for op in ops]}"
        stored = {(op.id, int(op.data)) for op in ops}
        if lies := [each for each in self.refused if each in stored]:
            yield f"{lies[0][0]} was refused behind {lies[0][1]}, where it is stored"


ALL = (Deciding,)
