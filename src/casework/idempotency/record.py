"""The idempotency record: what is stored under a key, and how it is read.

A record is one item at sort ``0`` of its key's partition. It is *claimed* while somebody works, *completed* when there
is a result, *released* when the holder gave up. A result of more than ``INLINE_BYTES`` lies beside it in chunks, whose
sort carries the claim's token: the chunks of one claim can never be taken for those of another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from casework.errors import CorruptItem, ItemTooLarge, Misuse
from casework.kernel.conditions import AllOf, Condition, Equals
from casework.kernel.items import Item, Key, Put, Table
from casework.kernel.schema import FORMAT, check_format

RECORD = "0"
"""Sort of the record in its key's partition."""

CLAIMED, COMPLETED, RELEASED = "claimed", "completed", "released"

INLINE_BYTES = 4096
"""A larger result goes into chunks: every refused claim reads, and is charged for, the whole record."""

CHUNK_BYTES = 350_000
MAX_RESULT_BYTES = 3_500_000
"""Record and chunks are committed in one transaction, which holds 4 MB."""

CHUNK_GRACE_S = 86_400
"""Chunks outlive their record by so much, so that a record is never found without them."""

Headers = Mapping[str, str] | Iterable[tuple[str, str]]


class Record(msgspec.Struct, kw_only=True, frozen=True, gc=False):
    """An idempotency record as it was read or written."""

    key: str
    state: str
    """``claimed``, ``completed`` or ``released``."""
    fingerprint: str = ""
    """Of the payload; two calls with one key must have the same."""
    fingerprint_version: int = 0
    """Of the way in which the fingerprint was made."""
    token: str
    """Fencing token of the claim."""
    epoch: int = 1
    """1 for the first claim of this record, one more for each that followed it."""
    renewals: int = 0
    lease_us: int = 0
    """Length of the lease."""
    lease_until_us: int = 0
    """Its end, by the upper bound of the holder's time."""
    created_at_us: int = 0
    completed_at_us: int = 0
    kept_us: int = 0
    """How long the result is kept; 0: for ever."""
    expires_at_us: int = 0
    status: int = 0
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    chunks: int = 0
    size: int = 0
    """Bytes of the body."""


class ClaimResult(msgspec.Struct, frozen=True):
    """What became of a claim."""

    result: str
    """``new_claimed``, ``lease_reclaimed``, ``already_claimed`` or ``already_completed``."""
    record: Record
    token: str | None
    """Of the claim, when it is the caller's."""
    recovered_from_corrupt: bool = False
    """The record that stood here could not be read, and was replaced."""

    @property
    def is_mine(self) -> bool:
        """Whether the caller holds the claim."""
        return self.token is not None


NEW, RECLAIMED, BUSY, DONE = "new_claimed", "lease_reclaimed", "already_claimed", "already_completed"


def record_of(item: Mapping[str, Any]) -> Record:
    """The record in an item, without its chunks. CorruptItem, NewerFormat when it cannot be read."""
    key = item.get("key")
    check_format(item, f"idempotency record {key!r}")
    try:
        found: dict[str, Any] = {name: item[name] for name in _ALWAYS}
        for name in ("fingerprint", "fingerprint_version"):
            if name in item:
                found[name] = item[name]
        if found["state"] == COMPLETED:
            found.update({name: item[name] for name in _COMPLETED if name in item})
            found["completed_at_us"], found["status"], found["size"] = (
                item["completed_at_us"], item["status"], item["size"],
            )  # fmt: skip
            if "headers" in item:
                found["headers"] = _decode_headers(item["headers"])
        record = Record(**found)
    except (KeyError, TypeError, msgspec.MsgspecError) as error:
        raise CorruptItem(f"idempotency record {key!r} cannot be read: {error!r}") from None
    _check_types(record)
    return record


_ALWAYS = ("key", "state", "token", "epoch", "renewals", "lease_us", "lease_until_us", "created_at_us")
_COMPLETED = ("kept_us", "expires_at_us", "body", "chunks")
_INTS = (
    "fingerprint_version", "epoch", "renewals", "lease_us", "lease_until_us", "created_at_us", "completed_at_us",
    "kept_us", "expires_at_us", "status", "chunks", "size",
)  # fmt: skip


def _check_types(record: Record) -> None:
    """CorruptItem when an attribute has a type or value that was never written."""
    whole = all(type(getattr(record, name)) is int for name in _INTS)
    text = type(record.token) is str and type(record.fingerprint) is str and type(record.body) is bytes
    if not whole or not text or record.state not in (CLAIMED, COMPLETED, RELEASED) or not record.token:
        raise CorruptItem(f"idempotency record {record.key!r} cannot be read: {record!r:.300}")
    if record.chunks == 0 and record.size != len(record.body):
        raise CorruptItem(f"idempotency record {record.key!r}: its body has {len(record.body)} of {record.size} bytes")


_decode_headers = msgspec.json.Decoder(tuple[tuple[str, str], ...]).decode
_encode = msgspec.json.Encoder().encode


def header_pairs(headers: Headers | None) -> tuple[tuple[str, str], ...]:
    """Headers as pairs, repeated names and their order kept; Misuse when they are not text."""
    if not headers:
        return ()
    pairs = tuple((name, value) for name, value in (headers.items() if isinstance(headers, Mapping) else headers))
    for name, value in pairs:
        if not isinstance(name, str) or not isinstance(value, str):
            raise Misuse(f"header {name!r:.60}: {value!r:.60}: both must be text")
    return pairs


def claim_item(record: Record, grace_s: int) -> Item:
    """The item of a claim. It outlives its lease by the grace, so that a lapsed claim is still seen as such."""
    item: Item = {
        "key": record.key,
        "part": RECORD,
        "format": FORMAT,
        "state": CLAIMED,
        "fingerprint": record.fingerprint,
        "fingerprint_version": record.fingerprint_version,
        "token": record.token,
        "epoch": record.epoch,
        "renewals": 0,
        "lease_us": record.lease_us,
        "lease_until_us": record.lease_until_us,
        "created_at_us": record.created_at_us,
        "expires_at_s": record.lease_until_us // 1_000_000 + 1 + grace_s,
    }
    return item


def completion(
    status: int,
    headers: tuple[tuple[str, str], ...],
    body: bytes,
    at_us: int,
    latest_us: int,
    kept_us: int,
    grace_s: int,
) -> dict[str, Any]:
    """What a completion sets, but for a body that goes into chunks."""
    attributes: dict[str, Any] = {"state": COMPLETED, "completed_at_us": at_us, "status": status, "size": len(body)}
    size = len(body)
    if headers:
        text = _encode(headers).decode()
        size += len(text)
        attributes["headers"] = text
    if size <= INLINE_BYTES:
        if body:
            attributes["body"] = body
    elif body:
        attributes["chunks"] = -(-len(body) // CHUNK_BYTES)
    if kept_us:
        attributes["kept_us"] = kept_us
        attributes["expires_at_us"] = latest_us + kept_us
        attributes["expires_at_s"] = (latest_us + kept_us) // 1_000_000 + 1 + grace_s
    return attributes


def check_size(key: str, headers: tuple[tuple[str, str], ...], body: bytes) -> None:
    """ItemTooLarge when a result cannot be stored at all."""
    if type(body) is not bytes:
        raise Misuse(f"idempotency key {key!r:.80}: the body is a {type(body).__name__}; it must be bytes")
    if len(body) > MAX_RESULT_BYTES:
        raise ItemTooLarge(
            f"idempotency key {key!r:.80}: the result has {len(body):,} bytes, the limit is {MAX_RESULT_BYTES:,}; "
            "return a reference to it instead"
        )
    heads = sum(len(name) + len(value) + 8 for name, value in headers)
    if heads > 64_000:
        raise ItemTooLarge(f"idempotency key {key!r:.80}: the headers have {heads:,} bytes, the limit is 64,000")


def chunk_sort(token: str, n: int) -> str:
    """Sort of chunk ``n`` of the result of the claim with that token."""
    return f"c/{token}/{n:03d}"


def chunk_puts(table: Table, key: str, token: str, body: bytes, count: int, expires_at_s: int | None) -> list[Put]:
    """The chunks of a result."""
    puts = []
    for n in range(count):
        item: Item = {
            "key": key,
            "part": chunk_sort(token, n),
            "format": FORMAT,
            "body": body[n * CHUNK_BYTES : (n + 1) * CHUNK_BYTES],
        }
        if expires_at_s is not None:
            item["expires_at_s"] = expires_at_s + CHUNK_GRACE_S
        puts.append(Put(table, item))
    return puts


def chunk_keys(table: Table, record: Record) -> list[Key]:
    """Where the chunks of a record are."""
    return [table.key(record.key, chunk_sort(record.token, n)) for n in range(record.chunks)]


def joined(record: Record, chunks: Sequence[Item | None]) -> bytes | None:
    """The body in chunks; None when one is missing or cut short."""
    parts = [chunk.get("body") if chunk is not None else None for chunk in chunks]
    if any(type(part) is not bytes for part in parts):
        return None
    body = b"".join(part for part in parts if isinstance(part, bytes))
    return body if len(body) == record.size else None


def unchanged(record: Record) -> Condition:
    """Holds while the record is the one that was read: same claim, same state, no renewal in between."""
    return AllOf((Equals("token", record.token), Equals("renewals", record.renewals), Equals("state", record.state)))


def held(token: str) -> Condition:
    """Holds while the claim of that token stands."""
    return AllOf((Equals("state", CLAIMED), Equals("token", token)))


def held_with(token: str, renewals: int) -> Condition:
    """Holds while the claim of that token stands, with so many renewals."""
    return AllOf((Equals("state", CLAIMED), Equals("token", token), Equals("renewals", renewals)))


def same_item(item: Mapping[str, Any]) -> Condition:
    """Holds while the item is the very one that was read, whatever is in it."""
    return AllOf(tuple(Equals(name, value) for name, value in item.items()))
