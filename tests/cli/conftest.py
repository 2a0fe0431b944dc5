"""A folder with a small machine, and the command line run in it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from casework.cli import main

DEFINITION = """\
id: order
version: "1"
context:
  amount: {expr: 'get(input, "amount", 0)'}
  paid: 0
initial: open
states:
  open:
    on:
      Paid: {actions: {type: assign, params: {paid: {expr: context.paid + 1}}}}
      Ship: shipping
      Fail: {actions: {type: assign, params: {paid: {expr: 'event["nothing"]'}}}}
    after:
      7d: over
  shipping:
    invoke:
      src: {task: ship}
      retry: {max_attempts: 2, initial: 1h}
      onDone: over
  over:
    type: final
    output: {paid: {expr: context.paid}}
"""
FUNCTIONS = """\
import pathlib
import casework

order = casework.Machine.load(pathlib.Path(__file__).with_name("order.yaml"))


@order.task
def ship(task):
    pathlib.Path("shipped").write_text(task.idempotency_key)
    return "shipped"


def both():
    return [order]
"""


@dataclass
class Shell:
    """Runs ``casework`` in a folder."""

    folder: Path

    def run(self, *args: str, code: int | None = 0, **variables: str) -> subprocess.CompletedProcess[str]:
        """In this process, which is quick: as ``main`` is called, with the arguments, streams and folder of its own.

        A ``code`` of None takes any.
        """
        out, err = io.StringIO(), io.StringIO()
        modules, path = set(sys.modules), list(sys.path)
        ended: Any = None
        with (
            mock.patch.dict(os.environ, self.environment(**variables), clear=True),
            mock.patch.object(sys, "argv", ["casework", *args]),
            contextlib.chdir(self.folder),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            try:
                main()
            except SystemExit as end:
                ended = int(end.code or 0)
            finally:
                sys.path[:] = path
                for name in set(sys.modules) - modules:
                    if not name.startswith(("casework", "_")) and "." not in name:
                        file = getattr(sys.modules[name], "__file__", None)
                        if file and Path(file).is_relative_to(self.folder):
                            del sys.modules[name]
        assert code is None or ended == code, f"{args} ended with {ended}:\n{out.getvalue()}\n{err.getvalue()}"
        return subprocess.CompletedProcess(args, ended, out.getvalue(), err.getvalue())

    def process(self, *args: str, code: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
        """As a process of its own."""
        done = subprocess.run(
            [sys.executable, "-m", "casework", *args],
            cwd=self.folder,
            env=self.environment(**variables),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == code, f"{args} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return done

    def json(self, *args: str) -> Any:
        return json.loads(self.run(*args, "--json").stdout)

    def environment(self, **variables: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name != "CASEWORK_STORE"}
        return {**kept, "NO_COLOR": "1", "COLUMNS": "100", **variables}

    def refused(self, *args: str) -> str:
        """The one line of a call that cannot work as it was made."""
        done = self.run(*args, code=2)
        assert "Traceback" not in done.stderr
        assert done.stdout == ""
        return done.stderr


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    (tmp_path / "order.yaml").write_text(DEFINITION)
    (tmp_path / "shop.py").write_text(FUNCTIONS)
    return Shell(tmp_path)
