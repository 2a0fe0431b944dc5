"""The contract rejects broken stores. Each is a right store with one fault, such as stores that shipped have had."""

from __future__ import annotations

import inspect
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from casework import MemoryIdempotencyStore
from casework.idempotency.record import ClaimResult
from casework.testing import idempotency_contract
from casework.testing.idempotency_contract import IdempotencyStoreContract

pytestmark = pytest.mark.slow


class DropsFingerprint(MemoryIdempotencyStore):
    def claim(self, key: str, fingerprint: str, fingerprint_version: int, lease_ttl_seconds: float) -> ClaimResult:
        claim = super().claim(key, fingerprint, fingerprint_version, lease_ttl_seconds)
        if claim.result != "already_completed":
            return claim
        return ClaimResult(claim.result, msgspec.structs.replace(claim.record, fingerprint=""), claim.token)


class DropsHeaders(MemoryIdempotencyStore):
    def complete(self, key, token, status, headers, body, expires_after_seconds):  # type: ignore[no-untyped-def]
        return super().complete(key, token, status, None, body, expires_after_seconds)


class MergesHeaders(MemoryIdempotencyStore):
    def complete(self, key, token, status, headers, body, expires_after_seconds):  # type: ignore[no-untyped-def]
        return super().complete(key, token, status, dict(headers or {}), body, expires_after_seconds)


class ReleasesForAnybody(MemoryIdempotencyStore):
    def release(self, key, token):  # type: ignore[no-untyped-def]
        record = self.records.read(key)
        return super().release(key, record.token if record is not None else token)


class RenewsTheCompleted(MemoryIdempotencyStore):
    def renew(self, key, token, lease_ttl_seconds):  # type: ignore[no-untyped-def]
        record = self.records.read(key)
        if record is not None and record.state == "completed" and record.token == token:
            return True
        return super().renew(key, token, lease_ttl_seconds)


class RenewsForZombies(MemoryIdempotencyStore):
    def renew(self, key, token, lease_ttl_seconds):  # type: ignore[no-untyped-def]
        record = self.records.read(key)
        return super().renew(key, record.token if record is not None else token, lease_ttl_seconds)


class CompletesTwice(MemoryIdempotencyStore):
    def complete(self, key, token, status, headers, body, expires_after_seconds):  # type: ignore[no-untyped-def]
        record = self.records.read(key)
        if record is not None and record.state == "completed" and record.token == token:
            claimed = msgspec.structs.replace(record, state="claimed")
            self.records._records[key] = claimed
        return super().complete(key, token, status, headers, body, expires_after_seconds)


class ReclaimsInARace(MemoryIdempotencyStore):
    def claim(self, key: str, fingerprint: str, fingerprint_version: int, lease_ttl_seconds: float) -> ClaimResult:
        seen = self.records.read(key)
        if seen is not None and seen.state == "claimed" and seen.lease_until_us < time.time_ns() // 1000:
            threading.Event().wait(0.05)  # looks, and only then writes
            self.records.remove(key)
            claim = super().claim(key, fingerprint, fingerprint_version, lease_ttl_seconds)
            return ClaimResult("lease_reclaimed", claim.record, claim.token or secrets.token_hex(8))
        return super().claim(key, fingerprint, fingerprint_version, lease_ttl_seconds)


class ManglesBodies(MemoryIdempotencyStore):
    def complete(self, key, token, status, headers, body, expires_after_seconds):  # type: ignore[no-untyped-def]
        mangled = body.decode("utf-8", "replace").encode()
        return super().complete(key, token, status, headers, mangled, expires_after_seconds)


class WakesNobodyOnRelease(MemoryIdempotencyStore):
    def wait_for_completion(self, key, timeout_seconds):  # type: ignore[no-untyped-def]
        record = self.records.read(key)
        if record is None or record.state == "completed":
            return record
        found = super().wait_for_completion(key, min(timeout_seconds, 0.2))
        current = self.records.read(key)
        if found is None and current is not None and current.state == "released":
            super().wait_for_completion("never", 0)
            self._sleeps_on(timeout_seconds)
        return found

    def _sleeps_on(self, seconds: float) -> None:
        threading.Event().wait(min(seconds, 3.0))


NINE = [
    DropsFingerprint,
    DropsHeaders,
    ReleasesForAnybody,
    RenewsTheCompleted,
    RenewsForZombies,
    CompletesTwice,
    ReclaimsInARace,
    ManglesBodies,
    WakesNobodyOnRelease,
    MergesHeaders,
]


def failures_of(make: Callable[[], Any]) -> list[str]:
    """The tests of the contract that a store fails."""
    contract = IdempotencyStoreContract()
    failed = []
    for name, test in inspect.getmembers(contract, inspect.ismethod):
        if name.startswith("test_"):
            try:
                test(make(), f"mutant-{secrets.token_hex(8)}")
            except Exception:
                failed.append(name)
    return failed


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency_contract, "PATIENCE_S", 2.0)
    monkeypatch.setattr(idempotency_contract, "SHORT_S", 0.1)


def test_a_right_store_passes() -> None:
    assert failures_of(MemoryIdempotencyStore) == []


@pytest.mark.parametrize("broken", NINE)
def test_a_broken_store_is_rejected(broken: type[MemoryIdempotencyStore]) -> None:
    assert failures_of(broken) != []
