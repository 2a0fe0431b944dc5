"""Indexes that lag: an entry becomes visible, or vanishes, some steps after its item did."""

from __future__ import annotations

import heapq
from typing import Any

from casework.backends.memory import MemoryTables
from casework.kernel.effects import Page, Query
from casework.kernel.items import Item, Key, Table
from casework.simulation.carrier import Carrier


class LaggingIndex:
    """What index queries see: the tables as they were a few steps ago, item by item.

    Kept as a second set of tables, to which each change is carried over when its time has come. Changes of one item
    stay in order, as they do in the service.
    """

    def __init__(self) -> None:
        self._due: list[tuple[int, int, Key, Item | None]] = []
        self._last: dict[tuple[str, str, Any], int] = {}
        self._seen: MemoryTables | None = None
        self._number = 0

    def note(self, world: Carrier, key: Key, before: Item | None, after: Item | None) -> None:
        """An item changed."""
        lag = world.faults.index_lag
        if not lag and self._seen is None:
            return
        if self._seen is None:
            self._seen = MemoryTables()
        if not _is_seen(key.table, before or _NOTHING, after or _NOTHING):
            return
        place = (key.table.name, key.partition, key.sort)
        visible_at = world.steps + (world.choices.below(lag + 1) if lag else 0)
        visible_at = max(visible_at, self._last.get(place, 0))
        self._last[place] = visible_at
        self._number += 1
        heapq.heappush(self._due, (visible_at, self._number, key, after))

    def query(self, tables: MemoryTables, query: Query, step: int) -> Page:
        """A page of an index, as it has become visible by now."""
        if self._seen is None:
            return tables.query(query)
        self._seen.create(query.table)
        while self._due and self._due[0][0] <= step:
            _, _, key, item = heapq.heappop(self._due)
            self._seen.create(key.table)
            self._seen.put_raw(key, item)
        return self._seen.query(query)


_NOTHING: Item = {}


def _is_seen(table: Table, before: Item, after: Item) -> bool:
    """Whether an index of the table shows a difference."""
    for index in table.indexes:
        partition, sort = index.partition, index.sort
        if before.get(partition) != after.get(partition) or before.get(sort) != after.get(sort):
            return True
    return False
