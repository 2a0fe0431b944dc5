"""The demo's worker processes: real ones, started through the command line, one of them killed in the middle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from casework.demo.ledger import BEGAN, EFFECT, Entry, Reader
from casework.errors import CaseworkError

MACHINES = "casework.demo.machine:machines"
LEASE_S = 2.0
"""Short, so that the tasks of the killed worker are taken over within the demo."""

HEARTBEAT_S = 0.5


class DemoFailed(CaseworkError):
    """The demo could not be carried through; the message says why."""


class WorkerProcess:
    """One worker.

    Args:
        number: its number, from 1.
        url: the store.
        folder: where its log goes.
        environment: variables for its tasks.
        poll_s: how often it looks for work.
    """

    def __init__(self, number: int, url: str, folder: Path, environment: dict[str, str], poll_s: float) -> None:
        self.number = number
        self.log = folder / f"worker-{number}.log"
        command = [
            sys.executable, "-m", "casework", "worker", MACHINES, "--store", url, "--poll-s", str(poll_s),
            "--lease-s", str(LEASE_S), "--heartbeat-s", str(HEARTBEAT_S), "--trace-max", "1000", "--drain-s", "5",
        ]  # fmt: skip
        with self.log.open("wb") as log:
            # A session of its own: Ctrl-C in the terminal reaches the demo, which then ends its workers itself.
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, **environment},
            )  # fmt: skip
        self.was_killed = False
        self.held: list[Entry] = []
        """What it was doing when it was killed: the ``began`` lines of its unfinished runs."""

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def is_ready(self) -> bool:
        """Whether it has said that it is ready. Raises DemoFailed when it ended instead."""
        self.check()
        return b" is ready: " in self.log.read_bytes()

    def check(self) -> None:
        """Raise DemoFailed when it ended by itself."""
        code = self.process.poll()
        if code is not None and not self.was_killed:
            last = self.log.read_text("utf-8", errors="replace").strip().splitlines()[-3:]
            raise DemoFailed(f"worker {self.number} ended with code {code}: {' / '.join(last) or 'it said nothing'}")

    def kill_in_the_middle(self, ledger: Reader) -> bool:
        """SIGKILL, at a moment when a task has had its effect and the database does not know it yet.

        False when it is not in such a moment; it goes on then. It is held still while the ledger is read, so that the
        moment does not pass.
        """
        if not unfinished(ledger.entries, self.pid):
            return False
        can_hold = hasattr(signal, "SIGSTOP")
        if can_hold:
            self.process.send_signal(signal.SIGSTOP)
        ledger.look()
        under_way = unfinished(ledger.entries, self.pid)
        if not any(entry.what == EFFECT for entry in under_way):
            if can_hold:
                self.process.send_signal(signal.SIGCONT)
            return False
        self.was_killed = True
        self.process.kill()
        self.process.wait()
        ledger.look()
        self.held = [entry for entry in unfinished(ledger.entries, self.pid) if entry.what == BEGAN]
        return True

    def stop(self, wait_s: float = 8.0) -> None:
        """SIGTERM, and SIGKILL should that not help."""
        if self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(wait_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def unfinished(entries: list[Entry], pid: int) -> list[Entry]:
    """The lines of one process's runs that neither ended nor failed."""
    open_runs: dict[tuple[str, int], list[Entry]] = {}
    for entry in entries:
        if entry.pid != pid:
            continue
        if entry.what in (BEGAN, EFFECT):
            open_runs.setdefault((entry.key, entry.attempt), []).append(entry)
        else:
            open_runs.pop((entry.key, entry.attempt), None)
    return [entry for run in open_runs.values() for entry in run]


def wait_until_ready(workers: list[WorkerProcess], limit_s: float = 30.0) -> None:
    """Wait until every worker said so. Raises DemoFailed."""
    until = time.monotonic() + limit_s
    while not all(worker.is_ready for worker in workers):
        if time.monotonic() > until:
            raise DemoFailed(f"the workers were not ready within {limit_s:g} s; see {workers[0].log}")
        time.sleep(0.02)
