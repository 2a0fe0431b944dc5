"""Idempotency records in this process's memory: the operations of the store, done at once and without one.

For tests and single processes, and lean: a replay is one look at a dict. Its cost does not grow with the number of
records; what has expired is removed a little at a time, with each claim.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import msgspec

from casework.backends.surroundings import random_token
from casework.idempotency.record import (
    BUSY,
    CLAIMED,
    COMPLETED,
    DONE,
    NEW,
    RECLAIMED,
    RELEASED,
    ClaimResult,
    Record,
)

REAPED_PER_CLAIM = 2
"""Old records looked at with each claim; more than one, so that reaping keeps up."""


LAPSED_KEPT_US = 60_000_000
"""A lapsed claim is kept so long, so that who comes then knows that an earlier attempt began."""


class MemoryRecords:
    """Records in a dict. Safe to use from several threads.

    Args:
        clock_us: the time, in microseconds.
        token: makes fencing tokens.
    """

    def __init__(self, clock_us: Callable[[], int], token: Callable[[], str] = random_token) -> None:
        self._records: dict[str, Record] = {}
        self._reap: deque[tuple[str, str]] = deque()
        self._clock_us = clock_us
        self._token = token
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._records)

    def completed(self, key: str) -> Record | None:
        """The record of a key, if it is completed and has not expired."""
        found = self._records.get(key)
        if found is None or found.state != COMPLETED or (found.kept_us and self._clock_us() >= found.expires_at_us):
            return None
        return found

    def claim(
        self, key: str, fingerprint: str, fingerprint_version: int, lease_us: int, same_payload: bool
    ) -> ClaimResult:
        """Take the key if it is free, lapsed or expired; else say who has it."""
        now_us = self._clock_us()
        with self._lock:
            found = self._records.get(key)
            result, epoch = NEW, 1
            if found is not None:
                standing = self._standing(found, now_us, fingerprint, fingerprint_version, same_payload)
                if standing is not None:
                    return standing
                result = RECLAIMED if found.state == CLAIMED else NEW
                epoch = found.epoch + 1
            token = self._token()
            record = Record(
                key=key, state=CLAIMED, fingerprint=fingerprint, fingerprint_version=fingerprint_version, token=token,
                epoch=epoch, lease_us=lease_us, lease_until_us=now_us + lease_us, created_at_us=now_us,
            )  # fmt: skip
            self._records[key] = record
            self._reap.append((key, token))
            self._remove_some(now_us)
            return ClaimResult(result, record, token)

    def _standing(
        self, found: Record, now_us: int, fingerprint: str, fingerprint_version: int, same_payload: bool
    ) -> ClaimResult | None:
        """What a claim is told while the record stands; None when it may be replaced."""
        if found.state == COMPLETED and (not found.kept_us or now_us < found.expires_at_us):
            return ClaimResult(DONE, found, None)
        if found.state == CLAIMED:
            same = found.fingerprint == fingerprint and found.fingerprint_version == fingerprint_version
            if now_us < found.lease_until_us or (same_payload and not same):
                return ClaimResult(BUSY, found, None)
        return None

    def _remove_some(self, now_us: int) -> None:
        for _ in range(min(REAPED_PER_CLAIM, len(self._reap))):
            key, token = self._reap.popleft()
            record = self._records.get(key)
            if record is None or record.token != token:
                continue
            if record.state == CLAIMED:
                is_over = now_us >= record.lease_until_us + LAPSED_KEPT_US
            else:
                is_over = record.state == RELEASED or bool(record.kept_us and now_us >= record.expires_at_us)
            if is_over:
                del self._records[key]
            else:
                self._reap.append((key, token))

    def complete(
        self, key: str, token: str, status: int, headers: tuple[tuple[str, str], ...], body: bytes, kept_us: int
    ) -> bool:
        """Store the result, if the claim is still that of ``token``."""
        now_us = self._clock_us()
        with self._lock:
            found = self._records.get(key)
            if found is None or found.token != token or found.state != CLAIMED:
                return False
            self._records[key] = Record(
                key=key, state=COMPLETED, fingerprint=found.fingerprint, fingerprint_version=found.fingerprint_version,
                token=token, epoch=found.epoch, renewals=found.renewals, lease_us=found.lease_us,
                lease_until_us=found.lease_until_us, created_at_us=found.created_at_us, completed_at_us=now_us,
                kept_us=kept_us, expires_at_us=now_us + kept_us if kept_us else 0, status=status, headers=headers,
                body=body, size=len(body),
            )  # fmt: skip
            return True

    def release(self, key: str, token: str) -> bool:
        """Give the claim up, if it is still that of ``token``."""
        with self._lock:
            found = self._records.get(key)
            if found is None or found.token != token or found.state != CLAIMED:
                return False
            self._records[key] = msgspec.structs.replace(found, state=RELEASED)
            return True

    def renew(self, key: str, token: str, lease_us: int) -> bool:
        """Extend the lease, if the claim is still that of ``token``."""
        now_us = self._clock_us()
        with self._lock:
            found = self._records.get(key)
            if found is None or found.token != token or found.state != CLAIMED:
                return False
            self._records[key] = msgspec.structs.replace(
                found, renewals=found.renewals + 1, lease_us=lease_us, lease_until_us=now_us + lease_us
            )
            return True

    def read(self, key: str) -> Record | None:
        """The record of a key."""
        return self._records.get(key)

    def keys(self) -> list[str]:
        """All keys, in no order."""
        return list(self._records)

    def remove(self, key: str) -> bool:
        """Forget a key; False when there is none."""
        with self._lock:
            return self._records.pop(key, None) is not None
