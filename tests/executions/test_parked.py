"""A worker that has what is missing takes what is parked soon; one that has not leaves it alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from casework.backends.drive_async import run_async
from casework.backends.memory import MemoryBackend
from casework.backends.surroundings import VirtualClock
from casework.backends.threaded import ThreadedBackend
from casework.executions.shares import Share
from casework.executions.worker import Worker, sweep
from casework.kernel.effects import Query
from casework.kernel.items import Item
from casework.kernel.programs import Program, race
from casework.kernel.schema import EXECUTIONS
from tests.executions.test_children import CHILD, QUICK
from tests.executions.test_children_listed import STARTED
from tests.executions.test_unknown_machines import VERSION_1, order
from tests.executions.watching import WatchedBackend, app_on, items_of, machine


def at_once(worker: Worker, backend: MemoryBackend) -> None:
    """One sweep, and the tasks that it began."""

    def program() -> Program[None]:
        yield from sweep(worker)
        while worker.running:
            yield from race(*[held.handle for held in worker.running.values()])  # in no virtual time
        yield from sweep(worker)

    asyncio.run(run_async(program(), ThreadedBackend(backend), step_limit=None))


def parked(backend: MemoryBackend, buckets: int = 16) -> list[Item]:
    return [
        item
        for bucket in range(buckets)
        for item in backend.execute(Query(EXECUTIONS, f"parked/{bucket}", "pending")).items
    ]


class Two:
    """A process that starts parents and lacks their children's machine, and a worker of it that has parked them."""

    def __init__(self) -> None:
        self.backend = WatchedBackend(clock=VirtualClock())
        self.old = app_on(self.backend, machine(STARTED))
        self.old_worker = Worker(self.old.core.rt)
        self.old.start("parent", id="p", input={"inputs": [1, 2, 3]})
        at_once(self.old_worker, self.backend)
        assert len(parked(self.backend)) == 3

    def newer(self, child: str = QUICK) -> Worker:
        return Worker(app_on(self.backend, machine(STARTED), machine(child)).core.rt)


def test_a_worker_that_starts_takes_what_it_can_at_once_however_long_it_is_put_off() -> None:
    two = Two()
    for _ in range(5):  # an hour by now
        two.backend.clock.advance(1800)  # type: ignore[attr-defined]
        at_once(two.old_worker, two.backend)
    assert min(int(item["rank_us"]) for item in parked(two.backend)) > two.backend.now().latest_us + 600_000_000
    at_once(two.newer(), two.backend)
    assert two.old.get("p").status == "done" and parked(two.backend) == []


def test_a_worker_that_runs_takes_what_another_parks_within_half_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    two = Two()
    newer = two.newer()
    at_once(newer, two.backend)
    monkeypatch.setattr(newer, "share", lambda: Share(()))  # all of it falls to the old one
    two.old.start("parent", id="q", input={"inputs": [4]})
    at_once(two.old_worker, two.backend)
    two.backend.clock.advance(29)  # type: ignore[attr-defined]
    at_once(newer, two.backend)
    assert two.old.get("q").status == "running", "it does not look all the time"
    two.backend.clock.advance(2)  # type: ignore[attr-defined]
    at_once(newer, two.backend)
    assert parked(two.backend) == [], "the child is done; its report falls to the other one"
    at_once(two.old_worker, two.backend)
    assert two.old.get("q").status == "done"


def test_a_worker_that_lacks_it_as_well_writes_nothing() -> None:
    two = Two()
    two.backend.forget()
    at_once(Worker(app_on(two.backend, machine(STARTED)).core.rt), two.backend)
    assert two.backend.written == [] and len(parked(two.backend)) == 3


def test_a_task_whose_function_was_missing_is_run_by_the_worker_that_comes_with_it() -> None:
    backend = WatchedBackend(clock=VirtualClock())
    old, new = app_on(backend, machine(VERSION_1)), app_on(backend, order(VERSION_1))
    new.start("order", id="o")
    new.handle("o", "Pay")
    at_once(Worker(old.core.rt), backend)
    (task,) = parked(backend)
    assert str(task["sort"]).startswith("w/")
    at_once(Worker(new.core.rt), backend)
    assert new.get("o").configuration == ["paid"] and parked(backend) == [] and not items_of(backend, "o", "w/")


def test_a_claimed_task_stands_among_the_tasks_again() -> None:
    backend = WatchedBackend(clock=VirtualClock())
    old = app_on(backend, machine(VERSION_1))
    seen: list[Any] = []

    def pay(task: Any, amount: int) -> dict[str, Any]:
        seen.extend(str(item["pending"]).partition("/")[0] for item in items_of(backend, "o", "w/"))
        return {}

    new = app_on(backend, order(VERSION_1, pay))
    new.start("order", id="o")
    new.handle("o", "Pay")
    at_once(Worker(old.core.rt), backend)
    at_once(Worker(new.core.rt), backend)
    assert seen == ["task"]


def test_an_idle_look_at_what_is_parked_is_one_query_a_bucket_each_half_a_minute() -> None:
    backend = WatchedBackend(clock=VirtualClock())
    worker = Worker(app_on(backend, machine(CHILD)).core.rt)
    at_once(worker, backend)

    def looks() -> int:
        backend.forget()
        at_once(worker, backend)
        return sum(isinstance(each, Query) and str(each.partition).startswith("parked/") for each in backend.reads)

    assert looks() == 0
    backend.clock.advance(31)  # type: ignore[attr-defined]
    assert looks() == 16
    assert looks() == 0
