"""The reference backend: tables in memory, for tests and for ``memory:``.

:class:`MemoryTables` is the data and the meaning of each effect, one item at a time, so that the simulator can apply a
transaction's items one by one. :class:`MemoryBackend` puts a lock around it. It keeps nothing after the process ends.
"""

from __future__ import annotations

import bisect
import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

from casework.backends.port import LARGEST_PAGE_BYTES, StoreEffect
from casework.backends.refusals import raise_refusals
from casework.backends.surroundings import Clock, HostClock, SeededTokens, VirtualClock, random_token
from casework.errors import MissingTable, Misuse, Refusal
from casework.kernel.conditions import evaluate
from casework.kernel.cursor import make_cursor, read_cursor
from casework.kernel.effects import Get, GetMany, Instant, Outcome, Page, Query, Transact, Write
from casework.kernel.items import AnyWrite, Check, Delete, Index, Item, Key, Table, Update, apply_write
from casework.kernel.limits import (
    MAX_ITEM_BYTES,
    MAX_PARTITION_BYTES,
    MAX_SORT_BYTES,
    check_key,
    check_query,
    checked_key,
    checked_keys,
    size_of,
)

_Place = tuple[str | int, str, str | int | None]

_LARGEST_ENTRY_BYTES = 2 * (MAX_PARTITION_BYTES + MAX_SORT_BYTES) + 4 * 255
"""Of an index's entry: two keys and their names."""


class _BehindAll:
    """Sorts behind every string."""

    def __lt__(self, other: object) -> bool:
        return False

    def __gt__(self, other: object) -> bool:
        return True


_BEHIND_ALL: Any = _BehindAll()


class StoredTable:
    """One table: items by key, and for the table and each index the sorted places of each partition."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.items: dict[tuple[str, str | int | None], Item] = {}
        self.order: dict[str, list[_Place]] = {}
        self.index_order: dict[str, dict[str, list[_Place]]] = {index.name: {} for index in table.indexes}
        self.index_names = {index.name: _names_of(table, index) for index in table.indexes}
        """What an index entry holds: keys only."""

    def store(self, key: Key, item: Item | None) -> None:
        """Put ``item`` at ``key`` (None: remove), and move its index entries."""
        place = (key.partition, key.sort)
        before = self.items.get(place)
        own: _Place = (key.sort if key.sort is not None else 0, key.partition, key.sort)
        if item is None:
            if before is not None:
                del self.items[place]
                _remove(self.order, key.partition, own)
        else:
            self.items[place] = item
            if before is None:
                _insert(self.order, key.partition, own)
        for index in self.table.indexes:
            self._move(index, key, before, item)

    def _move(self, index: Index, key: Key, before: Item | None, after: Item | None) -> None:
        old, new = _index_place(index, key, before), _index_place(index, key, after)
        if old == new:
            return
        order = self.index_order[index.name]
        if old is not None:
            _remove(order, old[0], old[1])
        if new is not None:
            _insert(order, new[0], new[1])


def _index_place(index: Index, key: Key, item: Item | None) -> tuple[str, _Place] | None:
    if item is None or index.partition not in item or index.sort not in item:
        return None
    return str(item[index.partition]), (item[index.sort], key.partition, key.sort)  # type: ignore[return-value]


def _insert(order: dict[str, list[_Place]], partition: str, place: _Place) -> None:
    bisect.insort(order.setdefault(partition, []), place)


def _remove(order: dict[str, list[_Place]], partition: str, place: _Place) -> None:
    places = order[partition]
    del places[bisect.bisect_left(places, place)]
    if not places:
        del order[partition]


class MemoryTables:
    """The data, and what each effect means. Not locked: its owner serialises."""

    def __init__(self) -> None:
        self._tables: dict[str, StoredTable] = {}

    def create(self, table: Table) -> None:
        """Make a table; harmless when it is there."""
        if table.name not in self._tables:
            self._tables[table.name] = StoredTable(table)

    def stored(self, table: Table) -> StoredTable:
        """One table's items and orders; MissingTable when there is none of that name."""
        try:
            return self._tables[table.name]
        except KeyError:
            raise MissingTable(f"the store has no table {table.name!r}; make it with create_tables()") from None

    def get(self, key: Key) -> Item | None:
        """A copy of the item at ``key``."""
        item = self.stored(key.table).items.get((key.partition, key.sort))
        return None if item is None else item.copy()

    def peek(self, key: Key) -> Item | None:
        """The item at ``key`` itself, not a copy; for an owner who changes what indexes do not see."""
        return self.stored(key.table).items.get((key.partition, key.sort))

    def put_raw(self, key: Key, item: Item | None) -> None:
        """Put ``item`` at ``key`` without any check (None: remove)."""
        self.stored(key.table).store(key, item)

    def query(self, query: Query) -> Page:
        """One page of a partition of a table or an index."""
        stored = self.stored(query.table)
        order = stored.order if query.index is None else stored.index_order[query.index]
        position = read_cursor(query)
        places = order.get(query.partition)
        if not places:
            return Page([])
        low, high = query.low, query.high
        start = 0 if low is None else bisect.bisect_left(places, (low,))
        stop = len(places) if high is None else bisect.bisect_left(places, (high, _BEHIND_ALL))
        if position is not None and query.reverse:
            stop = min(stop, bisect.bisect_left(places, position))
        elif position is not None:
            start = max(start, bisect.bisect_right(places, position))
        chosen = places[start:stop]
        if query.reverse:
            chosen.reverse()
        return _take_page(query, chosen, stored)

    def refusal(self, write: AnyWrite, key: Key | None = None) -> Refusal | None:
        """Why ``write`` is refused now, or None. Who knows its ``key`` saves making it again."""
        key = key or write.key
        before = self.peek(key)
        if write.when is not None and not evaluate(write.when, before):
            return Refusal("condition", None if before is None else before.copy())
        if type(write) is Update:  # an item that is put was measured before it was sent
            after = apply_write(write, before)
            if after is not None and size_of(after, key) > MAX_ITEM_BYTES:
                return Refusal("too_large", None)
        return None

    def apply(self, write: AnyWrite, key: Key | None = None) -> None:
        """Carry out a write whose condition was found to hold."""
        if type(write) is Check:
            return
        key = key or write.key
        after = None if type(write) is Delete else apply_write(write, self.peek(key))
        self.stored(key.table).store(key, after)

    def refusals(self, writes: Sequence[AnyWrite], keys: Sequence[Key] = ()) -> list[Refusal | None]:
        """For each write, why it is refused now, or None. Who knows their ``keys`` saves making them again."""
        keys = keys or [write.key for write in writes]
        return [self.refusal(write, key) for write, key in zip(writes, keys, strict=True)]


def _take_page(query: Query, places: list[_Place], stored: StoredTable) -> Page:
    limit = query.limit
    more = limit is not None and len(places) > limit
    if more:
        places = places[:limit]
    if query.index is None:
        items = [stored.items[place[1:]].copy() for place in places]
        weighs = len(places) * MAX_ITEM_BYTES > LARGEST_PAGE_BYTES
    else:
        names = stored.index_names[query.index]
        items = []
        for place in places:
            item = stored.items[place[1:]]
            items.append({name: item[name] for name in names if name in item})
        weighs = len(places) * _LARGEST_ENTRY_BYTES > LARGEST_PAGE_BYTES
    if weighs:  # so few cannot fill a page otherwise
        count = _that_fit(items, stored.table)
        more = more or count < len(items)
        del items[count:]
    return Page(items, make_cursor(query, places[len(items) - 1])) if more else Page(items)


def _that_fit(items: Sequence[Item], table: Table) -> int:
    """How many items a page takes: up to the one that fills it."""
    size = 0
    for count, item in enumerate(items, 1):
        size += size_of(item, table.name)
        if size >= LARGEST_PAGE_BYTES:
            return count
    return len(items)


def _names_of(table: Table, index: Index) -> tuple[str, ...]:
    names = (table.partition, table.sort, index.partition, index.sort)
    return tuple(name for name in names if name is not None)


class MemoryBackend:
    """A store in this process's memory.

    Args:
        seed: makes tokens reproducible; None takes them from the operating system.
        clock: a :class:`~casework.backends.surroundings.VirtualClock` makes time stand still until it is moved.
    """

    def __init__(self, *, seed: int | None = None, clock: Clock | None = None) -> None:
        self.clock = clock or HostClock()
        self.tables = MemoryTables()
        self._lock = threading.Lock()
        self._tokens: Callable[[], str] = random_token if seed is None else SeededTokens(seed)

    def execute(self, effect: StoreEffect) -> Any:
        """Carry out one effect; see :class:`casework.backends.port.Backend`."""
        if isinstance(effect, Write):
            key, _ = checked_key(effect.write)
            return self._commit([effect.write], [key])
        if isinstance(effect, Transact):
            keys, _ = checked_keys(effect.writes)
            return self._commit(effect.writes, keys)
        if isinstance(effect, Query):
            check_query(effect)
            with self._lock:
                return self.tables.query(effect)
        if isinstance(effect, Get):
            check_key(effect.key)
            with self._lock:
                return self.tables.get(effect.key)
        if isinstance(effect, GetMany):
            for key in effect.keys:
                check_key(key)
            with self._lock:
                return [self.tables.get(key) for key in effect.keys]
        raise Misuse(f"{effect!r:.80} is not an effect of a store")

    def _commit(self, writes: Sequence[AnyWrite], keys: Sequence[Key]) -> None:
        with self._lock:
            raise_refusals(self.tables.refusals(writes, keys))
            for write, key in zip(writes, keys, strict=True):
                self.tables.apply(write, key)

    def execute_many(self, effects: Sequence[StoreEffect]) -> list[Outcome[Any]]:
        """Carry out each effect in turn."""
        outcomes: list[Outcome[Any]] = []
        for effect in effects:
            try:
                outcomes.append(Outcome(self.execute(effect)))
            except Exception as error:
                outcomes.append(Outcome(error=error))
        return outcomes

    def walk(self, table: Table, limit: int, after: str | None) -> tuple[list[Item], str | None]:
        """A page of a whole table, for operators; ``after`` is what the page before handed back."""
        with self._lock:
            stored = self.tables.stored(table).items
            places = sorted((json.dumps(place), place) for place in stored)
            start = 0 if after is None else bisect.bisect_right(places, (after, _BEHIND_ALL))
            chosen = places[start : start + limit]
            items = [dict(stored[place]) for _, place in chosen]
        return items, chosen[-1][0] if len(chosen) == limit else None

    def now(self) -> Instant:
        """The clock's time."""
        return self.clock.now()

    def token(self) -> str:
        """A fresh token."""
        return self._tokens()

    def sleep(self, seconds: float) -> None:
        """Let the clock's time pass."""
        self.clock.sleep(seconds)

    @property
    def let_pass(self) -> Callable[[float], None] | None:
        """How a wait for something else passes in virtual time; None where real time has to pass."""
        return self.clock.sleep if isinstance(self.clock, VirtualClock) else None

    def create_tables(self, tables: Sequence[Table]) -> None:
        """Make the tables that are missing."""
        with self._lock:
            for table in tables:
                self.tables.create(table)

    def close(self) -> None:
        """Nothing to give back."""
