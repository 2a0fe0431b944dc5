"""A deployment as real processes: workers of two versions on one file, in every order that a deployment has."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cli.conftest import Shell

pytestmark = pytest.mark.slow

VERSION_1 = """\
import casework

order = casework.Machine.from_yaml('''
id: order
initial: open
context: {}
states:
  open: {on: {Go: paying}}
  paying: {invoke: {src: {task: pay}, input: {amount: 1}, onDone: closed, onError: wrong}}
  closed: {type: final}
  wrong: {type: final}
''')


@order.task
def pay(task, amount):
    return {}
"""

VERSION_2 = """\
import casework

order = casework.Machine.from_yaml('''
id: order
initial: open
context: {}
states:
  open: {on: {Go: packing}}
  packing:
    invoke: {src: {machine: pack}, each: {expr: "['a', 'b']"}, input: {}, onDone: paying, onError: wrong}
  paying: {invoke: {src: {task: pay}, input: {amount: 1, currency: EUR}, onDone: closed, onError: wrong}}
  closed: {type: final, entry: [note]}
  wrong: {type: final}
''')
pack = casework.Machine.from_yaml('''
id: pack
initial: busy
states:
  busy: {after: {10ms: packed}}
  packed: {type: final}
''')


@order.task
def pay(task, amount, currency):
    return {}


@order.action
def note(context, event):
    return {"noted": True}
"""


@contextmanager
def worker(shell: Shell, place: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "casework", "worker", place, "--poll-s", "0.02", "--drain-s", "1"],
        cwd=shell.folder, env=shell.environment(), stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None and "is ready" in process.stderr.readline()
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=60)


def until(shell: Shell, id: str, status: str) -> dict:  # type: ignore[type-arg]
    while (seen := shell.json("show", id))["execution"]["status"] != status:
        pass
    return seen["execution"]  # type: ignore[no-any-return]


def parked(shell: Shell, id: str) -> list[str]:
    """Why its children, its tasks or it itself are parked."""
    seen = shell.json("show", id)
    children = [each.get("parked") for group in seen["children"] for each in group["children"]]
    return [why for why in (*seen["parked"], *children) if why]


def test_workers_of_an_older_version_park_what_a_newer_one_brings_and_the_newer_takes_it(shell: Shell) -> None:
    (shell.folder / "older.py").write_text(VERSION_1)
    (shell.folder / "newer.py").write_text(VERSION_2)
    shell.run("start", "order", "--machine", "older", "--id", "old-1")
    with worker(shell, "older"):
        shell.run("start", "order", "--machine", "newer", "--id", "new-1")
        shell.run("send", "new-1", "Go")
        while not parked(shell, "new-1"):
            pass
        assert "has no machine 'pack'" in parked(shell, "new-1")[0]
        assert "(parked: this process has no machine 'pack')" in shell.run("list", "--machine", "pack").stdout
        assert shell.json("list", "--status", "failed")["items"] == []
        with worker(shell, "newer"):
            assert until(shell, "new-1", "done")["context"] == {"noted": True}, "long before its pause is over"
            shell.run("send", "old-1", "Go")
            assert until(shell, "old-1", "done")["configuration"] == ["closed"]


def test_back_to_the_older_version_everything_waits_and_then_goes_on(shell: Shell) -> None:
    (shell.folder / "older.py").write_text(VERSION_1)
    (shell.folder / "newer.py").write_text(VERSION_2)
    with worker(shell, "newer"):
        shell.run("start", "order", "--machine", "newer", "--id", "new-1")
    with worker(shell, "older"):
        shell.run("send", "new-1", "Go")
        while not parked(shell, "new-1"):
            pass
    with worker(shell, "newer"):
        assert until(shell, "new-1", "done")["configuration"] == ["closed"]
