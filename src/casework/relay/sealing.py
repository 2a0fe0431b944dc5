"""Cursors that say nothing to whoever holds them: a page of a listing may end at a stream that its token must not know.

The text is enciphered with a key of the store's, and carries a tag, so that one that was made up is refused. It is no
more than that: what it leads to is checked against the token each time.
"""

from __future__ import annotations

import base64
import hashlib
import hmac

from casework.errors import ConditionFailed, Misuse, OutcomeUnknown
from casework.kernel.conditions import absent
from casework.kernel.items import Put
from casework.kernel.programs import Program, get, token, transact
from casework.kernel.schema import FORMAT, REGISTRY

RELAY, KEY = "relay", "cursor-key"

_NONCE = 16
_TAG = 16


def sealing_key() -> Program[bytes]:
    """The store's key for cursors; the first relay on a store makes it."""
    place = REGISTRY.key(RELAY, KEY)
    found = yield from get(place)
    if found is None:
        secret = hashlib.blake2b(((yield from token()) + (yield from token())).encode(), digest_size=32).digest()
        try:
            yield from transact(
                [Put(REGISTRY, {"kind": RELAY, "name": KEY, "format": FORMAT, "key": secret}, absent())]
            )
        except (ConditionFailed, OutcomeUnknown):
            pass  # another relay made one at the same moment, or this one did
        found = yield from get(place)
    key = None if found is None else found.get("key")
    if not isinstance(key, bytes):
        raise Misuse("the store's key for cursors is missing; start the relay again")
    return key


def seal(key: bytes, text: str, nonce: bytes) -> str:
    """The cursor to hand out. ``nonce``: 16 bytes that were never used before."""
    data = text.encode()
    hidden = bytes(a ^ b for a, b in zip(data, _stream(key, nonce, len(data)), strict=True))
    return base64.urlsafe_b64encode(nonce + _tag(key, nonce + hidden) + hidden).decode().rstrip("=")


def unseal(key: bytes, cursor: str) -> str:
    """What was sealed. Misuse for anything else."""
    try:
        raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
    except ValueError:
        raw = b""
    nonce, tag, hidden = raw[:_NONCE], raw[_NONCE : _NONCE + _TAG], raw[_NONCE + _TAG :]
    if not hmac.compare_digest(tag, _tag(key, nonce + hidden)):
        raise Misuse("this cursor is not one that this listing handed out; begin without one")
    return bytes(a ^ b for a, b in zip(hidden, _stream(key, nonce, len(hidden)), strict=True)).decode()


def _stream(key: bytes, nonce: bytes, size: int) -> bytes:
    blocks = range(0, size, 64)
    made = (hashlib.blake2b(nonce + n.to_bytes(8, "big"), key=key, person=b"cursor").digest() for n in blocks)
    return b"".join(made)[:size]


def _tag(key: bytes, data: bytes) -> bytes:
    return hashlib.blake2b(data, key=key, person=b"cursor-tag", digest_size=_TAG).digest()
