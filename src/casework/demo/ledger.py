"""The ledger: what the outside world saw of the tasks, written by them, beside the database and independent of it.

An append-only file with one JSON object a line; a line is one write to a file opened for appending, so that several
processes share it and a killed one leaves no half line. Each run of a task writes ``began``, then ``effect`` (the bank,
the courier did it), then ``ended``; or ``failed``. Import :class:`Ledger`, :class:`Entry` and :func:`read`.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

BEGAN, EFFECT, ENDED, FAILED = "began", "effect", "ended", "failed"


class Entry(msgspec.Struct, kw_only=True):
    """One line of the ledger."""

    what: str
    """``began``, ``effect``, ``ended`` or ``failed``."""
    task: str
    key: str
    """The idempotency key of the run."""
    attempt: int
    order: str
    pid: int
    at_us: int
    reason: str = ""


class Ledger:
    """The writing side, for one process."""

    def __init__(self, path: str | Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, what: str, task: str, key: str, attempt: int, order: str, reason: str = "") -> None:
        """Append one line."""
        entry = Entry(
            what=what, task=task, key=key, attempt=attempt, order=order, pid=os.getpid(),
            at_us=time.time_ns() // 1000, reason=reason,
        )  # fmt: skip
        os.write(self._file, msgspec.json.encode(entry) + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class Reader:
    """Reads what was appended since it last looked."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.entries: list[Entry] = []
        self._offset = 0

    def look(self) -> list[Entry]:
        """The new entries; they are kept in ``entries``, too. A line that is being written waits for the next look."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        new = [msgspec.json.decode(line, type=Entry) for line in whole.splitlines()]
        self.entries += new
        return new


def read(path: str | Path) -> list[Entry]:
    """The whole ledger, in order."""
    reader = Reader(path)
    reader.look()
    return reader.entries
