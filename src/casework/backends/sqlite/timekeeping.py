"""What time the processes of a host agree on: each leaves its time beside its commits, and takes over a later one.

Time that was once written to the file does not come again: where a process was ahead (the host's clock was set back
since, or was wrong for a while), what it wrote is found by the others, since they go on from its time. The monotonic
clock is the same for all processes of a host from one start to the next, so what a row says is carried to this moment;
of a row from before the last start only its time counts. See ``HostClock`` for what is done with it.
"""

from __future__ import annotations

import os
import secrets
import sqlite3

from casework.backends.surroundings import Clock, HostClock

LOOK_US = 1_000_000
"""Others' times are looked at so often, on the steady clock. A look takes some 20 us."""

REMEMBERED = ""
"""The writer under whose name the time of those who closed the file is kept."""

_LATEST = (
    "SELECT max(CASE WHEN boot = :boot THEN at_us + max(0, :now - steady_us) * 999 / 1000 ELSE at_us END),"
    " max(CASE WHEN boot = :boot THEN at_us + :now - steady_us END) FROM casework_writers"
)

_REMEMBER = (
    "INSERT INTO casework_writers SELECT ?, 0, ?, ?, ? WHERE NOT EXISTS"
    " (SELECT 1 FROM casework_writers WHERE writer = ? AND boot = ? AND at_us - steady_us > ?)"
    " ON CONFLICT (writer) DO UPDATE SET at_us = excluded.at_us, steady_us = excluded.steady_us, boot = excluded.boot"
)


class Timekeeper:
    """The time of one backend on a file.

    Args:
        clock: the host's clock is shared with the other processes; any other is its owner's.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._host = clock if isinstance(clock, HostClock) else None
        self._boot = boot_of_host()
        self._look_due_us: int | None = None

    @property
    def is_look_due(self) -> bool:
        """Whether to :meth:`look` before the time is told."""
        return self._host is not None and (self._look_due_us is None or self._host.steady_us() >= self._look_due_us)

    def look(self, connection: sqlite3.Connection) -> None:
        """Take over the time of other processes; one that cannot be read now is read at the next look."""
        if self._host is None:
            return
        now_us = self._host.steady_us()
        self._look_due_us = now_us + LOOK_US
        latest_us, since_boot_us = connection.execute(_LATEST, {"boot": self._boot, "now": now_us}).fetchone()
        if latest_us is not None:
            self._host.learn(latest_us, since_boot_us)

    def mark(self) -> tuple[int, int, str]:
        """What a writer leaves beside its group: the time, the steady clock, and which one that is."""
        if self._host is not None:
            return *self._host.mark(), self._boot
        return self.clock.now().middle_us, 0, "another clock"

    def remember(self, connection: sqlite3.Connection) -> None:
        """Keep the time when this process closes the file."""
        at_us, steady_us, boot = self.mark()
        if self._host is not None:
            row = (REMEMBERED, at_us, steady_us, boot, REMEMBERED, boot, at_us - steady_us)
            connection.execute(_REMEMBER, row)

    def settled_s(self) -> int:
        """The time by which what has expired may be deleted, in seconds."""
        if self._host is not None:
            return self._host.settled_us() // 1_000_000
        return self.clock.now().earliest_us // 1_000_000


def boot_of_host() -> str:
    """Names the host's steady clock, from one start of the host to the next; a new name where it does not tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        return f"{boot} {os.readlink('/proc/self/ns/time')}"  # a container may have a steady clock of its own
    except OSError:
        return secrets.token_hex(8)  # then only the time counts that others were at when they last wrote
