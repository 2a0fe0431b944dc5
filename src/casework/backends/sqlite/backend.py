"""The backend over one SQLite file."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from casework.arguments import check_path, check_seconds
from casework.backends.port import StoreEffect
from casework.backends.sqlite.combine import GROUP_REQUESTS, Combiner
from casework.backends.sqlite.committing import Committer
from casework.backends.sqlite.connections import SqliteFile
from casework.backends.sqlite.failures import translated
from casework.backends.sqlite.group import Request
from casework.backends.sqlite.known import Known, Place
from casework.backends.sqlite.layout import Layout
from casework.backends.sqlite.reading import fetch_items, outcome_of, query_many, query_one
from casework.backends.sqlite.reaping import Reaper
from casework.backends.sqlite.tables import create, lacking
from casework.backends.sqlite.timekeeping import Timekeeper
from casework.backends.surroundings import Clock, HostClock, SeededTokens, random_token
from casework.errors import CaseworkError, MissingTable, Misuse
from casework.kernel.effects import Get, GetMany, Instant, Outcome, Query, Transact, Write
from casework.kernel.items import AnyWrite, Delete, Item, Key, Table
from casework.kernel.limits import check_key, check_query, checked_key, checked_keys


class SqliteBackend:
    """A store in one SQLite file, which several threads and processes may share.

    Args:
        path: the file; it is made when it is missing, its folder is not.
        busy_timeout_s: how long to wait for another process's lock before ``Contention``.
        clock: the clock that programs see; the host's by default. A ``HostClock`` is kept in step with those of the
            other processes on the file; any other is yours alone.
        seed: makes tokens reproducible; None takes them from the operating system.
        synchronous: ``full`` (default) loses nothing that was acknowledged, whatever fails; ``normal`` may lose the
            last commits when the host loses power, and is faster.

    Raises:
        Misuse: the path cannot be a database (a folder, a missing folder, another kind of file, read-only).
        Unavailable: the file could not be opened now.
        NewerFormat: the file was made by a newer casework.
    """

    shares_commits = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        busy_timeout_s: float = 5.0,
        clock: Clock | None = None,
        seed: int | None = None,
        synchronous: str = "full",
    ) -> None:
        check_path("path", path)
        check_seconds("busy_timeout_s", busy_timeout_s)
        self.clock = clock or HostClock()
        self._time = Timekeeper(self.clock)
        self._tokens: Callable[[], str] = random_token if seed is None else SeededTokens(seed)
        self._file = SqliteFile(path, busy_timeout_s=busy_timeout_s, synchronous=synchronous)
        self._layouts: dict[Table, Layout] = {}
        self._by_name: dict[str, Layout] = {}
        self._present: set[Layout] = set()
        self._start()
        try:
            with self._file.reader() as connection:
                self._file.prepare(connection)
                self._time.look(connection)
            self._committer.forget_old_writers()
        except BaseException as error:
            self.close()
            known = translated(error, self.path, busy_timeout_s)
            if known is error:
                raise
            raise known from error

    def _start(self) -> None:
        self._pid = os.getpid()
        self._known = Known()
        self._committer = Committer(self._file, self._known, self._time)
        self._combiner = Combiner(self._committer.carry_out)
        self._reaper = Reaper(self._file, self._reap)

    @property
    def path(self) -> str:
        """The file, as an absolute path."""
        return self._file.path

    def __repr__(self) -> str:
        return f"SqliteBackend({self.path!r})"

    # --- effects ---------------------------------------------------------------------------------------------------

    def execute(self, effect: StoreEffect) -> Any:
        """Carry out one effect; see :class:`casework.backends.port.Backend`."""
        return self.execute_many((effect,))[0].result()

    def execute_many(self, effects: Sequence[StoreEffect]) -> list[Outcome[Any]]:
        """Carry out independent effects: the reads in bulk, then all writes in shared commits."""
        if os.getpid() != self._pid:
            self._start_after_fork()
        outcomes: list[Outcome[Any] | None] = [None] * len(effects)
        reads: list[int] = []
        writes: list[tuple[int, Request]] = []
        passed: Query | None = None
        for position, effect in enumerate(effects):
            kind = type(effect)
            try:
                if kind is Query:
                    check_query(effect, passed)  # type: ignore[arg-type]
                    if passed is None or passed.table is not effect.table:  # type: ignore[union-attr]
                        self._layout(effect.table)  # type: ignore[union-attr]
                    passed = effect  # type: ignore[assignment]
                    reads.append(position)
                elif kind is Transact:
                    writes.append((position, self._request(effect.writes, *checked_keys(effect.writes))))  # type: ignore[union-attr]
                elif kind is Write:
                    key, size = checked_key(effect.write)  # type: ignore[union-attr]
                    writes.append((position, self._request((effect.write,), [key], size)))  # type: ignore[union-attr]
                else:
                    self._check_read(effect)
                    reads.append(position)
            except CaseworkError as error:
                outcomes[position] = Outcome(error=error)
        if reads:
            self._read(effects, reads, outcomes)
        if writes:
            self._write(writes, outcomes)
        return outcomes  # type: ignore[return-value]

    def walk(self, table: Table, limit: int, after: str | None) -> tuple[list[Item], str | None]:
        """A page of a whole table, for operators; ``after`` is what the page before handed back."""
        layout = self._layout(table)
        last = -(2**63) if after is None else int(after)
        try:
            with self._file.reader() as connection:
                rows = connection.execute(layout.scan, (last, limit)).fetchall()
        except sqlite3.Error as error:
            raise translated(error, self.path, self._file.busy_timeout_s) from error
        items = [layout.item_of(partition, sort, text) for _, partition, sort, text in rows]
        return items, str(rows[-1][0]) if len(rows) == limit else None

    def _check_read(self, effect: StoreEffect) -> None:
        if isinstance(effect, Get):
            check_key(effect.key)
            self._layout(effect.key.table)
        elif isinstance(effect, GetMany):
            for key in effect.keys:
                check_key(key)
                self._layout(key.table)
        else:
            raise Misuse(f"{effect!r:.80} is not an effect of a store")

    def _read(self, effects: Sequence[StoreEffect], reads: list[int], outcomes: list[Outcome[Any] | None]) -> None:
        try:
            with self._file.reader() as connection:
                if len(reads) > 1:
                    connection.execute("BEGIN")
                self._read_on(connection, effects, reads, outcomes)
                if len(reads) > 1:
                    connection.execute("COMMIT")
        except (CaseworkError, sqlite3.Error) as error:
            known = translated(error, self.path, self._file.busy_timeout_s)
            for position in reads:
                outcomes[position] = outcomes[position] or Outcome(error=known)

    def _read_on(
        self,
        connection: sqlite3.Connection,
        effects: Sequence[StoreEffect],
        reads: list[int],
        outcomes: list[Outcome[Any] | None],
    ) -> None:
        alike: dict[tuple[Layout, Any, Any], list[int]] = {}
        gets: list[int] = []
        for position in reads:
            effect = effects[position]
            if not isinstance(effect, Query):
                gets.append(position)
                continue
            layout = self._layouts[effect.table]
            low, high = effect.low, effect.high
            if (
                effect.index is not None
                or effect.after is not None
                or effect.reverse
                or (low is None) is not (high is None)
                or len(reads) == 1
            ):
                outcomes[position] = outcome_of(query_one, connection, layout, effect, self._known)
            else:
                alike.setdefault((layout, low, high), []).append(position)
        for (layout, _, _), positions in alike.items():
            pages = query_many(connection, layout, [effects[p] for p in positions], self._known)  # type: ignore[misc]
            for position, page in zip(positions, pages, strict=True):
                outcomes[position] = page
        if gets:
            self._get_on(connection, effects, gets, outcomes)

    def _get_on(
        self,
        connection: sqlite3.Connection,
        effects: Sequence[StoreEffect],
        gets: list[int],
        outcomes: list[Outcome[Any] | None],
    ) -> None:
        wanted: dict[int, list[Place]] = {}
        for position in gets:
            effect = effects[position]
            keys = [effect.key] if isinstance(effect, Get) else effect.keys  # type: ignore[union-attr]
            wanted[position] = [(self._layouts[key.table], key.partition, key.sort) for key in keys]
        try:
            items = fetch_items(connection, [place for places in wanted.values() for place in places], self._known)
        except CaseworkError as error:
            if len(gets) == 1:
                outcomes[gets[0]] = Outcome(error=error)
                return
            for position in gets:  # somebody's item is damaged: each by itself
                self._get_on(connection, effects, [position], outcomes)
            return
        handed: set[Place] = set()
        for position, places in wanted.items():
            answer = []
            for place in places:
                item = items.get(place)
                if item is not None and place in handed:
                    item = item.copy()  # each reader gets its own
                handed.add(place)
                answer.append(item)
            outcomes[position] = Outcome(answer[0] if isinstance(effects[position], Get) else answer)

    def _request(self, writes: Sequence[AnyWrite], keys: Sequence[Key], size: int) -> Request:
        present, layouts = self._present, self._layouts
        places: list[Place] = []
        for key in keys:
            layout = layouts.get(key.table)
            if layout not in present:
                layout = self._layout(key.table)
            places.append((layout, key.partition, key.sort))
        return Request(writes, places, size)

    def _write(self, writes: list[tuple[int, Request]], outcomes: list[Outcome[Any] | None]) -> None:
        for start in range(0, len(writes), GROUP_REQUESTS):
            self._combiner.submit([request for _, request in writes[start : start + GROUP_REQUESTS]])
        for position, request in writes:
            outcomes[position] = Outcome(None, request.error)
        self._reaper.after_write(self._present, self._time.settled_s)

    def _reap(self, deletes: Sequence[Delete]) -> None:
        self._combiner.submit([self._request((delete,), [delete.key], 0) for delete in deletes])

    # --- tables ----------------------------------------------------------------------------------------------------

    def _layout(self, table: Table) -> Layout:
        """The layout of a table that is in the file; MissingTable when it is not."""
        layout = self._layouts.get(table)
        if layout is None:
            layout = self._learn(table)
        if layout not in self._present:
            self._look_for(layout)
        return layout

    def _learn(self, table: Table) -> Layout:
        same = self._by_name.get(table.name.lower())
        if same is not None:
            parts = ("name", "partition", "sort", "sort_type", "indexes")
            differing = [part for part in parts if getattr(same.table, part) != getattr(table, part)]
            if differing:
                raise Misuse(
                    f"two tables {table.name!r} are in use that differ in {', '.join(differing)}; define it once"
                )
            layout = same
        else:
            layout = self._by_name[table.name.lower()] = Layout(table)
        self._layouts[table] = layout
        return layout

    def _look_for(self, layout: Layout) -> None:
        try:
            with self._file.reader() as connection:
                missing = lacking(connection, layout)
        except sqlite3.Error as error:
            raise translated(error, self.path, self._file.busy_timeout_s) from error
        if missing is None:
            raise MissingTable(f"{self.path} has no table {layout.name!r}; make it with create_tables()")
        if missing:
            raise MissingTable(f"{self.path}: table {layout.name!r} lacks the index {missing}; run create_tables()")
        self._present.add(layout)

    def create_tables(self, tables: Sequence[Table]) -> None:
        """Make the tables and indexes that are missing; harmless when all are there.

        An index that a table is given later takes in the items that are there. Processes that still use the table's
        definition without it do not keep it up to date, so end them first.
        """
        if os.getpid() != self._pid:
            self._start_after_fork()
        layouts = [self._layouts.get(table) or self._learn(table) for table in tables]
        self._combiner.alone(lambda: self._committer.change_schema(lambda connection: create(connection, layouts)))
        self._present.update(layouts)

    # --- surroundings ----------------------------------------------------------------------------------------------

    def now(self) -> Instant:
        """The time, on which all processes of this host agree that have the file open; see ``HostClock``."""
        if self._time.is_look_due:
            if os.getpid() != self._pid:
                self._start_after_fork()
            with contextlib.suppress(sqlite3.Error, CaseworkError), self._file.reader() as connection:
                self._time.look(connection)
        return self.clock.now()

    def token(self) -> str:
        """A fresh token."""
        return self._tokens()

    def sleep(self, seconds: float) -> None:
        """Let the clock's time pass."""
        self.clock.sleep(seconds)

    # --- its life --------------------------------------------------------------------------------------------------

    def _start_after_fork(self) -> None:
        """In a child process: fresh locks and connections. The parent's must not be used, nor closed, here."""
        self._file.forget(self._committer)
        self._start()

    def close(self) -> None:
        """Close the file; harmless when done twice. Waits for a commit that is under way."""
        if self._file.closed:
            return
        if os.getpid() != self._pid:
            self._start_after_fork()
        self._file.closed = True  # first: nothing may open the file again behind this
        self._combiner.alone(self._committer.close)
        self._file.close()

    def __enter__(self) -> SqliteBackend:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
