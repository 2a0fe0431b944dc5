"""A worker whose due work does not fit one page: everything is done, and no page ends it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import casework
from casework.app import sync
from casework.backends.memory import MemoryBackend
from casework.errors import WrongCursor
from casework.kernel.effects import Query

LATER = casework.Machine.from_dict({
    "id": "later", "initial": "a", "states": {"a": {"after": {"1ms": "b"}}, "b": {"type": "final"}},
})  # fmt: skip


def test_timers_of_several_pages_fire_in_another_process(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    ids = [f"t-{n}" for n in range(70)]
    with casework.open(url, machines=[LATER], buckets=1) as sender:
        for id in ids:
            sender.start("later", id=id)
        with casework.open(url, machines=[LATER]) as other, other.worker(poll_s=0.01, group=16) as worker:
            for id in ids:
                assert sender.wait(id, timeout_s=60).status == "done"
            assert worker.trouble_n == 0


class Forgetful(MemoryBackend):
    """A store that takes a cursor for another query's, now and then."""

    asked = 0

    def execute(self, effect: Any) -> Any:
        if isinstance(effect, Query) and effect.index == "pending" and effect.after is not None:
            self.asked += 1
            if self.asked % 3 == 1:
                raise WrongCursor("this cursor belongs to another query")
        return super().execute(effect)


def test_a_cursor_that_is_refused_does_not_end_a_worker(caplog: pytest.LogCaptureFixture) -> None:
    backend = Forgetful()
    ids = [f"t-{n}" for n in range(70)]
    with sync.open_app(backend, machines=[LATER], create=True, buckets=1) as sender:
        for id in ids:
            sender.start("later", id=id)
        with sync.open_app(backend, machines=[LATER]) as other, other.worker(poll_s=0.01, group=16):
            for id in ids:
                assert sender.wait(id, timeout_s=60).status == "done"
    assert backend.asked > 0
    assert "sweep: WrongCursor" in caplog.text
