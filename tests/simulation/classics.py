"""Classic designs that users glue together today, as small programs: the sound ones and their well-known mistakes.

From the designs before ours: a sequence number taken before the write, a claim without a fence, an outbox that is
marked before it is delivered. The simulator must tell the mistakes from the sound ones, on any seeds.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any

import msgspec

from casework.errors import ConditionFailed, Contention, OutcomeUnknown, Throttled
from casework.kernel.conditions import absent, all_of, equals
from casework.kernel.effects import Effect
from casework.kernel.items import Key, Put, Table, Update
from casework.kernel.programs import Program, get, now, query_all, sleep, token, transact, write
from casework.simulation.carrier import Process
from casework.simulation.faults import ROUGH
from casework.simulation.runner import Scenario
from casework.simulation.world import World

LOST = (Contention, Throttled, OutcomeUnknown)

LOG = Table(name="log", partition="stream", sort="seq", sort_type="int")
HEADS = Table(name="heads", partition="stream")
RECORDS = Table(name="records", partition="key")
BOX = Table(name="box", partition="id", sort="n", sort_type="int")


def patiently(make: Any) -> Program[Any]:
    """Until the store says that it was done."""
    while True:
        try:
            return (yield from make())
        except LOST:
            yield from sleep(0.01)


class Clients(Scenario):
    """Some processes, each with one thing to do until it is done; a crash begins it again."""

    tables = (LOG, HEADS, RECORDS, BOX)
    faults = msgspec.structs.replace(
        ROUGH, crash=0.01, pause=0.03, pause_s_max=10.0, skew_s_max=0.2, clock_error_s=0.05
    )
    fault_steps = 600
    steps_max = 20_000

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.left = 0

    def client(self, name: str, make: Any, *, may_crash: bool = True) -> None:
        self.left += 1

        def main(process: Process) -> Generator[Effect, Any, Any]:
            yield from make(process)
            self.left -= 1

        self.world.process(name, main, may_crash=may_crash)

    def is_over(self) -> bool:
        return self.left == 0 and not self.world.store.locks

    def stored(self, table: Table) -> list[dict[str, Any]]:
        return list(self.world.store.tables.stored(table).items.values())


# --- a log ---------------------------------------------------------------------------------------------------------


class SoundLog(Clients):
    """The number is taken inside the transaction that stores the operation; the reader goes on without a hole only."""

    name = "log"
    writers, operations = 2, 3
    is_contiguous = True

    def begin(self) -> None:
        self.seen: list[str] = []
        self.written: set[str] = set()
        for n in range(self.writers):
            self.client(f"writer-{n}", lambda process, n=n: self.write_all(n))
        self.client("reader", lambda process: self.read_all(), may_crash=False)

    def write_all(self, n: int) -> Program[None]:
        for i in range(self.operations):
            op = f"{n}-{i}"
            if op not in self.written:
                yield from self.append(op)
                self.written.add(op)

    def append(self, op: str) -> Program[None]:
        claim = RECORDS.key(op)
        while True:
            try:
                head = yield from get(HEADS.key("s"))
                last = int(head["last"]) if head is not None else 0  # type: ignore[arg-type]
                same = absent() if head is None else equals("last", last)
                yield from transact([
                    Update(HEADS.key("s"), {"last": last + 1}, when=same),
                    Put(LOG, {"stream": "s", "seq": last + 1, "op": op}, absent()),
                    Put(RECORDS, {"key": op}, absent()),
                ])  # fmt: skip
                return
            except (ConditionFailed, *LOST):
                if (yield from get(claim)) is not None:
                    return
                yield from sleep(0.01)

    def read_all(self) -> Program[None]:
        cursor = 0
        while len(self.seen) < self.writers * self.operations:
            items = yield from query_all(LOG, "s", low=cursor + 1)
            for item in items:
                if self.is_contiguous and item["seq"] != cursor + 1:
                    break
                self.seen.append(str(item["op"]))
                cursor = int(item["seq"])  # type: ignore[arg-type]
            yield from sleep(0.01)

    def problems(self) -> Iterable[str]:
        wanted = {f"{n}-{i}" for n in range(self.writers) for i in range(self.operations)}
        if set(self.seen) != wanted or len(self.seen) != len(wanted):
            yield f"written {sorted(wanted)}, read {self.seen}"


class NumberFirst(SoundLog):
    """A number is taken first (an atomic ADD), the operation written afterwards; the reader passes what is missing."""

    is_contiguous = False

    def append(self, op: str) -> Program[None]:
        def take() -> Program[int]:
            while True:
                head = yield from get(HEADS.key("s"))
                last = int(head["last"]) if head is not None else 0  # type: ignore[arg-type]
                try:
                    same = absent() if head is None else equals("last", last)
                    yield from write(Update(HEADS.key("s"), {"last": last + 1}, when=same))
                    return last + 1
                except ConditionFailed:
                    yield from sleep(0.001)

        seq = yield from patiently(take)
        yield from patiently(lambda: write(Put(LOG, {"stream": "s", "seq": seq, "op": op})))


class PassesHoles(SoundLog):
    """The sound writer with a reader that does not ask for contiguity."""

    is_contiguous = False


class UnconditionalHead(SoundLog):
    """The head is overwritten without asking; so is whatever stands at its number."""

    def append(self, op: str) -> Program[None]:
        def attempt() -> Program[None]:
            head = yield from get(HEADS.key("s"))
            last = int(head["last"]) if head is not None else 0  # type: ignore[arg-type]
            yield from transact([
                Update(HEADS.key("s"), {"last": last + 1}), Put(LOG, {"stream": "s", "seq": last + 1, "op": op}),
            ])  # fmt: skip

        yield from patiently(attempt)


# --- a claim -------------------------------------------------------------------------------------------------------


class SoundClaim(Clients):
    """One of many callers does the work; the others get its result, or take over when it died. Fenced everywhere."""

    name = "claim"
    callers = 3
    lease_us = 500_000

    def begin(self) -> None:
        self.results: list[str] = []
        self.completed: list[str] = []
        for n in range(self.callers):
            self.client(f"caller-{n}", lambda process, n=n: self.call(process, n))

    @property
    def key(self) -> Key:
        return RECORDS.key("k")

    def call(self, process: Process, n: int) -> Program[None]:
        while True:
            claim = yield from self.claim()
            if claim == "":
                record = yield from get(self.key)
                if record is not None and record["state"] == "completed":
                    self.results.append(str(record["result"]))
                    return
                yield from sleep(0.05)
                continue
            yield from sleep(0.02 * self.world.choices.below(8))
            if (yield from self.complete(claim, f"by-{n}")):
                self.completed.append(f"by-{n}")
                self.results.append(f"by-{n}")
                return

    def claim(self) -> Program[str]:
        """A token, or nothing when somebody else holds it."""
        mine = yield from token()
        moment = yield from now()
        record = {"key": "k", "state": "claimed", "token": mine, "until_us": moment.latest_us + self.lease_us}
        found = yield from get(self.key)
        try:
            if found is None:
                yield from write(Put(RECORDS, record, absent()))
            elif found["state"] == "claimed" and self.has_lapsed(found, moment):
                yield from write(Put(RECORDS, record, self.takeover(found)))
            else:
                return ""
            return mine
        except ConditionFailed:
            return ""
        except LOST:
            found = yield from get(self.key)
            return mine if found is not None and found["token"] == mine and found["state"] == "claimed" else ""

    def has_lapsed(self, found: Any, moment: Any) -> bool:
        return bool(moment.earliest_us > found["until_us"])

    def takeover(self, found: Any) -> Any:
        return all_of(equals("token", found["token"]), equals("state", "claimed"))

    def complete(self, mine: str, result: str) -> Program[bool]:
        mine_still = all_of(equals("token", mine), equals("state", "claimed"))
        update = Update(self.key, {"state": "completed", "result": result}, when=mine_still)
        while True:
            try:
                yield from write(update)
                return True
            except ConditionFailed:
                return False
            except LOST:
                found = yield from get(self.key)
                if found is not None and (found["token"] != mine or found["state"] == "completed"):
                    return found.get("result") == result and found["token"] == mine
                yield from sleep(0.01)

    def problems(self) -> Iterable[str]:
        if len(set(self.results)) > 1:
            yield f"callers got different results: {self.results}"
        if len(self.completed) > 1:
            yield f"completed more than once: {self.completed}"


class UnfencedCompletion(SoundClaim):
    """Whoever finishes writes its result, however long ago its lease ended."""

    def complete(self, mine: str, result: str) -> Program[bool]:
        yield from patiently(lambda: write(Update(self.key, {"state": "completed", "result": result})))
        return True


class TrustsItsClock(SoundClaim):
    """A lease has lapsed when the own clock says so, and who completes only asks whether it is still claimed."""

    def has_lapsed(self, found: Any, moment: Any) -> bool:
        return bool(moment.middle_us > found["until_us"] - self.lease_us // 2)

    def complete(self, mine: str, result: str) -> Program[bool]:
        try:
            yield from patiently(
                lambda: write(Update(self.key, {"state": "completed", "result": result}, when=equals("token", mine)))
            )
        except ConditionFailed:
            return (yield from self._again(result))
        return True

    def _again(self, result: str) -> Program[bool]:
        yield from patiently(lambda: write(Update(self.key, {"state": "completed", "result": result})))
        return True


class TakesOverBlindly(SoundClaim):
    """A lapsed claim, or one that cannot be read, is replaced without asking which one it is."""

    def takeover(self, found: Any) -> Any:
        return None


class BelievesTheRefusal(SoundClaim):
    """A refusal is taken at its word although the answer to the first attempt was lost: nobody does the work."""

    def claim(self) -> Program[str]:
        mine = yield from token()
        record = {"key": "k", "state": "claimed", "token": mine, "until_us": 0}
        try:
            yield from write(Put(RECORDS, record, absent()))
            return mine
        except (ConditionFailed, *LOST):
            return ""


class ReleasesByDeleting(SoundClaim):
    """Now and then a caller gives up and deletes the record, whoever's it is by then."""

    def call(self, process: Process, n: int) -> Program[None]:
        from casework.kernel.items import Delete

        if n == 0:
            claim = yield from self.claim()
            if claim:
                yield from sleep(0.3)
                yield from patiently(lambda: transact([Delete(self.key)]))
        yield from super().call(process, n)


# --- an outbox -----------------------------------------------------------------------------------------------------


class SoundBox(Clients):
    """A counter that events are applied to, once each: the mark and the change in one transaction."""

    name = "box"
    events, workers = 4, 2

    def begin(self) -> None:
        self.applied = 0
        for n in range(self.workers):
            self.client(f"worker-{n}", lambda process: self.work())

    def work(self) -> Program[None]:
        for n in range(self.events):
            yield from self.apply(n)

    def apply(self, n: int) -> Program[None]:
        while True:
            counter = yield from get(RECORDS.key("counter"))
            value = int(counter["n"]) if counter is not None else 0  # type: ignore[arg-type]
            try:
                yield from transact([
                    Update(RECORDS.key("counter"), {"n": value + 1}, when=equals("n", value) if counter else absent()),
                    Put(BOX, {"id": "done", "n": n}, absent()),
                ])  # fmt: skip
                return
            except ConditionFailed as refused:
                if refused.refusals[1] is not None:
                    return
            except LOST:
                pass
            yield from sleep(0.01)

    def problems(self) -> Iterable[str]:
        counter = self.world.store.tables.get(RECORDS.key("counter"))
        if counter is None or counter["n"] != self.events:
            yield f"{self.events} events, applied {counter and counter['n']} times"


class DedupeByReading(SoundBox):
    """Whether an event was applied is read first; the mark is put afterwards, without a condition."""

    def apply(self, n: int) -> Program[None]:
        def attempt() -> Program[bool]:
            if (yield from get(BOX.key("done", n))) is not None:
                return True
            counter = yield from get(RECORDS.key("counter"))
            value = int(counter["n"]) if counter is not None else 0  # type: ignore[arg-type]
            try:
                same = equals("n", value) if counter else absent()
                yield from write(Update(RECORDS.key("counter"), {"n": value + 1}, when=same))
            except ConditionFailed:
                return False
            yield from write(Put(BOX, {"id": "done", "n": n}))
            return True

        while not (yield from patiently(attempt)):
            yield from sleep(0.01)


class MarkedBeforeDelivery(SoundBox):
    """An event is marked as handled first, and applied afterwards: who dies in between loses it."""

    def apply(self, n: int) -> Program[None]:
        try:
            yield from patiently(lambda: transact([Put(BOX, {"id": "done", "n": n}, absent())]))
        except ConditionFailed:
            return
        while True:
            counter = yield from get(RECORDS.key("counter"))
            value = int(counter["n"]) if counter is not None else 0  # type: ignore[arg-type]
            try:
                same = equals("n", value) if counter else absent()
                yield from transact([Update(RECORDS.key("counter"), {"n": value + 1}, when=same)])
                return
            except (ConditionFailed, *LOST):
                yield from sleep(0.01)


SOUND = (SoundLog, SoundClaim, SoundBox)

MISTAKES = (
    NumberFirst, PassesHoles, UnconditionalHead, UnfencedCompletion, TrustsItsClock, TakesOverBlindly,
    BelievesTheRefusal, ReleasesByDeleting, DedupeByReading, MarkedBeforeDelivery,
)  # fmt: skip
