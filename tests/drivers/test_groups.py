"""Groups of programs whose functions of the user's do not return: nobody waits for each of them in turn."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from casework.backends import groups
from casework.backends.drive_async import run_async, shielded
from casework.backends.groups import LANES, LEFT_MAX, run_group
from casework.backends.sqlite import SqliteBackend
from casework.backends.threaded import ThreadedBackend
from casework.backends.user_calls import Called, UserCalls
from casework.errors import Unavailable
from casework.kernel.effects import Call, Unfinished
from casework.kernel.programs import Program


@pytest.fixture(params=["shares commits", "each alone"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ThreadedBackend]:
    backend = ThreadedBackend(SqliteBackend(tmp_path / "groups.db"), owns_blocking=True)
    backend.shares_commits = request.param == "shares commits"
    yield backend
    asyncio.run(backend.close())


class Watched(UserCalls):
    """Calls that know how many functions were left behind, one after the other, before each of them began."""

    def __init__(self) -> None:
        super().__init__()
        self.rounds: dict[str, int] = {}

    def in_thread(self, function: Callable[[], Any], name: str) -> Called:
        self.rounds[name] = 1 + max((self.rounds[left] for left in self.names_left), default=0)
        return super().in_thread(function, name)


@pytest.mark.parametrize("blocked", [1, LANES + 1, 40, LEFT_MAX + 20])
def test_a_group_waits_twice_at_most_for_functions_that_never_return(
    backend: ThreadedBackend, monkeypatch: pytest.MonkeyPatch, blocked: int
) -> None:
    monkeypatch.setattr(groups, "PATIENCE_S", 0.1)
    calls, released = Watched(), threading.Event()

    def program(function: Callable[[], Any], name: str) -> Program[Any]:
        return (yield Call(function, what=name))

    programs = [program(lambda: released.wait(60), f"stuck {n}") for n in range(blocked)]
    programs.append(program(lambda: "done", "quick"))
    try:
        outcomes = asyncio.run(run_group(programs, backend, calls, run_async, shielded))
        errors = [type(outcome.error) for outcome in outcomes[:-1]]
        assert set(errors) <= {Unfinished, Unavailable}
        assert errors.count(Unfinished) == calls.threads_left >= min(blocked, LEFT_MAX)
        if calls.threads_left < LEFT_MAX:
            assert outcomes[-1].result() == "done"
        assert max(calls.rounds.values()) <= 2
    finally:
        released.set()
