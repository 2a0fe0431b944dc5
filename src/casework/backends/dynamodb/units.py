"""What DynamoDB charges for, computed from sizes: to check counts, and where a server reports none. Pure.

Amazon DynamoDB Developer Guide, "DynamoDB read and write operations": a write unit is 1 KB of the larger of the item
before and after, a transactional write costs two; a read unit is 4 KB read consistently, half of that otherwise. An
index is written when an entry comes, goes, moves (two writes) or has a projected attribute changed; never at the
transactional price, since it follows later. A refused conditional write costs what the item that refused it would.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from casework.backends.dynamodb.encode import NONCE
from casework.kernel.items import AnyWrite, Check, Delete, Index, Item, Scalar, Table, apply_write
from casework.kernel.limits import size_of

NONCE_BYTES = len(NONCE) + 22


class Units(msgspec.Struct, frozen=True):
    """Write units of one write."""

    base: float
    index: float = 0.0

    @property
    def total(self) -> float:
        """Base and index together."""
        return self.base + self.index


def kilobytes(size: int, of: int = 1) -> int:
    """Units of ``of`` KB that ``size`` bytes take: at least one."""
    return max(1, math.ceil(size / (1024 * of)))


def read_units(sizes: Sequence[int], *, consistent: bool = True, each: bool = False) -> float:
    """Read units of one read.

    Args:
        sizes: of the items read, in bytes; a get that finds nothing reads 0 bytes and costs one unit all the same.
        consistent: half the price when not.
        each: every item is rounded up by itself (``batch_get_item``); else their sum is (``query``).
    """
    units = sum(kilobytes(size, 4) for size in sizes) if each else kilobytes(sum(sizes), 4)
    return units if consistent else units / 2


def write_units(write: AnyWrite, before: Mapping[str, Scalar] | None, *, transactional: bool) -> Units:
    """Write units of a write that was carried out, given the item before it."""
    table = write.key.table
    after = None if isinstance(write, Delete) else apply_write(write, before)
    size = max(_stored_bytes(before, table), _stored_bytes(after, table))
    base = kilobytes(size) * (2 if transactional else 1)
    if isinstance(write, Check):
        return Units(base)
    return Units(base, sum(_index_units(table, index, before, after) for index in table.indexes))


def refusal_units(item: Mapping[str, Scalar] | None, table: Table, *, transactional: bool) -> float:
    """Write units of a conditional write that ``item`` refused."""
    return kilobytes(_stored_bytes(item, table)) * (2 if transactional else 1)


def _stored_bytes(item: Mapping[str, Scalar] | None, table: Table) -> int:
    return 0 if item is None else size_of(item, table.name) + NONCE_BYTES


def _entry(table: Table, index: Index, item: Mapping[str, Scalar] | None) -> Item | None:
    if item is None or index.partition not in item or index.sort not in item:
        return None
    names = (table.partition, table.sort, index.partition, index.sort)
    return {name: item[name] for name in names if name is not None}


def _index_units(
    table: Table, index: Index, before: Mapping[str, Scalar] | None, after: Mapping[str, Scalar] | None
) -> int:
    old, new = _entry(table, index, before), _entry(table, index, after)
    if old == new:
        return 0
    return sum(kilobytes(size_of(entry, index.name)) for entry in (old, new) if entry is not None)
