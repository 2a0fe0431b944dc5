"""How tables lie in the file: readable, and able to grow an index."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from casework.backends.sqlite import SqliteBackend
from casework.backends.sqlite.layout import Layout
from casework.errors import MissingTable, Misuse
from casework.kernel.effects import Get, Query, Transact, Write
from casework.kernel.items import Index, Put, Table, Update

DUE = Index(name="due", partition="bucket", sort="due_at_us", sort_type="int")
PLACES = Index(name="places", partition="place", sort="name")


def test_a_database_console_shows_every_attribute(path: Path) -> None:
    table = Table(name="orders", partition="id", sort="sort", indexes=(DUE,))
    with SqliteBackend(path) as backend:
        backend.create_tables([table])
        item = {
            "id": "o-1",
            "sort": "0",
            "bucket": "3",
            "due_at_us": 7,
            "name": "größe",
            "raw": b"\x00\xff",
            "ok": True,
        }
        backend.execute(Write(Put(table, item)))
        assert backend.execute(Get(table.key("o-1", "0"))) == item
    with sqlite3.connect(path) as console:
        row = console.execute('SELECT id, sort, attributes, "due.partition", "due.sort" FROM orders').fetchone()
    console.close()
    assert row == (
        "o-1", "0", '{"bucket":"3","due_at_us":7,"name":"größe","raw":{"b64":"AP8="},"ok":true}', "3", 7,
    )  # fmt: skip


def test_names_that_only_differ_in_capitals_or_clash_with_ours_are_kept_apart(path: Path) -> None:
    table = Table(name="odd", partition="attributes", sort="ATTRIBUTES", indexes=(DUE,))
    with SqliteBackend(path) as backend:
        backend.create_tables([table])
        item = {"attributes": "a", "ATTRIBUTES": "b", "bucket": "3", "due_at_us": 1, "Attributes": 5}
        backend.execute(Write(Put(table, item)))
        assert backend.execute(Query(table, "a")).items == [item]
    with pytest.raises(Misuse, match="cannot be the name of a table"):
        Layout(Table(name="casework_meta", partition="id"))


def test_an_index_added_later_takes_in_what_is_there(path: Path) -> None:
    before = Table(name="orders", partition="id", indexes=(DUE,))
    after = Table(name="orders", partition="id", indexes=(DUE, PLACES))
    with SqliteBackend(path) as backend:
        backend.create_tables([before])
        backend.execute_many(
            [Write(Put(before, {"id": f"{n:04}", "place": "here", "name": f"{n % 7}"})) for n in range(1200)]
        )
        backend.execute(Write(Put(before, {"id": "elsewhere", "bucket": "3", "due_at_us": 7})))
        with pytest.raises(Misuse, match="two tables 'orders' are in use that differ in indexes"):
            backend.execute(Get(after.key("0")))
    with SqliteBackend(path) as backend:
        with pytest.raises(MissingTable, match=r"lacks the index \['places'\]"):
            backend.execute(Get(after.key("0000")))
        backend.create_tables([after])
        found = backend.execute(Query(after, "here", "places")).items
        assert [(item["name"], item["id"]) for item in found] == sorted((f"{n % 7}", f"{n:04}") for n in range(1200))
        assert len(backend.execute(Query(after, "3", "due")).items) == 1
        backend.execute(Transact([Update(after.key("0000"), {"name": "moved"})]))
        assert backend.execute(Query(after, "here", "places", low="moved")).items[0]["id"] == "0000"


def test_a_table_with_another_key_under_the_same_name_is_misuse(path: Path) -> None:
    with SqliteBackend(path) as backend:
        backend.create_tables([Table(name="orders", partition="id")])
    other = Table(name="orders", partition="id", sort="n", sort_type="int")
    with SqliteBackend(path) as backend:
        for use in (lambda: backend.execute(Get(other.key("a", 1))), lambda: backend.create_tables([other])):
            with pytest.raises(Misuse, match="has the key"):
                use()


def test_a_query_of_an_index_never_touches_the_table(path: Path) -> None:
    table = Table(name="orders", partition="id", sort="sort", indexes=(DUE,))
    with SqliteBackend(path) as backend:
        backend.create_tables([table])
        layout = backend._layout(table)
        with backend._file.reader() as connection:
            for statement, uses in (
                ('SELECT "due.sort", id, sort FROM orders WHERE "due.partition" = \'3\' AND "due.sort" > 4'
                 ' ORDER BY "due.sort", id, sort', "COVERING INDEX orders.due"),
                (layout.query_many, "sqlite_autoindex_orders_1 (id=?)"),
            ):  # fmt: skip
                plan = connection.execute(f"EXPLAIN QUERY PLAN {statement}", ("[]",) * statement.count("?")).fetchall()
                assert uses in str(plan) and "TEMP B-TREE" not in str(plan)
