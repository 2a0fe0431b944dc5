"""How workers share the buckets: which of them looks at what, computed by each worker from the same names.

The shares are even: no two differ by more than one bucket. They are stable: what a worker that joined or left does not
need stays mostly where it was. Every pair of worker and bucket has a score, a hash of both; the pairs are taken from
the highest score on, and a pair counts when its bucket is free and its worker has room. Nothing is written down.

Where there are more workers than buckets, each bucket is cut into parts, by a second hash of the execution's id:
several workers read the same entries of the index, and each takes its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

_SCORE_BYTES = 8
_SCORES = 64 // _SCORE_BYTES
"""Scores that one hash gives."""


class Share:
    """What one worker looks at.

    Args:
        units: the worker's own; unit ``u`` is part ``u % parts`` of bucket ``u // parts``.
        parts: of each bucket; 1: buckets are whole.
    """

    __slots__ = ("buckets", "parts", "units")

    def __init__(self, units: Iterable[int], parts: int = 1) -> None:
        self.units = frozenset(units)
        self.parts = parts
        self.buckets: Sequence[int] = sorted({unit // parts for unit in self.units})
        """The buckets whose entries it reads."""

    def takes(self, entry: Mapping[str, Any]) -> bool:
        """Whether an entry of the ``pending`` index, found in one of ``buckets``, is this worker's."""
        if self.parts == 1:
            return True
        bucket = int(str(entry["pending"]).rpartition("/")[2])
        return bucket * self.parts + part_of(str(entry["id"]), self.parts) in self.units

    def looks_at(self, entry: Mapping[str, Any]) -> bool:
        """Whether an entry is this worker's, in whichever bucket it was found."""
        return int(str(entry["pending"]).rpartition("/")[2]) in self.buckets and self.takes(entry)


def part_of(id: str, parts: int) -> int:
    """The part of its bucket in which an execution is. Independent of the bucket, unlike a remainder of its hash."""
    return int.from_bytes(hashlib.blake2b(id.encode(), digest_size=4).digest(), "big") % parts


def parts_of(buckets: int, workers: int) -> int:
    """Into how many parts each bucket is cut, so that there is at least one for each worker: a power of two."""
    parts = 1
    while buckets * parts < workers:
        parts *= 2
    return parts


def share_out(buckets: int, names: Collection[str]) -> dict[str, Share]:
    """The share of each worker, by name.

    The sizes differ by one at most: a bucket where there are enough of them, else a part of one. When a worker joins,
    what moves is its own new share and, beside it, about a twentieth of the buckets: a fifth at most with 16 buckets,
    an eighth with 64, in thousands of draws. The same when one leaves. When their number passes the number of buckets,
    or twice, four times that, the parts change and all may move.
    """
    parts = parts_of(buckets, len(names))
    units = buckets * parts
    least, larger = divmod(units, len(names))
    pairs = [(score, name, unit) for name in names for unit, score in enumerate(_scores(name, units))]
    pairs.sort(reverse=True)
    owned: dict[str, list[int]] = {name: [] for name in names}
    is_free = [True] * units
    for _, name, unit in pairs:
        own = owned[name]
        if is_free[unit] and (len(own) < least or (len(own) == least and larger)):
            larger -= len(own) == least
            is_free[unit] = False
            own.append(unit)
    return {name: Share(own, parts) for name, own in owned.items()}


def _scores(name: str, count: int) -> list[bytes]:
    """A score for each unit: of its bucket and part alone, whatever the number of the others."""
    scores: list[bytes] = []
    for block in range(-(-count // _SCORES)):
        digest = hashlib.blake2b(f"{block}/{name}".encode()).digest()
        scores += [digest[at : at + _SCORE_BYTES] for at in range(0, len(digest), _SCORE_BYTES)]
    return scores[:count]
