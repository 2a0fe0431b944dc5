"""What a machine publishes: each transition or chosen event once, in the order of its commits."""

from __future__ import annotations

import json
from typing import Any

import pytest

from casework.backends.drive import run
from casework.backends.drive_async import run_async
from casework.backends.memory import MemoryBackend
from casework.backends.surroundings import VirtualClock
from casework.backends.threaded import ThreadedBackend
from casework.errors import Contention, InvalidMachine, WaitTimeout
from casework.executions import control, deliver
from casework.executions.advance import advance
from casework.executions.publish import deliver as publish
from casework.executions.runtime import Options, Runtime
from casework.executions.worker import Worker, sweep
from casework.kernel.effects import Transact
from casework.kernel.items import Delete
from casework.statechart import Machine
from casework.statechart.load.yaml import parse
from casework.streams.log import Log
from casework.streams.read import read_page
from tests.executions.stepping import LosesAnswers, Stepped, Torn, fresh_backend, items_of
from tests.executions.watching import ByHand, WatchedBackend, overwrite

LIGHT = """
id: light
initial: red
states:
  red: {on: {Go: green}}
  green: {on: {Stop: red, Note: {actions: [{type: log, params: {}}]}}}
"""


def light(publish: Any) -> Machine:
    raw, _ = parse(LIGHT)
    return Machine.from_dict({**raw, "publish": publish})


def runtime(**options: Any) -> Runtime:
    return Runtime([light({"stream": "lights", **options})], Options())


def published(backend: Any) -> list[dict[str, Any]]:
    return [json.loads(op.data) for op in run(read_page(Log(), "lights"), backend).ops]


def drive(rt: Runtime, backend: Any, id: str, *events: str) -> None:
    for event in events:
        run(deliver.handle(rt, id, event, {"by": event.lower()}), backend)


@pytest.fixture
def backend() -> MemoryBackend:
    return fresh_backend(clock=VirtualClock())


def test_every_transition_is_published_once_in_the_order_of_the_commits(backend: MemoryBackend) -> None:
    rt = runtime()
    run(deliver.start(rt, "light", "l", None), backend)
    drive(rt, backend, "l", "Go", "Stop", "Go")
    assert published(backend) == []
    assert run(publish(Log(), rt, ["l"]), backend) == 4
    assert [(one["from"], one["to"]) for one in published(backend)] == [
        ([], ["red"]), (["red"], ["green"]), (["green"], ["red"]), (["red"], ["green"]),
    ]  # fmt: skip
    assert [one["version"] for one in published(backend)] == [1, 2, 3, 4]
    assert published(backend)[1]["event"] == "Go" and published(backend)[1]["data"] == {"by": "go"}
    assert items_of(backend, "l", "o/") == [] and run(publish(Log(), rt, ["l"]), backend) == 0


def test_only_chosen_events_are_published_where_some_are_chosen(backend: MemoryBackend) -> None:
    rt = runtime(events=["Stop"], data=False)
    run(deliver.start(rt, "light", "l", None), backend)
    drive(rt, backend, "l", "Go", "Stop", "Stop")
    run(publish(Log(), rt, ["l"]), backend)
    assert [one["event"] for one in published(backend)] == ["Stop"], "the second one was not taken"
    assert "data" not in published(backend)[0]


@pytest.mark.parametrize(("chosen", "events"), [
    (["lamp"], ["lamp.on", "lamp.off"]), (["lamp.*"], ["lamp.on", "lamp.off"]),
    (["lamp.on", "Go.*"], ["Go", "lamp.on"]), (["lam"], []),
])  # fmt: skip
def test_chosen_events_are_patterns_as_in_on(backend: MemoryBackend, chosen: list[str], events: list[str]) -> None:
    states = {"a": {"on": {"Go": {"actions": []}, "lamp.*": {"actions": []}}}}
    publish_ = {"stream": "lights", "events": chosen}
    one = Machine.from_dict({"id": "light", "context": {}, "publish": publish_, "initial": "a", "states": states})
    rt = Runtime([one], Options())
    run(deliver.start(rt, "light", "l", None), backend)
    drive(rt, backend, "l", "Go", "lamp.on", "lamp.off")
    run(publish(Log(), rt, ["l"]), backend)
    assert [each["event"] for each in published(backend)] == events
    assert [problem.code for problem in one.check()] == ([] if events else ["publish-untaken"])


def test_a_worker_that_dies_after_the_append_publishes_nothing_twice(backend: MemoryBackend) -> None:
    rt = runtime()
    run(deliver.start(rt, "light", "l", None), backend)
    drive(rt, backend, "l", "Go")
    dying = Stepped(publish(Log(), rt, ["l"]), backend).until(Transact)
    dying.step()
    dying.until(Transact)
    dying.program.close()
    assert len(published(backend)) == 2
    drive(rt, backend, "l", "Stop")
    run(publish(Log(), rt, ["l"]), backend)
    assert [one["version"] for one in published(backend)] == [1, 2, 3]


def test_two_workers_that_deliver_at_once_keep_the_order(backend: MemoryBackend) -> None:
    rt = runtime()
    run(deliver.start(rt, "light", "l", None), backend)
    slow = Stepped(publish(Log(), rt, ["l"]), backend).until(Transact)
    drive(rt, backend, "l", "Go", "Stop")
    run(publish(Log(), rt, ["l"]), backend)
    slow.finish()
    assert [one["version"] for one in published(backend)] == [1, 2, 3]


def test_a_commit_whose_answer_was_lost_publishes_its_transition_once(backend: MemoryBackend) -> None:
    rt = runtime()
    run(deliver.start(rt, "light", "l", None), backend)
    run(deliver.handle(rt, "l", "Go", {}, event_id="e-1"), LosesAnswers(backend, [1]))
    run(publish(Log(), rt, ["l"]), LosesAnswers(backend, [1, 2]))
    run(publish(Log(), rt, ["l"]), backend)
    assert [one["event"] for one in published(backend)][1:] == ["Go"] and len(published(backend)) == 2


def test_a_later_commit_waits_until_what_an_earlier_one_publishes_is_visible(backend: MemoryBackend) -> None:
    """Items become visible one by one: the next commit of another process checks the delivery of the one before."""
    rt = runtime()
    run(deliver.start(rt, "light", "l", None), backend)
    torn = Torn(backend)
    run(deliver.handle(rt, "l", "Go", {}), torn)  # the state shows, the delivery does not yet
    assert len(items_of(backend, "l", "o/")) == 1
    other = runtime()
    run(deliver.send(other, "l", "Stop", {}), backend)
    worker = Stepped(advance(other, "l"), torn).until(Transact)
    worker.step()
    assert not worker.done
    torn.land()
    torn.tears = False
    worker.finish()
    assert [item["sort"].split("/")[2] for item in items_of(backend, "l", "o/")] == [f"{n:016d}" for n in (1, 2, 3)]


def test_a_worker_publishes_what_it_and_others_committed(backend: MemoryBackend) -> None:
    import asyncio

    rt = runtime()
    for n in range(20):
        run(deliver.start(rt, "light", f"l{n}", None), backend)
        run(deliver.send(rt, f"l{n}", "Go", {}), backend)

    async def main() -> None:
        threaded = ThreadedBackend(backend)
        worker = Worker(rt)
        for _ in range(3):
            await run_async(sweep(worker), threaded)
            backend.clock.advance(1)  # type: ignore[attr-defined]
        await threaded.close()

    asyncio.run(main())
    found = published(backend)
    assert len(found) == 40
    for n in range(20):
        assert [one["version"] for one in found if one["execution"] == f"l{n}"] == [1, 2]


def test_an_execution_is_purged_only_when_what_it_published_has_reached_its_stream(backend: MemoryBackend) -> None:
    rt = runtime()
    run(deliver.start(rt, "light", "l", None), backend)
    run(control.terminate(rt, "l"), backend)
    run(control.purge(rt, "l"), backend)
    assert published(backend)[0]["version"] == 1 and items_of(backend, "l") == []


@pytest.mark.parametrize("id", ["l", "l" * 512])
def test_each_life_of_an_id_is_published_whatever_the_length_of_the_id(backend: MemoryBackend, id: str) -> None:
    rt = runtime()
    for _ in range(2):
        run(deliver.start(rt, "light", id, None), backend)
        drive(rt, backend, id, "Go")
        run(control.terminate(rt, id), backend)
        run(control.purge(rt, id), backend)
        backend.sleep(10)
    assert [(one["version"], one["to"]) for one in published(backend)] == [
        (1, ["red"]), (2, ["green"]), (1, ["red"]), (2, ["green"]),
    ]  # fmt: skip


def test_a_delivery_of_the_first_life_that_comes_late_removes_nothing_of_the_second(backend: MemoryBackend) -> None:
    rt = runtime()
    run(deliver.start(rt, "light", "l", None), backend)
    late = ByHand(publish(Log(), rt, ["l"]), backend)
    late.up_to(lambda effect: isinstance(effect, Transact) and isinstance(effect.writes[0], Delete))
    run(control.purge(rt, "l", force=True), backend)
    backend.sleep(10)
    run(deliver.start(rt, "light", "l", None), backend)
    late.finish()
    backend.sleep(10)
    run(publish(Log(), rt, ["l"]), backend)
    assert [one["at_us"] for one in published(backend)] == sorted({one["at_us"] for one in published(backend)})
    assert len(published(backend)) == 2 and items_of(backend, "l", "o/") == []


def test_a_look_that_began_in_the_first_life_misses_nothing_between_what_it_sees_of_the_second(
    backend: MemoryBackend,
) -> None:
    """A query may see its last items later than its first ones. Found by the simulator's "lives, published": one that
    had come to the first life's third delivery found the second life's third, and published it before the other two.
    """
    rt = runtime()
    run(deliver.start(rt, "light", "l", None), backend)
    drive(rt, backend, "l", "Go", "Stop")
    reached = str(items_of(backend, "l", "o/")[-1]["sort"])
    run(control.terminate(rt, "l"), backend)
    run(control.purge(rt, "l"), backend)
    run(deliver.start(rt, "light", "l", None), backend)
    drive(rt, backend, "l", "Go", "Stop")
    late = [item for item in items_of(backend, "l", "o/") if str(item["sort"]) >= reached]
    assert len(late) == 3


class Held(WatchedBackend):
    """A store in which another transaction holds whatever is to be delivered, for ever."""

    def execute(self, effect: Any) -> Any:
        if isinstance(effect, Transact) and any(str(write.key.sort).startswith("o/") for write in effect.writes):
            self.reads.append(effect)
            raise Contention("an item is in another transaction")
        return super().execute(effect)


def test_a_purge_gives_up_when_what_was_published_stays_in_another_transaction(backend: MemoryBackend) -> None:
    """Found by the simulator's "lives, published", where it went round without a pause."""
    rt = runtime()
    run(deliver.start(rt, "light", "l", None), backend)
    run(control.terminate(rt, "l"), backend)
    held = Held(clock=VirtualClock())
    held.tables = backend.tables
    with pytest.raises(Contention, match="could not be delivered yet"):
        run(control.purge(rt, "l"), held)
    tries = [effect for effect in held.reads if isinstance(effect, Transact)]
    assert len(tries) == control.RACES.rounds_max and len(published(backend)) == 1
    assert run(publish(Log(), rt, ["l"]), held) == 0, "a worker does not take it for done"


@pytest.mark.parametrize("broken", [{"ops": "[["}, {"ops": None}, {"stream": None}, {"format": 99}])
def test_a_delivery_that_cannot_be_read_holds_up_its_own_execution_only(
    backend: MemoryBackend, broken: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    rt = runtime()
    for id in ("bad", "good"):
        run(deliver.start(rt, "light", id, None), backend)
        drive(rt, backend, id, "Go")
    (first, second) = items_of(backend, "bad", "o/")
    overwrite(backend, {name: value for name, value in {**first, **broken}.items() if value is not None})
    assert run(publish(Log(), rt, ["bad", "good"]), backend) == 2
    assert {one["execution"] for one in published(backend)} == {"good"}
    assert items_of(backend, "bad", "o/")[0]["rank_us"] > first["rank_us"] and "a delivery of execution" in caplog.text
    overwrite(backend, first)
    assert run(publish(Log(), rt, ["bad", "good"]), backend) == 2
    assert [one["version"] for one in published(backend) if one["execution"] == "bad"] == [1, 2]
    assert second["sort"] > first["sort"]


def test_in_virtual_time_what_is_published_arrives_and_nothing_goes_in_a_circle() -> None:
    from casework.testing import VirtualApp

    with VirtualApp([light("lights")]) as app:
        app.start("light", id="l")
        app.advance("1h")
        with pytest.raises(WaitTimeout):
            app.wait("l")
        assert len(published(app.backend)) == 1


@pytest.mark.parametrize(
    "wrong",
    [5, True, "no/stream", "@x", {}, {"stream": None}, {"stream": "s", "event": ["Go"]}, {"stream": "s", "events": []},
     {"stream": "s", "events": [1]}, {"stream": "s", "data": "no"}, ["s"]],
)  # fmt: skip
def test_what_cannot_be_published_is_refused_where_it_is_written(wrong: Any) -> None:
    with pytest.raises(InvalidMachine, match="publish"):
        light(wrong)


def test_what_an_execution_publishes_is_decided_by_the_definition_that_it_started_with(backend: MemoryBackend) -> None:
    """Two processes cannot publish one execution differently: what is published is a part of the definition's hash."""
    old, new = light("lights"), light({"stream": "others", "data": False})
    silent = Machine.from_yaml(LIGHT)
    assert len({old.hash, new.hash, silent.hash}) == 3
    run(deliver.start(Runtime([old]), "light", "l", None), backend)
    for other in (new, silent):  # a deploy that publishes otherwise, or no more; and a worker that never did
        drive(Runtime([other]), backend, "l", "Go", "Stop")
    run(publish(Log(), Runtime(), ["l"]), backend)
    assert [one["version"] for one in published(backend)] == [1, 2, 3, 4, 5]
    run(control.migrate(Runtime([new]), "l"), backend)
    drive(Runtime([new]), backend, "l", "Go")
    run(publish(Log(), Runtime(), ["l"]), backend)
    (last,) = [json.loads(op.data) for op in run(read_page(Log(), "others"), backend).ops]
    assert (last["event"], "data" in last, len(published(backend))) == ("Go", False, 5)
