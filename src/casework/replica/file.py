"""The file of a replica: what was pulled, what waits to be pushed, and how far folds have come.

Every change is one SQLite transaction, on disk when it returns, so that a crash leaves the file before or after it.
Several processes may use one file.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from casework.arguments import check_path
from casework.errors import CorruptItem, Misuse, NewerFormat, Unavailable
from casework.streams.log import Op

FORMAT = 1
APPLICATION_ID = 0x43575250  # "CWRP"

_SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value ANY NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE log (seq INTEGER PRIMARY KEY, id TEXT NOT NULL, data BLOB NOT NULL, at_us INTEGER NOT NULL) STRICT;
CREATE TABLE outbox (
    place INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, data BLOB NOT NULL,
    state TEXT NOT NULL DEFAULT 'waiting', seq INTEGER, error TEXT
) STRICT;
CREATE INDEX outbox_state ON outbox (state, place);
CREATE TABLE folds (name TEXT PRIMARY KEY, watermark INTEGER NOT NULL, state BLOB NOT NULL) STRICT, WITHOUT ROWID;
"""

_LATER = """
CREATE TABLE IF NOT EXISTS marks (seq INTEGER PRIMARY KEY, mark TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS own (seq INTEGER PRIMARY KEY) STRICT;
CREATE TABLE IF NOT EXISTS differences (
    place INTEGER PRIMARY KEY AUTOINCREMENT, seq INTEGER NOT NULL, id TEXT NOT NULL, data BLOB NOT NULL,
    at_us INTEGER NOT NULL, own INTEGER NOT NULL, now_seq INTEGER
) STRICT;
CREATE INDEX IF NOT EXISTS differences_id ON differences (id)
"""
"""``marks``: of the ends of pages; ``own``: numbers of this replica's own operations in the log."""


class Difference(msgspec.Struct, frozen=True):
    """An operation that was pulled, and that the relay's log did not have at its number any more."""

    op: Op
    """With the number that it had."""
    is_own: bool
    """This replica's own: it is pushed again by itself."""
    now_seq: int | None
    """The number under which it came back, with the same content; None: it has not."""


class Waiting(msgspec.Struct, frozen=True):
    """An operation of this replica's own that has not come back from the relay yet."""

    op: Op
    state: str
    """``waiting`` to be pushed, ``pushed``, or ``parked``: the relay will not take it."""
    error: str = ""


class ReplicaFile:
    """The file. Safe to use from several threads.

    Args:
        path: of the file; it is made when it is missing.

    Raises Misuse when it is another program's database, NewerFormat when a newer casework made it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        check_path("path", path)
        self.path = Path(path)
        self._lock = threading.RLock()
        is_new = not self.path.exists()
        if is_new:
            self.path.touch(mode=0o600)  # a token may stand in it
        self._db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=30.0)
        try:
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._begin()
        except (sqlite3.DatabaseError, Unavailable) as error:
            self._db.close()
            raise Misuse(f"{self.path} is not a replica's file: {error}") from None
        except BaseException:
            self._db.close()
            raise

    def _begin(self) -> None:
        with self.transaction():
            (application,) = self._db.execute("PRAGMA application_id").fetchone()
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            (tables,) = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if application == 0 and tables == 0:
                for statement in _SCHEMA.split(";"):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA application_id={APPLICATION_ID}")
                self._db.execute(f"PRAGMA user_version={FORMAT}")
            elif application != APPLICATION_ID:
                raise Misuse(f"{self.path} is another program's database; give the replica a file of its own")
            elif version > FORMAT:
                raise NewerFormat(f"{self.path} has format {version}, this casework reads up to {FORMAT}; upgrade it")
            for statement in _LATER.split(";"):
                self._db.execute(statement)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """One change of the file: all of it, or none."""
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                try:
                    yield
                    self._db.execute("COMMIT")
                finally:
                    if self._db.in_transaction:
                        self._db.execute("ROLLBACK")
            except sqlite3.OperationalError as error:
                raise Unavailable(f"{self.path} cannot be changed now: {error}; nothing was changed") from error

    # --- settings ---------------------------------------------------------------------------------------------------

    def setting(self, name: str) -> str | int | None:
        """A setting, or None."""
        with self._lock:
            row = self._db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return None if row is None else row[0]

    def set_setting(self, name: str, value: str | int) -> None:
        """Store a setting; for the inside of a transaction, or by itself."""
        with self._lock:
            self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))

    @property
    def cursor(self) -> int:
        """Everything up to this number has been pulled."""
        found = self.setting("cursor")
        if found is not None and type(found) is not int:
            raise CorruptItem(f"{self.path}: the cursor is {found!r}")
        return int(found or 0)

    # --- the outbox -------------------------------------------------------------------------------------------------

    def add(self, ops: Sequence[Op]) -> None:
        """Put operations into the outbox. Misuse when an id is there already with other content."""
        with self.transaction():
            for op in ops:
                known = self._db.execute("SELECT data FROM outbox WHERE id = ?", (op.id,)).fetchone()
                if known is None:
                    self._db.execute("INSERT INTO outbox (id, data) VALUES (?, ?)", (op.id, op.data))
                elif known[0] != op.data:
                    raise Misuse(f"operation id {op.id!r} waits with other content; give the new one its own id")

    def to_push(self, most: int, max_bytes: int) -> list[Op]:
        """The first operations that wait, up to so many and so many bytes, one at least."""
        with self._lock:
            rows = self._db.execute(
                "SELECT id, data FROM outbox WHERE state = 'waiting' ORDER BY place LIMIT ?", (most,)
            ).fetchall()
        found: list[Op] = []
        size = 0
        for id, data in rows:
            size += len(data) + len(id)
            if found and size > max_bytes:
                break
            found.append(Op(id, data))
        return found

    def mark_pushed(self, numbers: Sequence[tuple[str, int]]) -> None:
        """Note the numbers that a successful push was answered with; what was pulled under them has come back."""
        with self.transaction():
            self._db.executemany(
                "UPDATE outbox SET state = 'pushed', seq = ? WHERE id = ?", [(seq, id) for id, seq in numbers]
            )
            base, cursor = self.base()[0], self.cursor
            for id, seq in numbers:
                if seq <= base:
                    self._db.execute("DELETE FROM outbox WHERE id = ?", (id,))  # the snapshot has it
                elif seq <= cursor:
                    pulled = self._db.execute("SELECT id, data FROM log WHERE seq = ?", (seq,)).fetchone()
                    if pulled is not None and pulled[0] == id:  # else the log is another one: the next pull is told
                        self._settle(id, pulled[1], seq)

    def park(self, id: str, error: str) -> None:
        """Put an operation aside that the relay will not take."""
        with self.transaction():
            self._db.execute("UPDATE outbox SET state = 'parked', error = ? WHERE id = ?", (error[:1000], id))

    def unpark(self, id: str, *, drop: bool, new_id: str | None = None) -> bool:
        """Let a parked operation be pushed again, behind the others, or drop it; False when there is none.

        Misuse when ``new_id`` is the id of another operation of this replica's own.
        """
        with self.transaction():
            row = self._db.execute("SELECT data FROM outbox WHERE id = ? AND state = 'parked'", (id,)).fetchone()
            if row is None:
                return False
            self._db.execute("DELETE FROM outbox WHERE id = ?", (id,))
            if not drop:
                try:
                    self._db.execute("INSERT INTO outbox (id, data) VALUES (?, ?)", (new_id or id, row[0]))
                except sqlite3.IntegrityError:
                    raise Misuse(f"an operation {new_id!r} waits already; choose another id") from None
        return True

    def own(self, *states: str) -> list[Waiting]:
        """Operations of this replica's own in these states, in the order in which they were appended."""
        marks = ",".join("?" * len(states))
        with self._lock:
            rows = self._db.execute(
                f"SELECT id, data, seq, state, error FROM outbox WHERE state IN ({marks}) ORDER BY place", states
            ).fetchall()
        return [Waiting(Op(id, data, seq or 0), state, error or "") for id, data, seq, state, error in rows]

    # --- what was pulled --------------------------------------------------------------------------------------------

    def store_page(self, after: int, ops: Sequence[Op], next_after: int, mark: str, rewinds: int) -> bool:
        """Store a page that was pulled behind ``after``; False when another process has gone on meanwhile.

        What was pushed and answered with a number of the page, and does not stand there, waits to be pushed again.
        """
        with self.transaction():
            if (self.cursor, self.rewinds) != (after, rewinds):
                return False
            self._db.executemany(
                "INSERT INTO log VALUES (?, ?, ?, ?)", [(op.seq, op.id, op.data, op.at_us) for op in ops]
            )
            self.set_setting("cursor", next_after)
            self._set_mark(next_after, mark)
            for op in ops:
                self._settle(op.id, op.data, op.seq)
                found = "UPDATE differences SET now_seq = ? WHERE id = ? AND data = ?"
                self._db.execute(found, (op.seq, op.id, op.data))
            self._db.execute(
                "UPDATE outbox SET state = 'waiting', seq = NULL WHERE state = 'pushed' AND seq > ? AND seq <= ?",
                (after, next_after),
            )
        return True

    def wait_again(self, ids: Sequence[str]) -> None:
        """Let pushed operations wait again that the relay's log did not have at its end; a repeat is harmless."""
        with self.transaction():
            again = "UPDATE outbox SET state = 'waiting', seq = NULL WHERE state = 'pushed' AND seq > ? AND id = ?"
            self._db.executemany(again, [(self.cursor, id) for id in ids])

    def _settle(self, id: str, data: bytes | None, seq: int) -> None:
        """An operation was pulled. One of this replica's own with its id and content has come back; another is parked:
        somebody else gave the id to something else first.
        """
        own = self._db.execute("SELECT data, state FROM outbox WHERE id = ?", (id,)).fetchone()
        if own is None or own[1] == "parked":
            return
        if own[0] == data:
            self._db.execute("DELETE FROM outbox WHERE id = ?", (id,))
            self._db.execute("INSERT OR IGNORE INTO own VALUES (?)", (seq,))
            return
        error = f"the stream has another operation under this id, number {seq}; let this one go on under a new id"
        self._db.execute("UPDATE outbox SET state = 'parked', error = ? WHERE id = ?", (error, id))

    def read(self, after: int, limit: int) -> list[Op]:
        """Pulled operations behind a number, in order."""
        with self._lock:
            rows = self._db.execute(
                "SELECT id, data, seq, at_us FROM log WHERE seq > ? ORDER BY seq LIMIT ?", (after, limit)
            ).fetchall()
        return [Op(*row) for row in rows]

    # --- another log ------------------------------------------------------------------------------------------------

    @property
    def rewinds(self) -> int:
        """How often the log became another one."""
        return int(self.setting("rewinds") or 0)

    def mark(self, seq: int) -> str:
        """The mark of a position; empty when none was kept."""
        with self._lock:
            row = self._db.execute("SELECT mark FROM marks WHERE seq = ?", (seq,)).fetchone()
        return "" if row is None else str(row[0])

    def marks(self) -> list[tuple[int, str]]:
        """Every position with its mark, in order."""
        with self._lock:
            return self._db.execute("SELECT seq, mark FROM marks ORDER BY seq").fetchall()

    def _set_mark(self, seq: int, mark: str) -> None:
        if mark:
            self._db.execute("INSERT OR REPLACE INTO marks VALUES (?, ?)", (seq, mark))

    def rewind(self, cursor: int, common: int, mark: str) -> bool:
        """Go back to ``common``, the last position that the relay's log shares; False when another process went on.

        What was pulled behind it is set aside; this replica's own among it, and what was pushed and has not come back,
        waits to be pushed again, before what waits already. Folds above it begin anew.
        """
        with self.transaction():
            if self.cursor != cursor:
                return False
            self._db.execute(
                "INSERT INTO differences (seq, id, data, at_us, own) SELECT seq, id, data, at_us, "
                "EXISTS (SELECT 1 FROM own WHERE own.seq = log.seq) FROM log WHERE seq > ? ORDER BY seq",
                (common,),
            )
            again = (
                "UPDATE outbox SET state = 'waiting', seq = NULL WHERE state = 'pushed' AND (seq > ? OR seq IS NULL)"
            )
            self._db.execute(again, (common,))
            lost = self._db.execute(
                "SELECT id, data FROM log WHERE seq > ? AND seq IN (SELECT seq FROM own) ORDER BY seq", (common,)
            ).fetchall()
            (first,) = self._db.execute("SELECT coalesce(min(place), 0) FROM outbox").fetchone()
            for place, (id, data) in enumerate(lost, first - len(lost)):
                self._db.execute("INSERT OR IGNORE INTO outbox (place, id, data) VALUES (?, ?, ?)", (place, id, data))
            for table, column in (("log", "seq"), ("own", "seq"), ("marks", "seq"), ("folds", "watermark")):
                self._db.execute(f"DELETE FROM {table} WHERE {column} > ?", (common,))
            if common < self.base()[0]:
                self._db.execute("DELETE FROM meta WHERE name IN ('base', 'snapshot')")
            self.set_setting("cursor", common)
            self.set_setting("rewinds", self.rewinds + 1)
            self._set_mark(common, mark)
        return True

    def differences(self) -> list[Difference]:
        """What was pulled once and stood elsewhere, or nowhere, in the log that came after."""
        with self._lock:
            rows = self._db.execute(
                "SELECT id, data, seq, at_us, own, now_seq FROM differences ORDER BY place"
            ).fetchall()
        return [Difference(Op(*row[:4]), bool(row[4]), row[5]) for row in rows]

    def forget_differences(self) -> None:
        """Forget what was set aside."""
        with self.transaction():
            self._db.execute("DELETE FROM differences")

    # --- snapshots --------------------------------------------------------------------------------------------------

    def begin_at(self, seq: int, snapshot: bytes, mark: str = "") -> None:
        """Let a snapshot stand for everything up to ``seq``, pulled or not; one that is no newer changes nothing.

        What this replica has pushed and the snapshot contains has come back.
        """
        with self.transaction():
            if seq > self.base()[0]:
                self._db.execute("DELETE FROM log WHERE seq <= ?", (seq,))
                self._db.execute("DELETE FROM outbox WHERE state = 'pushed' AND seq <= ?", (seq,))
                self._db.execute("DELETE FROM own WHERE seq <= ?", (seq,))
                self._db.execute("DELETE FROM marks WHERE seq < ?", (seq,))
                self._set_mark(seq, mark)
                self.set_setting("cursor", max(seq, self.cursor))
                self.set_setting("base", seq)
                self._db.execute("INSERT OR REPLACE INTO meta VALUES ('snapshot', ?)", (snapshot,))

    def pass_over(self, seq: int) -> None:
        """Go on behind number ``seq``, although what is between it and the cursor was never pulled."""
        with self.transaction():
            if seq > self.cursor:
                self._db.execute("DELETE FROM outbox WHERE state = 'pushed' AND seq <= ?", (seq,))
                self.set_setting("cursor", seq)

    def base(self) -> tuple[int, bytes]:
        """The number and data of the snapshot that this replica went on from; 0 when there was none."""
        with self._lock:
            rows = dict(self._db.execute("SELECT name, value FROM meta WHERE name IN ('base', 'snapshot')").fetchall())
        return int(rows.get("base", 0)), bytes(rows.get("snapshot", b""))

    # --- folds ------------------------------------------------------------------------------------------------------

    def fold(self, name: str) -> tuple[int, bytes] | None:
        """Watermark and state of a fold, or None."""
        with self._lock:
            row = self._db.execute("SELECT watermark, state FROM folds WHERE name = ?", (name,)).fetchone()
        return None if row is None else (row[0], row[1])

    def store_fold(self, name: str, watermark: int, state: bytes, rewinds: int) -> None:
        """Store a fold, unless one that is further is there, or the log became another one meanwhile."""
        with self.transaction():
            if self.rewinds != rewinds:
                return
            known = self._db.execute("SELECT watermark FROM folds WHERE name = ?", (name,)).fetchone()
            if known is None or known[0] < watermark:
                self._db.execute("INSERT OR REPLACE INTO folds VALUES (?, ?, ?)", (name, watermark, state))

    def close(self) -> None:
        """Close the file; harmless when done twice."""
        self._db.close()
