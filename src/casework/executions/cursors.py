"""Cursors of listings that walk several partitions of an index in order."""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import Any

import msgspec

from casework.errors import Misuse, WrongCursor

MAX_LIMIT = 1000


class Place(msgspec.Struct, array_like=True):
    """Where a listing stands."""

    binding: str
    partition: int
    inner: str | None
    names: list[str] = []
    """Partitions that the first page found, where they can become more."""
    path: list[tuple[int, str, int]] = []
    """Inside what stands at ``inner``: the child that comes next, and above it those that it descends from, each as the
    stay, the id of its invocation, and its ordinal."""


def read_place(cursor: str | None, filters: list[Any], limit: int) -> Place:
    """Where a listing goes on; Misuse for a limit out of bounds, or a cursor that is not this listing's."""
    if type(limit) is not int or not 1 <= limit <= MAX_LIMIT:
        raise Misuse(f"limit is {limit!r:.80}; it must be 1 to {MAX_LIMIT}")
    binding = hashlib.blake2b(msgspec.json.encode(filters), digest_size=6).hexdigest()
    if cursor is None:
        return Place(binding, 0, None)
    try:
        place = msgspec.json.decode(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)), type=Place)
        if place.partition < 0 or place.inner == "":
            raise ValueError
    except (binascii.Error, ValueError, msgspec.DecodeError, TypeError):
        raise WrongCursor(f"{cursor!r:.80} is not a cursor; pass the one that a page handed back, unchanged") from None
    if place.binding != binding:
        raise WrongCursor(
            "this cursor belongs to another listing; use it with the filters it was made with, or start again"
        )
    return place


def write_place(place: Place) -> str:
    """The cursor of a place."""
    return base64.urlsafe_b64encode(msgspec.json.encode(place)).decode().rstrip("=")
