"""A process that dies in the middle: its lease lapses, another takes over, and what it began is said."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from casework import SqliteIdempotencyStore, current_claim, idempotent

DIES = """
import sys, threading
from casework import SqliteIdempotencyStore, idempotent

store = SqliteIdempotencyStore(sys.argv[1])

@idempotent(store, key="n", name="work", lease_s=1)
def work(n):
    print("working", flush=True)
    threading.Event().wait()

work(1)
"""


@pytest.mark.slow
def test_after_a_kill_another_process_takes_over_and_knows_that_it_does(tmp_path: Path) -> None:
    path = tmp_path / "keys.db"
    child = subprocess.Popen([sys.executable, "-c", DIES, str(path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "working\n"
    child.send_signal(signal.SIGKILL)
    child.wait(30)
    child.stdout.close()
    with SqliteIdempotencyStore(path) as store:

        @idempotent(store, key="n", name="work", wait_s=30)
        def work(n: int) -> bool:
            claim = current_claim()
            return claim is not None and claim.is_reclaimed and claim.epoch == 2

        assert work(1) and work(1)
        assert work.guard.counts == {"waited": 1, "reclaimed": 1, "completed": 1, "replayed": 1}  # type: ignore[attr-defined]
