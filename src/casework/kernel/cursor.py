"""Cursors: opaque, URL-safe text that says where a query's next page begins, bound to the query that made it."""

from __future__ import annotations

import base64
import binascii
import hashlib

import msgspec

from casework.errors import WrongCursor
from casework.kernel.effects import Query

Position = tuple[str | int, str, str | int | None]
"""Where a page ended: sort value in the index (or table), and the item's own key."""


def _binding(query: Query) -> str:
    """A digest of everything that must be the same on the next page; the limit may change."""
    parts = (query.table.name, query.partition, query.index, query.low, query.high, query.reverse)
    return hashlib.blake2b(msgspec.json.encode(parts), digest_size=6).hexdigest()


def make_cursor(query: Query, position: Position) -> str:
    """The cursor behind the item at ``position``."""
    return base64.urlsafe_b64encode(msgspec.json.encode([_binding(query), *position])).decode().rstrip("=")


def read_cursor(query: Query) -> Position | None:
    """The position in ``query.after``; WrongCursor when it is not a cursor, or one of another query."""
    if query.after is None:
        return None
    try:
        padded = query.after + "=" * (-len(query.after) % 4)
        binding, sort, partition, own = msgspec.json.decode(base64.urlsafe_b64decode(padded.encode()))
        if type(partition) is not str or not all(_can_be_sort(value) for value in (sort, own)):
            raise ValueError
    except (binascii.Error, msgspec.DecodeError, ValueError, TypeError):
        raise WrongCursor(
            f"{query.after!r:.80} is not a cursor; pass the one that a page handed back, unchanged"
        ) from None
    if binding != _binding(query):
        raise WrongCursor(
            "this cursor belongs to another query; use it with the filters it was made with, or start again"
        )
    return sort, partition, own


def _can_be_sort(value: object) -> bool:
    return value is None or type(value) is str or (type(value) is int and -(2**63) <= value < 2**63)
