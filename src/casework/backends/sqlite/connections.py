"""The file and the connections to it: how they are opened, lent out, and left behind by a fork."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
import urllib.parse
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from casework.backends.sqlite.failures import Locked, is_busy, translated
from casework.errors import Misuse, NewerFormat

FILE_FORMAT = 1
"""How tables lie in the file; a newer one is refused."""

CHECKPOINT_PAGES = 8000
"""The write-ahead log is copied into the file after so many pages (32 MB), eight times SQLite's default: a page that
is changed again and again is copied less often."""

WRITERS = (
    "casework_writers (writer TEXT PRIMARY KEY, last_group INTEGER NOT NULL, at_us INTEGER NOT NULL,"
    " steady_us INTEGER NOT NULL, boot TEXT NOT NULL) STRICT"
)
"""One row for each process that writes: its last group, and what time it was then, on which host's steady clock."""

POLL_S = 0.0003
"""Pause between two attempts to take the write lock from another process; SQLite's own grow to 100 ms and starve."""

READ_LOOK_S, COMMIT_LOOK_S = 1.0, 0.01
"""Reads and commits look so often whether the file is still the one that was opened. A look takes 3 us: nothing beside
an fsync, a tenth of a commit without one."""

_NETWORK_FILE_SYSTEMS = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "afs", "ceph", "glusterfs", "lustre", "fuse.glusterfs")
)

_left_behind: list[Any] = []
"""Connections of the parent process. SQLite must not even close them in a child, so they are kept for ever."""


class SqliteFile:
    """One file: opens connections to it and lends them out to readers."""

    def __init__(self, path: str | os.PathLike[str], *, busy_timeout_s: float, synchronous: str) -> None:
        if synchronous not in ("full", "normal", "extra", "off"):
            raise Misuse(f"synchronous={synchronous!r}; it is 'full' (default), 'extra', 'normal' or 'off'")
        if not 0 <= busy_timeout_s <= 86_400:
            raise Misuse(f"busy_timeout_s={busy_timeout_s!r}; it is a number of seconds from 0 to 86,400")
        self.path = os.path.abspath(os.fspath(path))
        self.busy_timeout_s = busy_timeout_s
        self.synchronous = synchronous
        self._idle: list[sqlite3.Connection] = []
        self._identity: tuple[int, int] | None = None
        self._looked_s = 0.0
        self.closed = False
        self._check_place()

    def _check_place(self) -> None:
        folder = Path(self.path).parent
        if os.path.isdir(self.path):
            raise Misuse(f"{self.path} is a folder; give the path of a file in it, such as {self.path}/casework.db")
        if not folder.is_dir():
            raise Misuse(f"the folder {folder} does not exist; make it first, or give another path")
        kind = _file_system_of(str(folder))
        if kind in _NETWORK_FILE_SYSTEMS:
            warnings.warn(
                f"{self.path} is on a network file system ({kind}); SQLite's locks are not safe there, and data can be"
                " lost. Put the file on a local disk",
                RuntimeWarning,
                stacklevel=4,
            )

    def connect(self) -> sqlite3.Connection:
        """A new connection, set up; the casework error when the file cannot serve."""
        if self.closed:
            raise Misuse(f"{self.path}: this backend was closed; open it again")
        if self._identity is not None:
            self.check_identity()
        try:
            connection = sqlite3.connect(
                self.path,
                isolation_level=None,
                timeout=self.busy_timeout_s,
                check_same_thread=False,
                cached_statements=512,
            )
        except sqlite3.Error as error:
            raise self._cannot_open(error) from error
        try:
            self._set_up(connection)
        except BaseException as error:
            connection.close()
            if isinstance(error, sqlite3.Error):
                raise self._cannot_open(error) from error
            raise
        if self._identity is None:
            self._identity = self._look()
        return connection

    def _look(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def look_again(self, every_s: float) -> None:
        """:meth:`check_identity`, unless that was done within ``every_s``."""
        now_s = time.monotonic()
        if now_s - self._looked_s >= every_s:
            self.check_identity()
            self._looked_s = now_s

    def check_identity(self) -> None:
        """Misuse when the path no longer leads to the file that was opened: what is written there would be lost.

        While a connection is open no other file can get the same inode.
        """
        found = self._look()
        if found == self._identity:
            return
        what = "deleted or moved away" if found is None else "replaced by another file"
        raise Misuse(
            f"{self.path} was {what} while this process had it open. Nothing more is written, since it would be lost; "
            "restart this process to work with what is there now"
        )

    def _set_up(self, connection: sqlite3.Connection) -> None:
        deadline = time.monotonic() + self.busy_timeout_s
        while True:
            try:
                connection.execute("PRAGMA encoding = 'UTF-8'")
                mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
                break
            except sqlite3.Error as error:  # the change to WAL does not wait for others by itself
                if not is_busy(error) or time.monotonic() >= deadline:
                    raise
                time.sleep(POLL_S)
        if mode != "wal":
            raise Misuse(
                f"{self.path}: SQLite cannot keep a write-ahead log there (it answered {mode!r}); use a local disk"
            )
        connection.execute(f"PRAGMA synchronous = {self.synchronous}")
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        connection.execute("PRAGMA journal_size_limit = 67108864")

    def _cannot_open(self, error: sqlite3.Error) -> BaseException:
        code = (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF
        known = translated(error, self.path, self.busy_timeout_s)
        if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_READONLY):
            return Misuse(str(known))
        return known

    @contextmanager
    def reader(self) -> Iterator[sqlite3.Connection]:
        """Lend a connection for reading; it comes back unless it failed."""
        if self._identity is not None:
            self.look_again(READ_LOOK_S)
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self.connect()
        idle = self._idle
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        if self.closed:
            connection.close()
        else:
            idle.append(connection)

    def prepare(self, connection: sqlite3.Connection) -> None:
        """Make the backend's own tables where they are missing; NewerFormat when newer code made the file."""
        found = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'casework_meta'").fetchone()
        if found is None:
            begin(connection, self.busy_timeout_s)
            connection.execute(
                "CREATE TABLE IF NOT EXISTS casework_meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT"
            )
            connection.execute(f"CREATE TABLE IF NOT EXISTS {WRITERS}")
            connection.execute("INSERT OR IGNORE INTO casework_meta VALUES ('format', ?)", (str(FILE_FORMAT),))
            connection.execute("COMMIT")
        columns = {row[1] for row in connection.execute("PRAGMA table_info(casework_writers)")}
        if "boot" not in columns:  # made before the processes of a host kept one time
            begin(connection, self.busy_timeout_s)
            connection.execute("DROP TABLE IF EXISTS casework_writers")
            connection.execute(f"CREATE TABLE {WRITERS}")
            connection.execute("COMMIT")
        (text,) = connection.execute("SELECT value FROM casework_meta WHERE name = 'format'").fetchone() or ("?",)
        if not text.isdigit() or int(text) > FILE_FORMAT:
            raise NewerFormat(
                f"{self.path} has format {text}, this casework reads up to {FILE_FORMAT}; upgrade this process"
            )

    def close(self) -> None:
        """Close what is idle; what is lent is closed when it comes back."""
        self.closed = True
        while self._idle:
            self._idle.pop().close()

    def forget(self, *connections: Any) -> None:
        """In a child process: leave the parent's connections alone, and start without any."""
        _left_behind.append((self._idle, connections))
        self._idle = []


def foreign_tables(path: str) -> list[str] | None:
    """The tables of a file in which casework has never been; None when it has, or when SQLite cannot read the file.

    Reads only: opening a backend would make casework's own tables there.
    """
    address = f"file:{urllib.parse.quote(os.path.abspath(path))}?mode=ro"
    try:
        with contextlib.closing(sqlite3.connect(address, uri=True)) as connection:
            found = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    except sqlite3.Error:
        return None
    return None if "casework_meta" in found else sorted(found)


def begin(connection: sqlite3.Connection, busy_timeout_s: float) -> None:
    """Begin to write; Locked when another process holds the lock for longer than the timeout."""
    deadline = time.monotonic() + busy_timeout_s
    while True:
        try:
            connection.execute("BEGIN IMMEDIATE")
            return
        except sqlite3.Error as error:
            if not is_busy(error):
                raise
            if time.monotonic() >= deadline:
                raise Locked() from error
        time.sleep(POLL_S)


def _file_system_of(folder: str) -> str:
    """The kind of file system that holds ``folder``; empty where the host does not tell."""
    try:
        with open("/proc/mounts", encoding="utf-8", errors="replace") as mounts:
            lines = [line.split() for line in mounts]
    except OSError:
        return ""
    best, kind = "", ""
    real = os.path.realpath(folder)
    for fields in lines:
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind
