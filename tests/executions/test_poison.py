"""What cannot be processed fails or parks one execution, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from casework.backends.drive import run
from casework.errors import CorruptItem, Misuse
from casework.executions.deliver import put_mail
from casework.executions.worker import Worker, sweep
from casework.kernel.effects import Get, Query
from casework.kernel.schema import EXECUTIONS, MACHINES
from casework.statechart import Machine
from casework.testing import VirtualApp
from tests.executions.watching import (
    app_on,
    data_of,
    items_of,
    machine,
    overwrite,
    state_item,
    watched_app,
    work,
    work_once,
)

Maker = Callable[..., VirtualApp]

LOG = """
id: log
initial: open
context: {seen: []}
states:
  open:
    on:
      add: {actions: {type: assign, params: {seen: {expr: "context.seen + [event.text]"}}}}
      spin: circle
      tell: {actions: {type: send, params: {event: add, to: {expr: event.to}, data: {text: hello}}}}
      close: closed
  circle: {always: circle2}
  circle2: {always: circle}
  closed: {type: final}
"""


def a_log() -> Machine:
    return machine(LOG)


def test_an_event_that_never_comes_to_rest_fails_its_execution_and_keeps_what_was_before_it() -> None:
    app, _ = watched_app(a_log())
    app.start("log", id="x")
    app.send("x", "add", {"text": "a"})
    app.send("x", "spin", {"why": 1})
    app.send("x", "add", {"text": "b"})
    work(app, "x")
    failed = app.get("x")
    assert failed.status == "failed" and failed.error is not None and failed.error["type"] == "StepLimit"
    assert failed.context == {"seen": ["a"]} and failed.configuration == ["open"]
    _, data = data_of(app, "x")
    assert data.failure is not None and (data.failure.event.kind, data.failure.event.type) == ("event", "spin")
    assert [dead.events[0]["data"] for dead in app.dead_letters().items] == [{"text": "b"}]
    assert items_of(app.backend, "x", "e/") == []


def test_a_failing_execution_does_not_hold_up_others(casework_app: Maker) -> None:
    app = casework_app(a_log())
    for id in ("x", "y"):
        app.start("log", id=id)
    app.send("x", "spin")
    app.send("y", "add", {"text": "a"})
    app.settle()
    assert app.get("x").status == "failed" and app.get("y").context == {"seen": ["a"]}


def test_an_event_whose_result_is_too_large_fails_the_execution_and_earlier_ones_of_its_batch_count() -> None:
    app, _ = watched_app(a_log())
    app.start("log", id="x")
    app.send("x", "add", {"text": "a"})
    app.send("x", "add", {"text": "b" * 200_000})
    app.send("x", "add", {"text": "c" * 250_000})
    app.send("x", "add", {"text": "d"})
    work(app, "x")
    failed = app.get("x")
    assert failed.status == "failed" and failed.error is not None and failed.error["type"] == "ItemTooLarge"
    assert [text[:1] for text in failed.context["seen"]] == ["a", "b"]
    dead = sorted((each.events[0]["data"]["text"][:1], each.reason) for each in app.dead_letters().items)
    assert dead == [("c", "the execution failed on it"), ("d", "the execution had ended: failed")]
    assert items_of(app.backend, "x", "e/") == []


def test_of_several_events_in_one_message_only_the_one_at_fault_fails_the_execution() -> None:
    sender = machine("""
id: sender
initial: a
states:
  a:
    on:
      go:
        actions:
          - {type: send, params: {event: add, to: x, data: {text: one}}}
          - {type: send, params: {event: add, to: x, data: {text: {expr: "event.text"}}}}
""")
    app, _ = watched_app(a_log(), sender)
    app.start("log", id="x", input=None)
    app.send("x", "add", {"text": "a" * 200_000})
    app.start("sender", id="s")
    app.send("s", "go", {"text": "b" * 250_000})
    work(app, "s")
    work(app, "x")
    failed = app.get("x")
    assert failed.status == "failed" and [text[:3] for text in failed.context["seen"]] == ["aaa", "one"]


def test_a_child_whose_first_context_is_too_large_fails_and_its_parent_hears_of_it(casework_app: Maker) -> None:
    parent = machine("""
id: parent
initial: waiting
states:
  waiting:
    invoke: {id: kid, src: {machine: child}, onDone: good, onError: {target: bad,
      actions: {type: assign, params: {why: {expr: "event.type"}}}}}
  good: {type: final}
  bad: {type: final}
""")
    child = machine("""
id: child
initial: a
context: {big: {expr: "'x' * 100000"}, more: {expr: "'x' * 100000"}, most: {expr: "'x' * 100000"},
  all: {expr: "'x' * 100000"}, over: {expr: "'x' * 100000"}}
states: {a: {}}
""")
    app = casework_app(parent, child)
    app.start("parent", id="p")
    done = app.wait("p", timeout_s=10)
    assert done.configuration == ["bad"]


def test_a_timer_whose_result_is_too_large_fails_the_execution(casework_app: Maker) -> None:
    app = casework_app(
        machine("""
id: m
initial: a
context: {text: {expr: input.text}}
states:
  a: {after: {1s: {target: b, actions: {type: assign, params: {more: {expr: "context.text + context.text"}}}}}}
  b: {}
""")
    )
    app.start("m", id="x", input={"text": "x" * 250_000})
    app.advance("2s")
    assert app.get("x").status == "failed" and app.get("x").configuration == ["a"]


def test_a_payload_that_fits_beside_nothing_else_still_fails_the_execution_and_is_kept_aside() -> None:
    app, _ = watched_app(a_log())
    app.start("log", id="x")
    app.send("x", "add", {"text": "a" * 390_000})
    work(app, "x")
    app.send("x", "add", {"text": "b" * 390_000})
    work(app, "x")
    failed = app.get("x")
    assert failed.status == "failed" and len(failed.context["seen"]) == 1
    (dead,) = app.dead_letters().items
    assert dead.events[0]["type"] == "add"


@pytest.mark.parametrize("to", ["", "a\nb", "x" * 600, "a\u0000b", 5, None])
def test_a_send_to_what_is_no_id_is_an_error_of_the_chart(casework_app: Maker, to: Any) -> None:
    app = casework_app(
        machine("""
id: m
initial: a
states:
  a: {on: {tell: {actions: {type: send, params: {event: hello, to: {expr: event.to}}}}, "error.*": told, hello: own}}
  told: {}
  own: {}
""")
    )
    app.start("m", id="x")
    app.send("x", "tell", {"to": to})
    app.settle()
    assert app.get("x").configuration == (["own"] if to == "" else ["told"])


# --- what cannot be read ----------------------------------------------------------------------------------------------


def parked_reasons(app: Any, id: str) -> set[str]:
    return {str(item["parked"]) for item in items_of(app.backend, id) if "parked" in item}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"data": "{"}, "cannot be read"),
        ({"data": None}, "lacks"),
        ({"format": 99}, "format 99"),
        ({"format": None}, "no format number"),
    ],
)
def test_a_state_that_cannot_be_read_is_put_off_and_left_as_it_is(change: dict[str, Any], word: str) -> None:
    app, backend = watched_app(a_log())
    app.start("log", id="x")
    app.start("log", id="y")
    item = {k: v for k, v in {**state_item(backend, "x"), **change}.items() if v is not None}
    overwrite(backend, item)
    app.send("y", "add", {"text": "a"})
    run(put_mail(app.core.rt, "x", "add", {"text": "a"}, None, backend.now(), 0), backend)
    done = work_once(app, "x")
    assert word in done.parked and not done.is_held
    assert state_item(backend, "x") == item
    (message,) = items_of(backend, "x", "e/")
    assert message["rank_us"] > backend.now().latest_us + 50_000_000 and word in message["parked"]
    work(app, "y")
    assert app.get("y").context == {"seen": ["a"]}
    with pytest.raises(CorruptItem):
        app.get("x")
    listed = app.list()
    assert [execution.id for execution in listed.items] == ["y"] and len(listed.unreadable) == 1


def test_a_message_that_cannot_be_read_is_put_off(casework_app: Maker) -> None:
    app, backend = watched_app(a_log())
    app.start("log", id="x")
    app.send("x", "add", {"text": "a"})
    (message,) = items_of(backend, "x", "e/")
    overwrite(backend, {**message, "mails": '[["add",', "rank_us": message["rank_us"]})
    done = work_once(app, "x")
    assert "cannot be read" in done.parked
    (left,) = items_of(backend, "x", "e/")
    assert left["rank_us"] > message["rank_us"] and left["mails"] == '[["add",'


def test_a_message_that_cannot_be_read_and_belongs_to_nobody_is_put_off() -> None:
    app, backend = watched_app(a_log())
    app.start("log", id="x")
    app.send("x", "add", {"text": "a"})
    (message,) = items_of(backend, "x", "e/")
    overwrite(backend, {**message, "id": "nobody", "mails": "["})
    assert "cannot be read" in work_once(app, "nobody").parked


def test_pauses_of_a_parked_execution_double_up_to_an_hour() -> None:
    app, backend = watched_app(a_log())
    app.start("log", id="x")
    app.send("x", "add", {"text": "a"})
    other = app_on(backend, machine("id: other\ninitial: a\nstates: {a: {}}"))
    pauses = []
    for _ in range(9):
        assert "no machine 'log'" in work_once(other, "x").parked
        (message,) = items_of(backend, "x", "e/")
        pauses.append((message["rank_us"] - backend.now().middle_us) // 1_000_000)
        backend.sleep(pauses[-1])
    assert pauses == [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]
    work(app, "x")
    assert app.get("x").context == {"seen": ["a"]}


def test_a_definition_in_a_form_of_a_later_casework_parks_the_execution() -> None:
    app, backend = watched_app(a_log())
    app.start("log", id="x")
    app.send("x", "add", {"text": "a"})
    hash = app.get("x").machine_hash
    found = backend.execute(Get(MACHINES.key(hash)))
    definition = {**msgspec.json.decode(found["definition"]), "format": 99}
    place = MACHINES.key(hash)
    backend.tables.stored(MACHINES).store(place, {**found, "definition": msgspec.json.encode(definition).decode()})
    changed = machine(LOG.replace("closed: {type: final}", "closed: {type: final, description: new}"))
    newer = app_on(backend, changed)
    assert "format 99" in work_once(newer, "x").parked
    assert newer.handle("x", "add", {"text": "b"}).context == {"seen": []}, "sent, for a process that can"
    work(app, "x")
    assert app.get("x").context == {"seen": ["a", "b"]}


def test_a_function_that_is_not_here_parks_and_the_process_that_has_it_goes_on() -> None:
    text = "id: m\ninitial: a\nstates: {a: {on: {go: {actions: step, target: b}}}, b: {type: final}}"
    old, new = machine(text), machine(text)
    new.action(name="step")(lambda context, event: {"done": True})
    app, backend = watched_app(new)
    without = app_on(backend, old)
    app.start("m", id="x")
    app.send("x", "go")
    assert "'step' is not registered" in work_once(without, "x").parked
    assert app.get("x").status == "running"
    with pytest.raises(Misuse, match="register it in this process"):
        without.handle("x", "go")
    work(app, "x")
    assert app.get("x").status == "done" and app.get("x").context == {"done": True}


def test_an_action_that_raises_is_an_event_of_the_chart_not_poison(casework_app: Maker) -> None:
    m = machine("""
id: m
initial: a
states: {a: {on: {go: {actions: boom, target: b}}}, b: {on: {error.execution: told}}, told: {}}
""")

    @m.action
    def boom(context: Any, event: Any) -> Any:
        raise ValueError("no")

    app = casework_app(m)
    app.start("m", id="x")
    app.send("x", "go")
    app.settle()
    assert app.get("x").configuration == ["told"] and app.get("x").status == "running"


def test_no_poison_ends_a_sweep() -> None:
    app, backend = watched_app(a_log())
    for n in range(20):
        app.start("log", id=f"x{n}")
        app.send(f"x{n}", "spin" if n % 2 else "add", {"text": "a"})
    overwrite(backend, {**state_item(backend, "x3"), "data": "["})
    worker = Worker(app.core.rt)
    run(sweep(worker), backend)
    statuses = {n: state_item(backend, f"x{n}")["status"] for n in range(20)}
    assert [n for n in statuses if statuses[n] == "failed"] == [1, 5, 7, 9, 11, 13, 15, 17, 19]
    assert all(app.get(f"x{n}").context == {"seen": ["a"]} for n in range(0, 20, 2))
    assert backend.execute(Query(EXECUTIONS, "x3")).items
