"""How an execution remembers the ids of events that it has taken."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from casework.executions.state import ID_HASH_BYTES
from casework.kernel.conditions import absent, equals
from casework.kernel.effects import Instant
from casework.kernel.items import Put
from casework.kernel.schema import EXECUTIONS, FORMAT


def id_hash(event_id: str) -> bytes:
    """The 64 bits by which an event id is remembered."""
    return hashlib.blake2b(event_id.encode(), digest_size=ID_HASH_BYTES).digest()


def is_recent(recent_ids: bytes, digest: bytes) -> bool:
    """Whether the digest is among the remembered ones."""
    at = recent_ids.find(digest)
    while at % ID_HASH_BYTES and at >= 0:
        at = recent_ids.find(digest, at + 1)
    return at >= 0


def mark_sort(event_id: str) -> str:
    """The sort key of an event id's mark."""
    return f"s/{hashlib.blake2b(event_id.encode(), digest_size=16).hexdigest()}"


def mark_put(id: str, event_id: str, now: Instant, window_s: int, stale: Mapping[str, int]) -> Put:
    """The mark of an event id, for the dedupe window; replaces one that has run out but was not reaped yet."""
    sort = mark_sort(event_id)
    expired = stale.get(sort)
    return Put(
        EXECUTIONS,
        {
            "id": id,
            "sort": sort,
            "format": FORMAT,
            # No sooner than the window ends: the clock's error, and what is left of the second, count for it.
            "expires_at_s": now.latest_us // 1_000_000 + 1 + window_s,
        },
        absent() if expired is None else equals("expires_at_s", expired),
    )
