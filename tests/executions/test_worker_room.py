# ruff: noqa: SIM117 - a block for the application, and one for its worker
"""What a worker does while functions of users take their time, or never return: everything else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import casework
from casework.backends.memory import MemoryBackend
from casework.backends.threaded import ThreadedBackend
from casework.errors import Unavailable
from casework.executions import worker as shell
from casework.executions.runtime import Runtime
from casework.executions.worker import Worker, WorkerOptions
from casework.kernel.effects import Query, Race, Transact
from casework.kernel.schema import DEFAULT_BUCKETS, EXECUTIONS

TASK = """
id: busy
context: {}
initial: a
states:
  a:
    invoke: {src: {task: work}, OPTIONS retry: {max_attempts: 1}, onDone: b,
      onError: {target: b, actions: [{type: assign, params: {why: {expr: event.data}}}]}}
  b: {type: final, output: {expr: context}}
"""
EVENT = "{id: quick, initial: a, states: {a: {on: {go: b}}, b: {after: {1ms: c}}, c: {type: final}}}"


class Held:
    """Functions that stay until the test lets them go."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.began = threading.Semaphore(0)
        self.ids: list[str] = []

    def work(self, task: Any) -> None:
        """A task."""
        self.ids.append(task.execution_id)
        self.began.release()
        self.go_on.wait()

    def wait_for(self, count: int) -> None:
        """Until so many have begun."""
        for _ in range(count):
            assert self.began.acquire(timeout=60)


def machines(work: Any, options: str = "") -> list[casework.Machine]:
    busy = casework.Machine.from_yaml(TASK.replace("OPTIONS", options))
    busy.task(name="work")(work)
    return [busy, casework.Machine.from_yaml(EVENT)]


@contextmanager
def held(options: str = "", **worker: Any) -> Iterator[tuple[casework.App, Worker, Held]]:
    functions = Held()
    with casework.open(MemoryBackend(), machines=machines(functions.work, options), create=True) as app:
        with app.worker(poll_s=0.01, drain_s=0, **worker) as running:
            try:
                yield app, running, functions
            finally:
                functions.go_on.set()


def quick(app: casework.App, count: int = 5) -> None:
    for n in range(count):
        app.start("quick", id=f"quick-{n}")
        app.send(f"quick-{n}", "go")
    for n in range(count):
        assert app.wait(f"quick-{n}", timeout_s=60).status == "done"


def task_items(backend: Any) -> list[dict[str, Any]]:
    looks = [Query(EXECUTIONS, f"task/{bucket}", "pending") for bucket in range(DEFAULT_BUCKETS)]
    found = [item for look in looks for item in backend.execute(look).items]
    pages = [backend.execute(Query(EXECUTIONS, str(item["id"]), None, "w/", "w0")).items for item in found]
    return [item for page in pages for item in page]


# --- bounds of a task do not depend on its lease ----------------------------------------------------------------------


@pytest.mark.parametrize(("options", "said"), [("timeout: 50ms,", "no result"), ("heartbeat: 50ms,", "no heartbeat")])
def test_a_task_ends_at_its_own_bound_however_long_its_lease_is(options: str, said: str) -> None:
    with held(options, lease_s=3600) as (app, _, _functions):
        app.start("busy", id="x")
        why = app.wait("x", timeout_s=60).output["why"]
    assert why["type"] == "Timeout"
    assert why["message"] == f"{said} within 0.05 s"


def test_a_leaving_worker_gives_its_claims_back_at_once_and_uncounted() -> None:
    functions, backend = Held(), MemoryBackend()
    with casework.open(backend, machines=machines(functions.work), create=True) as app:
        with app.worker(poll_s=0.01, drain_s=0, lease_s=3600):
            app.start("busy", id="x")
            functions.wait_for(1)
            [task] = task_items(backend)
            assert (task["attempt"], "token" in task) == (1, True)
        [task] = task_items(backend)
        assert (task["attempt"], "token" in task) == (0, False)
    functions.go_on.set()


# --- functions that outlive their task --------------------------------------------------------------------------------


def test_a_worker_whose_threads_never_come_back_goes_on_with_all_else_and_claims_no_task_for_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with held("timeout: 20ms,", concurrency=3) as (app, worker, functions):
        for n in range(3):
            app.start("busy", id=f"stuck-{n}")
            assert app.wait(f"stuck-{n}", timeout_s=60).output["why"]["type"] == "Timeout"
        app.start("busy", id="waits")
        quick(app)
        status = worker.status()
        assert (status.threads_stuck, status.threads_used, status.tasks_running) == (3, 3, 0)
        assert set(status.stuck) == {"Held.work"}
        assert "waits" not in functions.ids
        assert [item["attempt"] for item in task_items(app.backend) if "attempt" in item] == []
        said = [record.getMessage() for record in caplog.records if record.levelname == "CRITICAL"]
        assert said == [
            "3 functions did not return when their tasks were over (Held.work): this worker has no room for more of "
            "their kind, and claims none meanwhile"
        ]
        functions.go_on.set()
        assert app.wait("waits", timeout_s=60).output == {}
        assert worker.status().threads_stuck == 0


def test_coroutines_need_no_thread() -> None:
    functions = Held()
    found = machines(functions.work, "timeout: 20ms,")
    easy = casework.Machine.from_yaml(TASK.replace("OPTIONS", "").replace("id: busy", "id: easy"))

    @easy.task
    async def work(task: Any) -> None: ...

    with casework.open(MemoryBackend(), machines=[*found, easy], create=True) as app:
        with app.worker(poll_s=0.01, drain_s=0, concurrency=1):
            app.start("busy", id="stuck")
            assert app.wait("stuck", timeout_s=60).output["why"]["type"] == "Timeout"
            for n in range(40):
                app.start("busy", id=f"waits-{n}")
            app.start("easy", id="easy")
            assert app.wait("easy", timeout_s=60).output == {}
            functions.go_on.set()


def test_tasks_without_room_hide_nothing() -> None:
    with held(concurrency=2, group=16) as (app, worker, functions):
        for n in range(100):
            app.start("busy", id=f"busy-{n}")
        functions.wait_for(2)
        quick(app, 20)
        assert worker.status().tasks_running == 2
        assert len(functions.ids) == 2


def test_every_lease_is_kept_while_more_functions_run_than_the_store_has_threads(tmp_path: Path) -> None:
    functions = Held()

    async def main() -> None:
        found = machines(functions.work)
        async with casework.open_async(f"sqlite:///{tmp_path / 'a.db'}", machines=found) as app:
            async with app.worker(poll_s=0.01, concurrency=64, lease_s=0.6):
                for n in range(40):
                    await app.start("busy", id=f"x-{n}")
                await asyncio.to_thread(functions.wait_for, 40)
                while True:
                    shown = [(await app.inspect(f"x-{n}")).tasks for n in range(40)]
                    beats = [await _beats(app, f"x-{n}") for n in range(0, 40, 13)]
                    assert all(task[0].attempt == 1 for task in shown)
                    if min(beats) >= 4:
                        break
                functions.go_on.set()
                for n in range(40):
                    assert (await app.wait(f"x-{n}", timeout_s=60)).status == "done"

    asyncio.run(main())
    assert len(functions.ids) == 40


async def _beats(app: Any, id: str) -> int:
    [item] = (await app.backend.execute(Query(EXECUTIONS, id, None, "w/", "w0"))).items
    return int(item.get("beats", 0))


# --- one input among others -------------------------------------------------------------------------------------------


def test_a_bell_that_never_stops_starves_neither_timers_nor_tasks_nor_what_others_send() -> None:
    backend = MemoryBackend()
    found = machines(lambda task: None)
    stop = threading.Event()
    with casework.open(backend, machines=found, create=True) as app, casework.open(backend, machines=found) as other:

        def ring() -> None:
            while not stop.is_set():
                app.core.bell.ring("hot")

        app.start("quick", id="hot")
        threads = [threading.Thread(target=ring) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            with app.worker(poll_s=0.05):
                other.start("busy", id="task")
                other.start("quick", id="event")
                other.send("event", "go")
                assert other.wait("event", timeout_s=60).status == "done"
                assert other.wait("task", timeout_s=60).status == "done"
        finally:
            stop.set()
            for thread in threads:
                thread.join()


# --- a store that was down --------------------------------------------------------------------------------------------


class Down(MemoryBackend):
    """Takes no transaction while it is down."""

    is_down = False
    refused = 0

    def execute_many(self, effects: Any) -> Any:
        if self.is_down and any(isinstance(effect, Transact) for effect in effects):
            self.refused += 1
            raise Unavailable("it is down")
        return super().execute_many(effects)

    def execute(self, effect: Any) -> Any:
        if self.is_down and isinstance(effect, Transact):
            self.refused += 1
            raise Unavailable("it is down")
        return super().execute(effect)


def test_what_a_function_returned_while_the_store_was_down_is_stored_when_it_is_back() -> None:
    functions, backend = Held(), Down()
    with casework.open(backend, machines=machines(functions.work), create=True) as app, app.worker(poll_s=0.01):
        app.start("busy", id="x")
        functions.wait_for(1)
        backend.is_down = True
        functions.go_on.set()
        while backend.refused < 2:
            pass
        backend.is_down = False
        assert app.wait("x", timeout_s=60).output == {}
    assert functions.ids == ["x"]


def test_a_pause_after_trouble_ends_at_any_sign_of_life() -> None:
    worker = Worker(Runtime(), WorkerOptions())
    worker.answered.set()
    pause = shell._pause(worker, 30.0)
    first = next(pause)
    assert isinstance(first, Race)
    assert first.timeout_s == 0.1
    second = pause.send(None)
    assert isinstance(second, Race)
    assert {id(wait) for wait in second.waits} == {id(worker.stop), id(worker.bell.flag), id(worker.answered)}
    assert not worker.answered.is_set, "an answer from before says nothing"


# --- what others know of a worker -------------------------------------------------------------------------------------


class Broken(MemoryBackend):
    """Its index breaks when it is told to."""

    breaks = False

    def execute_many(self, effects: Any) -> Any:
        if self.breaks and any(isinstance(effect, Query) and effect.index == "pending" for effect in effects):
            raise ZeroDivisionError("broken on purpose")
        return super().execute_many(effects)


def test_an_error_that_nobody_knows_ends_a_worker_at_its_first_look_only() -> None:
    backend = Broken()
    with casework.open(backend, machines=machines(lambda task: None), create=True) as app:
        with app.worker(poll_s=0.01) as worker:
            quick(app, 1)
            before = worker.status().trouble_n
            backend.breaks = True
            while worker.status().trouble_n == before:
                pass
            assert worker.is_alive
            backend.breaks = False
            app.start("busy", id="x")
            assert app.wait("x", timeout_s=60).status == "done"
        assert worker.error is None
        backend.breaks = True
        thread = app.worker(poll_s=0.01)
        worker = thread.__enter__()
        assert thread.wait(60)
        assert not worker.is_alive
        assert isinstance(worker.error, ZeroDivisionError)
        assert worker.status().error == "ZeroDivisionError: broken on purpose"
        told: list[Any] = []
        worker.when_ended(told.append)
        assert told == [worker.error]
        with pytest.raises(ZeroDivisionError):
            thread.__exit__(None, None, None)


def test_so_it_is_told_on_a_loop() -> None:
    async def main() -> None:
        backend = Broken()
        threaded = ThreadedBackend(backend)
        async with casework.open_async(threaded, machines=machines(lambda task: None), create=True) as app:
            backend.breaks = True
            task = app.worker(poll_s=0.01)
            worker = await task.__aenter__()
            assert await task.wait(60)
            assert isinstance(worker.error, ZeroDivisionError)
            assert not worker.is_alive
            with pytest.raises(ZeroDivisionError):
                await task.__aexit__(None, None, None)
            backend.breaks = False
            async with app.worker(poll_s=0.01) as other:
                assert other.is_alive
                await app.start("busy", id="x")
                assert (await app.wait("x", timeout_s=60)).status == "done"
            assert (other.is_alive, other.error) == (False, None)

    asyncio.run(main())
