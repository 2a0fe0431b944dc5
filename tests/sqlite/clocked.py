"""A process of a host whose clock the test sets: the offset stands in a file that all processes of that host read."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import casework
from casework.backends.sqlite import SqliteBackend
from casework.backends.surroundings import HostClock
from casework.kernel.schema import TABLES

LIGHT = {
    "id": "light",
    "initial": "off",
    "states": {"off": {"on": {"Switch": "on"}}, "on": {"after": {"200ms": "over"}}, "over": {"type": "final"}},
}


def machine() -> casework.Machine:
    return casework.Machine.from_dict(LIGHT)


def clock_of(offset: Path) -> HostClock:
    """The documented seam: a ``HostClock`` with another clock in it."""
    return HostClock(wall_us=lambda: time.time_ns() // 1000 + int(offset.read_text() or 0))


def say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def main(path: str, offset: str) -> None:
    with SqliteBackend(path, clock=clock_of(Path(offset))) as backend:
        backend.create_tables(TABLES)
        with casework.open(backend, machines=[machine()]) as app:
            with app.worker():
                say("works")
                sys.stdin.readline()
            say("left")


if __name__ == "__main__":
    main(*sys.argv[1:])
