"""When the disk, another process or SQLite itself gets in the way: what is answered is what happened."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from casework.backends.sqlite import SqliteBackend
from casework.errors import (
    ConditionFailed,
    Contention,
    CorruptItem,
    Misuse,
    NewerFormat,
    OutcomeUnknown,
    Unavailable,
)
from casework.kernel.conditions import absent, equals, present
from casework.kernel.effects import Get, Query, Transact, Write
from casework.kernel.items import Check, Delete, Put, Table, Update
from tests.sqlite.conftest import ITEMS


class Meddled:
    """A connection that does ``meddle(statement)`` before each statement; it may raise, or change the file."""

    def __init__(self, connection: sqlite3.Connection, meddle: Callable[[sqlite3.Connection, str, bool], None]) -> None:
        self._connection = connection
        self._meddle = meddle

    def execute(self, statement: str, *values: Any) -> Any:
        self._meddle(self._connection, statement, False)
        answer = self._connection.execute(statement, *values)
        self._meddle(self._connection, statement, True)
        return answer

    def executemany(self, statement: str, *values: Any) -> Any:
        self._meddle(self._connection, statement, False)
        return self._connection.executemany(statement, *values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def meddle_with(backend: SqliteBackend, meddle: Callable[[sqlite3.Connection, str, bool], None]) -> None:
    backend.execute(Transact([Put(ITEMS, {"id": "warm"})]))
    backend._committer.connection = Meddled(backend._committer.connection, meddle)  # type: ignore[assignment, arg-type]


def error_of(code: int, text: str = "broken on purpose") -> sqlite3.Error:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error


def put(id: str, data: str = "") -> Transact:
    return Transact([Put(ITEMS, {"id": id, "data": data}, when=absent())])


# --- the disk is full -----------------------------------------------------------------------------------------------


def test_a_full_disk_hits_only_the_request_that_does_not_fit(backend: SqliteBackend) -> None:
    backend.execute(put("old", "x" * 20_000))
    connection = backend._committer.connection
    assert connection is not None
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages + 8}")
    outcomes = backend.execute_many(
        [put("a"), put("large", "x" * 300_000), put("b"), put("old"), Write(Put(ITEMS, {"id": "c"}))]
    )
    assert [type(outcome.error) for outcome in outcomes] == [
        type(None), Unavailable, type(None), ConditionFailed, type(None),
    ]  # fmt: skip
    assert "no space left" in str(outcomes[1].error) and "othing was written" in str(outcomes[1].error)
    ids = ["a", "large", "b", "c"]
    assert [backend.execute(Get(ITEMS.key(id))) is not None for id in ids] == [True, False, True, True]


def test_nobody_is_answered_by_a_group_that_was_rolled_back(backend: SqliteBackend) -> None:
    """The second request is refused only because of the first; when the first fails, the second is accepted."""
    backend.execute(Transact([Put(ITEMS, {"id": "n", "v": 0})]))
    failures = iter([True])

    def meddle(connection: sqlite3.Connection, statement: str, after: bool) -> None:
        if statement.startswith("UPDATE") and next(failures, False):
            raise error_of(sqlite3.SQLITE_FULL, "database or disk is full")

    meddle_with(backend, meddle)
    first = Transact([Update(ITEMS.key("n"), {"v": 1, "big": "x" * 1000}, when=equals("v", 0))])
    second = Transact([Update(ITEMS.key("n"), {"v": 2}, when=equals("v", 0))])
    outcomes = backend.execute_many([first, second])
    assert outcomes[0].error is None  # alone, it fitted
    assert isinstance(outcomes[1].error, ConditionFailed)
    refusal = outcomes[1].error.refusals[0]
    assert refusal is not None and refusal.item is not None and refusal.item["v"] == 1


def test_a_group_whose_transaction_is_gone_applies_nothing_and_runs_again(backend: SqliteBackend) -> None:
    rolled_back: list[str] = []

    def meddle(connection: sqlite3.Connection, statement: str, after: bool) -> None:
        if statement.startswith("INSERT INTO casework_writers") and not rolled_back:
            rolled_back.append(statement)
            connection.execute("ROLLBACK")  # as SQLite does by itself after some errors
            raise error_of(sqlite3.SQLITE_FULL)

    meddle_with(backend, meddle)
    outcomes = backend.execute_many([put("a"), put("b"), put("a")])
    assert [type(outcome.error) for outcome in outcomes] == [type(None), type(None), ConditionFailed]
    assert len(rolled_back) == 1
    assert backend.execute(Get(ITEMS.key("a"))) is not None and backend.execute(Get(ITEMS.key("b"))) is not None


# --- COMMIT itself fails --------------------------------------------------------------------------------------------


def test_a_commit_that_was_applied_although_it_failed_is_reported_as_applied(backend: SqliteBackend) -> None:
    def meddle(connection: sqlite3.Connection, statement: str, after: bool) -> None:
        if statement == "COMMIT" and after:
            raise error_of(sqlite3.SQLITE_IOERR)

    meddle_with(backend, meddle)
    outcomes = backend.execute_many([put("a"), put("warm")])
    assert outcomes[0].error is None
    assert isinstance(outcomes[1].error, ConditionFailed)
    assert backend.execute(Get(ITEMS.key("a"))) is not None
    assert backend.execute_many([put("b")])[0].error is None


def test_a_commit_that_failed_and_left_nothing_is_tried_again_alone(backend: SqliteBackend) -> None:
    def meddle(connection: sqlite3.Connection, statement: str, after: bool) -> None:
        if statement == "COMMIT" and not after:
            connection.execute("ROLLBACK")
            raise error_of(sqlite3.SQLITE_IOERR)

    meddle_with(backend, meddle)  # only the first connection is broken: the file is opened again
    outcomes = backend.execute_many([put("a"), put("b")])
    assert [outcome.error for outcome in outcomes] == [None, None]
    assert backend.execute(Get(ITEMS.key("a"))) is not None


def test_a_single_commit_that_failed_and_left_nothing_is_unavailable(backend: SqliteBackend) -> None:
    def meddle(connection: sqlite3.Connection, statement: str, after: bool) -> None:
        if statement == "COMMIT" and not after:
            connection.execute("ROLLBACK")
            raise error_of(sqlite3.SQLITE_IOERR)

    meddle_with(backend, meddle)
    with pytest.raises(Unavailable, match="othing was written"):
        backend.execute(put("a"))
    assert backend.execute(Get(ITEMS.key("a"))) is None
    backend.execute(put("a"))


FULL = """
import collections, json, resource, sys
from casework.backends.sqlite import SqliteBackend
from casework.kernel.conditions import absent
from casework.kernel.effects import Get, Write
from casework.kernel.items import Put, Table

things = Table(name="things", partition="id")
backend = SqliteBackend(sys.argv[1])
backend.create_tables([things])
limit = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, limit[1]))  # no file grows beyond: as on a full disk
seen = collections.defaultdict(list)

def put(n):
    try:
        backend.execute(Write(Put(things, {"id": str(n), "text": "x" * 20_000}, absent())))
        seen["stored"].append(n)
    except Exception as error:
        seen[f"{type(error).__name__}: {error}"[:11]].append(n)

for n in range(60):
    put(n)
full = {name: len(numbers) for name, numbers in seen.items()}
resource.setrlimit(resource.RLIMIT_FSIZE, limit)
put(1000)
there = [n for n in [*range(60), 1000] if backend.execute(Get(things.key(str(n))))]
sys.stdout.write(json.dumps([full, seen["stored"] == there, there[-1]]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no limit on a file's size there")
def test_on_a_full_disk_every_write_is_certain_not_to_have_happened_and_works_again_later(path: Path) -> None:
    """Only an error after the last frame of the log, such as one of fsync, leaves a doubt."""
    done = subprocess.run([sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, check=True)
    full, is_right, last = json.loads(done.stdout)
    assert set(full) == {"stored", "Unavailable"} and full["stored"] + full["Unavailable"] == 60
    assert full["Unavailable"] > 20
    assert is_right and last == 1000


@pytest.mark.parametrize("code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE])
@pytest.mark.parametrize("is_gone", [False, True])
def test_a_commit_that_could_not_write_was_not_applied_though_nobody_can_look(
    backend: SqliteBackend, monkeypatch: pytest.MonkeyPatch, code: int, is_gone: bool
) -> None:
    def meddle(connection: sqlite3.Connection, statement: str, after: bool) -> None:
        if statement == "COMMIT" and not after:
            if is_gone:
                connection.execute("ROLLBACK")  # as SQLite does by itself after some errors
            raise error_of(code)

    meddle_with(backend, meddle)

    def broken() -> sqlite3.Connection:
        raise error_of(sqlite3.SQLITE_FULL)

    monkeypatch.setattr(backend._file, "connect", broken)
    with pytest.raises(Unavailable, match="othing was written"):
        backend.execute(put("a"))


def test_a_commit_whose_file_cannot_be_read_again_is_unknown(
    backend: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meddle(connection: sqlite3.Connection, statement: str, after: bool) -> None:
        if statement == "COMMIT" and after:
            raise error_of(sqlite3.SQLITE_IOERR)

    meddle_with(backend, meddle)

    def broken() -> sqlite3.Connection:
        raise error_of(sqlite3.SQLITE_CANTOPEN)

    monkeypatch.setattr(backend._file, "connect", broken)
    outcomes = backend.execute_many([put("a"), put("warm")])
    assert isinstance(outcomes[0].error, OutcomeUnknown)
    assert isinstance(outcomes[1].error, Unavailable)  # it was refused: nothing of it can have been written
    monkeypatch.undo()
    assert isinstance(backend.execute_many([put("a")])[0].error, ConditionFailed)


def test_an_interrupt_in_commit_leaves_others_with_the_truth(backend: SqliteBackend) -> None:
    """The thread that leads is interrupted after COMMIT; its own caller sees the interrupt, the store stays whole."""
    raised: list[str] = []

    def meddle(connection: sqlite3.Connection, statement: str, after: bool) -> None:
        if statement == "COMMIT" and after and not raised:
            raised.append(statement)
            raise KeyboardInterrupt

    meddle_with(backend, meddle)
    with pytest.raises(KeyboardInterrupt):
        backend.execute(put("a"))
    assert backend.execute(Get(ITEMS.key("a"))) is not None
    backend.execute(put("b"))


def test_an_interrupt_before_commit_writes_nothing_and_frees_the_store(backend: SqliteBackend) -> None:
    raised: list[str] = []

    def meddle(connection: sqlite3.Connection, statement: str, after: bool) -> None:
        if statement.startswith("INSERT INTO casework_writers") and not raised:
            raised.append(statement)
            raise KeyboardInterrupt

    meddle_with(backend, meddle)
    with pytest.raises(KeyboardInterrupt):
        backend.execute(put("a"))
    assert backend.execute(Get(ITEMS.key("a"))) is None
    backend.execute(put("a"))


def test_an_interrupted_leader_answers_the_others_of_its_group_and_hands_on(backend: SqliteBackend) -> None:
    inside, go_on = threading.Event(), threading.Event()
    commits: list[int] = []

    def meddle(connection: sqlite3.Connection, statement: str, after: bool) -> None:
        if statement == "COMMIT" and not after:
            commits.append(1)
            if len(commits) == 1:
                inside.set()
                go_on.wait()
            if len(commits) == 2:
                raise KeyboardInterrupt

    meddle_with(backend, meddle)
    results: dict[str, BaseException | None] = {}

    def work(id: str) -> None:
        try:
            backend.execute(put(id))
            results[id] = None
        except BaseException as error:
            results[id] = error

    first = threading.Thread(target=work, args=("first",))
    first.start()
    inside.wait()
    others = [threading.Thread(target=work, args=(id,)) for id in ("second", "third")]
    for other in others:
        other.start()
    while len(backend._combiner._waiting) < 2:
        pass
    go_on.set()
    for thread in (first, *others):
        thread.join()
    assert results["first"] is None
    kinds = sorted(type(results[id]).__name__ for id in ("second", "third"))
    assert kinds == ["KeyboardInterrupt", "Unavailable"]
    assert backend.execute(Get(ITEMS.key("second"))) is None and backend.execute(Get(ITEMS.key("third"))) is None
    backend.execute(put("second"))


# --- other processes, and what is no database -----------------------------------------------------------------------


def test_a_file_locked_by_another_process_is_contention_that_says_which_and_how_long(path: Path) -> None:
    with SqliteBackend(path, busy_timeout_s=0.05) as backend:
        backend.create_tables([ITEMS])
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        outcomes = backend.execute_many([put("a"), put("b")])
        for outcome in outcomes:
            assert isinstance(outcome.error, Contention)
            assert str(path) in str(outcome.error) and "0.05 s" in str(outcome.error)
        assert backend.execute(Get(ITEMS.key("a"))) is None  # reads do not wait
        other.execute("ROLLBACK")
        other.close()
        assert [outcome.error for outcome in backend.execute_many([put("a"), put("b")])] == [None, None]


def test_a_row_changed_by_another_process_after_it_was_read_is_seen(path: Path, backend: SqliteBackend) -> None:
    backend.execute(Transact([Put(ITEMS, {"id": "n", "v": 0})]))
    assert backend.execute(Get(ITEMS.key("n"))) == {"id": "n", "v": 0}
    with SqliteBackend(path) as other:
        other.execute(Transact([Update(ITEMS.key("n"), {"v": 1}, when=equals("v", 0)), Put(ITEMS, {"id": "m"})]))
    outcomes = backend.execute_many(
        [
            Transact([Update(ITEMS.key("n"), {"v": 9}, when=equals("v", 0))]),
            Transact([Check(ITEMS.key("n"), equals("v", 1)), Put(ITEMS, {"id": "k"})]),
            Transact([Put(ITEMS, {"id": "m", "mine": True}, when=absent())]),
            Transact([Update(ITEMS.key("n"), {"v": 2}, when=equals("v", 1))]),
        ]
    )
    assert [type(outcome.error) for outcome in outcomes] == [ConditionFailed, type(None), ConditionFailed, type(None)]
    assert backend.execute(Get(ITEMS.key("n"))) == {"id": "n", "v": 2}
    with SqliteBackend(path) as other:
        other.execute(Transact([Delete(ITEMS.key("n"))]))
    assert isinstance(
        backend.execute_many([Transact([Delete(ITEMS.key("n"), when=present())])])[0].error, ConditionFailed
    )


def test_a_path_that_cannot_be_a_database_is_misuse(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="is a folder"):
        SqliteBackend(tmp_path)
    with pytest.raises(Misuse, match="does not exist"):
        SqliteBackend(tmp_path / "nowhere" / "store.db")
    text = tmp_path / "notes.txt"
    text.write_text("this is no database, but it is long enough to look at: " * 100)
    with pytest.raises(Misuse, match="not an SQLite database"):
        SqliteBackend(text)
    assert text.read_text().startswith("this is no database")
    with pytest.raises(Misuse, match="synchronous"):
        SqliteBackend(tmp_path / "a.db", synchronous="sometimes")
    with pytest.raises(Misuse, match="busy_timeout_s"):
        SqliteBackend(tmp_path / "a.db", busy_timeout_s=-1)


def test_a_file_of_a_newer_format_is_refused_unchanged(path: Path) -> None:
    SqliteBackend(path).close()
    with sqlite3.connect(path) as other:
        other.execute("UPDATE casework_meta SET value = '99' WHERE name = 'format'")
    other.close()
    with pytest.raises(NewerFormat, match="format 99"):
        SqliteBackend(path)


def test_a_damaged_item_is_reported_and_never_overwritten(path: Path, backend: SqliteBackend) -> None:
    backend.execute_many([put("good"), put("bad")])
    with sqlite3.connect(path) as other:
        other.execute("UPDATE items SET attributes = '{\"data\"' WHERE id = 'bad'")
    other.close()
    with SqliteBackend(path) as fresh:
        outcomes = fresh.execute_many(
            [
                Get(ITEMS.key("good")),
                Get(ITEMS.key("bad")),
                Query(ITEMS, "good"),
                Query(ITEMS, "bad"),
                Transact([Update(ITEMS.key("bad"), {"n": 1})]),
                Transact([Update(ITEMS.key("good"), {"n": 1})]),
            ]
        )
        kinds = [type(outcome.error) for outcome in outcomes]
        assert kinds == [type(None), CorruptItem, type(None), CorruptItem, CorruptItem, type(None)]
        assert "items['bad']" in str(outcomes[1].error)


def test_a_network_file_system_is_warned_of(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from casework.backends.sqlite import connections

    monkeypatch.setattr(connections, "_file_system_of", lambda folder: "nfs4")
    with pytest.warns(RuntimeWarning, match="network file system"):
        SqliteBackend(path).close()


# --- its life -------------------------------------------------------------------------------------------------------


def test_closing_twice_is_harmless_and_use_after_it_is_misuse(path: Path) -> None:
    backend = SqliteBackend(path)
    backend.create_tables([ITEMS])
    backend.execute(put("a"))
    backend.close()
    backend.close()
    for effect in (Get(ITEMS.key("a")), put("b")):
        with pytest.raises(Misuse, match="closed"):
            backend.execute(effect)
    with sqlite3.connect(path) as other:
        assert other.execute("SELECT count(*) FROM casework_writers WHERE writer != ''").fetchone() == (0,)
    other.close()


def test_a_writer_that_is_long_gone_is_tidied_away(path: Path) -> None:
    SqliteBackend(path).close()
    with sqlite3.connect(path) as other:
        other.execute("INSERT INTO casework_writers VALUES ('gone', 1, 1, 1, 'b')")
    other.close()
    SqliteBackend(path).close()
    with sqlite3.connect(path) as other:
        assert other.execute("SELECT count(*) FROM casework_writers WHERE writer != ''").fetchone() == (0,)
    other.close()


def test_tidying_leaves_the_rows_of_writers_that_may_be_there(path: Path) -> None:
    now_us = round(time.time() * 1e6)
    ages_s = {"eight days": 8 * 86_400, "six days": 6 * 86_400, "a minute": 60}
    SqliteBackend(path).close()
    with sqlite3.connect(path) as other:
        for name, age_s in ages_s.items():
            other.execute("INSERT INTO casework_writers VALUES (?, 1, ?, 1, 'b')", (name, now_us - age_s * 1_000_000))
    other.close()
    SqliteBackend(path).close()
    with sqlite3.connect(path) as other:
        left = {name for (name,) in other.execute("SELECT writer FROM casework_writers WHERE writer != ''")}
    other.close()
    assert left == {"six days", "a minute"}


def test_an_error_that_belongs_to_one_request_hits_only_that_one(
    backend: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    from casework.kernel.conditions import Condition

    class Broken(Condition, frozen=True):
        def holds(self, item: Any) -> bool:
            raise ZeroDivisionError

    outcomes = backend.execute_many([put("a"), Transact([Put(ITEMS, {"id": "b"}, when=Broken())]), put("c")])
    assert [type(outcome.error) for outcome in outcomes] == [type(None), ZeroDivisionError, type(None)]
    assert backend.execute(Get(ITEMS.key("b"))) is None


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_file_that_was_deleted_or_replaced_is_written_no_more(tmp_path: Path, is_replaced: bool) -> None:
    path, aside = tmp_path / "a.db", tmp_path / "aside.db"
    with SqliteBackend(path) as backend:
        backend.create_tables([ITEMS])
        backend.execute(Write(Put(ITEMS, {"id": "kept"})))
        path.rename(aside)
        backend._file._looked_s = 0.0
        if is_replaced:
            SqliteBackend(path).close()
        said = "replaced by another file" if is_replaced else "deleted or moved away"
        with pytest.raises(Misuse, match=f"{said} while this process had it open.*restart"):
            backend.execute(Write(Put(ITEMS, {"id": "lost"})))
        refused = backend.execute_many([Write(Put(ITEMS, {"id": f"{n}"})) for n in range(3)])
        assert all(isinstance(outcome.error, Misuse) for outcome in refused)
        with pytest.raises(Misuse, match=said):
            backend.create_tables([Table(name="others", partition="id")])
        with pytest.raises(Misuse, match=said):
            backend.execute(Get(ITEMS.key("kept")))
        if not is_replaced:
            aside.rename(path)
            backend.execute(Write(Put(ITEMS, {"id": "again"})))  # it is the file that was opened
            assert backend.execute(Get(ITEMS.key("kept"))) and backend.execute(Get(ITEMS.key("lost"))) is None
