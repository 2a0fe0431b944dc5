"""When a state is done: a compound one with a final child, a parallel one when every region is."""

from __future__ import annotations

import pytest

from casework.errors import InvalidMachine
from casework.statechart import Event, Machine, StartTask, done_invoke, rearm, start, step
from tests.statechart.charts import Chart

WORKS = "w: {initial: on, states: {on: {on: {go: off}}, off: {type: final}}}"


def parallel(regions: str, root: bool = False) -> Machine:
    if root:
        return Machine.from_yaml(f"{{id: m, type: parallel, states: {{{regions}}}}}")
    return Machine.from_yaml(
        f"{{id: m, initial: p, states: {{p: {{type: parallel, onDone: end, states: {{{regions}}}}}, end: {{}}}}}}"
    )


@pytest.mark.parametrize(
    "regions",
    [
        f"f: {{type: final}}, {WORKS}",
        f"{WORKS}, f: {{type: final}}",
        f"f: {{type: final}}, {WORKS}, g: {{type: final}}",
        f"q: {{type: parallel, states: {{f: {{type: final}}, g: {{type: final}}}}}}, {WORKS}",
        f"q: {{type: parallel, states: {{f: {{type: final}}, {WORKS}}}}}, g: {{type: final}}",
        f"f: {{type: final}}, h: {{type: history}}, {WORKS}",
        f"c: {{initial: f, states: {{f: {{type: final}}}}}}, {WORKS}",
    ],
)
@pytest.mark.parametrize("root", [False, True], ids=["inside", "root"])
def test_a_parallel_state_with_a_region_that_is_final_waits_for_the_others(regions: str, root: bool) -> None:
    chart = Chart(parallel(regions, root))
    assert chart.snapshot.status == "running" and "end" not in chart.states
    chart.send("go")
    if root:
        assert chart.snapshot.status == "done"
    else:
        assert chart.states == ["end"]


def test_the_task_beside_a_final_region_starts_and_its_end_ends_the_machine() -> None:
    machine = Machine.from_yaml("""
id: m
type: parallel
states:
  f: {type: final}
  w:
    initial: on
    states:
      on: {invoke: {src: work, onDone: off}}
      off: {type: final}
""")
    first = start(machine, None, 0)
    assert first.snapshot.status == "running"
    task = first.effects[0]
    assert isinstance(task, StartTask)
    assert rearm(machine, first.snapshot, 0, (), ("work",)).snapshot.status == "running"
    assert step(machine, first.snapshot, done_invoke("w.on", task.stay), 0).snapshot.status == "done"


def test_regions_that_are_all_final_are_done_at_once() -> None:
    regions = "f: {type: final}, g: {type: final}"
    assert Chart(parallel(regions)).states == ["end"]
    assert Chart(parallel(regions, root=True)).snapshot.status == "done"


def test_the_done_event_of_a_parallel_state_is_raised_once() -> None:
    chart = Chart("""
id: m
initial: p
context: {n: 0}
states:
  p:
    type: parallel
    onDone: {actions: {type: assign, params: {n: {expr: context.n + 1}}}}
    states: {f: {type: final}, q: {type: parallel, states: {f: {type: final}, g: {type: final}}}, k: {type: final}}
""")
    assert chart.context == {"n": 1}


def test_a_state_whose_child_is_a_parallel_state_is_not_done_with_it() -> None:
    chart = Chart("""
id: m
initial: c
states:
  c:
    initial: p
    onDone: end
    states: {p: {type: parallel, states: {f: {type: final}}}}
  end: {}
""")
    assert chart.states == ["c.p.f"]


def test_a_final_region_is_entered_and_left_like_any_other_and_restored_by_history() -> None:
    chart = Chart("""
id: m
initial: p
states:
  p:
    type: parallel
    on: {out: away}
    states: {f: {type: final}, w: {initial: a, states: {a: {on: {go: b}}, b: {}}}, h: {type: history, history: deep}}
  away: {on: {back: p.h}}
""")
    chart.send("go").send("out").send("back")
    assert chart.states == ["p.f", "p.w.b"]


def test_the_output_of_a_region_that_is_final_is_refused_since_nobody_would_see_it() -> None:
    with pytest.raises(InvalidMachine, match=r"states\.p\.states\.f\.output: a region that is final has no output"):
        parallel("f: {type: final, output: {n: 1}}, w: {}")


def test_an_event_of_a_type_done_state_reaches_nobody_from_outside() -> None:
    machine = parallel(f"f: {{type: final}}, {WORKS}")
    snapshot = start(machine, None, 0).snapshot
    assert not step(machine, snapshot, Event("done.state.p"), 0).taken
