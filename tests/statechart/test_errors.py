"""Errors while a chart runs: an event first, the end of the execution if nothing handles it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from casework.errors import Misuse, NotJson
from casework.statechart import CancelTimer, Event, Log, Machine, UnboundFunction, start, step
from tests.statechart.charts import Chart, machine

CHART = """
id: m
initial: a
context: {n: 0, seen: null}
states:
  a:
    after: {1h: b}
    on:
      go: {target: b, actions: [change, {type: assign, params: {n: {expr: context.n + 1}}}]}
      bad: {actions: {type: assign, params: {n: {expr: context.missing + 1}}}}
      guarded: {target: b, guard: {expr: context.missing}}
  b: {entry: {type: log, params: {label: +b}}}
HANDLER
"""
HANDLER = """
on:
  error: {actions: {type: assign, params: {seen: {expr: "event.error"}}}}
"""


def chart(handled: bool, change: Callable[..., Any] = lambda context, event: None) -> Chart:
    built = machine(CHART.replace("HANDLER", HANDLER if handled else ""))
    built.action(name="change")(change)
    return Chart(built)


def fail(context: Any, event: Any) -> Any:
    raise ValueError("no such card")


def test_an_exception_in_an_action_raises_an_event_and_ends_its_block_only() -> None:
    handled = chart(True, fail).send("go")
    assert handled.context["seen"] == {
        "message": "no such card", "type": "ValueError", "where": "transition go in a"
    }  # fmt: skip
    assert handled.context["n"] == 0, "what stood behind it in the block was skipped"
    assert handled.states == ["b"] and any(isinstance(effect, Log) for effect in handled.effects)
    assert handled.snapshot.status == "running"


def test_an_error_event_that_nothing_handles_fails_the_execution() -> None:
    failed = chart(False, fail).send("go")
    assert failed.snapshot.status == "failed"
    assert failed.snapshot.error == {"message": "no such card", "type": "ValueError", "where": "transition go in a"}
    assert not failed.send("go").last.taken


def test_a_failed_execution_ends_its_timers() -> None:
    failed = chart(False).send("bad")
    assert failed.effects == [CancelTimer("after:0:a", 1)] and failed.snapshot.stays == {}
    assert failed.snapshot.error is not None and failed.snapshot.error["message"] == "there is no key 'missing'"


def test_a_failing_guard_counts_as_false_and_raises_an_event() -> None:
    handled = chart(True).send("guarded")
    assert handled.states == ["a"] and handled.context["seen"]["where"] == "guard of guarded in a"
    assert chart(False).send("guarded").snapshot.status == "failed"


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (math.nan, "n"),
        (math.inf, "n"),
        ({1, 2}, "n"),
        ((1, 2), "n"),
        (b"x", "n"),
        (2**63, "n"),
        ({"deep": [1, {"er": -math.inf}]}, "n.deep[1].er"),
        ({1: 2}, "n"),
        (object(), "n"),
        ("\ud800", "n"),
    ],
)
def test_what_json_cannot_hold_is_refused_with_its_path(value: Any, where: str) -> None:
    handled = chart(True, lambda context, event: {"n": value}).send("go")
    assert handled.context["n"] == 0
    assert handled.context["seen"]["type"] == "NotJson"
    assert handled.context["seen"]["message"].startswith(f"result of change.{where}: ")


@pytest.mark.parametrize("text", ["1e308 * 10", "9223372036854775807 + 1", "1e308 * 10 - 1e308 * 10"])
def test_an_expression_that_leaves_json_is_an_error_too(text: str) -> None:
    failed = Chart(f"""
id: m
initial: a
context: {{n: 0}}
states: {{a: {{on: {{go: {{actions: {{type: assign, params: {{n: {{expr: "{text}"}}}}}}}}}}}}}}
""").send("go")
    assert failed.snapshot.error is not None and failed.snapshot.error["type"] == "NotJson"
    assert failed.context == {"n": 0}


def test_null_stays_null_and_no_result_changes_nothing() -> None:
    nulled = Chart("id: m\ninitial: a\ncontext: {n: 1}\nstates: {a: {on: {go: {actions: [set, nothing]}}}}")
    nulled.machine.action(name="set")(lambda context, event: {"n": None})
    nulled.machine.action(name="nothing")(lambda context, event: None)
    assert nulled.send("go").context == {"n": None}


def test_an_action_works_on_copies() -> None:
    def mutate(context: Any, event: Any) -> Any:
        context["seen"] = "leaked"
        event["list"].append(3)
        return {"n": 5}

    changed = chart(True, mutate)
    event = Event("go", {"list": [1]})
    changed.send(event)
    assert changed.context["seen"] is None and event.data == {"list": [1]}


def test_what_an_action_returns_is_not_shared_with_it() -> None:
    kept: list[int] = []
    only = Chart("id: m\ninitial: a\ncontext: {}\nstates: {a: {on: {go: {actions: keep}}}}")
    only.machine.action(name="keep")(lambda context, event: {"kept": kept})
    only.send("go")
    kept.append(1)
    assert only.context == {"kept": []}


def test_the_event_of_a_function_is_its_payload_with_attributes() -> None:
    seen: list[Any] = []
    watched = chart(True, lambda context, event: seen.append((dict(event), event.type, event.id, event.source)))
    watched.send(Event("go", {"a": 1}, "e-1", "o-2"))
    assert seen == [({"a": 1}, "go", "e-1", "o-2")]


@pytest.mark.parametrize("result", [5, "text", [1]])
def test_a_result_that_is_no_mapping_is_an_error(result: Any) -> None:
    assert chart(True, lambda context, event: result).send("go").context["seen"]["type"] == "TypeError"


def test_a_function_that_is_not_here_stops_the_step_instead_of_failing_the_execution() -> None:
    built = machine(CHART.replace("HANDLER", HANDLER))
    snapshot = start(built, None, 0).snapshot
    with pytest.raises(UnboundFunction, match="action 'change' is not registered here"):
        step(built, snapshot, Event("go"), 0)


def test_errors_are_ignored_where_the_machine_says_so() -> None:
    text = CHART.replace("HANDLER", "ignore_errors: true")
    built = machine(text)
    built.action(name="change")(fail)
    ignored = Chart(built).send("go")
    assert ignored.snapshot.status == "running" and ignored.states == ["b"]


def test_a_context_that_cannot_be_computed_from_the_input_is_the_callers_fault() -> None:
    built = machine("id: m\ninitial: a\ncontext: {n: {expr: input.amount}}\nstates: {a: {}}")
    with pytest.raises(Misuse, match="the input has no 'amount'"):
        start(built, {"amuont": 3}, 0)
    with pytest.raises(NotJson, match=r"input\.amount: nan"):
        start(built, {"amount": math.nan}, 0)
    assert start(built, {"amount": 3}, 0).snapshot.context == {"n": 3}


def test_without_context_the_input_is_the_context() -> None:
    built = machine("id: m\ninitial: a\nstates: {a: {}}")
    given = {"a": [1]}
    context = start(built, given, 0).snapshot.context
    given["a"].append(2)
    assert context == {"a": [1]}
    with pytest.raises(Misuse, match="the input is a mapping, not list"):
        start(built, [1], 0)


def test_a_snapshot_of_another_definition_is_refused_by_name() -> None:
    built = machine("id: m\ninitial: a\nstates: {a: {on: {go: b}}, b: {}}")
    snapshot = start(built, None, 0).snapshot
    snapshot.configuration = ["renamed"]
    with pytest.raises(Misuse, match="has no state 'renamed'"):
        step(built, snapshot, Event("go"), 0)
    for states in ([], ["a", "b"]):
        snapshot.configuration = states
        with pytest.raises(Misuse, match="cannot be in"):
            step(built, snapshot, Event("go"), 0)


def test_an_error_in_an_exit_action_at_the_end_fails_the_execution() -> None:
    ended = Chart("""
id: m
initial: a
states:
  a: {on: {go: z}}
  z: {type: final, exit: {type: assign, params: {n: {expr: context.nothing}}}}
""").send("go")
    assert ended.snapshot.status == "failed"


@pytest.mark.parametrize("ignores", [True, False])
def test_an_eventless_guard_that_fails_says_so_once_and_does_not_go_round(ignores: bool) -> None:
    text = "id: m\ninitial: a\nstates:\n  a: {always: {target: b, guard: {expr: context.x}}, on: {go: {}}}\n  b: {}\n"
    one = Chart(text + ("ignore_errors: true\n" if ignores else "on: {error.execution: {}}\n"))
    assert one.snapshot.status == "running" and one.states == ["a"]
    assert one.send("go").states == ["a"]


def test_params_of_a_function_may_ask_which_states_are_active() -> None:
    one = Chart("""
id: m
initial: a
context: {}
states:
  a: {on: {go: b}, exit: {type: note, params: {old: {expr: "In('a')"}}}}
  b: {entry: {type: note, params: {new: {expr: "In('a')"}}}}
""")
    one.machine.action(name="note")(lambda context, event, **params: params)
    assert one.send("go").context == {"old": True, "new": False}


@pytest.mark.parametrize("path", [5, None, "", ["order.yaml"], b"order.yaml"])
def test_what_is_no_path_is_refused(path: Any) -> None:
    with pytest.raises(Misuse, match=r"is not the path of a file; write Machine.load"):
        Machine.load(path)


def test_a_path_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="cannot be read: Is a directory; give the file of a machine"):
        Machine.load(tmp_path)
    with pytest.raises(Misuse, match="cannot be read: embedded null byte"):
        Machine.load("a\0b")


@pytest.mark.parametrize("method", ["from_yaml", "from_scxml"])
def test_what_is_no_text_is_refused(method: str) -> None:
    with pytest.raises(Misuse, match=f"5 is not text; Machine.{method} takes a "):
        getattr(Machine, method)(5)


@pytest.mark.parametrize(
    "go",
    [
        "{target: end, actions: {type: assign, params: {x: {expr: event.missing}}}}",
        "[{target: other, guard: {expr: event.missing > 5}}, {target: end}]",
    ],
)
def test_an_error_on_the_way_into_the_end_fails_the_machine(go: str) -> None:
    states = f"  a: {{on: {{go: {go}}}}}\n  other: {{}}\n  end: {{type: final}}\n"
    text = f"id: m\ninitial: a\ncontext: {{x: 1}}\nstates:\n{states}"
    one = Chart(text).send("go", {})
    assert one.snapshot.status == "failed"
    assert one.snapshot.error is not None and "missing" in one.snapshot.error["message"]
    assert Chart(text + "ignore_errors: true\n").send("go", {}).snapshot.status == "done"
