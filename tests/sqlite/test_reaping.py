"""What has expired leaves the file by itself, a few rows at a time, and nothing else does."""

from __future__ import annotations

import itertools
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from casework.backends.sqlite import SqliteBackend, reaping
from casework.backends.sqlite.layout import Layout
from casework.backends.surroundings import VirtualClock
from casework.errors import Unavailable
from casework.kernel.effects import Get, Write
from casework.kernel.items import Put, Table

EXPIRING = Table(name="expiring", partition="id", sort="part", ttl="over_at_s")
FOREVER = Table(name="forever", partition="id")


@pytest.fixture
def backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteBackend]:
    monkeypatch.setattr(reaping, "EVERY_S", 0.0)  # with every write
    with SqliteBackend(tmp_path / "a.db", clock=VirtualClock()) as backend:
        backend.create_tables([EXPIRING, FOREVER])
        yield backend


def now_s(backend: SqliteBackend) -> int:
    return backend.now().middle_us // 1_000_000


def stored(backend: SqliteBackend, table: str) -> int:
    with sqlite3.connect(backend.path) as connection:
        (count,) = connection.execute(f'SELECT count(*) FROM "{table}"').fetchone()
    connection.close()
    return int(count)


def write_for_a_while(backend: SqliteBackend, seconds: int) -> None:
    for _ in range(seconds):
        backend.sleep(1)
        backend.execute(Write(Put(FOREVER, {"id": "tick"})))


def test_what_has_expired_leaves_the_file_and_nothing_else(backend: SqliteBackend) -> None:
    start_s = now_s(backend)
    kept = [
        {"id": "later", "part": "a", "over_at_s": start_s + 10_000},
        {"id": "never", "part": "a", "n": 1},
        {"id": "text", "part": "a", "over_at_s": "7"},
        {"id": "true", "part": "a", "over_at_s": True},
        {"id": "quoted", "part": "a", "text": '"over_at_s":1'},
    ]
    for item in kept:
        backend.execute(Write(Put(EXPIRING, item)))
    for n in range(20):
        backend.execute(Write(Put(EXPIRING, {"id": f"{n}", "part": "c/1", "over_at_s": start_s + 5})))
    backend.execute(Write(Put(FOREVER, {"id": "f", "over_at_s": 1})))
    write_for_a_while(backend, 3)
    assert stored(backend, "expiring") == 25
    write_for_a_while(backend, 10)
    assert stored(backend, "expiring") == len(kept)
    assert all(backend.execute(Get(EXPIRING.key_of(item))) == item for item in kept)
    assert backend.execute(Get(FOREVER.key("f"))) is not None


def test_a_lap_goes_through_all_rows_a_few_at_a_time(backend: SqliteBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaping, "ROWS", 10)
    for n in range(95):
        backend.execute(Write(Put(EXPIRING, {"id": f"{n}", "part": "a", "over_at_s": now_s(backend) + 1})))
    backend.sleep(10)
    left = [95]
    while left[-1] and len(left) < 40:
        write_for_a_while(backend, 1)
        left.append(stored(backend, "expiring"))
    assert left[-1] == 0 and all(before - after <= 10 for before, after in itertools.pairwise(left))


def test_a_row_that_cannot_be_read_stays_and_stops_nothing(backend: SqliteBackend) -> None:
    backend.execute(Write(Put(EXPIRING, {"id": "damaged", "part": "a", "over_at_s": now_s(backend) + 2})))
    with sqlite3.connect(backend.path) as connection:
        connection.execute("UPDATE expiring SET attributes = '{\"over_at_s\":1' ")
    connection.close()
    backend.execute(Write(Put(EXPIRING, {"id": "over", "part": "a", "over_at_s": now_s(backend) + 2})))
    assert stored(backend, "expiring") == 2
    write_for_a_while(backend, 5)
    assert stored(backend, "expiring") == 1


class SlowFile:
    """Its reader takes as long as it is told, and then there is none."""

    def __init__(self) -> None:
        self.is_asked, self.may_answer = threading.Event(), threading.Event()
        self.asked_n = 0

    def reader(self) -> Any:
        self.asked_n += 1
        self.is_asked.set()
        assert self.may_answer.wait(10)
        raise Unavailable("the disk is gone")


def test_one_thread_looks_at_a_time_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaping, "EVERY_S", 0.0)
    file, clock = SlowFile(), VirtualClock()
    reaper = reaping.Reaper(file, lambda deletes: None)  # type: ignore[arg-type]
    first = threading.Thread(target=reaper.after_write, args=([Layout(EXPIRING)], clock.now))
    first.start()
    assert file.is_asked.wait(10)
    reaper.after_write([Layout(EXPIRING)], clock.now)
    assert file.asked_n == 1
    file.may_answer.set()
    first.join()
    reaper.after_write([Layout(EXPIRING)], clock.now)
    assert file.asked_n == 2


def test_a_table_that_another_thread_meets_meanwhile_does_no_harm() -> None:
    known: set[Any] = set()

    class Meeting:
        """A layout; while one looks at it, another table comes to be known."""

        @property
        def table(self) -> Table:
            known.add(object())
            return FOREVER

    known |= {Meeting(), Meeting()}
    reaping.Reaper(SlowFile(), lambda deletes: None).after_write(known, VirtualClock().now)  # type: ignore[arg-type]
    assert len(known) == 4
