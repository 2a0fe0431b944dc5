"""Scenarios of idempotency keys: callers that race, wait, renew, pause beyond their lease, crash, and differ."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any

import msgspec

from casework.errors import InProgress, PayloadMismatch, ResultLost, StoreError
from casework.idempotency.guarding import Begun, Claim, Policy, begin, finish, give_up, keep_alive
from casework.idempotency.lifecycle import Shared
from casework.idempotency.operating import purge_expired
from casework.idempotency.record import COMPLETED, RECORD
from casework.kernel.effects import Effect
from casework.kernel.programs import Program, race, sleep, spawn
from casework.kernel.schema import IDEMPOTENCY
from casework.simulation.carrier import Process
from casework.simulation.faults import ROUGH, Faults
from casework.simulation.runner import Scenario
from casework.simulation.world import World

KEY = "k"
POLICY = Policy(lease_s=1.0, max_run_s=20.0, keep_s=None, wait_s=30.0)


class OneKey(Scenario):
    """Callers of one key, some with another payload: one result, for callers of its payload only."""

    name = "idempotency: one key"
    tables = (IDEMPOTENCY,)
    faults = ROUGH
    payloads: tuple[str, ...] = ("a", "a", "a", "b")
    policy = POLICY
    rounds_max = 5
    grace_s = 60
    gives_up = False
    """Whether a caller may fail and release the key."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.left = 0
        self.completed: list[tuple[str, bytes]] = []
        self.handed_out: list[tuple[str, bytes]] = []
        self.holds: dict[str, Claim] = {}
        self.stolen: list[str] = []
        self.epoch = 0

    def begin(self) -> None:
        """Start the callers."""
        for n, payload in enumerate(self.payloads):
            self.left += 1
            self.world.process(f"caller-{n}", self._caller(n, payload))

    def _caller(self, n: int, payload: str) -> Any:
        def main(process: Process) -> Generator[Effect, Any, Any]:
            shared = Shared(lambda: self.world.now_us, grace_s=self.grace_s)
            while True:
                try:
                    is_over = yield from self._call(shared, n, payload, process.starts_n)
                except PayloadMismatch:
                    is_over = True
                except (StoreError, InProgress):
                    is_over = False
                if is_over:
                    self.left -= 1
                    return
                yield from sleep(0.05)

        return main

    def _call(self, shared: Shared, n: int, payload: str, life: int) -> Program[bool]:
        begun = yield from begin(shared, self.policy, "call", KEY, payload, 1)
        if begun.record is not None:
            self.handed_out.append((payload, begun.record.body))
            return True
        claim = begun.claim
        assert claim is not None
        self._took(claim)
        for _ in range(1 + self.world.choices.below(self.rounds_max)):
            yield from sleep(0.2 + self.world.choices.below(20) / 20)
            if shared.steady_us() >= claim.beat_at_us:
                yield from keep_alive(shared, claim)
            if claim.is_lost:
                break
        if self.gives_up and self.world.choices.below(3) == 0:
            self.holds.pop(claim.token, None)
            yield from give_up(shared, claim)
            return False
        body = f"{payload} {n} {life} {claim.token}".encode()
        self.holds.pop(claim.token, None)
        kept = yield from finish(shared, claim, 0, None, body)
        if kept:
            if claim.epoch < self.epoch:
                self.stolen.append(f"epoch {claim.epoch} completed after epoch {self.epoch} had begun")
            self.completed.append((payload, body))
            self.handed_out.append((payload, body))
        return kept

    def _took(self, claim: Claim) -> None:
        """Nobody who was alive and within its lease may have been overtaken."""
        for other in self.holds.values():
            if other.until_us > self.world.now_us:
                self.stolen.append(f"{other.token} has its lease until {other.until_us}, {claim.token} took it")
        self.holds.clear()
        self.holds[claim.token] = claim
        self.epoch = max(self.epoch, claim.epoch)

    def is_over(self) -> bool:
        """All callers have their answer."""
        return not self.left

    def problems(self) -> Iterable[str]:
        """What does not hold."""
        if len(self.completed) > 1:
            yield f"completed {len(self.completed)} times: {self.completed}"
        yield from self.stolen
        item = self.world.store.tables.get(IDEMPOTENCY.key(KEY, RECORD))
        if item is None or item.get("state") != COMPLETED:
            yield f"at the end the record is {item}"
            return
        for payload, body in self.handed_out:
            if body != item["body"]:
                yield f"a caller got {body!r}, the record has {item['body']!r}"
            if not body.startswith(payload.encode() + b" "):
                yield f"a caller with payload {payload!r} got {body!r}"


class OneKeyReleased(OneKey):
    """As before, with callers that fail and release the key."""

    name = "idempotency: one key, released now and then"
    gives_up = True


class OneKeyPaused(OneKey):
    """As before, with hosts that stand still often, for about the length of a lease."""

    name = "idempotency: one key, pauses"
    faults = msgspec.structs.replace(ROUGH, pause=0.05, pause_s_max=4.0)


class OneKeyLate(OneKey):
    """As before, with holders that renew at about the end of their lease, when others are about to take over."""

    name = "idempotency: one key, late renewals"
    policy = msgspec.structs.replace(POLICY, lease_s=0.5)
    faults = msgspec.structs.replace(ROUGH, crash=0.0, pause=0.02, pause_s_max=1.0, skew_s_max=0.0, clock_error_s=0.0)
    payloads = ("a",) * 3
    rounds_max = 6


class OneKeySampled(OneKey):
    """As before, with leases of half a second, and hosts that know the time from answers only: a fresh one does not."""

    name = "idempotency: one key, sampled clocks"
    faults = msgspec.structs.replace(
        ROUGH,
        sampled_clocks=True,
        skew_s_max=60.0,
        clock_step_s_max=4000.0,
        crash=0.01,
        throttled_reads=0.01,
        partition_limits=True,
    )
    policy = msgspec.structs.replace(POLICY, lease_s=0.5)


class OneKeyCancelled(OneKey):
    """Callers that are cancelled while they claim leave no claim behind: nobody has to wait for its lease to end."""

    name = "idempotency: one key, cancelled"
    faults = Faults(lost=0.05, conflict=0.3, skew_s_max=1.0, clock_error_s=0.1)
    policy = msgspec.structs.replace(POLICY, lease_s=10.0)

    def _call(self, shared: Shared, n: int, payload: str, life: int) -> Program[bool]:
        """Some calls are cancelled when they have hardly begun; whoever is not finds the key free, or a live claim."""
        if self.world.choices.below(2):
            handle = yield from spawn(begin(shared, self.policy, "call", KEY, payload, 1), "cancelled")
            for _ in range(self.world.choices.below(4)):
                yield from race(handle, timeout_s=0.0002)
            if handle.outcome is None:
                handle.cancel()
                yield from race(handle)
                return False
            begun: Begun = handle.outcome.result()
            if begun.claim is None:
                return False
            self._took(begun.claim)
            self.holds.clear()
            yield from give_up(shared, begun.claim)
            return False
        return (yield from super()._call(shared, n, payload, life))

    def _took(self, claim: Claim) -> None:
        if claim.is_reclaimed:
            self.stolen.append(f"{claim.token} had to wait for the end of a lease, and nobody had died")
        super()._took(claim)


class OneKeyKept(OneKey):
    """Results that are kept for a few seconds, too large for their record, with an operator who deletes what is over.

    While a result is kept everyone gets it, whole; after that the work is done anew.
    """

    name = "idempotency: one key, kept for a while"
    faults = msgspec.structs.replace(ROUGH, skew_s_max=0.0, clock_error_s=0.0, pause=0.02, pause_s_max=1.0)
    policy = msgspec.structs.replace(POLICY, keep_s=3.0)
    payloads = ("a",) * 3
    grace_s = 0
    calls = 6

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.calls_left = [self.calls] * len(self.payloads)
        self.ended_us: dict[bytes, int] = {}

    def begin(self) -> None:
        """The callers, and the operator."""
        super().begin()
        self.world.process("operator", lambda process: self.operator(), may_crash=False)

    def operator(self) -> Generator[Effect, Any, Any]:
        """Delete what is over, again and again."""
        shared = Shared(lambda: self.world.now_us)
        while True:
            item = self.world.store.tables.get(IDEMPOTENCY.key(KEY, RECORD))
            yield from sleep(0.1 * self.world.choices.below(20))
            try:
                yield from purge_expired(shared, [item] if item is not None else [])
            except StoreError:
                pass

    def _call(self, shared: Shared, n: int, payload: str, life: int) -> Program[bool]:
        """Call a few times, with pauses about as long as a result is kept."""
        while self.calls_left[n]:
            try:
                begun = yield from begin(shared, self.policy, "call", KEY, payload, 1)
            except ResultLost as error:
                self.stolen.append(f"a result was taken for lost: {error}")
                raise
            if begun.record is not None:
                self.handed_out.append((payload, begun.record.body))
            else:
                assert begun.claim is not None
                yield from self._work(shared, begun.claim)
            self.calls_left[n] -= 1
            yield from sleep(0.5 * self.world.choices.below(12))
        return True

    def _work(self, shared: Shared, claim: Claim) -> Program[None]:
        """Work, and store a large result."""
        began_us = self.world.now_us
        for body, ended_us in self.ended_us.items():
            if began_us < ended_us + 3_000_000:
                self.stolen.append(f"work was begun at {began_us}, while {body[:30]!r} of {ended_us} is kept")
        yield from sleep(0.1)
        body = claim.token.encode() * 400
        if (yield from finish(shared, claim, 0, None, body)):
            self.ended_us[body] = began_us + 100_000  # it was completed at that time or later
            self.completed.append(("a", body))
            self.handed_out.append(("a", body))

    def problems(self) -> Iterable[str]:
        """Whatever was handed out is whole."""
        yield from self.stolen
        for _, body in self.handed_out:
            if len(set(body.split(b"token"))) != 2 or body.count(b"token") != 400:
                yield f"a caller got {len(body)} bytes, {body[:60]!r}"


SCENARIOS = (OneKey, OneKeyReleased, OneKeyPaused, OneKeyLate, OneKeySampled, OneKeyCancelled, OneKeyKept)
