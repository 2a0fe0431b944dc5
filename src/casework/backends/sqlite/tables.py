"""Making tables, and adding an index to a table that was made without it."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from casework.backends.sqlite.layout import Layout
from casework.errors import Misuse

_ROWS = 500


def columns_of(connection: sqlite3.Connection, layout: Layout) -> list[tuple[str, str, int]]:
    """Name, type and place in the primary key (0: none) of each column; empty when there is no such table."""
    statement = f"PRAGMA table_info({layout.sql_table})"
    return [(name, kind, place) for _, name, kind, _, _, place in connection.execute(statement)]


def lacking(connection: sqlite3.Connection, layout: Layout) -> list[str] | None:
    """The indexes that the table in the file lacks; None when there is no such table, Misuse when it is another one."""
    found = columns_of(connection, layout)
    if not found:
        return None
    key = [(name, kind) for name, kind, place in sorted(found, key=lambda column: column[2]) if place]
    names = {name for name, _, _ in found}
    if key != layout.key_columns or "attributes" not in names:
        raise Misuse(
            f"the file's table {layout.name!r} has the key {key}, but the definition says {layout.key_columns}; use"
            " another name for the new table"
        )
    return [index.name for index in layout.indexes if not names.issuperset(layout.index_columns[index.name])]


def create(connection: sqlite3.Connection, layouts: Sequence[Layout]) -> None:
    """Inside a transaction: make what is missing. An index that is added takes in the items that are there."""
    for layout in layouts:
        missing = lacking(connection, layout)
        if missing is None:
            connection.execute(layout.create_table())
        elif missing:
            _add_columns(connection, layout, missing)
        for index in layout.indexes:
            connection.execute(layout.create_index(index))


def _add_columns(connection: sqlite3.Connection, layout: Layout, missing: Sequence[str]) -> None:
    for index in layout.indexes:
        if index.name in missing:
            for column in layout.index_column_definitions(index):
                connection.execute(f"ALTER TABLE {layout.sql_table} ADD COLUMN {column}")
    last = -(2**63)
    while True:
        rows = connection.execute(layout.scan, (last, _ROWS)).fetchall()
        if not rows:
            return
        last = rows[-1][0]
        changes = [
            (*layout.entries_of(layout.item_of(partition, sort, text)), rowid) for rowid, partition, sort, text in rows
        ]
        connection.executemany(layout.set_entries, changes)
