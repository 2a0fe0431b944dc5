"""Consumers whose handlers fail, or take long: each operation has its effects once, or it is parked or skipped."""

from __future__ import annotations

import collections
from collections.abc import Generator, Iterable, Mapping
from typing import Any

import msgspec

from casework.errors import ConditionFailed, StoreError
from casework.kernel.conditions import absent
from casework.kernel.effects import Effect, Sleep
from casework.kernel.items import Item, Key, Put
from casework.kernel.programs import Program, sleep, transact
from casework.kernel.retry import Pauses
from casework.kernel.schema import FORMAT, REGISTRY, STREAM_CLAIMS, STREAMS
from casework.simulation.carrier import Process
from casework.simulation.faults import ROUGH
from casework.simulation.runner import Scenario
from casework.simulation.scenarios.streams import HANDLED, OPTIONS, TRANSIENT
from casework.streams.consumer import Consumer, ConsumerOptions, HandlerWrites, consume
from casework.streams.cursors import lag, parked_ops, resume, unpark
from casework.streams.log import HEAD, Log, Op, marker_item, segment_item
from casework.streams.read import read_page
from casework.streams.writer import Writer

GROUP = "g"
ATTEMPTS_MAX = 3
FINE, FLAKY, POISON, REFUSED = "fine", "flaky", "poison", "refused"
KINDS = (FINE, FINE, FINE, FLAKY, FLAKY, POISON, REFUSED)
TAKEN = "taken"
"""Stands in the handlers' table from the beginning: who puts it where it is absent is refused."""


class Failures(Scenario):
    """Handlers that fail for a while or for ever, writes that are refused; operators skip, heal, resume and unpark.

    One of the streams has numbers that hold nothing. What is applied, parked and skipped is seen as it becomes visible.
    """

    name = "failures"
    tables = (STREAMS, STREAM_CLAIMS, REGISTRY, HANDLED)
    ops_n, consumers, operators = 4, 2, 2
    options = ConsumerOptions(
        lease_s=5.0, heartbeat_s=1.0, batch_max=3, attempts_max=ATTEMPTS_MAX, handler_max_s=20.0,
        retry=Pauses(first_pause_s=0.5, max_pause_s=2.0),
    )  # fmt: skip
    durations_s: tuple[float, ...] = (0.0,)
    """A handler takes one of these."""
    overlaps = True
    """Whether faults may let two consumers have one operation at once: who stands still for longer than its lease."""

    def begin(self) -> None:
        """Store the beginning of one stream, with a marker in it, and start everybody."""
        choices = self.world.choices
        self.places = {"s": [1, *range(4, 3 + self.ops_n)], "t": list(range(1, 1 + self.ops_n))}
        self.ids = {(stream, seq): f"{stream}{n}" for stream, seqs in self.places.items() for n, seq in enumerate(seqs)}
        self.kinds = {id: KINDS[choices.below(len(KINDS))] for id in self.ids.values()}
        self.flaky = {id: 1 + choices.below(ATTEMPTS_MAX - 1) for id in self.ids.values()}
        self.takes_s = {id: self.durations_s[choices.below(len(self.durations_s))] for id in self.ids.values()}
        stops = choices.below(2)
        self.poison_options = msgspec.structs.replace(self.options, on_poison="stop" if stops else "park")
        self.applied: collections.Counter[str] = collections.Counter()
        self.parked: set[str] = set()
        self.stopped_at: set[str] = set()
        self.skipped: set[str] = set()
        self.leases: dict[tuple[str, str], int] = {}
        self.busy: dict[str, tuple[Process, int]] = {}
        self.wrong: list[str] = []
        self.seen_to = False
        self._store_by_hand()
        self.world.store.watch = self.see
        self.world.process("writer", self.writer)
        for n in range(self.consumers):
            self.world.process(f"consumer-{n}", self.consumer)
        for n in range(self.operators):
            self.world.process(f"operator-{n}", self.operator)

    def _store_by_hand(self) -> None:
        at_us = self.world.now_us
        items: list[Item] = [
            {"stream_id": "s", "seq": HEAD, "last_seq": 3, "format": FORMAT, "at_us": at_us},
            segment_item("s", 1, [Op("s0", b"")], at_us), marker_item("s", 2, 3, at_us),
        ]  # fmt: skip
        for item in items:
            self.world.store.tables.stored(STREAMS).store(STREAMS.key_of(item), item)
        taken: Item = {"place": TAKEN}
        self.world.store.tables.stored(HANDLED).store(HANDLED.key_of(taken), taken)

    # --- who takes part -----------------------------------------------------------------------------------------------

    def writer(self, process: Process) -> Generator[Effect, Any, Any]:
        """Append to both streams; after a crash everything again."""
        writer = Writer(Log(OPTIONS))
        for (stream, seq), id in self.ids.items():
            while id != "s0":
                try:
                    answers = yield from writer.append(stream, [Op(id, b"")])
                except TRANSIENT:
                    yield from sleep(0.1)
                    continue
                assert answers[0].seq == seq
                break

    def consumer(self, process: Process) -> Generator[Effect, Any, Any]:
        """A consumer of both streams."""

        def handle(op: Op, writes: HandlerWrites) -> Generator[Effect, Any, None]:
            stream = op.id[0]
            other = self.busy.get(stream)
            if other is not None and not self.overlaps and other[0].is_up and other[0].starts_n == other[1]:
                self.wrong.append(f"{process.name} was given {op.id} while {other[0].name} handles {stream}")
            self.busy[stream] = (process, process.starts_n)
            takes_s = self.takes_s[op.id]
            if takes_s > self.options.handler_max_s:
                self.takes_s[op.id] = (
                    0.0  # once: what always takes too long goes from one consumer to the other for ever
                )
            yield Sleep(takes_s)
            if self.busy.get(stream) == (process, process.starts_n):
                del self.busy[stream]
            self.write_or_fail(op, writes)

        consumer = Consumer(Log(OPTIONS), GROUP, tuple(self.places), handle, self.poison_options)
        yield from consume(consumer)

    def write_or_fail(self, op: Op, writes: HandlerWrites) -> None:
        """What the handler does in the end. Some operations write what a neighbour writes, too."""
        kind = self.kinds[op.id]
        if kind == FLAKY and self.flaky[op.id]:
            self.flaky[op.id] -= 1
            raise ValueError(f"{op.id} not yet")
        if kind == POISON:
            raise ValueError(f"{op.id} never")
        writes.put(HANDLED, {"place": op.id})
        if kind == REFUSED:
            writes.put(HANDLED, {"place": TAKEN}, absent())
        if op.seq % 3:
            writes.update(HANDLED.key(f"last {op.id[0]}"), {"seq": op.seq})

    def operator(self, process: Process) -> Generator[Effect, Any, Any]:
        """Look after both streams again and again."""
        log = Log(OPTIONS)
        while not self.seen_to:
            yield from sleep(0.5 + 0.5 * self.world.choices.below(4))
            try:
                found = yield from lag(log, GROUP, tuple(self.places))
                for each in found:
                    if each.is_stopped:
                        yield from self.let_go_on(log, each.stream, each.after)
                    if each.parked:
                        yield from self.deal_with_parked(each.stream)
            except (StoreError, *TRANSIENT):
                continue
            # Of what was parked just now the cursor may be visible, and the operation not yet: the end is told by both.
            if self.is_all_dealt_with() and not any(each.parked or each.lag or each.is_stopped for each in found):
                self.seen_to = True

    def let_go_on(self, log: Log, stream: str, after: int) -> Program[None]:
        """Heal what stopped the group, or skip it."""
        page = yield from read_page(log, stream, after, 1)
        (op,) = page.ops
        if self.world.choices.below(2):
            yield from resume(GROUP, stream, skip=True)
            return
        self.kinds[op.id] = FINE
        yield from resume(GROUP, stream)

    def deal_with_parked(self, stream: str) -> Program[None]:
        """Do by hand what the handler could not, once, and forget it."""
        for parked in (yield from parked_ops(GROUP, stream)):
            try:
                yield from transact([Put(HANDLED, {"place": f"dealt {parked.op.id}"}, when=absent())])
            except ConditionFailed:
                pass  # the other operator, or this one before its answer was lost
            yield from unpark(GROUP, stream, parked.op.seq)

    # --- what is seen -------------------------------------------------------------------------------------------------

    def see(self, key: Key, before: Item | None, after: Item | None) -> None:
        """An item changed."""
        if key.table is HANDLED:
            if key.partition.startswith("last ") and before is not None and after is not None:
                if int(after["seq"]) <= int(before["seq"]):
                    self.wrong.append(f"{key.partition[5:]} was handled at {before['seq']!r}, then at {after['seq']!r}")
            else:
                self.applied[key.partition] += 1
        elif key.partition.startswith(f"@{GROUP}/"):
            stream = key.partition[len(GROUP) + 2 :]
            if key.sort != HEAD:
                if after is not None:
                    self.parked.add(self.ids[stream, int(key.sort or 0)])
            else:
                self.see_cursor(stream, before or {}, after or {})

    def see_cursor(self, stream: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """A cursor changed: it never goes back, and nobody takes it from a holder whose lease runs."""
        now_us, old, new = self.world.now_us, before.get("token", ""), after.get("token", "")
        if after["after"] < before.get("after", 0):
            self.wrong.append(f"the cursor of {stream} went back from {before['after']} to {after['after']}")
        if "stopped" in after and "stopped" not in before:
            self.stopped_at.add(self.ids.get((stream, after["after"] + 1), f"{stream} behind {after['after']}"))
        if "stopped" in before and "stopped" not in after and after["after"] > before["after"]:
            self.skipped.add(self.ids.get((stream, after["after"]), f"{stream} at {after['after']}"))
        elif "stopped" in before and after["after"] > before["after"]:
            self.wrong.append(f"{stream} went on from {before['after']} to {after['after']} though it is stopped")
        if old != new:
            left_s = (self.leases.get((stream, old), 0) - now_us) / 1e6
            if old and left_s > 0:
                self.wrong.append(f"{new!r} took {stream} from {old!r} {left_s:g} s early")
        end_us = int(after.get("lease_end_us", 0))
        known_us = self.leases.get((stream, new), 0)
        # A lease ends before its time only when its holder gives it back, or the stream stops.
        self.leases[stream, new] = 0 if end_us == 0 or "stopped" in after else max(known_us, end_us)

    # --- the end ------------------------------------------------------------------------------------------------------

    def is_all_dealt_with(self) -> bool:
        """Whether each operation is applied, dealt with by hand or skipped."""
        return all(self.applied[id] or self.applied[f"dealt {id}"] or id in self.skipped for id in self.ids.values())

    def is_over(self) -> bool:
        """An operator sees nothing that is left to do."""
        return bool(self.wrong) or (self.seen_to and not self.world.store.locks)

    def waits_for(self) -> str:
        """What is not done."""
        done = {*self.applied, *self.parked, *self.skipped}
        return ", ".join(f"{id} ({self.kinds[id]})" for id in self.ids.values() if id not in done) or "the operators"

    def problems(self) -> Iterable[str]:
        """Each operation was applied once, or parked and dealt with once, or skipped; only what had to be was."""
        yield from self.wrong[:1]
        if self.wrong:
            return
        for id in self.ids.values():
            dealt = self.applied[f"dealt {id}"]
            ways = (self.applied[id], int(id in self.parked), dealt, int(id in self.skipped))
            if ways not in ((1, 0, 0, 0), (0, 1, 1, 0), (0, 0, 0, 1)):
                yield "{} was applied {}, parked {}, dealt with {} and skipped {} times".format(id, *ways)
        for id in sorted(self.parked | self.stopped_at | self.skipped):
            if self.kinds.get(id) == FLAKY:
                yield f"{id} was put aside, and would have been handled at its next attempt"
        if strangers := self.stopped_at - set(self.ids.values()):
            yield f"the group stopped at {sorted(strangers)}, where no operation is"
        if strangers := self.skipped - self.stopped_at:
            yield f"{sorted(strangers)} was skipped, and the group had not stopped there"


class SlowHandlers(Failures):
    """Handlers that take up to two leases, on hosts that die but never stand still, and whose writes are answered.

    So a holder that is alive can always renew in time: nobody else may be given an operation of its stream.
    """

    name = "slow handlers"
    durations_s = (0.0, 0.0, 0.0, 2.0, 6.0, 9.0)
    overlaps = False
    ops_n, operators = 3, 1
    options = msgspec.structs.replace(Failures.options, heartbeat_s=2.0)
    faults = msgspec.structs.replace(ROUGH, lost=0.0, unknown=0.0, throttled=0.0, conflict=0.0, pause=0.0)


class OverrunHandlers(Failures):
    """Handlers that take longer than they may, hosts that stand still: others take over, and effects are still once."""

    name = "overrun handlers"
    durations_s = (0.0, 0.0, 0.0, 3.0, 12.0, 25.0)
    ops_n, operators = 2, 1
    options = msgspec.structs.replace(Failures.options, heartbeat_s=2.0)


ALL = (Failures, SlowHandlers, OverrunHandlers)
