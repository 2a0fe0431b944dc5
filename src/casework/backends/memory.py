"""The reference backend: tables in memory, for tests and for ``memory:``.

:class:`MemoryTables` is the data and the meaning of each effect, one item at a time, so that the simulator can apply a
transaction's items one by one. :class:`MemoryBackend` puts a lock around it. It keeps nothing after the process ends.
"""

from __future__ import annotations

import bisect
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
from casework.kernel.items import AnyWrite, Check, Delete, Index, Item, Key, Table, apply_write
from casework.kernel.limits import MAX_ITEM_BYTES, check_key, check_query, check_transaction, check_write, size_of

_Place = tuple[str | int, str, str | int | None]


class StoredTable:
    """One table: items by key, and for the table and each index the sorted places of each partition."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.items: dict[tuple[str, str | int | None], Item] = {}
        self.order: dict[str, list[_Place]] = {}
        self.index_order: dict[str, dict[str, list[_Place]]] = {index.name: {} for index in table.indexes}

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
        self._tables.setdefault(table.name, StoredTable(table))

    def stored(self, table: Table) -> StoredTable:
        """One table's items and orders; MissingTable when there is none of that name."""
        try:
            return self._tables[table.name]
        except KeyError:
            raise MissingTable(f"the store has no table {table.name!r}; make it with create_tables()") from None

    def get(self, key: Key) -> Item | None:
        """A copy of the item at ``key``."""
        item = self.stored(key.table).items.get((key.partition, key.sort))
        return None if item is None else dict(item)

    def peek(self, key: Key) -> Item | None:
        """The item at ``key`` itself, not a copy; for an owner who changes what indexes do not see."""
        return self.stored(key.table).items.get((key.partition, key.sort))

    def put_raw(self, key: Key, item: Item | None) -> None:
        """Put ``item`` at ``key`` without any check (None: remove)."""
        self.stored(key.table).store(key, item)

    def query(self, query: Query) -> Page:
        """One page of a partition of a table or an index."""
        stored = self.stored(query.table)
        places = (stored.order if query.index is None else stored.index_order[query.index]).get(query.partition, [])
        start = 0 if query.low is None else bisect.bisect_left(places, query.low, key=lambda p: p[0])
        stop = len(places) if query.high is None else bisect.bisect_right(places, query.high, key=lambda p: p[0])
        position = read_cursor(query)
        if position is not None and not query.reverse:
            start = max(start, bisect.bisect_right(places, position))
        if position is not None and query.reverse:
            stop = min(stop, bisect.bisect_left(places, position))
        chosen = range(stop - 1, start - 1, -1) if query.reverse else range(start, stop)
        return _take_page(query, [places[i] for i in chosen], stored)

    def refusal(self, write: AnyWrite) -> Refusal | None:
        """Why ``write`` is refused now, or None."""
        before = self.get(write.key)
        if not evaluate(write.when, before):
            return Refusal("condition", before)
        after = apply_write(write, before)
        if after is not None and size_of(after, write.key) > MAX_ITEM_BYTES:
            return Refusal("too_large", None)
        return None

    def apply(self, write: AnyWrite) -> None:
        """Carry out a write whose condition was found to hold."""
        if type(write) is Check:
            return
        key = write.key
        after = None if type(write) is Delete else apply_write(write, self.get(key))
        self.stored(key.table).store(key, after)

    def refusals(self, writes: Sequence[AnyWrite]) -> list[Refusal | None]:
        """For each write, why it is refused now, or None."""
        return [self.refusal(write) for write in writes]


def _take_page(query: Query, places: list[_Place], stored: StoredTable) -> Page:
    items: list[Item] = []
    size = 0
    for place in places:
        item = stored.items[(place[1], place[2])]
        if query.index is not None:
            item = _keys_only(query.table, query.table.index(query.index), item)
        items.append(dict(item))
        size += size_of(item, stored.table.name)
        full = size >= LARGEST_PAGE_BYTES or (query.limit is not None and len(items) >= query.limit)
        if full and place is not places[-1]:
            return Page(items, make_cursor(query, place))
    return Page(items)


def _keys_only(table: Table, index: Index, item: Item) -> Item:
    names = (table.partition, table.sort, index.partition, index.sort)
    return {name: item[name] for name in names if name is not None and name in item}


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
            check_write(effect.write)
            return self._commit([effect.write])
        if isinstance(effect, Transact):
            check_transaction(effect.writes)
            return self._commit(effect.writes)
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

    def _commit(self, writes: Sequence[AnyWrite]) -> None:
        with self._lock:
            raise_refusals(self.tables.refusals(writes))
            for write in writes:
                self.tables.apply(write)

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
        start = int(after or 0)
        with self._lock:
            items = [dict(item) for item in list(self.tables.stored(table).items.values())[start : start + limit]]
        return items, str(start + limit) if len(items) == limit else None

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
