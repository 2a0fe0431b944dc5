"""From SQLite's errors to casework's: what the caller can do, and how much is known about a write."""

from __future__ import annotations

import sqlite3

from casework.errors import CaseworkError, Contention, MissingTable, Misuse, Unavailable


class Locked(Exception):
    """Another process held the write lock for longer than the busy timeout; nothing was begun."""


_FULL = "there is no space left for it; free some"
_BY_CODE = {
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_IOERR: "the disk gave an error",
    sqlite3.SQLITE_READONLY: "the file or its folder is read-only; make both writable for this process",
    sqlite3.SQLITE_CANTOPEN: "it, its -wal or its -shm file cannot be opened; the folder must exist and be writable",
    sqlite3.SQLITE_CORRUPT: "the file is damaged; restore a backup, or rescue it with `sqlite3 file.db .recover`",
    sqlite3.SQLITE_NOTADB: "it is not an SQLite database; give another path",
    sqlite3.SQLITE_NOMEM: "there is no memory left",
    sqlite3.SQLITE_INTERRUPT: "the work was interrupted",
    sqlite3.SQLITE_PERM: "access was denied",
    sqlite3.SQLITE_AUTH: "access was denied",
}


def primary_code(error: BaseException) -> int:
    """SQLite's primary result code; 0 where the error has none."""
    return (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


def could_not_write(error: BaseException) -> bool:
    """Whether a write to the log failed (no space, a limit, a broken disk), so that a commit was surely not applied.

    A commit counts from the last frame of its log, which bears the mark and is written last; a checksum refuses half a
    frame. Another error of COMMIT, such as one of ``fsync``, comes when that frame may be there.
    """
    code = getattr(error, "sqlite_errorcode", 0) or 0
    return primary_code(error) == sqlite3.SQLITE_FULL or code == sqlite3.SQLITE_IOERR_WRITE


def is_busy(error: BaseException) -> bool:
    """Whether somebody else held a lock."""
    return primary_code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def translated(error: BaseException, path: str, busy_timeout_s: float) -> BaseException:
    """The casework error for ``error``, when nothing was written."""
    if isinstance(error, CaseworkError):
        return error
    if isinstance(error, Locked) or is_busy(error):
        return Contention(
            f"{path}: another process held the lock for more than {busy_timeout_s:g} s, nothing was written; try again,"
            " or raise busy_timeout_s"
        )
    if isinstance(error, sqlite3.Error):
        text = str(error)
        if text.startswith("no such table"):
            return MissingTable(f"{path}: {text}; make it with create_tables()")
        why = _BY_CODE.get(primary_code(error), "SQLite refused")
        return Unavailable(f"{path}: {why} (SQLite says: {text}). Nothing was written")
    if isinstance(error, OverflowError | UnicodeError):
        return Misuse(f"{path}: a value cannot be stored: {error}")
    return error
