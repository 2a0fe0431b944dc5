"""Faults that were shown in other engines, each by its smallest chart."""

from __future__ import annotations

import pytest

from casework.errors import InvalidMachine, NotJson, StepLimit, UnknownEvent
from casework.statechart import Event, checked_copy, timer_event
from tests.statechart.charts import Chart, machine


def test_a_composite_nested_twice_does_not_complete_at_once() -> None:
    chart = Chart("""
id: m
initial: outer
states:
  outer:
    initial: inner
    onDone: finished
    states:
      inner:
        initial: x
        onDone: after_inner
        states: {x: {on: {go: y}}, y: {type: final}}
      after_inner: {on: {go: end}}
      end: {type: final}
  finished: {}
""")
    assert chart.states == ["outer.inner.x"]
    assert chart.send("go").states == ["outer.after_inner"]
    assert chart.send("go").states == ["finished"]


def test_the_end_of_an_inner_state_is_not_the_end_of_one_whose_path_begins_alike() -> None:
    chart = Chart("""
id: m
initial: a
states:
  a:
    initial: b
    onDone: wrong
    states:
      b: {initial: x, states: {x: {on: {go: y}}, y: {type: final}}}
  wrong: {}
""")
    assert chart.send("go").states == ["a.b.y"]


def test_a_substate_with_inherited_exits_is_not_taken_for_final() -> None:
    chart = Chart("""
id: m
initial: a
states:
  a:
    initial: x
    on: {leave: b}
    onDone: done
    states: {x: {}}
  b: {}
  done: {}
""")
    assert chart.states == ["a.x"] and chart.snapshot.status == "running"
    assert chart.send("leave").states == ["b"]


def test_an_abort_transition_fires_while_regions_are_live() -> None:
    chart = Chart("""
id: m
initial: p
states:
  p:
    type: parallel
    on: {abort: stopped}
    states:
      l: {initial: l1, states: {l1: {on: {go: l2}}, l2: {}}}
      r: {initial: r1, states: {r1: {}, r2: {type: final}}}
  stopped: {type: final}
""")
    assert chart.send("go").send("abort").snapshot.status == "done"


def test_a_circle_without_an_event_is_an_error_and_not_a_hang() -> None:
    with pytest.raises(StepLimit):
        Chart("{id: m, initial: a, states: {a: {always: b}, b: {always: a}}}")


def test_two_stray_finished_events_do_not_complete_a_join_of_regions() -> None:
    chart = Chart("""
id: m
initial: p
states:
  p:
    type: parallel
    onDone: joined
    states:
      l: {initial: l1, states: {l1: {on: {l: l2}}, l2: {type: final}}}
      r: {initial: r1, states: {r1: {on: {r: r2}}, r2: {type: final}}}
  joined: {}
""")
    for name in ("finished", "done.state.p.l", "done.state.p.r", "done"):
        chart.send(name)
        chart.send(name)
    assert chart.states == ["p.l.l1", "p.r.r1"]
    assert chart.send("l").send("l").states == ["p.l.l2", "p.r.r1"]
    assert chart.send("r").states == ["joined"]


def test_done_states_cannot_be_forged_from_outside() -> None:
    chart = Chart("""
id: m
initial: a
states:
  a: {initial: x, onDone: b, states: {x: {}}}
  b: {}
""")
    assert not chart.machine.accepts("done.state.a")
    with pytest.raises(UnknownEvent):
        chart.machine.require_event("done.state.a")
    assert chart.send("done.state.a").states == ["a.x"]


@pytest.mark.parametrize("value", [float("inf"), float("nan"), {1, 2}, (1,), b""])
def test_values_are_refused_and_never_changed(value: object) -> None:
    with pytest.raises(NotJson, match=r"context\.a\[0\]: "):
        checked_copy({"a": [value]}, "context")


def test_duplicate_states_are_refused() -> None:
    with pytest.raises(InvalidMachine, match="the key 'a' stands twice"):
        machine("id: m\ninitial: a\nstates:\n  a: {}\n  a: {}\n")


def test_undeclared_events_are_known_before_anything_is_written() -> None:
    with pytest.raises(UnknownEvent, match="known: go"):
        machine("{id: m, initial: a, states: {a: {on: {go: {}}}}}").require_event("stop-everything")


def test_a_timeout_of_an_earlier_stay_does_not_fire_in_a_later_one() -> None:
    chart = Chart("{id: m, initial: a, states: {a: {after: {1s: late}, on: {go: b}}, b: {on: {go: a}}, late: {}}}")
    stale = timer_event("after:0:a", 1)
    assert chart.send("go").send("go").send(stale).states == ["a"]
    assert chart.send(timer_event("after:0:a", 2)).states == ["late"]


def test_cancel_and_arm_of_one_timer_in_one_step_name_two_stays() -> None:
    chart = Chart("{id: m, initial: a, states: {a: {after: {1s: a}, on: {go: {target: a, reenter: true}}}}}")
    cancelled, armed = chart.send("go").effects
    assert (cancelled.name, cancelled.stay) == ("after:0:a", 1)  # type: ignore[union-attr]
    assert (armed.name, armed.stay) == ("after:0:a", 2)  # type: ignore[union-attr]


def test_a_renamed_state_is_a_clear_error() -> None:
    chart = Chart("{id: m, initial: a, states: {a: {on: {go: {}}}}}")
    chart.snapshot.configuration = ["old"]
    with pytest.raises(Exception, match="has no state 'old'; the snapshot belongs to another one"):
        chart.send(Event("go"))
