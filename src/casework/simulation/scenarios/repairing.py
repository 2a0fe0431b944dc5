"""Damaged streams that two operators repair at once, beside writers and a truncation: what is left is read in order."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any

import msgspec

from casework.errors import CaseworkError, CursorTooOld
from casework.kernel.effects import Effect
from casework.kernel.items import Item
from casework.kernel.programs import sleep
from casework.kernel.schema import FORMAT, REGISTRY, STREAM_CLAIMS, STREAMS
from casework.simulation.carrier import Process
from casework.simulation.runner import Scenario
from casework.simulation.scenarios.streams import OPTIONS, TRANSIENT
from casework.streams.append import append
from casework.streams.log import HEAD, Log, Op, segment_item
from casework.streams.read import read_page
from casework.streams.retention import repair, truncate

STREAM = "s"


class Repairs(Scenario):
    """Segments are gone, the head is behind or ahead; two operators repair, two writers append, one truncates.

    A repair is to be run while nothing is appended, but nobody knows what is still on its way: it must harm nothing.
    """

    name = "repairs"
    tables = (STREAMS, STREAM_CLAIMS, REGISTRY)
    options = msgspec.structs.replace(OPTIONS, grace_s=0.5)
    begun, ops_n, writers, operators = 6, 3, 2, 2
    uptos: tuple[int, ...] = (0, 3)
    """Of the truncation; 0: there is none."""
    windows_s: tuple[float, ...] = (-100.0, 1000.0)
    """What is removed is removed at once, or it stays for now, below the floor."""

    def begin(self) -> None:
        """Store a stream, damage it, and start everybody."""
        choices = self.world.choices
        present = [seq for seq in range(1, self.begun + 1) if choices.below(3)]
        self.head = (max(present, default=0), self.begun, max(0, self.begun - 3))[choices.below(3)]
        self.upto = self.uptos[choices.below(len(self.uptos))]
        self.window_s = self.windows_s[choices.below(len(self.windows_s))]
        at_us = self.world.now_us - 60_000_000
        items: list[Item] = [segment_item(STREAM, seq, [Op(f"op-{seq}", b"")], at_us) for seq in present]
        if self.head:
            items.append({"stream_id": STREAM, "seq": HEAD, "last_seq": self.head, "format": FORMAT, "at_us": at_us})
        for item in items:
            self.world.store.tables.stored(STREAMS).store(STREAMS.key_of(item), item)
        self.left = {f"op-{seq}": seq for seq in present}
        self.stored: dict[str, int] = {}
        self.pushed = [0] * self.writers
        self.whole = [False] * self.operators
        self.truncated = not self.upto
        self.seen: list[Op] = []
        self.after = 0
        self.told = 0
        """Up to where the reader was told that operations were truncated."""
        for n in range(self.writers):
            self.world.process(f"writer-{n}", self.writer)
        for n in range(self.operators):
            self.world.process(f"operator-{n}", self.operator)
        self.world.process("truncator", self.truncator)
        self.world.process("reader", self.reader, may_crash=False)

    def writer(self, process: Process) -> Generator[Effect, Any, Any]:
        """One operation after the other, from early or late on."""
        log, n = Log(self.options), int(process.name[-1])
        yield from sleep(0.5 * self.world.choices.below(4))
        while self.pushed[n] < self.ops_n:
            id = f"{process.name}/{self.pushed[n]}"
            try:
                (answer,) = yield from append(log, STREAM, [Op(id, b"")])
            except (CaseworkError, *TRANSIENT):
                yield from sleep(0.2)
                continue
            self.stored[id] = answer.seq
            self.pushed[n] += 1
            yield from sleep(0.2 * self.world.choices.below(4))

    def operator(self, process: Process) -> Generator[Effect, Any, Any]:
        """Repair until nothing is wrong, and nobody appends any more."""
        log, n = Log(self.options), int(process.name[-1])
        while not self.whole[n]:
            yield from sleep(0.1 + 0.3 * self.world.choices.below(4))
            is_quiet = min(self.pushed) >= self.ops_n and self.truncated and not self.world.store.locks
            try:
                findings = yield from repair(log, STREAM, apply=True)
            except (CaseworkError, *TRANSIENT):
                continue
            self.whole[n] = is_quiet and not findings

    def truncator(self, process: Process) -> Generator[Effect, Any, Any]:
        """Remove the first operations."""
        yield from sleep(0.3 * self.world.choices.below(4))
        while not self.truncated:
            try:
                yield from truncate(Log(self.options), STREAM, self.upto, repush_window_s=self.window_s)
            except (CaseworkError, *TRANSIENT):
                yield from sleep(0.2)
                continue
            self.truncated = True

    def reader(self, process: Process) -> Generator[Effect, Any, Any]:
        """Begin early or late, and read on; from the floor where that is above."""
        log = Log(self.options)
        yield from sleep(1.5 * self.world.choices.below(4))
        while not self.is_over():
            try:
                page = yield from read_page(log, STREAM, self.after, 2)
                self.seen += page.ops
                self.after = page.next_after
            except CursorTooOld as gone:
                self.after = self.told = gone.floor_seq
            except (CaseworkError, *TRANSIENT):
                pass
            yield from sleep(0.3)

    def is_over(self) -> bool:
        """Nothing is wrong any more, and the end was read."""
        end = max(self.stored.values(), default=0)
        return all(self.whole) and self.after >= end and len(self.stored) == self.writers * self.ops_n

    def waits_for(self) -> str:
        """How far everybody is."""
        return f"pushed {self.pushed}, whole {self.whole}, truncated {self.truncated}, the reader is at {self.after}"

    def problems(self) -> Iterable[str]:
        """What was left and what was appended is read in order, each where its writer was told, and nothing twice."""
        numbers = [op.seq for op in self.seen]
        if numbers != sorted(set(numbers)):
            yield f"the reader was handed the numbers {numbers}"
        read = {op.id: op.seq for op in self.seen}
        for id, seq in {**self.left, **self.stored}.items():
            if read.get(id, seq) != seq:
                yield f"{id} is at {seq}, and was read at {read[id]}"
            elif id not in read and seq > self.told:
                yield f"{id} at {seq} was never read, and nobody said so"
        if strangers := set(read) - set(self.left) - set(self.stored):
            yield f"{sorted(strangers)} were read and never written"
        head = self.world.store.tables.stored(STREAMS).items.get((STREAM, HEAD), {})
        if int(head.get("last_seq", 0)) != max(self.stored.values()):
            yield f"the head is {head.get('last_seq')!r}, the last operation {max(self.stored.values())}"


ALL = (Repairs,)
