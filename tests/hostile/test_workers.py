"""Whatever a function of a user's does in a worker or a consumer, what it is a part of fails, and all else goes on.

Each cell of the table runs a worker with one bad execution and one good one. The good one ends well, the worker is
alive until it is asked to end, and it ends in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import casework
from casework.backends import groups
from casework.backends.memory import MemoryBackend
from casework.backends.threaded import ThreadedBackend
from casework.executions.worker import Worker
from casework.streams.log import Op
from tests.hostile.misbehaviours import NAMES, RAISED, Blocked, misbehaving

PLACES = ("task", "action", "guard", "codec", "stream handler", "when_ended")

CALLED = [("task", False), ("task", True), ("action", False), ("guard", False)]
"""Where a function is called in a worker, and whether it is a coroutine function."""

BAD = """
id: bad
context: {n: 1}
initial: a
states:
  a: {on: {error.execution: {target: refused, actions: [{type: assign, params: {why: {expr: event.data}}}]}, go: STEP}}
  b:
    invoke: {id: do, src: {task: work}, input: {of: {expr: context}}, retry: {max_attempts: 1}, onDone: done,
      onError: {target: refused, actions: [{type: assign, params: {why: {expr: event.data}}}]}}
  done: {type: final, output: {expr: context}}
  refused: {type: final, output: {expr: context}}
"""
STEPS = {
    "task": "{target: b}",
    "action": "{target: done, actions: [act]}",
    "guard": "[{target: done, guard: check}, {target: done}]",
}
GOOD = """
id: good
initial: a
states: {a: {invoke: {src: {task: well}, onDone: b}}, b: {after: {1ms: c}}, c: {type: final}}
"""


def machines(place: str, function: Any, well: Any = None) -> list[casework.Machine]:
    bad = casework.Machine.from_yaml(BAD.replace("STEP", STEPS[place]))
    bad.task(name="work")(function if place == "task" else lambda task, **given: None)
    if place == "guard":
        bad.guard(name="check")(function)
    elif place != "task":
        bad.action(name="act")(function if place == "action" else lambda context, event: {})
    good = casework.Machine.from_yaml(GOOD)

    async def goes_well(task: casework.TaskContext) -> str:
        return "well"

    good.task(name="well")(well or goes_well)
    return [bad, good]


@contextmanager
def at_work(found: list[casework.Machine], **options: Any) -> Iterator[tuple[casework.App, Worker]]:
    """A worker that is alive to the end, and ends in order."""
    backend = MemoryBackend()
    with casework.open(backend, machines=found, create=True, **options) as app:
        thread = app.worker(poll_s=0.01, drain_s=0)
        with thread as worker:
            yield app, worker
            assert worker.is_alive, worker.error
        assert not worker.is_alive
        assert worker.error is None


async def at_work_async(found: list[casework.Machine]) -> Any:
    async with casework.open_async(ThreadedBackend(MemoryBackend()), machines=found, create=True) as app:
        async with app.worker(poll_s=0.01, drain_s=0) as worker:
            await app.start("bad", id="bad")
            await app.send("bad", "go")
            await app.start("good", id="good")
            bad = await app.wait("bad", timeout_s=60)
            assert (await app.wait("good", timeout_s=60)).status == "done"
            assert worker.is_alive, worker.error
        assert worker.error is None
    return bad


def bad_end(place: str, function: Any) -> Any:
    with at_work(machines(place, function)) as (app, _):
        app.start("bad", id="bad")
        app.send("bad", "go")
        app.start("good", id="good")
        bad = app.wait("bad", timeout_s=60)
        assert app.wait("good", timeout_s=60).status == "done"
    return bad


def check_end(bad: Any, name: str) -> None:
    assert bad.status in ("done", "failed")
    why = bad.error or bad.output.get("why")
    if name in RAISED:
        assert why is not None, f"{name} was taken for a success"
        raised = "RuntimeError" if name == "StopIteration" and why["type"] == "RuntimeError" else name
        assert why["type"] == raised, "what was raised is told apart"
    if name == "changes its input":
        assert bad.status == "done"
        assert bad.output["n"] == 1, "what a function does to its input changes nothing"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("place", "is_async"), CALLED)
def test_the_function_fails_and_nothing_else(place: str, is_async: bool, name: str) -> None:
    check_end(bad_end(place, misbehaving(name, is_async=is_async)), name)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("place", "is_async"), CALLED)
def test_so_it_is_on_a_loop(place: str, is_async: bool, name: str) -> None:
    check_end(asyncio.run(at_work_async(machines(place, misbehaving(name, is_async=is_async)))), name)


# --- functions that do not return -------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "coroutine"])
def test_a_task_that_does_not_return_holds_up_only_itself(is_async: bool) -> None:
    blocked = Blocked()
    function = blocked.coroutine if is_async else blocked.plain
    found = machines("task", function, well=lambda task: "well")  # plain: the loop of coroutines is blocked
    with at_work(found) as (app, worker):
        app.start("bad", id="bad")
        app.send("bad", "go")
        assert blocked.began.wait(60)
        app.start("good", id="good")
        assert app.wait("good", timeout_s=60).status == "done"
        assert worker.status().tasks_running == 1
    blocked.go_on.set()


@pytest.mark.parametrize("place", ["action", "guard"])
def test_an_action_or_guard_that_does_not_return_holds_up_only_its_execution(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "PATIENCE_S", 0.05)
    blocked = Blocked()
    with at_work(machines(place, blocked.plain)) as (app, worker):
        app.start("bad", id="bad")
        app.send("bad", "go")
        assert blocked.began.wait(60)
        app.start("good", id="good")
        assert app.wait("good", timeout_s=60).status == "done"
        assert worker.status().executions_held_up == ("bad",)
        blocked.go_on.set()
        assert app.wait("bad", timeout_s=60).status == "done"


# --- the codec --------------------------------------------------------------------------------------------------------


class BadCodec:
    """A codec that misbehaves for one text, and does nothing to all others."""

    def __init__(self, name: str, where: str) -> None:
        self.name, self.where = name, where

    def encode(self, text: str) -> Any:
        return misbehaving(self.name)(text) if self.where == "encode" and "poison" in text else text

    def decode(self, text: str) -> Any:
        return misbehaving(self.name)(text) if self.where == "decode" and "poison" in text else text


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("where", ["encode", "decode"])
def test_a_codec_that_fails_for_one_execution_fails_for_no_other(where: str, name: str) -> None:
    found = machines("task", lambda task, **given: {"text": "poison"})
    with at_work(found, codec=BadCodec(name, where)) as (app, _):
        app.start("bad", id="bad")
        app.send("bad", "go")
        app.start("good", id="good")
        assert app.wait("good", timeout_s=60).status == "done"
        if where == "encode":
            with pytest.raises(casework.StoreError, match="codec"):
                app.send("bad", "go", {"text": "poison"})


# --- consumers of streams ---------------------------------------------------------------------------------------------


def consumer_options() -> dict[str, Any]:
    from casework.kernel.retry import Pauses

    return {"attempts_max": 1, "heartbeat_s": 0.05, "retry": Pauses(first_pause_s=0.001, max_pause_s=0.001)}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "coroutine"])
def test_a_handler_fails_its_operation_and_the_stream_goes_on(is_async: bool, name: str) -> None:
    seen: list[str] = []
    misbehave = misbehaving(name, is_async=is_async)

    def plain(op: Op, writes: Any) -> Any:
        if op.id == "bad":
            return misbehave(op, writes)
        seen.append(op.id)
        return None

    async def coroutine(op: Op, writes: Any) -> Any:
        result = plain(op, writes)
        return await result if op.id == "bad" else result

    def ended(parked: Any) -> bool:
        return "good" in seen and (name not in RAISED or [each.op.id for each in parked] == ["bad"])

    async def main() -> None:
        async with casework.open_async(ThreadedBackend(MemoryBackend()), create=True) as app:
            await app.streams.append("s", [Op("bad", b"1"), Op("good", b"2")])
            async with app.streams.consumer("g", ["s"], coroutine, **consumer_options()):
                while not ended(await app.streams.parked("g", "s")):
                    pass

    if is_async:
        asyncio.run(main())
    else:
        with casework.open(MemoryBackend(), create=True) as app:
            app.streams.append("s", [Op("bad", b"1"), Op("good", b"2")])
            with app.streams.consumer("g", ["s"], plain, **consumer_options()):
                while not ended(app.streams.parked("g", "s")):
                    pass
    assert seen == ["good"]


# --- who wants to know of the worker's end ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_who_is_told_of_the_end_cannot_spoil_it(name: str) -> None:
    told: list[Any] = []
    with at_work(machines("task", lambda task, **given: None)) as (_, worker):
        worker.when_ended(misbehaving(name))
        worker.when_ended(told.append)
    assert told == [None]
