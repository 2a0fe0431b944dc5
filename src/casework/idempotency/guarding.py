"""What every surface does around the work: begin, keep alive, finish or give up. Programs, for sync and async alike.

The fingerprint is checked on every path on which a result or a claim comes out: at once, after a wait, and before a
lapsed claim is taken over.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from casework.arguments import check_choice, check_seconds
from casework.errors import InProgress, ItemTooLarge, PayloadMismatch, StoreError
from casework.idempotency import lifecycle
from casework.idempotency.codecs import Codec, JsonCodec
from casework.idempotency.lifecycle import MAX_KEPT_S, MAX_LEASE_S, Shared
from casework.idempotency.record import BUSY, DONE, RECLAIMED, ClaimResult, Headers, Record
from casework.idempotency.waiting import wait_for_completion
from casework.kernel.programs import Program, now

RESULT, ERROR, NOT_KEPT = 0, 1, 2
"""``status`` of a function's record: its result, an exception to remember, or neither could be stored."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """How one kind of operation is guarded. Lengths are in seconds."""

    lease_s: float = 30.0
    """Another caller may take over so long after the holder was last heard of; it is heard of every third of this."""
    max_run_s: float = 900.0
    """The lease is renewed no longer than this, so that work that hangs does not keep its key for ever."""
    keep_s: float | None = 86_400.0
    """Results are kept so long; None: for ever."""
    wait_s: float = 30.0
    """A duplicate waits so long for the holder, then ``InProgress`` is raised; 0: at once."""
    on_unavailable: str = "refuse"
    """The store is down: ``refuse`` raises its error; ``run`` runs the work unprotected, which is counted."""
    on_lease_lost: str = "raise"
    """Another caller took over meanwhile: ``raise`` LeaseLost when the work has ended, ``cancel`` the work at once
    (coroutines only) and raise it, or ``return`` the work's own result, which is not stored."""

    def __post_init__(self) -> None:
        """Misuse when it cannot work."""
        lifecycle.to_us(self.lease_s, "lease_s", MAX_LEASE_S)
        lifecycle.to_us(self.max_run_s, "max_run_s", MAX_LEASE_S)
        if self.keep_s is not None:
            lifecycle.to_us(self.keep_s, "keep_s", MAX_KEPT_S)
        check_seconds("wait_s", self.wait_s, 0, MAX_LEASE_S)
        check_choice("on_unavailable", self.on_unavailable, ("refuse", "run"))
        check_choice("on_lease_lost", self.on_lease_lost, ("raise", "cancel", "return"))


class Claim:
    """A claim under way, as the work sees it: ``casework.current_claim()``, and what ``with once(...)`` hands out."""

    __slots__ = (
        "_on_lost", "answers_http", "beat_at_us", "began_us", "codec", "epoch", "is_ended", "is_finished", "is_lost",
        "is_reclaimed", "key", "name", "outer", "policy", "shared", "token", "until_us",
    )  # fmt: skip

    def __init__(self, key: str, name: str, token: str, policy: Policy, *, epoch: int, is_reclaimed: bool) -> None:
        self.key = key
        self.name = name
        self.token = token
        """Fencing token; hand it to what the work writes elsewhere."""
        self.policy = policy
        self.epoch = epoch
        """How many claims there were; grows, so that it can fence as well."""
        self.is_reclaimed = is_reclaimed
        """An earlier attempt began and did not end: what it did may be there already."""
        self.is_lost = False
        """Another caller may have taken over: what this work does no longer counts."""
        self.is_ended = False
        self.is_finished = False
        """A transaction stored the result already."""
        self.shared: Shared | None = None
        self.codec: Codec = JsonCodec()
        self.answers_http = False
        self.began_us = 0
        self.until_us = 0
        self.beat_at_us = 0
        self.outer: Claim | None = None
        self._on_lost: Callable[[], None] | None = None

    def check(self) -> None:
        """Raise LeaseLost when another caller may have taken over: a place for long work to stop."""
        if self.is_lost:
            from casework.errors import LeaseLost

            raise LeaseLost(f"the claim of {self.key!r:.80} was lost; what this call does is not recorded")

    def lose(self) -> None:
        """Note that the claim is lost, and tell the work."""
        if not self.is_lost and not self.is_ended:
            self.is_lost = True
            if self._on_lost is not None:
                self._on_lost()

    def when_lost(self, tell: Callable[[], None]) -> None:
        """Call ``tell`` once, on whatever thread, when the claim is lost."""
        self._on_lost = tell

    def __repr__(self) -> str:
        state = "lost" if self.is_lost else "ended" if self.is_ended else "held"
        return f"<claim of {self.key!r}, {state}>"


class Begun(msgspec.Struct):
    """How an attempt to begin ended: with a claim, a record to replay, or neither (the store is down)."""

    claim: Claim | None = None
    record: Record | None = None
    has_waited: bool = False
    failure: StoreError | None = None
    """Why the work is to run unprotected."""


def begin(
    shared: Shared, policy: Policy, name: str, key: str, fingerprint: str, fingerprint_version: int
) -> Program[Begun]:
    """Claim the key, or wait for the result of whoever has it.

    Raises PayloadMismatch, InProgress; the store's errors, unless the policy says to run unprotected then.
    """
    until_us = shared.steady_us() + round(policy.wait_s * 1e6)
    has_waited = False
    try:
        while True:
            began_us = shared.steady_us()
            found = yield from lifecycle.claim(
                shared, key, fingerprint, fingerprint_version, policy.lease_s, same_payload=True
            )
            if found.token is not None:
                claim = _claim_of(found, name, policy, began_us)
                claim.shared = shared
                return Begun(claim, None, has_waited)
            _check_payload(found.record, key, fingerprint, fingerprint_version)
            if found.result == DONE:
                return Begun(None, found.record, has_waited)
            left_s = (until_us - shared.steady_us()) / 1e6
            if left_s <= 0:
                raise (yield from _in_progress(found, key, policy))
            has_waited = True
            record = yield from wait_for_completion(shared, key, left_s)
            if record is not None:
                _check_payload(record, key, fingerprint, fingerprint_version)
                return Begun(None, record, has_waited)
    except StoreError as error:
        if policy.on_unavailable != "run" or not is_outage(error):
            raise
        return Begun(failure=error, has_waited=has_waited)


def is_outage(error: StoreError) -> bool:
    """Whether an error says that the store is down, and not that something is wrong with a record or the tables."""
    from casework.errors import Contention, OutcomeUnknown, Throttled, Unavailable

    return isinstance(error, Unavailable | Throttled | OutcomeUnknown | Contention)


def _claim_of(found: ClaimResult, name: str, policy: Policy, began_us: int) -> Claim:
    assert found.token is not None
    claim = Claim(
        found.record.key, name, found.token, policy, epoch=found.record.epoch, is_reclaimed=found.result == RECLAIMED
    )
    lease_us = found.record.lease_us
    claim.began_us = began_us
    claim.until_us = began_us + lease_us
    claim.beat_at_us = began_us + lease_us // 3
    return claim


def _check_payload(record: Record, key: str, fingerprint: str, fingerprint_version: int) -> None:
    if not lifecycle.matches(record, fingerprint, fingerprint_version):
        raise PayloadMismatch(
            f"key {key!r:.120} was used before with another payload; nothing was run. Use a new key for a new request"
        )


def _in_progress(found: ClaimResult, key: str, policy: Policy) -> Program[InProgress]:
    assert found.result == BUSY
    moment = yield from now()
    left_s = (found.record.lease_until_us - moment.middle_us) / 1e6
    retry_s = min(max(1.0, left_s), max(1.0, policy.lease_s))
    return InProgress(
        f"another call with key {key!r:.120} is under way; it was waited for {policy.wait_s:g} s", retry_s
    )


def keep_alive(shared: Shared, claim: Claim) -> Program[None]:
    """Renew a claim's lease once; a claim that cannot be kept is lost at the end of its lease.

    The lease counts from before the renewal was sent: others may have seen it from then on.
    """
    policy = claim.policy
    lease_us = round(policy.lease_s * 1e6)
    now_us = shared.steady_us()
    claim.beat_at_us = now_us + lease_us // 3
    if now_us - claim.began_us >= policy.max_run_s * 1e6:
        if now_us >= claim.until_us:
            claim.lose()
        claim.beat_at_us = max(claim.until_us, now_us + 1000)
        return
    try:
        kept = yield from lifecycle.renew(shared, claim.key, claim.token, policy.lease_s)
    except StoreError:
        if shared.steady_us() >= claim.until_us:
            claim.lose()
        else:
            claim.beat_at_us = min(now_us + lease_us // 10, claim.until_us)
        return
    if kept:
        claim.until_us = now_us + lease_us
    else:
        claim.lose()


def finish(shared: Shared, claim: Claim, status: int, headers: Headers | None, body: bytes) -> Program[bool]:
    """Store the result and end the claim; False when it was lost. What is too large is noted as not kept.

    Raises ItemTooLarge after that was noted; the store's errors.
    """
    claim.is_ended = True
    try:
        return (yield from lifecycle.complete(
            shared, claim.key, claim.token, status, headers, body, claim.policy.keep_s
        ))  # fmt: skip
    except ItemTooLarge:
        yield from not_kept(shared, claim, status, "the result was too large to be stored")
        raise


NOT_KEPT_HEADER = "casework-result"


def not_kept(shared: Shared, claim: Claim, status: int, why: str) -> Program[bool]:
    """End the claim without its result: the work is never run again, and who comes later is told why."""
    claim.is_ended = True
    headers = [(NOT_KEPT_HEADER, "not-kept")]
    return (yield from lifecycle.complete(
        shared, claim.key, claim.token, status, headers, why.encode(), claim.policy.keep_s
    ))  # fmt: skip


def was_kept(record: Record) -> bool:
    """Whether a completed record has its result."""
    return (NOT_KEPT_HEADER, "not-kept") not in record.headers


def give_up(shared: Shared, claim: Claim) -> Program[bool]:
    """Release the claim after work that failed, so that the next caller begins at once.

    The store's errors are swallowed: the lease ends by itself, and the work's own error matters more.
    """
    claim.is_ended = True
    try:
        return (yield from lifecycle.release(shared, claim.key, claim.token))
    except StoreError:
        return False
