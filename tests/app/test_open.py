"""Opening a store: new, as it is, and made by an earlier casework."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

import casework
from casework.app.core import SETTINGS
from casework.kernel.effects import Get, Write
from casework.kernel.items import Update
from casework.kernel.schema import STREAMS, TABLES


def age(path: Path) -> None:
    """Take a file back to a time when there were no streams."""
    with casework.open(f"sqlite:///{path}") as app:
        app.backend.execute(Write(Update(SETTINGS, {"tables": 3})))
    with sqlite3.connect(path) as connection:
        (name,) = connection.execute("SELECT name FROM sqlite_master WHERE name LIKE '%streams'").fetchone()
        connection.execute(f'DROP TABLE "{name}"')
    connection.close()


def test_a_file_made_by_an_earlier_casework_gets_the_tables_that_it_lacks(tmp_path: Path) -> None:
    age(tmp_path / "old.db")
    with casework.open(f"sqlite:///{tmp_path}/old.db") as app:
        app.streams.append("s", [casework.Op("o", b"1")])
        assert [op.id for op in app.streams.read("s", after=0)] == ["o"]
        assert app.backend.execute(Get(SETTINGS))["tables"] == len(TABLES)


def test_so_does_the_async_face(tmp_path: Path) -> None:
    age(tmp_path / "old.db")

    async def main() -> None:
        async with casework.open_async(f"sqlite:///{tmp_path}/old.db") as app:
            assert await app.backend.execute(Get(STREAMS.key("s", 0))) is None

    asyncio.run(main())


def test_tables_are_not_made_where_that_was_not_asked_for(tmp_path: Path) -> None:
    age(tmp_path / "old.db")
    with pytest.raises(casework.MissingTable, match="earlier casework"):
        casework.open(f"sqlite:///{tmp_path}/old.db", create=False)


def test_a_stores_own_number_of_buckets_wins(tmp_path: Path) -> None:
    casework.open(f"sqlite:///{tmp_path}/b.db", buckets=4).close()
    with casework.open(f"sqlite:///{tmp_path}/b.db", buckets=9) as app:
        assert app.core.rt.options.buckets == 4


def test_the_dedupe_window_is_the_stores_and_every_process_has_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/d.db"
    with casework.open(url, dedupe_window_s=60), casework.open(url) as other, casework.open(url, dedupe_window_s=60):
        assert other.core.rt.options.dedupe_window_s == 60
    with pytest.raises(casework.Misuse, match=r"store's window is 60.*casework settings --dedupe-window-s 0"):
        casework.open(url, dedupe_window_s=0)

    async def main() -> None:
        async with casework.open_async(url) as app:
            assert app.core.rt.options.dedupe_window_s == 60
        with pytest.raises(casework.Misuse, match="store's window is 60"):
            async with casework.open_async(url, dedupe_window_s=61):
                pass

    asyncio.run(main())


def test_a_store_made_without_a_dedupe_window_has_none(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/d.db"
    with casework.open(url) as app:
        assert app.core.rt.options.dedupe_window_s == 0
    with pytest.raises(casework.Misuse, match="store's window is 0"):
        casework.open(url, dedupe_window_s=5)
