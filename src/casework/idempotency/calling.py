"""One guarded call of a function, as a program: begin, run, and store what came of it.

The function runs through ``Call``, so in its caller's own thread or on its caller's own loop. It hands back an outcome
and never raises, since what it raises may be anything, ``StopIteration`` included, which no generator can pass on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol

from casework.errors import ItemTooLarge, LeaseLost, NotJson, ResultNotKept, StoreError
from casework.idempotency.codecs import Codec, decode_error, encode_error
from casework.idempotency.guarding import (
    ERROR,
    RESULT,
    Begun,
    Claim,
    Policy,
    begin,
    finish,
    give_up,
    not_kept,
    was_kept,
)
from casework.idempotency.keys import FINGERPRINT_VERSION
from casework.idempotency.lifecycle import Shared
from casework.idempotency.record import Record
from casework.kernel.effects import Outcome
from casework.kernel.programs import Program, call

log = logging.getLogger("casework.idempotency")


class Guarding(Protocol):
    """What a guarded call needs of the surface that it is made through."""

    name: str
    policy: Policy
    codec: Codec
    remember: tuple[type[BaseException], ...]

    def notify(self, kind: str, key: str, claim: Claim | None = None) -> None:
        """Count an event, and tell whoever wants to know."""

    def keep(self, key: str, fingerprint: str, status: int, body: bytes) -> None:
        """Remember a result in this process, where that is wanted."""

    def keep_record(self, shared: Shared, record: Record) -> None:
        """Remember the result of a record that was read."""


class Heartbeat(Protocol):
    """Keeps claims alive while work runs."""

    def watch(self, claim: Claim) -> None:
        """Keep the claim alive from now on."""

    def unwatch(self, claim: Claim) -> None:
        """Stop that."""


def call_once(
    guard: Guarding,
    shared: Shared,
    key: str,
    fingerprint: str,
    work: Callable[[Claim | None], Any],
    heart: Heartbeat,
) -> Program[Outcome[Any]]:
    """Run ``work`` if nobody did, else answer with what came of it then.

    Raises PayloadMismatch, InProgress, ResultNotKept, NotJson; the store's errors.
    """
    begun = yield from begun_or_refused(guard, shared, key, fingerprint)
    claim = begun.claim
    if claim is None:
        if begun.record is not None:
            guard.notify("replayed", key)
            guard.keep_record(shared, begun.record)
            return outcome_of(begun.record.status, begun.record.body, guard, begun.record)
        guard.notify("unprotected", key)
        log.warning("%s: the store is down, so this call runs unprotected: %s", guard.name, begun.failure)
        outcome: Outcome[Any] = yield from call(work, None)
        return outcome
    heart.watch(claim)
    try:
        outcome = yield from call(work, claim)
    except BaseException as error:
        heart.unwatch(claim)
        if not isinstance(error, GeneratorExit):
            yield from give_up(shared, claim)
        raise
    heart.unwatch(claim)
    return (yield from settle_block(guard, shared, claim, fingerprint, outcome))


def begun_or_refused(guard: Guarding, shared: Shared, key: str, fingerprint: str) -> Program[Begun]:
    """Begin, and say what came of it to whoever wants to know."""
    try:
        begun = yield from begin(shared, guard.policy, guard.name, key, fingerprint, FINGERPRINT_VERSION)
    except StoreError:
        guard.notify("unavailable", key)
        raise
    except Exception as error:
        guard.notify("in_progress" if hasattr(error, "retry_after_s") else "refused", key)
        raise
    if begun.has_waited:
        guard.notify("waited", key)
    if begun.claim is not None:
        begun.claim.codec = guard.codec
        guard.notify("reclaimed" if begun.claim.is_reclaimed else "claimed", key, begun.claim)
    return begun


def outcome_of(status: int, body: bytes, guard: Guarding, record: Record | None) -> Outcome[Any]:
    """What a stored result says. Raises ResultNotKept, CorruptItem."""
    if record is not None and not was_kept(record):
        raise ResultNotKept(
            f"{guard.name}: the call was performed once, but {record.body.decode(errors='replace')}; it is not "
            "performed again"
        )
    if status == ERROR:
        return Outcome(error=decode_error(body, guard.remember))
    return Outcome(guard.codec.decode(body))


def settle_block(
    guard: Guarding, shared: Shared, claim: Claim, fingerprint: str, outcome: Outcome[Any]
) -> Program[Outcome[Any]]:
    """Store the result or the error to remember, or release the claim."""
    error = outcome.error
    if claim.is_finished:  # by a transaction, inside
        guard.notify("completed", claim.key, claim)
        return outcome
    if error is not None and not isinstance(error, guard.remember):
        kept = yield from give_up(shared, claim)
        guard.notify("released" if kept else "lost", claim.key, claim)
        return outcome
    try:
        status = RESULT if error is None else ERROR
        body = guard.codec.encode(outcome.value) if error is None else encode_error(error)
        kept = yield from finish(shared, claim, status, None, body)
    except ItemTooLarge as too_large:
        guard.notify("not_kept", claim.key, claim)
        log.warning("%s: %s; the call is not run again", guard.name, too_large)
        return outcome
    except NotJson:
        guard.notify("not_kept", claim.key, claim)
        yield from not_kept(shared, claim, RESULT, "its result could not be encoded")
        raise
    except StoreError as failed:
        guard.notify("unrecorded", claim.key, claim)
        log.warning("%s: the call was performed, but that could not be stored: %s", guard.name, failed)
        return outcome
    if kept:
        guard.notify("completed", claim.key, claim)
        guard.keep(claim.key, fingerprint, status, body)
        return outcome
    claim.is_lost = True
    guard.notify("lost", claim.key, claim)
    if guard.policy.on_lease_lost == "return":
        return outcome
    return Outcome(
        error=LeaseLost(
            f"{guard.name}: the lease was lost while the call ran, and another may have run as well; "
            "its result is not recorded"
        )
    )
