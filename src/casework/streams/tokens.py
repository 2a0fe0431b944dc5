"""Bearer tokens of the relay, in the registry: hashed, with rights per pattern of stream ids.

A token is ``cw_<id>_<secret>``. The id is public, it names the token in listings; of the secret only the SHA-256 is
stored. With 256 random bits a slow hash would add nothing.
"""

from __future__ import annotations

import fnmatch
import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from casework.errors import CorruptItem, Misuse
from casework.kernel.items import Delete, Put
from casework.kernel.programs import Program, get, now, query, token, transact
from casework.kernel.schema import FORMAT, REGISTRY, check_format

TOKENS = "token"
"""Partition of the registry in which tokens stand."""

RIGHTS = ("read", "append", "admin")

_TOKEN = re.compile(r"cw_([A-Za-z0-9]{8})_([A-Za-z0-9_-]{44})\Z")
_PATTERN = re.compile(r"[A-Za-z0-9*?][A-Za-z0-9._:~+*?-]{0,199}\Z")


class Grant(msgspec.Struct, frozen=True):
    """Rights to the streams whose ids match a pattern: ``*`` stands for any characters, ``?`` for one."""

    pattern: str
    rights: tuple[str, ...]

    def allows(self, stream: str, right: str) -> bool:
        """Whether it gives ``right`` to ``stream``; ``admin`` includes the others."""
        return fnmatch.fnmatchcase(stream, self.pattern) and (right in self.rights or "admin" in self.rights)


class TokenInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a token; its secret is not."""

    id: str
    label: str
    grants: tuple[Grant, ...]
    created_at_us: int
    expires_at_s: int = 0
    """0: never."""

    def allows(self, stream: str, right: str) -> bool:
        """Whether it gives ``right`` to ``stream``."""
        return any(grant.allows(stream, right) for grant in self.grants)


def read_grant(text: str) -> Grant:
    """``PATTERN=RIGHT,RIGHT`` as a grant; Misuse when it is none."""
    pattern, equals, rights = text.partition("=")
    wanted = tuple(dict.fromkeys(right.strip() for right in rights.split(",") if right.strip()))
    unknown = [right for right in wanted if right not in RIGHTS]
    if not equals or not wanted or unknown or not _PATTERN.match(pattern):
        raise Misuse(f"{text!r:.120} is not a grant; write PATTERN=RIGHTS, as in 'orders-*=read,append' (rights: "
                     f"{', '.join(RIGHTS)})")  # fmt: skip
    return Grant(pattern, wanted)


def create_token(
    grants: Sequence[Grant], *, label: str = "", ttl_s: float | None = None
) -> Program[tuple[str, TokenInfo]]:
    """A new token, shown this once, and what is stored of it.

    Args:
        grants: what it may do; at least one.
        label: for people, up to 200 characters of printable text.
        ttl_s: it ends after so long; None: never.
    """
    if not grants:
        raise Misuse("a token without a grant can do nothing; give at least one, as in 'orders-*=read'")
    if len(label) > 200 or (label and not label.isprintable()):
        raise Misuse(f"{label!r:.80} is not a label; use up to 200 characters of printable text")
    if ttl_s is not None and not 0 < ttl_s < 1e10:
        raise Misuse(f"ttl_s is {ttl_s!r}; it must be above 0")
    first, second, third = (yield from token()), (yield from token()), (yield from token())
    # Letters and digits only: an id that begins with a hyphen would be an option on the command line.
    id, secret = first.replace("_", "a").replace("-", "b")[:8], second + third
    moment = yield from now()
    expires_at_s = 0 if ttl_s is None else int(moment.middle_us / 1e6 + ttl_s)
    info = TokenInfo(
        id=id, label=label, grants=tuple(grants), created_at_us=moment.middle_us, expires_at_s=expires_at_s
    )
    item: dict[str, Any] = {
        "kind": TOKENS, "name": id, "format": FORMAT, "hash": _hash(secret), "created_at_us": info.created_at_us,
        "grants": msgspec.json.encode(info.grants).decode(),
    }  # fmt: skip
    if label:
        item["label"] = label
    if expires_at_s:
        item["expires_at_s"] = expires_at_s
    yield from transact([Put(REGISTRY, item)])
    return f"cw_{id}_{secret}", info


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def list_tokens() -> Program[list[TokenInfo]]:
    """All tokens, revoked ones apart."""
    found: list[TokenInfo] = []
    after = None
    while True:
        page = yield from query(REGISTRY, TOKENS, after=after)
        found += [_info(item) for item in page.items]
        after = page.next
        if after is None:
            return found


def revoke_token(id: str) -> Program[bool]:
    """Forget a token; False when there was none. A relay that has seen it lately takes it for a few seconds more."""
    key = REGISTRY.key(TOKENS, id)
    there = yield from get(key)
    if there is not None:
        yield from transact([Delete(key)])
    return there is not None


def looks_like_token(text: str) -> bool:
    """Whether a text has the form of a token."""
    return _TOKEN.match(text) is not None


def verify_token(text: str) -> Program[TokenInfo | None]:
    """What a token may do; None when it is none of ours, was revoked, or has ended."""
    match = _TOKEN.match(text)
    if match is None:
        return None
    item = yield from get(REGISTRY.key(TOKENS, match[1]))
    stored = b"" if item is None else item.get("hash", b"")
    if not isinstance(stored, bytes) or not hmac.compare_digest(stored, _hash(match[2])) or item is None:
        return None
    info = _info(item)
    moment = yield from now()
    if info.expires_at_s and moment.latest_us >= info.expires_at_s * 1_000_000:
        return None
    return info


def _info(item: Mapping[str, Any]) -> TokenInfo:
    check_format(item, f"token {item['name']!r}")
    try:
        grants = msgspec.json.decode(item["grants"], type=tuple[Grant, ...])
    except (KeyError, msgspec.DecodeError) as error:
        raise CorruptItem(f"token {item['name']!r} cannot be read: {error}") from None
    return TokenInfo(
        id=item["name"], label=item.get("label", ""), grants=grants, created_at_us=item.get("created_at_us", 0),
        expires_at_s=item.get("expires_at_s", 0),
    )  # fmt: skip
