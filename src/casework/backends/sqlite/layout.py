"""How a table of casework lies in an SQLite file: columns, statements, and the text of an item.

A row has the key in columns of its own and every other attribute in ``attributes``, as JSON text that a database
console can read. Items are flat, so a nested ``{"b64": ...}`` can only be bytes. The two attributes of an index are
repeated in columns ``<index>.partition`` and ``<index>.sort``, NULL unless the item has both, with a partial index
over them that also holds the key: a query of an index never touches the table.

Rows keep their rowid. Without it (the key as the table's own tree) small rows are written 20 % faster, but a row of
more than about 1,000 bytes spills to another page and costs 2.5 times as much; a state item is often that large.
"""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from casework.errors import CorruptItem, Misuse
from casework.kernel.items import Index, Item, Key, Table

RESERVED = ("casework_meta", "casework_writers")
"""Tables of the backend itself."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_BYTES_MARK = '{"b64":'
"""Stands in an item's text only where a value is bytes: inside a JSON string the quotes are escaped."""

_READ_CHUNKS = (128, 16, 1)
"""Keys of one statement; a few sizes, so that each statement is prepared once."""


def quoted(name: str) -> str:
    """``name`` as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


class Layout:
    """One table: its columns and its statements. There is one for each table of a backend, compared by identity."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.name = table.name
        self.partition = table.partition
        self.sort = table.sort
        self.indexes = table.indexes
        self.index_attributes = tuple((index.partition, index.sort) for index in table.indexes)
        if not table.name or table.name.lower() in RESERVED or table.name.lower().startswith("sqlite_"):
            raise Misuse(
                f"{table.name!r} cannot be the name of a table; {', '.join(RESERVED)} and sqlite_... are taken"
            )
        self.sql_table = quoted(table.name)
        taken = {"attributes"}
        self.key_columns = [(_column(table.partition, taken), "TEXT")]
        if table.sort is not None:
            self.key_columns.append((_column(table.sort, taken), _sql_type(table.sort_type)))
        self.index_columns = {
            index.name: (_column(f"{index.name}.partition", taken), _column(f"{index.name}.sort", taken))
            for index in table.indexes
        }
        self.sql_partition = quoted(self.key_columns[0][0])
        self.sql_sort = None if table.sort is None else quoted(self.key_columns[1][0])
        self.sql_index = {name: (quoted(one), quoted(two)) for name, (one, two) in self.index_columns.items()}
        self._make_statements()

    def _make_statements(self) -> None:
        table = self.sql_table
        keys = [self.sql_partition] if self.sql_sort is None else [self.sql_partition, self.sql_sort]
        entries = [column for pair in self.sql_index.values() for column in pair]
        columns = [*keys, "attributes", *entries]
        here = " AND ".join(f"{column} = ?" for column in keys)
        marks = ", ".join("?" * len(columns))
        self.insert = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks}) ON CONFLICT DO NOTHING"
        self.update = f"UPDATE {table} SET attributes = ? WHERE {here} AND attributes = ?"
        with_entries = ", ".join(f"{column} = ?" for column in ("attributes", *entries))
        self.update_entries = f"UPDATE {table} SET {with_entries} WHERE {here} AND attributes = ?"
        self.delete = f"DELETE FROM {table} WHERE {here} AND attributes = ?"
        self.get = f"SELECT attributes FROM {table} WHERE {here}"
        self.get_chunks = [(size, self._get_chunk(keys, size)) for size in _READ_CHUNKS]
        self.scan = (
            f"SELECT rowid, {self.sql_partition}, {self.sql_sort or 'NULL'}, attributes FROM {table}"
            " WHERE rowid > ? ORDER BY rowid LIMIT ?"
        )
        self.set_entries = f"UPDATE {table} SET {', '.join(f'{column} = ?' for column in entries)} WHERE rowid = ?"
        self.query_many = self._query_many("")
        if self.sql_sort is not None:
            sort = f"t.{self.sql_sort}"
            self.query_many_between = self._query_many(f" AND {sort} >= ? AND {sort} <= ?")

    def _query_many(self, bounds: str) -> str:
        sort = "0" if self.sql_sort is None else f"t.{self.sql_sort}"
        return (
            f"SELECT j.key, {sort}, t.attributes FROM json_each(?) j CROSS JOIN {self.sql_table} t"
            f" ON t.{self.sql_partition} = j.value{bounds}"
        )

    def _get_chunk(self, keys: list[str], size: int) -> str:
        names = [f"k{position}" for position in range(len(keys))]
        values = ", ".join([f"({', '.join('?' * len(keys))})"] * size)
        match = " AND ".join(f"t.{column} = k.{name}" for column, name in zip(keys, names, strict=True))
        return (
            f"WITH k({', '.join(names)}) AS (VALUES {values})"
            f" SELECT {', '.join(f't.{column}' for column in keys)}, t.attributes"
            f" FROM k CROSS JOIN {self.sql_table} t ON {match}"
        )

    def create_table(self) -> str:
        """What makes the table, without its indexes."""
        keys = [f"{quoted(name)} {kind} NOT NULL" for name, kind in self.key_columns]
        entries = [column for index in self.indexes for column in self.index_column_definitions(index)]
        primary = ", ".join(quoted(name) for name, _ in self.key_columns)
        columns = ", ".join([*keys, "attributes TEXT NOT NULL", *entries, f"PRIMARY KEY ({primary})"])
        return f"CREATE TABLE {self.sql_table} ({columns}) STRICT"

    def index_column_definitions(self, index: Index) -> list[str]:
        """The two columns of an index, with their types."""
        partition, sort = self.index_columns[index.name]
        return [f"{quoted(partition)} TEXT", f"{quoted(sort)} {_sql_type(index.sort_type)}"]

    def create_index(self, index: Index) -> str:
        """What makes one index; harmless where it is there."""
        partition, sort = self.sql_index[index.name]
        order = [partition, sort, self.sql_partition] + ([] if self.sql_sort is None else [self.sql_sort])
        return (
            f"CREATE INDEX IF NOT EXISTS {quoted(f'{self.name}.{index.name}')} ON {self.sql_table}"
            f" ({', '.join(order)}) WHERE {partition} IS NOT NULL"
        )

    def entries_of(self, item: Item) -> list[Any]:
        """The values of the index columns."""
        values: list[Any] = []
        for partition, sort in self.index_attributes:
            if partition in item and sort in item:
                values += (item[partition], item[sort])
            else:
                values += (None, None)
        return values

    def same_entries(self, before: Item, after: Item) -> bool:
        """Whether the index columns stay as they are."""
        for partition, sort in self.index_attributes:
            if before.get(partition) != after.get(partition) or before.get(sort) != after.get(sort):
                return False
        return True

    def text_of(self, item: Item) -> str:
        """The text of all attributes but the key."""
        body: dict[str, Any] = dict(item)
        del body[self.partition]
        if self.sort is not None:
            del body[self.sort]
        if bytes in map(type, body.values()):
            for name, value in body.items():
                if type(value) is bytes:
                    body[name] = {"b64": base64.b64encode(value).decode()}
        return _encode(body).decode()

    def item_of(self, partition: str, sort: str | int | None, text: str) -> Item:
        """The item of a row; CorruptItem when its text was damaged."""
        try:
            item: Item = _decode(text)
            if _BYTES_MARK in text:
                found: dict[str, Any] = item
                for name, value in found.items():
                    if type(value) is dict:
                        found[name] = base64.b64decode(value["b64"])
            item[self.partition] = partition
        except (msgspec.DecodeError, ValueError, TypeError, KeyError, AttributeError) as error:
            key = Key(self.table, partition, sort)
            raise CorruptItem(f"{key}: its stored attributes cannot be read ({error}): {text!r:.80}") from None
        if self.sort is not None:
            item[self.sort] = sort  # type: ignore[assignment]
        return item


def _sql_type(sort_type: str) -> str:
    return "INTEGER" if sort_type == "int" else "TEXT"


def _column(name: str, taken: set[str]) -> str:
    """A column for ``name``; SQLite does not tell capitals apart in the names of columns, an attribute's name does."""
    while name.lower() in taken:
        name += "_"
    taken.add(name.lower())
    return name
