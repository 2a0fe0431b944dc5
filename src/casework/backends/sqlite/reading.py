"""Reads: one statement for many keys, or for many queries of the same shape."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from casework.backends.port import LARGEST_PAGE_BYTES
from casework.backends.sqlite.known import LARGEST_TEXT, Known, Place
from casework.backends.sqlite.layout import Layout
from casework.errors import CaseworkError, CorruptItem
from casework.kernel.cursor import make_cursor, read_cursor
from casework.kernel.effects import Outcome, Page, Query
from casework.kernel.items import Item
from casework.kernel.limits import MAX_PARTITION_BYTES, MAX_SORT_BYTES, size_of

Row = tuple[Any, ...]

_encode = msgspec.json.Encoder().encode
_KEY_BYTES = MAX_PARTITION_BYTES + MAX_SORT_BYTES + 512
_SOME_LIMIT = 2**62


def _rows_of(query: Query) -> int:
    """How many rows to ask for: one more than the page takes tells whether there is a next page."""
    return min(query.limit or _SOME_LIMIT, _SOME_LIMIT) + 1


def most_bytes(text: str) -> int:
    """No item with this text has more bytes than this, as limits count them."""
    return (len(text) if text.isascii() else 4 * len(text)) + _KEY_BYTES


def fetch_texts(connection: sqlite3.Connection, places: Iterable[Place]) -> dict[Place, str]:
    """The text of every row that is there, by place."""
    by_layout: dict[Layout, list[Place]] = {}
    for place in places:
        by_layout.setdefault(place[0], []).append(place)
    found: dict[Place, str] = {}
    for layout, wanted in by_layout.items():
        has_sort = layout.sort is not None
        position = 0
        for size, statement in layout.get_chunks:
            while len(wanted) - position >= size:
                chunk = wanted[position : position + size]
                position += size
                values: list[Any] = [part for place in chunk for part in (place[1:] if has_sort else place[1:2])]
                rows = connection.execute(statement, values).fetchall()
                if has_sort:
                    for partition, sort, text in rows:
                        found[(layout, partition, sort)] = text
                else:
                    for partition, text in rows:
                        found[(layout, partition, None)] = text
    return found


def fetch_items(connection: sqlite3.Connection, places: Sequence[Place], known: Known) -> dict[Place, Item]:
    """Every item that is there, by place; CorruptItem for one that cannot be read."""
    items: dict[Place, Item] = {}
    for place, text in fetch_texts(connection, dict.fromkeys(places)).items():
        item = items[place] = place[0].item_of(place[1], place[2], text)
        known.note(place, text, item.copy())
    return items


def query_one(connection: sqlite3.Connection, layout: Layout, query: Query, known: Known) -> Page:
    """The page that ``query`` asks for."""
    if query.index is not None:
        return _query_index(connection, layout, query)
    statement, values = _table_statement(layout, query)
    cursor = connection.execute(statement, values)
    try:
        return _take_page(
            query, cursor, lambda row: _table_item(layout, query.partition, row, known), most_bytes_of_row
        )
    finally:
        cursor.close()


def most_bytes_of_row(row: Row) -> int:
    """The bound of :func:`most_bytes` for a row of a table."""
    return most_bytes(row[1])


def _table_item(layout: Layout, partition: str, row: Row, known: Known) -> tuple[Item, Any]:
    sort = None if layout.sort is None else row[0]
    item = layout.item_of(partition, sort, row[1])
    known.note((layout, partition, sort), row[1], item.copy())
    return item, (row[0], partition, sort)


def _table_statement(layout: Layout, query: Query) -> tuple[str, list[Any]]:
    values: list[Any] = [query.partition]
    sort = layout.sql_sort
    if sort is None:
        # a partition holds one item, so there is nothing behind a cursor
        nothing = "" if read_cursor(query) is None else " AND 0"
        return (
            f"SELECT 0, attributes FROM {layout.sql_table} WHERE {layout.sql_partition} = ?{nothing}",
            values,
        )
    where = [f"{layout.sql_partition} = ?"]
    if query.low is not None:
        where.append(f"{sort} >= ?")
        values.append(query.low)
    if query.high is not None:
        where.append(f"{sort} <= ?")
        values.append(query.high)
    position = read_cursor(query)
    if position is not None:
        where.append(f"{sort} {'<' if query.reverse else '>'} ?")
        values.append(position[0])
    values.append(_rows_of(query))
    return (
        f"SELECT {sort}, attributes FROM {layout.sql_table} WHERE {' AND '.join(where)}"
        f" ORDER BY {sort} {'DESC' if query.reverse else 'ASC'} LIMIT ?",
        values,
    )


def _query_index(connection: sqlite3.Connection, layout: Layout, query: Query) -> Page:
    index = layout.table.index(query.index or "")
    index_partition, index_sort = layout.sql_index[index.name]
    order = [index_sort, layout.sql_partition] + ([] if layout.sql_sort is None else [layout.sql_sort])
    where, values = [f"{index_partition} = ?"], [query.partition]
    if query.low is not None:
        where.append(f"{index_sort} >= ?")
        values.append(query.low)  # type: ignore[arg-type]
    if query.high is not None:
        where.append(f"{index_sort} <= ?")
        values.append(query.high)  # type: ignore[arg-type]
    position = read_cursor(query)
    if position is not None:
        behind = "<" if query.reverse else ">"
        where.append(f"({', '.join(order)}) {behind} ({', '.join('?' * len(order))})")
        values += position[: len(order)]  # type: ignore[arg-type]
    direction = "DESC" if query.reverse else "ASC"
    statement = (
        f"SELECT {', '.join(order)} FROM {layout.sql_table} WHERE {' AND '.join(where)}"
        f" ORDER BY {', '.join(f'{column} {direction}' for column in order)} LIMIT ?"
    )
    cursor = connection.execute(statement, [*values, _rows_of(query)])

    def item_of(row: Row) -> tuple[Item, Any]:
        own = None if layout.sort is None else row[2]
        item: Item = {index.partition: query.partition, index.sort: row[0], layout.partition: row[1]}
        if layout.sort is not None:
            item[layout.sort] = row[2]
        return item, (row[0], row[1], own)

    try:
        return _take_page(query, cursor, item_of, lambda row: 2 * _KEY_BYTES)
    finally:
        cursor.close()


def _take_page(
    query: Query,
    rows: Iterable[Row],
    item_of: Callable[[Row], tuple[Item, Any]],
    most_bytes_of: Callable[[Row], int],
) -> Page:
    """Rows up to the limit or the size of a page; a cursor when another row stands behind it."""
    items: list[Item] = []
    size, cut, position = 0, False, None
    for row in rows:
        if cut:
            return Page(items, make_cursor(query, position))  # type: ignore[arg-type]
        item, position = item_of(row)
        items.append(item)
        size += most_bytes_of(row)
        if size >= LARGEST_PAGE_BYTES:
            size = sum(size_of(one, query.table.name) for one in items)
        cut = size >= LARGEST_PAGE_BYTES or (query.limit is not None and len(items) >= query.limit)
    return Page(items)


def query_many(
    connection: sqlite3.Connection, layout: Layout, queries: Sequence[Query], known: Known
) -> list[Outcome[Page]]:
    """Pages of partitions between the same bounds, in one statement, each with its own limit.

    A partition that holds more than a page of the store, or something damaged, is read again alone.
    """
    outcomes: list[Outcome[Page]] = []
    while len(outcomes) < len(queries):
        pages, is_whole = _query_run(connection, layout, queries[len(outcomes) :], known)
        outcomes += [Outcome(page) for page in pages]
        if not is_whole:
            outcomes.append(outcome_of(query_one, connection, layout, queries[len(outcomes)], known))
    return outcomes


def _query_run(
    connection: sqlite3.Connection, layout: Layout, queries: Sequence[Query], known: Known
) -> tuple[list[Page], bool]:
    """The pages of the first queries, up to one that is cut at its limit; False when the next must be read alone."""
    pages = [Page([]) for _ in queries]
    partitions = [query.partition for query in queries]
    limits = [query.limit or _SOME_LIMIT for query in queries]
    low, high = queries[0].low, queries[0].high
    has_sort = layout.sort is not None
    item_of, young = layout.item_of, known.young
    at, size, count, characters = -1, 0, 0, 0
    items: list[Item] = []
    own: str | int | None = None
    values = [_encode(partitions).decode()]
    if low is None:
        cursor = connection.execute(layout.query_many, values)
    else:
        cursor = connection.execute(layout.query_many_between, [*values, low, high])
    try:
        for position, sort, text in cursor:
            if position != at:
                at, size, items = position, 0, pages[position].items
            elif len(items) >= limits[at]:
                pages[at].next = make_cursor(queries[at], (own, partitions[at], own))  # type: ignore[arg-type]
                return pages[: at + 1], True
            length = len(text)
            size += _KEY_BYTES + (length if text.isascii() else 4 * length)
            if size >= LARGEST_PAGE_BYTES:
                return pages[:at], False
            partition = partitions[at]
            own = sort if has_sort else None
            item = item_of(partition, own, text)
            items.append(item)
            if length <= LARGEST_TEXT:
                young[(layout, partition, own)] = (text, item.copy())
                count += 1
                characters += length
    except CorruptItem:
        return pages[:at], False
    finally:
        cursor.close()
        known.grew(count, characters)
    return pages, True


def outcome_of(read: Callable[..., Any], *arguments: Any) -> Outcome[Any]:
    """What ``read`` answers, or its own error; an error of SQLite's is for the caller."""
    try:
        return Outcome(read(*arguments))
    except CaseworkError as error:
        return Outcome(error=error)
