"""The shared task list of ``examples/``, with a relay that is there, is not, and is there again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("litestar")

from tests.executions.stepping import fresh_backend
from tests.relay.conftest import Serving, World

EXAMPLE = Path(__file__).parents[2] / "examples" / "tasks.py"


def test_two_people_edit_one_list_offline_and_see_the_same_once_they_have_synced(tmp_path: Path) -> None:
    world = World(fresh_backend())
    environment = {**os.environ, "CASEWORK_RELAY_TOKEN": world.token("tasks=read,append")}

    def tasks(who: str, *arguments: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, str(EXAMPLE), f"{who}.replica", *arguments], cwd=tmp_path, env=environment, text=True,
            capture_output=True, timeout=60, check=True,
        )  # fmt: skip
        return done.stdout.splitlines()

    assert tasks("ann", "add", "buy milk") == ["1. [ ] buy milk   (not synced)"]
    environment["TASKS_RELAY"] = "http://127.0.0.1:9"
    assert tasks("ben", "add", "call Eve") == ["1. [ ] call Eve   (not synced)"]
    assert tasks("ben", "sync")[0].startswith("not synced: ")
    with Serving(world) as url:
        environment["TASKS_RELAY"] = url
        assert tasks("ann", "sync") == ["1. [ ] buy milk"]
        assert tasks("ben", "sync") == ["1. [ ] buy milk", "2. [ ] call Eve"]
        assert tasks("ben", "done", "1") == ["1. [x] buy milk   (not synced)", "2. [ ] call Eve"]
        tasks("ben", "sync")
        assert tasks("ann", "sync") == tasks("ben", "list") == ["1. [x] buy milk", "2. [ ] call Eve"]
