"""The worker as a real process: it says when it is ready, does what is due, and ends when it is told to."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cli.conftest import Shell

pytestmark = pytest.mark.slow


@contextmanager
def worker(shell: Shell, *args: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "casework", "worker", *args],
        cwd=shell.folder, env=shell.environment(), stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert f"worker {process.pid} is ready: order" in line
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_does_what_is_due_and_ends_on_a_signal(shell: Shell, sent: signal.Signals) -> None:
    shell.run("start", "shop:order", "--id", "o-1", "--input", "{}")
    shell.run("send", "o-1", "Paid")
    shell.run("send", "o-1", "Ship")
    with worker(shell, "shop:order", "--poll-s", "0.02") as process:
        while (seen := shell.json("show", "o-1"))["execution"]["status"] != "done":
            assert process.poll() is None
        process.send_signal(sent)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 0
    assert "leaving" in said and "ended" in said
    assert seen["execution"]["output"] == {"paid": 1}
    assert (shell.folder / "shipped").read_text().startswith("o-1/2/shipping-")


BLOCKING = """\
import pathlib, time
import casework

order = casework.Machine.load(pathlib.Path(__file__).with_name("order.yaml"))


@order.task
def ship(task):
    pathlib.Path("began").touch()
    while not pathlib.Path("go on").exists():
        time.sleep(0.01)
    return "shipped"
"""


def test_a_worker_finishes_what_it_holds_before_it_leaves(shell: Shell) -> None:
    (shell.folder / "slow.py").write_text(BLOCKING)
    shell.run("start", "slow:order", "--id", "o-1")
    shell.run("send", "o-1", "Ship")
    with worker(shell, "slow:order", "--poll-s", "0.02") as process:
        while not (shell.folder / "began").exists():
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None and "leaving" in process.stderr.readline()
        (shell.folder / "go on").touch()
        process.communicate(timeout=60)
    assert process.returncode == 0
    seen = shell.json("show", "o-1")
    assert seen["tasks"] == []
    assert seen["execution"]["status"] == "done" or [m["type"] for m in seen["messages"]] == ["done.invoke.shipping"]


def test_a_second_interrupt_ends_a_worker_at_once_and_its_task_stays(shell: Shell) -> None:
    (shell.folder / "slow.py").write_text(BLOCKING)
    shell.run("start", "slow:order", "--id", "o-1")
    shell.run("send", "o-1", "Ship")
    with worker(shell, "slow:order", "--poll-s", "0.02") as process:
        while not (shell.folder / "began").exists():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None and "leaving" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        process.wait(60)
    assert process.returncode == 130
    task = shell.json("show", "o-1")["tasks"][0]
    assert (task["attempt"], task["status"]) == (1, "running")


def test_a_worker_without_functions_is_refused(shell: Shell) -> None:
    said = shell.refused("worker", "order.yaml")
    assert "task 'ship'" in said
