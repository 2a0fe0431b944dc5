"""``app.transaction()``: what is committed together is there together, once, also when the answer was lost."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence
from typing import Any

from casework.app.core import Core
from casework.app.intents import AppendIntent, FinishIntent, Intent, SendIntent, StartIntent, WriteIntent
from casework.app.transaction import commit
from casework.errors import InProgress, LeaseLost, OutcomeUnknown, StoreError
from casework.executions import deliver
from casework.executions.runtime import Runtime
from casework.idempotency.guarding import Policy, begin, keep_alive
from casework.idempotency.lifecycle import Shared
from casework.idempotency.record import COMPLETED, RECORD
from casework.kernel.conditions import absent
from casework.kernel.items import Put, Table
from casework.kernel.programs import Program, sleep, token
from casework.kernel.schema import IDEMPOTENCY, STREAMS, TABLES
from casework.simulation.scenarios.executions import LEDGER, ExecutionScenario, insist
from casework.streams.log import Op, segment_of

NOTES = Table(name="notes", partition="id")


class Transactions(ExecutionScenario):
    """Callers that send, append, start and write together; a message has no event id, and must not come twice."""

    name = "transactions"
    tables = (*TABLES, NOTES)
    machines = (LEDGER,)
    callers, calls = 2, 4

    def begin_clients(self) -> None:
        """Callers, and the execution that they send to."""
        self.tried = 0
        self.parts: dict[int, set[str]] = {}
        self.ends: dict[int, str] = {}
        self.told: list[tuple[int, str, int]] = []
        self.calls_left = [self.calls] * self.callers
        for n in range(self.callers):
            self.client(f"caller-{n}", lambda rt, n=n: self.call_on(rt, n))

    def core(self, rt: Runtime) -> Core:
        """What an application shares."""
        core = Core(list(rt.machines.values()), self.options, None)
        core.rt = rt
        return core

    def call_on(self, rt: Runtime, n: int) -> Program[None]:
        """Call again and again, each time something new."""
        yield from insist(deliver.start, rt, "ledger", "x", None)
        core = self.core(rt)
        while self.calls_left[n]:
            self.calls_left[n] -= 1
            yield from self.call(core)
            yield from sleep(0.01 * self.world.choices.below(3))

    def call(self, core: Core) -> Program[None]:
        """One transaction; what became of it is noted."""
        self.tried += 1
        number = self.tried
        intents = yield from self.intents(core, number)
        self.ends[number] = "left by a caller that died"
        try:
            yield from commit(core, intents)
        except OutcomeUnknown:
            self.ends[number] = "unknown"
        except StoreError as error:
            self.ends[number] = f"refused by {type(error).__name__}"
        else:
            self.ends[number] = "done"
            self.note_results(number, intents)

    def intents(self, core: Core, number: int) -> Program[list[Intent]]:
        """A message, and whatever goes with it."""
        choices = self.world.choices
        source = yield from token()
        intents: list[Intent] = []
        parts = {"sent"}
        if choices.below(2):
            intents.append(WriteIntent(Put(NOTES, {"id": str(number)}, absent())))
            parts.add("noted")
        if choices.below(2):
            appending = AppendIntent(core.writer.log, "s")
            shared = choices.below(3)
            if shared:
                appending.add([Op("common", b"")])
            if shared < 2:
                appending.add([Op(str(number), b"")])
                parts.add("appended")
            intents.append(appending)
        start = choices.below(3)
        if start:
            intents.append(StartIntent(core, "ledger", "all" if start == 1 else f"own-{number}", None))
            if start == 2:
                parts.add("started")
        intents.append(SendIntent("x", "Add", {"i": number}, None, 0, source, intents))
        if choices.below(2):
            intents.reverse()
        self.parts[number] = parts
        return intents

    def note_results(self, number: int, intents: Sequence[Intent]) -> None:
        """What the caller is told of its operations and its execution."""
        for intent in intents:
            if isinstance(intent, AppendIntent):
                self.told += [(number, one.id, one.seq) for one in intent.results]
            elif isinstance(intent, StartIntent):
                self.told.append((number, intent.id, intent.execution.created_at_us))

    def untrue(self) -> Iterable[str]:
        """What a caller was told that is not so: it is there at the latest when all has come to rest."""
        there = self.stream()
        for number, id, told in self.told:
            state = self.state(id)
            if id in there and there[id] != [told]:
                yield f"call {number} was told that operation {id} has number {told}: {there[id]}"
            elif id not in there and (state is None or state.created_at_us != told):
                yield f"call {number} was told of {id}, {told}, which is not there: {state}"
        if len(there["common"]) > 1:
            yield f"one operation stands in the stream at {there['common']}"

    def stream(self) -> dict[str, list[int]]:
        """Where each operation stands."""
        found: dict[str, list[int]] = collections.defaultdict(list)
        for item in list(self.world.store.tables.stored(STREAMS).items.values()):
            if item["seq"] != 0:
                for op in segment_of(item).ops():
                    found[op.id].append(op.seq)
        return found

    def count(self, number: int, part: str) -> int:
        """How often a part of a call took effect."""
        if part == "sent":
            return list(self.context("x")["seen"]).count(number)
        if part == "noted":
            return int(self.world.store.tables.get(NOTES.key(str(number))) is not None)
        if part == "started":
            return int(self.state(f"own-{number}") is not None)
        return len(self.stream()[str(number)])

    def problems(self) -> Iterable[str]:
        """All of a call or nothing of it, once; and its caller was told the truth."""
        yield from self.untrue()
        for number, parts in self.parts.items():
            if number not in self.ends:
                continue
            counts = {part: self.count(number, part) for part in parts}
            end = self.ends[number]
            if len(set(counts.values())) != 1:
                yield f"call {number} ({end}) took effect in part: {counts}"
            elif counts["sent"] > 1:
                yield f"call {number} ({end}) took effect {counts['sent']} times"
            elif end == "done" and not counts["sent"]:
                yield f"call {number} is done, and nothing of it is there"
            elif end.startswith("refused") and counts["sent"]:
                yield f"call {number} was {end}, and is there"


class FinishedOnce(Transactions):
    """Callers of one key each, who finish it in the transaction that has its effects: they are there once, with the
    result that everyone gets.
    """

    name = "transactions: finish"
    callers, calls = 3, 2
    policy = Policy(lease_s=1.0, max_run_s=20.0, keep_s=None, wait_s=30.0)

    def call_on(self, rt: Runtime, n: int) -> Program[None]:
        """Call each key until its result is known."""
        yield from insist(deliver.start, rt, "ledger", "x", None)
        core = self.core(rt)
        shared = Shared(lambda: self.world.now_us)
        while self.calls_left[n]:
            key = f"key-{self.calls_left[n]}"
            try:
                body = yield from self.finish(core, shared, key)
            except (StoreError, InProgress, LeaseLost):
                yield from sleep(0.05)
                continue
            self.given.append((key, body))
            self.calls_left[n] -= 1

    def begin_clients(self) -> None:
        """As before."""
        self.given: list[tuple[str, bytes]] = []
        super().begin_clients()

    def finish(self, core: Core, shared: Shared, key: str) -> Program[bytes]:
        """Claim the key, work, and commit; or the result of whoever did."""
        begun = yield from begin(shared, self.policy, "call", key, "", 1)
        if begun.record is not None:
            return begun.record.body
        claim = begun.claim
        assert claim is not None
        self.tried += 1
        number = self.tried
        yield from sleep(0.4 * self.world.choices.below(4))
        if shared.steady_us() >= claim.beat_at_us:
            yield from keep_alive(shared, claim)
        intents = yield from self.intents(core, number)
        body = str(number).encode()
        intents.insert(self.world.choices.below(len(intents) + 1), FinishIntent(shared, claim, 0, None, body))
        yield from commit(core, intents)
        self.note_results(number, intents)
        return body

    def problems(self) -> Iterable[str]:
        """Each key has one result, and the effects of the call that gave it, and no others."""
        yield from self.untrue()
        finished = set()
        for n in range(1, self.calls + 1):
            item = self.world.store.tables.get(IDEMPOTENCY.key(f"key-{n}", RECORD))
            if item is None or item.get("state") != COMPLETED:
                yield f"at the end the record of key-{n} is {item}"
                return
            finished.add(int(item["body"]))
            for key, body in self.given:
                if key == f"key-{n}" and body != item["body"]:
                    yield f"a caller of {key} got {body!r}, the record has {item['body']!r}"
        for number, parts in self.parts.items():
            counts: dict[str, Any] = {part: self.count(number, part) for part in parts}
            if set(counts.values()) != {int(number in finished)}:
                yield f"call {number} gave a result: {number in finished}; its effects are there so often: {counts}"


ALL = (Transactions, FinishedOnce)
