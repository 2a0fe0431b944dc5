"""Opening a store: new, as it is, and made by an earlier casework."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import casework
from casework.app.settings import SETTINGS
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
    with pytest.raises(
        casework.Misuse, match=r"store's window is 60.*casework settings --dedupe-window-s 0 --store sqlite:///"
    ):
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


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "is not the URL of a store"),
        ("sqlite:///a.db?mode=ro", r"has no options; write 'sqlite:///a.db'"),
        ("sqlite:///:memory:", "write memory:$"),
        ("sqlite::memory:", "write memory:$"),
        ("memory:shop", "nothing behind it"),
        (5, "is no store"),
    ],
)
def test_a_url_that_cannot_be_meant_is_refused_and_leaves_no_file(
    url: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for open in (casework.open, casework.open_async):
        with pytest.raises(casework.Misuse, match=said):
            open(url)
    assert list(tmp_path.iterdir()) == []


def test_without_a_url_it_is_the_environments_else_casework_db_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CASEWORK_STORE", raising=False)
    casework.open(None).close()
    assert (tmp_path / "casework.db").exists()
    monkeypatch.setenv("CASEWORK_STORE", "sqlite:///named.db")
    casework.open().close()
    assert (tmp_path / "named.db").exists()


MACHINE = casework.Machine.from_dict({"id": "m", "initial": "a", "states": {"a": {"type": "final"}}})


@pytest.mark.parametrize("url", ["memory:", "sqlite:///c.db"])
def test_a_closed_application_and_a_used_worker_say_so(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app = casework.open(url, machines=[MACHINE])
    idle, used = app.worker(), app.worker()
    with used:
        pass
    with pytest.raises(casework.Misuse, match="used already"), used:
        pass
    app.close()
    for call in (lambda: app.get("x"), app.transaction, app.worker, idle.__enter__, idle.run):
        with pytest.raises(casework.Misuse, match="application was closed"):
            call()


@pytest.mark.parametrize("url", ["memory:", "sqlite:///c.db"])
def test_an_async_application_that_is_not_open_says_so(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def main() -> None:
        app = casework.open_async(url, machines=[MACHINE])
        for is_closed in (False, True):
            with pytest.raises(casework.Misuse, match="async with"):
                await app.get("x")
            for call in (app.worker, app.transaction):
                with pytest.raises(casework.Misuse, match="async with"):
                    call()
            if not is_closed:
                async with app:
                    await app.start("m", id="x")
        with pytest.raises(casework.Misuse, match="closed"):
            await app.streams.append("s", [casework.Op("o", b"1")])

    asyncio.run(main())


def test_a_long_id_is_cut_in_errors() -> None:
    with casework.open("memory:", machines=[MACHINE]) as app:
        for call in (app.get, app.cancel, app.purge, app.trace):
            with pytest.raises(casework.NoSuchExecution) as refused:
                call("x" * 500)
            assert len(str(refused.value)) < 300
        app.start("m", id="y" * 500)
        with pytest.raises(casework.UnknownEvent) as unknown:
            app.send("y" * 500, "z" * 900)
        assert len(str(unknown.value)) < 300


@pytest.mark.parametrize(
    "store",
    [
        casework.IdempotencyStore, casework.StreamStore, casework.ExecutionStore, casework.AsyncStreamStore,
        casework.AsyncIdempotencyStore,
    ],
)  # fmt: skip
def test_a_store_is_not_made_of_an_address(store: Any) -> None:
    with pytest.raises(casework.Misuse, match=r"'sqlite:///a.db' is no (Async)?Backend; make one, .* open an address"):
        store("sqlite:///a.db")
