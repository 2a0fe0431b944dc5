"""The commit of one group, and what is done when it fails.

The rules (each has a race or a crash behind it): nothing is answered before COMMIT returned; after an error, a
transaction that is gone has applied nothing, and each request runs again alone, so that one request's error hits only
that one; after an error in COMMIT itself the file is opened again and the writer's own row tells which group was the
last to be applied.
"""

from __future__ import annotations

import contextlib
import secrets
import sqlite3
from collections.abc import Callable, Sequence

from casework.backends.sqlite.connections import COMMIT_LOOK_S, SqliteFile, begin
from casework.backends.sqlite.failures import Locked, could_not_write, translated
from casework.backends.sqlite.group import (
    Request,
    StaleGuess,
    decide,
    flush,
    forget,
    guess,
    read_rows,
    sort_out,
)
from casework.backends.sqlite.known import Known, Place
from casework.backends.sqlite.reading import fetch_texts
from casework.backends.sqlite.timekeeping import Timekeeper
from casework.errors import OutcomeUnknown, Unavailable

_MARK = (
    "INSERT INTO casework_writers VALUES (?, ?, ?, ?, ?)"
    " ON CONFLICT (writer) DO UPDATE SET last_group = excluded.last_group, at_us = excluded.at_us,"
    " steady_us = excluded.steady_us, boot = excluded.boot"
)
_FORGOTTEN_AFTER_S = 7 * 86_400
"""A writer's row is removed after so long without a commit."""


class Committer:
    """Commits groups of requests on a connection of its own, one at a time: its owner sees to that."""

    def __init__(self, file: SqliteFile, known: Known, time: Timekeeper) -> None:
        self._file = file
        self._time = time
        self._known = known
        self._writer = secrets.token_hex(16)
        self._group = 0
        self._committing = False
        self.connection: sqlite3.Connection | None = None

    def carry_out(self, requests: list[Request]) -> None:
        """Commit the group; afterwards every request has its error, or none and is applied."""
        try:
            self._commit(requests)
        except Exception as error:
            self._after_error(requests, error)
        except BaseException as interrupt:
            self._after_interrupt(requests, interrupt)
            raise

    def _connect(self) -> sqlite3.Connection:
        connection = self.connection
        if connection is None:
            connection = self._file.connect()
            connection.execute("PRAGMA cache_size = -65536")
            connection.execute("PRAGMA busy_timeout = 0")  # begin() waits itself, and more fairly
            self.connection = connection
        return connection

    def _commit(self, requests: Sequence[Request]) -> None:
        self._committing = False
        connection = self._connect()
        self._file.look_again(COMMIT_LOOK_S)
        rows = guess(requests, self._known, lambda places: fetch_texts(connection, places))
        overlay = decide(requests, rows)
        changes, unstated = sort_out(rows, overlay)
        begin(connection, self._file.busy_timeout_s)
        try:
            flush(connection, rows, changes, unstated)
        except StaleGuess:
            connection.execute("ROLLBACK")
            forget(self._known, rows)
            begin(connection, self._file.busy_timeout_s)
            rows = read_rows(list(rows), lambda places: fetch_texts(connection, places))
            overlay = decide(requests, rows)
            changes, unstated = sort_out(rows, overlay)
            flush(connection, rows, changes, unstated)
        if changes:
            self._group += 1
            connection.execute(_MARK, (self._writer, self._group, *self._time.mark()))
            self._committing = True
        connection.execute("COMMIT")
        self._committing = False
        self._known.note_all(overlay)  # what this process wrote is what it knows

    # --- when it went wrong ----------------------------------------------------------------------------------------

    def _after_error(self, requests: Sequence[Request], error: Exception) -> None:
        self._forget(requests)
        if could_not_write(error):
            self._committing = False  # the log lacks the frame that would make it a commit
        applied = self._settle()
        if applied is None:
            self._answer_unknown(requests, error)
        elif applied is False:
            if len(requests) > 1 and not isinstance(error, Locked):
                self._each_alone(requests)
            else:
                self._refuse(requests, error)

    def _after_interrupt(self, requests: Sequence[Request], interrupt: BaseException) -> None:
        """The thread that led was interrupted; its group is settled all the same, since others wait for it."""
        self._forget(requests)
        applied = self._settle()
        if applied is None:
            self._answer_unknown(requests, interrupt)
        elif applied is False:
            self._refuse(
                requests, Unavailable("the thread that was committing was interrupted; nothing was written, try again")
            )

    def _forget(self, requests: Sequence[Request]) -> None:
        places: list[Place] = [place for request in requests for place in request.places]
        forget(self._known, places)

    def _refuse(self, requests: Sequence[Request], error: BaseException) -> None:
        for request in requests:
            request.error = translated(error, self._file.path, self._file.busy_timeout_s)

    def _each_alone(self, requests: Sequence[Request]) -> None:
        locked: Locked | None = None
        for request in requests:
            if locked is not None:  # one wait is enough
                self._refuse([request], locked)
                continue
            try:
                self._commit([request])
            except Exception as error:
                self._after_error([request], error)
                locked = error if isinstance(error, Locked) else None

    def _answer_unknown(self, requests: Sequence[Request], error: BaseException) -> None:
        for request in requests:
            if request.error is None:
                request.error = OutcomeUnknown(
                    f"{self._file.path}: the commit failed ({error}) and the file cannot tell whether it was applied"
                )
            else:  # its refusal was seen beside writes of which nobody knows whether they stand
                request.error = Unavailable(
                    f"{self._file.path}: the commit failed ({error}); nothing of this was written"
                )

    def _settle(self) -> bool | None:
        """Whether the group that failed was applied; None when that cannot be known. Leaves no transaction open."""
        connection, committing = self.connection, self._committing
        self._committing = False
        if connection is None:
            return False
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
                return False
            if not committing:
                return False
        except sqlite3.Error:
            if not committing:
                self._drop()  # closing it ends the transaction
                return False
        self._drop()
        return self._read_mark()

    def _read_mark(self) -> bool | None:
        """Open the file again: was our last group applied? A group that was not must never come back from the log.

        A COMMIT that failed may have left its frames in the log, where a recovery after a crash could still find them.
        So "not applied" is only answered after another commit took their place.
        """
        try:
            connection = self._connect()
            begin(connection, self._file.busy_timeout_s)
            row = connection.execute(
                "SELECT last_group FROM casework_writers WHERE writer = ?", (self._writer,)
            ).fetchone()
            if row is not None and row[0] == self._group:
                connection.execute("ROLLBACK")
                return True
            self._group += 1
            connection.execute(_MARK, (self._writer, self._group, *self._time.mark()))
            connection.execute("COMMIT")
            return False
        except Exception:
            self._drop()
            return None

    def _drop(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    # --- apart from groups -----------------------------------------------------------------------------------------

    def change_schema(self, change: Callable[[sqlite3.Connection], None]) -> None:
        """Run ``change`` in a transaction of its own."""
        connection = self._connect()
        self._file.check_identity()
        try:
            begin(connection, self._file.busy_timeout_s)
            change(connection)
            connection.execute("COMMIT")
        except BaseException as error:
            self._settle()
            known = translated(error, self._file.path, self._file.busy_timeout_s)
            if known is error:
                raise
            raise known from error

    def forget_old_writers(self) -> None:
        """Remove the rows of writers that have long been gone; only tidying, so an error is let go."""
        with contextlib.suppress(sqlite3.Error, Locked):
            connection = self._connect()
            before_us = (self._time.settled_s() - _FORGOTTEN_AFTER_S) * 1_000_000
            if connection.execute("SELECT 1 FROM casework_writers WHERE at_us < ? LIMIT 1", (before_us,)).fetchone():
                connection.execute("DELETE FROM casework_writers WHERE at_us < ?", (before_us,))

    def close(self) -> None:
        """Remove this writer's row, all but its time, and close its connection."""
        if self.connection is not None and self._group:
            with contextlib.suppress(sqlite3.Error, Locked):
                begin(self.connection, 0.0)
                self._time.remember(self.connection)
                self.connection.execute("DELETE FROM casework_writers WHERE writer = ?", (self._writer,))
                self.connection.execute("COMMIT")
        self._drop()
