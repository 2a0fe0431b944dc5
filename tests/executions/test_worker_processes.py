"""Several worker processes on one store: killed, stopped, and none the wiser."""

from __future__ import annotations

import collections
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import casework
from tests.executions.worker_process import make_machine

SCRIPT = Path(__file__).with_name("worker_process.py")

Starter = Callable[[], "subprocess.Popen[str]"]


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.txt"
    path.touch()
    return path


@pytest.fixture
def start_worker(store: str, ledger: Path) -> Iterator[Starter]:
    processes: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        process = subprocess.Popen([sys.executable, SCRIPT, store, ledger], stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def runs_by_key(ledger: Path) -> dict[str, int]:
    return collections.Counter(line.split()[0] for line in ledger.read_text().splitlines())


@pytest.mark.slow
def test_a_worker_killed_in_the_middle_is_replaced_and_every_state_change_happens_once(
    store: str, ledger: Path, start_worker: Starter
) -> None:
    with casework.open(store, machines=[make_machine(str(ledger))], trace_max=50) as app:
        ids = [f"job-{i}" for i in range(150)]
        victim, _ = start_worker(), start_worker()
        for id in ids:
            app.start("job", id=id)
            if id == "job-60":
                victim.send_signal(signal.SIGKILL)
                start_worker()
        for id in ids:
            execution = app.wait(id, timeout_s=60)
            assert (execution.status, execution.output) == ("done", 1)
            versions = [entry["version"] for entry in app.trace(id)]
            assert versions == list(range(1, execution.version + 1))
            changes = [(e["from"], e["to"]) for entry in app.trace(id) for e in entry["events"]]
            assert changes == [([], ["idle"]), (["idle"], ["working"]), (["working"], ["done"])]
    runs = runs_by_key(ledger)
    assert sorted(key.rpartition("-")[0] for key in runs) == sorted(f"{id}/2/work" for id in ids), (
        "one idempotency key for each task, whoever ran it"
    )


@pytest.mark.slow
def test_a_worker_that_is_told_to_stop_finishes_what_it_holds_and_exits_cleanly(
    store: str, ledger: Path, start_worker: Starter
) -> None:
    with casework.open(store, machines=[make_machine(str(ledger))]) as app:
        worker = start_worker()
        for i in range(40):
            app.start("job", id=f"job-{i}")
        worker.send_signal(signal.SIGTERM)
        out, _ = worker.communicate(timeout=30)
        assert out == "stopped\n"
        assert worker.returncode == 0
        start_worker()
        for i in range(40):
            assert app.wait(f"job-{i}", timeout_s=60).output == 1
    assert all(count == 1 for count in runs_by_key(ledger).values()), "a graceful stop runs no task twice"


def test_a_worker_in_this_process_survives_a_fork_of_it(tmp_path: Path, ledger: Path) -> None:
    with casework.open(f"sqlite:///{tmp_path}/jobs.db", machines=[make_machine(str(ledger))]) as app:
        app.start("job", id="before")
        child = os.fork() if hasattr(os, "fork") else pytest.skip("no fork here")
        if child == 0:  # a forked child uses the same application
            try:
                app.start("job", id="in-child")
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        with app.worker(poll_s=0.02):
            assert app.wait("before", timeout_s=30).output == 1
            assert app.wait("in-child", timeout_s=30).output == 1


@pytest.mark.parametrize("is_async", [False, True])
def test_a_task_that_calls_sys_exit_fails_its_attempt_and_its_worker_goes_on(is_async: bool) -> None:
    machine = casework.Machine.from_dict(
        {
            "id": "m",
            "initial": "a",
            "states": {
                "a": {"invoke": {"src": "leave", "retry": {"max_attempts": 1}, "onDone": "b", "onError": "c"}},
                "b": {"type": "final"},
                "c": {"type": "final", "output": {"expr": "event.message"}},
            },
        }
    )

    def leave(task: casework.TaskContext) -> None:
        sys.exit(3)

    async def leave_async(task: casework.TaskContext) -> None:
        sys.exit(3)

    machine.task(name="leave")(leave_async if is_async else leave)
    with casework.open("memory:", machines=[machine]) as app, app.worker(poll_s=0.02):
        app.start("m", id="x")
        assert app.wait("x", timeout_s=30).output == "the function called sys.exit(3)"
        app.start("m", id="y")
        assert app.wait("y", timeout_s=30).status == "done"
