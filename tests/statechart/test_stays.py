"""Timers and invocations: each belongs to one stay in a state."""

from __future__ import annotations

from typing import Any

import pytest

from casework.statechart import (
    ArmTimer,
    CancelTimer,
    Event,
    StartChildren,
    StartTask,
    StopInvoke,
    done_invoke,
    error_invoke,
    timer_event,
)
from tests.statechart.charts import Chart

ORDER = """
id: order
initial: idle
context: {limit: 90s, ref: null}
states:
  idle: {on: {go: waiting, skip: through}}
  through: {invoke: {src: never}, after: {1s: idle}, always: idle}
  waiting:
    after:
      30s: {target: late}
      1h30m: {actions: {type: log, params: {label: still}}}
    invoke:
      id: charge
      src: charge_card
      input: {amount: {expr: 40 + 2}}
      retry: {max_attempts: 5, initial: 1s, factor: 2, max: 1m, jitter: true}
      timeout: 10s
      heartbeat: 500ms
      onDone: {target: paid, actions: {type: assign, params: {ref: {expr: event.output.ref}}}}
    on: {again: {target: waiting, reenter: true}, back: idle, "*": {}}
  late: {on: {go: waiting}}
  paid: {type: final}
"""


def test_timers_and_tasks_start_when_the_state_is_entered() -> None:
    chart = Chart(ORDER, now_us=1_000)
    chart.send("go")
    assert chart.snapshot.stays == {"waiting": 1}
    options = {
        "timeout_us": 10_000_000, "heartbeat_us": 500_000,
        "retry": {"max_attempts": 5, "initial_us": 1_000_000, "factor": 2, "max_us": 60_000_000, "jitter": True},
    }  # fmt: skip
    assert chart.effects == [
        ArmTimer("after:0:waiting", 1, 30_001_000),
        ArmTimer("after:1:waiting", 1, 5_400_001_000),
        StartTask("charge", "waiting", 1, "charge_card", {"amount": 42}, options),
    ]


def test_leaving_cancels_them_and_a_new_stay_has_a_new_number() -> None:
    chart = Chart(ORDER).send("go").send("again")
    stopped = [CancelTimer("after:0:waiting", 1), CancelTimer("after:1:waiting", 1), StopInvoke("charge", 1)]
    assert chart.effects[:3] == stopped and chart.snapshot.stays == {"waiting": 2}
    assert [effect.stay for effect in chart.effects[3:]] == [2, 2, 2]  # type: ignore[union-attr]
    chart.send("back")
    assert chart.snapshot.stays == {} and chart.snapshot.stay_n == 2


def test_what_is_entered_and_left_in_one_step_starts_nothing() -> None:
    chart = Chart(ORDER).send("skip")
    assert chart.states == ["idle"] and chart.effects == [] and chart.snapshot.stay_n == 1


@pytest.mark.parametrize(
    "stale",
    [
        timer_event("after:0:waiting", 1),
        done_invoke("charge", 1, {"ref": "x"}),
        error_invoke("charge", 1, {"message": "x"}),
        Event("after:0:waiting"),
        Event("done.invoke.charge", {"ref": "forged"}),
        Event("error.invoke.charge"),
        done_invoke("unknown", 2),
        timer_event("after:9:nowhere", 2),
    ],
)
def test_an_event_of_another_stay_or_of_nobody_is_dropped(stale: Event) -> None:
    chart = Chart(ORDER).send("go").send("again")
    before = chart.snapshot
    assert not chart.send(stale).last.taken and chart.snapshot is before and chart.effects == []


def test_a_wildcard_does_not_take_the_events_of_its_own_states_timers_and_tasks() -> None:
    assert Chart(ORDER).send("go").send(timer_event("after:0:waiting", 1)).states == ["late"]
    chart = Chart(ORDER).send("go").send(done_invoke("charge", 1, {"ref": "p-1"}))
    assert chart.snapshot.status == "done" and chart.context["ref"] == "p-1"


def test_a_wildcard_of_a_substate_never_swallows_a_timer() -> None:
    chart = Chart("""
id: m
initial: a
states:
  a: {initial: x, after: {1s: b}, states: {x: {on: {"*": {}}}}}
  b: {}
""")
    assert chart.send(timer_event("after:0:a", 1)).states == ["b"]


def test_an_error_of_a_task_that_nothing_handles_fails_the_execution() -> None:
    chart = Chart(ORDER.replace('"*": {}', "")).send("go").send(error_invoke("charge", 1, {"message": "declined"}))
    assert chart.snapshot.status == "failed"
    assert chart.snapshot.error is not None and chart.snapshot.error["message"] == "declined"
    assert chart.snapshot.error["where"] == "charge" and chart.snapshot.stays == {}
    assert CancelTimer("after:0:waiting", 1) in chart.effects


def test_a_delay_may_be_an_expression() -> None:
    chart = Chart("""
id: m
initial: a
context: {wait: 90s}
states:
  a: {after: [{delay: {expr: context.wait}, target: b}, {delay: 5, target: b}]}
  b: {}
""")
    assert chart.effects == [ArmTimer("after:0:a", 1, 90_000_000), ArmTimer("after:1:a", 1, 5_000)]


CHILDREN = """
id: parent
initial: a
context: {items: [{sku: x}, {sku: y}]}
states:
  a:
    invoke:
      id: ship
      src: {machine: shipment}
      each: {expr: context.items}
      input: {sku: {expr: item.sku}, n: {expr: index}}
      join: 1
      onDone: done
  done: {type: final, output: {expr: event.output}}
"""


def test_one_child_is_started_per_element() -> None:
    chart = Chart(CHILDREN)
    inputs = [{"sku": "x", "n": 0}, {"sku": "y", "n": 1}]
    assert chart.effects == [StartChildren("ship", "a", 1, "shipment", inputs, True, 1, {})]


def test_without_input_a_child_gets_its_element() -> None:
    chart = Chart(CHILDREN.replace("      input: {sku: {expr: item.sku}, n: {expr: index}}\n", ""))
    (started,) = chart.effects
    assert isinstance(started, StartChildren) and started.inputs == [{"sku": "x"}, {"sku": "y"}]


def test_a_name_is_a_task_or_a_machine_by_what_is_known() -> None:
    text = "{id: m, initial: a, states: {a: {invoke: {src: thing}}}}"
    assert isinstance(Chart(text).effects[0], StartTask)
    chart = Chart(text)
    again = Chart(chart.machine.beside(["thing"]))
    assert again.effects == [StartChildren("a", "a", 1, "thing", [{}], False, "all", {})]


def test_an_input_that_cannot_be_computed_raises_an_error_event() -> None:
    chart = Chart("""
id: m
initial: a
states:
  a: {invoke: {src: t, input: {expr: context.missing}}, on: {error.execution: b}}
  b: {}
""")
    assert chart.states == ["b"] and not any(isinstance(effect, StartTask) for effect in chart.effects)


def test_stays_survive_in_states_that_are_not_left() -> None:
    chart = Chart("""
id: m
type: parallel
states:
  l: {after: {1s: .l2}, initial: l1, states: {l1: {on: {go: l2}}, l2: {}}}
  r: {initial: r1, states: {r1: {after: {2s: r2}, on: {go: r2}}, r2: {}}}
""")
    assert chart.snapshot.stays == {"l": 1, "r.r1": 2}
    chart.send("go")
    assert chart.snapshot.stays == {"l": 1} and chart.effects == [CancelTimer("after:0:r.r1", 2)]


def test_a_guard_that_refuses_a_timer_uses_it_up() -> None:
    chart = Chart("""
id: m
initial: a
context: {n: 0}
states:
  a: {after: {1s: [{target: b, guard: {expr: context.n > 0}}, {target: c, guard: {expr: context.n < 0}}]}}
  b: {}
  c: {}
""")
    event: Any = timer_event("after:0:a", 1)
    assert not chart.send(event).last.taken and chart.states == ["a"]


def test_the_machine_itself_may_have_timers_and_tasks() -> None:
    chart = Chart("""
id: m
initial: a
after: {1h: .late}
invoke: {src: watch, onDone: .seen}
states: {a: {on: {go: z}}, late: {}, seen: {}, z: {type: final}}
""")
    assert chart.effects == [ArmTimer("after:0:", 1, 3_600_000_000), StartTask("m", "", 1, "watch", {}, {})]
    first = Chart(chart.machine)
    assert first.send(timer_event("after:0:", 1)).states == ["late"] and first.snapshot.stays == {"": 1}
    assert first.send(done_invoke("m", 1)).states == ["seen"]
    assert chart.send("go").effects == [CancelTimer("after:0:", 1), StopInvoke("m", 1)]
