"""`casework worker` as a process: functions that never return, kill it, fork, or leave threads behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from casework.cli.failures import UNRETURNED

pytestmark = pytest.mark.slow

MODULE = '''\
import os, pathlib, signal, sys, threading, time
import casework

bad = casework.Machine.from_yaml("""
id: bad
initial: a
states:
  a: {invoke: {src: {task: work}, retry: {max_attempts: 2, initial: 1ms}, onDone: b, onError: b}}
  b: {type: final}
""")
good = casework.Machine.from_yaml("{id: good, initial: a, states: {a: {after: {1ms: b}}, b: {type: final}}}")


def work(task):
    with open("began", "a") as file:
        print(task.attempt, os.getpid(), file=file)
    BODY


async def work_async(task):
    work(task)


bad.task(name="work")(WORK)
'''

BODIES = {
    "never returns": "threading.Event().wait()",
    "sleeps": "time.sleep(3600)",
    "loops": "while True: pass",
    "leaves a thread": "threading.Thread(target=threading.Event().wait, daemon=False).start()",
    "_exit": "os._exit(7)",
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
    "forks and exits": "os.fork() or os._exit(0)",
    "forks and stays": "os.fork() or time.sleep(3600)",
    "forks and returns twice": "os.fork()",
    "exits": "sys.exit(3)",
    "raises KeyboardInterrupt": "raise KeyboardInterrupt",
    "closes stdout": "sys.stdout.close()",
    "chdir": "os.chdir('/')",
}
DIES = {"_exit", "SIGKILL"}
HANGS = {"never returns", "sleeps", "loops", "leaves a thread"}


class Place:
    def __init__(self, folder: Path, body: str, *, is_async: bool) -> None:
        self.folder = folder
        text = MODULE.replace("BODY", BODIES[body]).replace("WORK", "work_async" if is_async else "work")
        (folder / "hostile_machines.py").write_text(text)

    def run(self, *args: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "casework", *args], cwd=self.folder, capture_output=True, text=True, timeout=60,
            check=True,
        )  # fmt: skip
        return done.stdout

    def worker(self, *args: str) -> subprocess.Popen[str]:
        log = self.folder / "log"
        log.write_text("")
        options = ("--poll-s", "0.02", "--lease-s", "0.6", "--heartbeat-s", "0.2", *args)
        with log.open("a") as stderr:  # no pipe: a child that a function left behind would keep it open
            process = subprocess.Popen(
                [sys.executable, "-m", "casework", "worker", "hostile_machines", *options],
                cwd=self.folder, stderr=stderr, text=True, start_new_session=True,
            )  # fmt: skip
        while "is ready" not in log.read_text():
            assert process.poll() is None
        return process

    def attempts(self) -> list[str]:
        began = self.folder / "began"
        return began.read_text().splitlines() if began.exists() else []


def end(process: subprocess.Popen[str]) -> None:
    """Its children too: the session is the test's own."""
    import os

    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.communicate()


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "coroutine"])
@pytest.mark.parametrize("body", [body for body in BODIES if body not in DIES])
def test_a_worker_goes_on_and_is_gone_when_its_time_is_over(tmp_path: Path, body: str, is_async: bool) -> None:
    place = Place(tmp_path, body, is_async=is_async)
    place.run("start", "hostile_machines:bad", "--id", "bad")
    process = place.worker("--drain-s", "0.1")
    try:
        while not place.attempts():
            assert process.poll() is None
        place.run("start", "hostile_machines:good", "--id", "good")
        place.run("wait", "good", "--timeout-s", "60")
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    finally:
        end(process)
    said = (tmp_path / "log").read_text()
    assert "ended:" in said
    never_returns = body in HANGS and (body != "leaves a thread")
    assert process.returncode == (UNRETURNED if body in HANGS else 0), said
    if never_returns:
        assert "have not returned: work" in said
    if body == "leaves a thread":
        assert "threads still run" in said


@pytest.mark.parametrize("body", sorted(DIES))
def test_a_function_that_kills_its_worker_is_given_up_after_its_attempts(tmp_path: Path, body: str) -> None:
    place = Place(tmp_path, body, is_async=False)
    place.run("start", "hostile_machines:bad", "--id", "bad")
    for _ in range(2):
        process = place.worker()
        try:
            assert process.wait(60) != 0
        finally:
            end(process)
    assert len(place.attempts()) == 2
    process = place.worker()
    try:
        place.run("wait", "bad", "--timeout-s", "60")
        assert process.poll() is None
    finally:
        end(process)
    assert len(place.attempts()) == 2
