"""What DynamoDB's TTL does, done in the course of writes: items whose time is over leave the file, a few at a time.

Only a help, as it is there: whoever reads an item looks at its expiry. A lap goes through each table that has a TTL by
rowid, so many rows at a time, and begins anywhere, so that short processes do their share.
"""

from __future__ import annotations

import contextlib
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Sequence

from casework.backends.sqlite.connections import SqliteFile
from casework.backends.sqlite.layout import Layout, quoted
from casework.errors import CaseworkError
from casework.kernel.conditions import equals
from casework.kernel.items import Delete, Key

EVERY_S = 1.0
ROWS = 200
"""So many rows are looked at each time: 17 million a day, at a third of a millisecond a second."""


class Reaper:
    """Finds what has expired. Its deletes go the way of all writes, on condition that the expiry is still the same."""

    def __init__(self, file: SqliteFile, delete: Callable[[Sequence[Delete]], None]) -> None:
        self._file = file
        self._delete = delete
        self._turn = threading.Lock()
        self._due_s = 0.0
        self._laps: list[tuple[Layout, int]] = []

    def after_write(self, layouts: Collection[Layout], now_s: Callable[[], int]) -> None:
        """Look at the next rows, if that is due and no other thread does. An error is let go; the next lap comes.

        ``now_s`` tells the time that nobody doubts: what is deleted because a clock was set forward does not come back.
        """
        if time.monotonic() < self._due_s or not self._turn.acquire(blocking=False):
            return
        try:
            self._due_s = time.monotonic() + EVERY_S
            with contextlib.suppress(sqlite3.Error, CaseworkError):
                expired = self._next(layouts, now_s())
                if expired:
                    self._delete(expired)
        finally:
            self._turn.release()

    def _next(self, layouts: Collection[Layout], now_s: int) -> list[Delete]:
        if not self._laps:
            # A copy: another thread may meet a table for the first time.
            self._laps = [(layout, -1) for layout in tuple(layouts) if layout.table.ttl is not None]
            random.shuffle(self._laps)
        if not self._laps:
            return []
        layout, last = self._laps.pop()
        table, ttl = layout.sql_table, layout.table.ttl
        assert ttl is not None
        with self._file.reader() as connection:
            if last < 0:
                (highest,) = connection.execute(f"SELECT max(rowid) FROM {table}").fetchone()
                last = random.randint(0, max(0, (highest or 0) - ROWS))
            (end,) = connection.execute(
                f"SELECT max(rowid) FROM (SELECT rowid FROM {table} WHERE rowid > ? ORDER BY rowid LIMIT {ROWS})",
                (last,),
            ).fetchone()
            if end is None:
                return []
            rows = connection.execute(
                f"SELECT {layout.sql_partition}, {layout.sql_sort or 'NULL'}, {_expiry(ttl)} AS expiry FROM {table}"
                " WHERE rowid > ? AND rowid <= ? AND expiry <= ?",
                (last, end, now_s),
            ).fetchall()
        self._laps.append((layout, end))
        return [
            Delete(Key(layout.table, partition, sort), equals(ttl, expiry))
            for partition, sort, expiry in rows
            if type(expiry) is int
        ]


def _expiry(ttl: str) -> str:
    """The expiry in SQL; NULL where a row has none, or no readable text."""
    mark = f'"{ttl}":'.replace("'", "''")
    path = f"$.{quoted(ttl)}".replace("'", "''")
    return (
        f"CASE WHEN instr(attributes, '{mark}') > 0 AND json_valid(attributes)"
        f" THEN json_extract(attributes, '{path}') END"
    )
