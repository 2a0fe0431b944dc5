# ruff: noqa: PT012 - what is raised is raised at the end of a block, which is the point
"""A worker in the process of its application: what others hear of its end."""

from __future__ import annotations

import asyncio
import collections
from typing import Any

import pytest

import casework
from casework.app import sync
from casework.backends.memory import MemoryBackend
from casework.backends.threaded import ThreadedBackend
from casework.executions.buckets import WORKERS
from casework.executions.worker import Bell
from casework.kernel.effects import Query
from casework.kernel.schema import REGISTRY

MACHINE = casework.Machine.from_dict({
    "id": "m", "initial": "a", "states": {"a": {"on": {"go": "b"}}, "b": {"type": "final"}},
})  # fmt: skip


class Breaking(MemoryBackend):
    """A store whose index breaks in a way that no worker can expect."""

    breaks = True

    def execute(self, effect: Any) -> Any:
        if self.breaks and isinstance(effect, Query) and effect.index == "pending":
            raise ZeroDivisionError("broken on purpose")
        return super().execute(effect)

    def execute_many(self, effects: Any) -> Any:
        if self.breaks and any(isinstance(effect, Query) and effect.index == "pending" for effect in effects):
            raise ZeroDivisionError("broken on purpose")
        return super().execute_many(effects)


SAID = "x.*worker of this process has ended with an error: ZeroDivisionError: broken on purpose"


def heard(backend: Any) -> list[Any]:
    return [item["heard_us"] for item in backend.execute(Query(REGISTRY, WORKERS)).items]


@pytest.mark.parametrize("timeout_s", [None, 600])
def test_who_waits_hears_at_once_that_the_worker_of_this_process_died(timeout_s: float | None) -> None:
    backend = Breaking()
    with sync.open_app(backend, machines=[MACHINE], create=True) as app:
        app.start("m", id="x")
        with pytest.raises(ZeroDivisionError), app.worker():
            with pytest.raises(casework.WaitTimeout, match=SAID) as told:
                app.wait("x", timeout_s=timeout_s)
            assert isinstance(told.value.__cause__, ZeroDivisionError)
        assert set(heard(backend)) <= {0}, "its buckets are given back"
        with pytest.raises(casework.WaitTimeout, match="has not ended within 0 s"):
            app.wait("x", timeout_s=0)  # whoever ran the worker knows now
        backend.breaks = False
        app.send("x", "go")
        with app.worker():
            assert app.wait("x", timeout_s=60).status == "done"


def test_so_does_who_waits_on_the_loop() -> None:
    async def main() -> None:
        backend = Breaking()
        async with casework.open_async(ThreadedBackend(backend), machines=[MACHINE], create=True) as app:
            await app.start("m", id="x")
            with pytest.raises(ZeroDivisionError):
                async with app.worker():
                    with pytest.raises(casework.WaitTimeout, match=SAID):
                        await app.wait("x")

    asyncio.run(main())


def test_two_workers_of_one_process_may_answer_one_bell() -> None:
    bell = Bell()

    class Shared(collections.deque[str]):
        """The other worker takes the last one just before."""

        def popleft(self) -> str:
            self.clear()
            return super().popleft()

    bell._ids = Shared(["x"])
    assert bell.rung(10) == []
    assert not bell.flag.is_set


TROUBLED = """
id: troubled
initial: a
states:
  a: {invoke: {id: do, src: {task: do_it}, retry: {max_attempts: 2, initial: 1ms}}, on: {tick: {}}}
"""


def raises(task: Any) -> None:
    raise ValueError("first line\nsecond line")


def returns_no_json(task: Any) -> Any:
    return {1, 2}


@pytest.mark.parametrize(
    ("function", "reason"), [(raises, "ValueError: first line"), (returns_no_json, "NotJson: result")]
)
def test_the_log_says_which_task_and_which_execution_failed_and_why(
    function: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    machine = casework.Machine.from_yaml(TROUBLED)
    machine.task(name="do_it")(function)
    caplog.set_level("INFO", "casework.worker")
    with casework.open("memory:", machines=[machine]) as app, app.worker(poll_s=0.01):
        app.start("troubled", id="x")
        app.wait("x", timeout_s=60)
    task, execution = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert task.startswith("execution 'x': task 'do_it' (do), attempt ")
    assert f" failed for good: {reason}" in task
    assert execution.startswith(f"execution 'x' failed: {reason}")
    again = [record.getMessage() for record in caplog.records if "the next one" in record.getMessage()]
    assert len(again) == (1 if function is raises else 0)
    assert "second line" not in "".join((task, execution, *again))


def test_the_log_says_what_is_parked_and_why(caplog: pytest.LogCaptureFixture) -> None:
    machine = casework.Machine.from_yaml(TROUBLED)
    backend = MemoryBackend()
    with casework.open(backend, machines=[machine], create=True) as app:
        app.start("troubled", id="x")
        app.send("x", "tick")
    with casework.open(backend, machines=[MACHINE]) as other, other.worker(poll_s=0.01):
        while len(said := [record.getMessage() for record in caplog.records]) < 2:
            pass
    assert sorted(said) == [
        "execution 'x' is parked: this process has no machine 'troubled'",
        "execution 'x': task 'do_it' (do) is parked: this process has no task 'do_it' of machine 'troubled'",
    ]
