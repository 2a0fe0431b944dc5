"""The rules of SCXML and of XState v5's transition shape, one by one."""

from __future__ import annotations

import pytest

from casework.errors import StepLimit
from casework.statechart import Event, Log, Machine, Send, active_names
from tests.statechart.charts import Chart


def logged(chart: Chart) -> str:
    return " ".join(effect.label for effect in chart.effects if isinstance(effect, Log))


NESTED = """
id: m
initial: a
states:
  a:
    initial: a1
    entry: {type: log, params: {label: +a}}
    exit: {type: log, params: {label: -a}}
    on:
      inside: .a2
      itself: a
      itself_again: {target: a, reenter: true}
      again: {target: .a2, reenter: true}
      only: {actions: {type: log, params: {label: only}}}
      out: {target: b, actions: {type: log, params: {label: between}}}
    states:
      a1:
        entry: {type: log, params: {label: +a1}}
        exit: {type: log, params: {label: -a1}}
        on: {out: {target: a2, guard: {expr: event.stay}}}
      a2:
        entry: {type: log, params: {label: +a2}}
        exit: {type: log, params: {label: -a2}}
  b:
    entry: {type: log, params: {label: +b}}
"""


def test_states_are_entered_from_outside_in_and_left_from_inside_out() -> None:
    chart = Chart(NESTED)
    assert logged(chart) == "+a +a1"
    assert logged(chart.send("out", {"stay": False})) == "-a1 -a between +b"
    assert chart.states == ["b"]


def test_a_transition_into_its_own_source_leaves_the_source_active() -> None:
    assert logged(Chart(NESTED).send("inside")) == "-a1 +a2"


def test_a_transition_to_its_own_source_enters_the_default_again_without_leaving_the_source() -> None:
    chart = Chart(NESTED).send("inside")
    assert logged(chart.send("itself")) == "-a2 +a1"


@pytest.mark.parametrize(("event", "expected"), [("itself_again", "-a1 -a +a +a1"), ("again", "-a1 -a +a +a2")])
def test_reenter_leaves_and_enters_the_source(event: str, expected: str) -> None:
    assert logged(Chart(NESTED).send(event)) == expected


def test_a_transition_without_target_leaves_nothing() -> None:
    chart = Chart(NESTED).send("only")
    assert logged(chart) == "only" and chart.states == ["a.a1"] and chart.last.taken


def test_the_innermost_enabled_transition_wins_and_an_empty_one_swallows() -> None:
    chart = Chart("""
id: m
initial: a
states:
  a:
    initial: x
    on: {go: b}
    states:
      x: {on: {go: {}, step: y}}
      y: {}
  b: {}
""")
    assert chart.send("go").states == ["a.x"] and chart.last.taken
    assert chart.send("step").send("go").states == ["b"]


def test_an_event_that_nothing_takes_changes_nothing() -> None:
    chart = Chart(NESTED)
    before = chart.snapshot
    chart.send("unheard")
    assert not chart.last.taken and chart.snapshot is before and chart.effects == []


def test_of_several_candidates_the_first_whose_guard_holds_is_taken() -> None:
    chart = Chart("""
id: m
initial: a
states:
  a:
    on:
      go:
        - {target: b, guard: {expr: event.n > 10}}
        - {target: c, guard: {expr: event.n > 5}}
        - d
  b: {}
  c: {}
  d: {}
""")
    results = []
    for n in (11, 6, 1):
        fresh = Chart(chart.machine)
        results += fresh.send("go", {"n": n}).states
    assert results == ["b", "c", "d"]


@pytest.mark.parametrize(
    ("descriptor", "event", "taken"),
    [
        ("pay", "pay", True),
        ("pay", "pay.ok", True),
        ("pay.*", "pay.ok", True),
        ("pay.*", "pay", True),
        ("pay", "payment", False),
        ("pay.ok", "pay", False),
        ("*", "anything.at.all", True),
        ("one two", "one two", True),
        ("one two", "two", False),
        ("one two", "one", False),
        ("error", "error.execution", True),
    ],
)
def test_descriptors_match_by_prefix_at_dots(descriptor: str, event: str, taken: bool) -> None:
    definition = {"id": "m", "initial": "a", "states": {"a": {"on": {descriptor: "b"}}, "b": {}}}
    chart = Chart(Machine.from_dict(definition))
    assert chart.send(event).last.taken is taken
    assert chart.machine.accepts(event) is taken


PARALLEL = """
id: m
initial: p
states:
  p:
    type: parallel
    on: {abort: {target: stopped}}
    onDone: finished
    states:
      l:
        initial: l1
        states:
          l1: {on: {go: l2, cross: {target: "#m.q"}, left: l3}}
          l2: {on: {end: l3}}
          l3: {type: final}
      r:
        initial: r1
        states:
          r1: {on: {go: {target: r2, guard: {expr: In('p.l.l1')}}, cross: r2}}
          r2: {on: {end: r3, abort: {}}}
          r3: {type: final}
  stopped: {}
  finished: {}
  q: {}
"""


def test_every_region_takes_its_own_transition_for_one_event() -> None:
    chart = Chart(PARALLEL)
    assert chart.states == ["p.l.l1", "p.r.r1"]
    assert chart.send("go").states == ["p.l.l2", "p.r.r2"]


def test_in_sees_the_configuration_before_the_microstep() -> None:
    chart = Chart(PARALLEL).send("left")
    assert chart.send("go").states == ["p.l.l3", "p.r.r1"] and not chart.last.taken


def test_of_conflicting_transitions_the_first_in_document_order_wins() -> None:
    assert Chart(PARALLEL).send("cross").states == ["q"]


def test_by_the_rules_of_scxml_a_region_that_swallows_an_event_does_so_for_itself_only() -> None:
    chart = Chart("rules: scxml\n" + PARALLEL).send("go")
    # Document order visits l2 first, which selects the ancestor's; r2's own is a descendant's but leaves nothing.
    assert chart.send("abort").states == ["stopped"]
    assert Chart(PARALLEL).send("go").send("abort").states == ["p.l.l2", "p.r.r2"]


def test_a_parallel_state_is_done_when_all_its_regions_are() -> None:
    chart = Chart(PARALLEL).send("go").send("left")
    assert chart.send("end").states == ["finished"]


def test_active_names_hold_paths_and_ids_of_all_active_states() -> None:
    chart = Chart(PARALLEL)
    assert active_names(chart.machine, chart.snapshot) == {"p", "p.l", "p.l.l1", "p.r", "p.r.r1"}


def test_internal_events_come_before_external_ones_and_eventless_transitions_before_both() -> None:
    chart = Chart("""
id: m
initial: a
context: {seen: []}
states:
  a:
    on: {go: {target: b, actions: [{type: raise, params: {event: one}}, {type: raise, params: {event: two}}]}}
  b:
    always: {target: c, actions: {type: assign, params: {seen: {expr: "[*context.seen, 'always']"}}}}
  c:
    on:
      "*": {actions: {type: assign, params: {seen: {expr: "[*context.seen, event.type]"}}}}
""")
    assert chart.send("go").context["seen"] == ["always", "one", "two"]


def test_onDone_of_a_compound_state_gets_the_output_of_its_final_state() -> None:
    chart = Chart("""
id: m
initial: a
context: {got: null}
states:
  a:
    initial: x
    onDone: {target: b, actions: {type: assign, params: {got: {expr: event.output.n}}}}
    states:
      x: {on: {go: y}}
      y: {type: final, output: {n: {expr: event.n}}}
  b: {}
""")
    assert chart.send("go", {"n": 7}).context == {"got": 7} and chart.states == ["b"]


@pytest.mark.parametrize(("depth", "expected"), [("shallow", ["a.y.y1"]), ("deep", ["a.y.y2"])])
def test_history_restores_children_or_all_descendants(depth: str, expected: list[str]) -> None:
    chart = Chart(f"""
id: m
initial: a
states:
  a:
    initial: x
    on: {{leave: b}}
    states:
      h: {{type: history, history: {depth}, target: z}}
      x: {{on: {{go: y}}}}
      y: {{initial: y1, states: {{y1: {{on: {{go: y2}}}}, y2: {{}}}}}}
      z: {{}}
  b: {{on: {{back: a.h}}}}
""")
    chart.send("go").send("go").send("leave")
    assert chart.states == ["b"]
    assert chart.send("back").states == expected
    assert chart.send("leave").send("back").states == expected


def test_history_without_a_record_takes_its_default() -> None:
    chart = Chart("""
id: m
initial: b
states:
  a:
    initial: x
    states: {h: {type: history, target: z}, i: {type: history}, x: {}, z: {}}
  b: {on: {back: a.h, other: a.i}}
""")
    assert Chart(chart.machine).send("back").states == ["a.z"]
    assert Chart(chart.machine).send("other").states == ["a.x"]


REFRESH = """
id: m
initial: b
states:
  p:
    initial: work
    on: {leave: b}
    states:
      work: {initial: w1, on: {PING: refresh}, states: {w1: {on: {go: w2}}, w2: {}}}
      refresh: {type: history, history: DEPTH, target: work}
  b: {on: {back: p}}
"""


@pytest.mark.parametrize(("depth", "restored"), [("shallow", "p.work.w1"), ("deep", "p.work.w2")])
def test_a_transition_to_a_history_beside_its_source_restores_the_last_exit_of_the_parent_not_this_one(
    depth: str, restored: str
) -> None:
    """The parent is not left by it, so nothing is recorded: as in the procedure of SCXML, exitStates."""
    chart = Chart(REFRESH.replace("DEPTH", depth))
    chart.send("back").send("go")
    assert chart.states == ["p.work.w2"]
    assert chart.send("PING").states == ["p.work.w1"], "the parent was never left: the default, entered anew"
    chart.send("go").send("leave").send("back")
    assert chart.states == ["p.work.w1"]
    assert chart.send("PING").states == [restored]
    assert chart.send("PING").states == [restored], "and it is no other one the second time"


def test_a_history_of_the_source_itself_is_recorded_before_it_is_restored() -> None:
    """An external transition leaves its source first, so its own history is where it stands: a refresh."""
    chart = Chart("""
id: m
initial: a
context: {entries: 0}
states:
  a:
    initial: x
    entry: {type: assign, params: {entries: {expr: context.entries + 1}}}
    on: {PING: {target: .h, reenter: true}, STAY: .h}
    states: {h: {type: history, target: z}, x: {on: {go: y}}, y: {}, z: {}}
""")
    assert chart.send("STAY").states == ["a.z"], "an internal one leaves the source alone: nothing is recorded"
    assert chart.context["entries"] == 1
    chart = Chart(chart.machine).send("go")
    assert chart.send("PING").states == ["a.y"]
    assert chart.context["entries"] == 2


def test_a_cached_move_never_serves_an_older_history() -> None:
    chart = Chart("""
id: m
initial: a
states:
  a:
    initial: x
    on: {leave: b}
    states: {h: {type: history}, x: {on: {go: y}}, y: {on: {go: x}}}
  b: {on: {back: a.h}}
""")
    seen = []
    for _ in range(4):
        chart.send("go").send("leave").send("back")
        seen += chart.states
    assert seen == ["a.y", "a.x", "a.y", "a.x"]


def test_several_targets_enter_several_regions_and_the_others_by_default() -> None:
    chart = Chart("""
id: m
initial: a
states:
  a: {on: {go: {target: ["#m.p.l.l2", "#deep"]}}}
  p:
    type: parallel
    states:
      l: {initial: l1, states: {l1: {}, l2: {}}}
      r: {initial: r1, states: {r1: {}, r2: {id: deep}}}
      s: {initial: s1, states: {s1: {}}}
""")
    assert chart.send("go").states == ["p.l.l2", "p.r.r2", "p.s.s1"]


def test_a_root_that_is_parallel_ends_when_all_its_regions_are_done() -> None:
    chart = Chart("""
id: m
type: parallel
output: {all: true}
states:
  l: {initial: l1, states: {l1: {on: {left: l2}}, l2: {type: final}}}
  r: {initial: r1, states: {r1: {on: {right: r2}}, r2: {type: final}}}
""")
    assert chart.send("left").snapshot.status == "running"
    assert chart.send("right").snapshot.status == "done" and chart.snapshot.output == {"all": True}


def test_crossing_from_one_region_of_a_parallel_root_to_another_keeps_the_configuration_legal() -> None:
    chart = Chart("""
id: m
type: parallel
states:
  l: {initial: l1, states: {l1: {on: {cross: "#m.r.r2"}}, l2: {}}}
  r: {initial: r1, states: {r1: {}, r2: {}}}
""")
    assert chart.send("cross").states == ["l.l1", "r.r2"]


def test_the_end_runs_exit_actions_and_gives_the_output() -> None:
    chart = Chart("""
id: m
initial: a
context: {n: 3}
exit: {type: log, params: {label: -m}}
states:
  a: {on: {end: z}, exit: {type: log, params: {label: -a}}}
  z: {type: final, output: {n: {expr: context.n + event.by}}, exit: {type: log, params: {label: -z}}}
""")
    chart.send("end", {"by": 4})
    assert (chart.snapshot.status, chart.snapshot.output) == ("done", {"n": 7})
    assert logged(chart) == "-a -z -m" and chart.states == ["z"]
    assert not chart.send("end").last.taken


def test_initial_states_run_the_actions_of_the_initial_transition_after_entry() -> None:
    chart = Chart("""
id: m
initial: {target: a, actions: {type: log, params: {label: init}}}
entry: {type: log, params: {label: +m}}
states:
  a: {entry: {type: log, params: {label: +a}}}
""")
    assert logged(chart) == "+m init +a"


def test_an_initial_may_name_a_deep_descendant() -> None:
    assert Chart("""
id: m
initial: a.y
states: {a: {initial: x, states: {x: {}, y: {}}}}
""").states == ["a.y"]


def test_send_and_raise_with_a_delay_are_effects_in_order() -> None:
    chart = Chart("""
id: m
initial: a
states:
  a:
    entry:
      - {type: send, params: {event: hello, to: parent, data: {n: 1}}}
      - {type: raise, params: {event: tick, delay: 2s, id: t}}
      - {type: send, params: {event: {type: ping, n: {expr: 1 + 1}}, to: {expr: "'o-' + str(7)"}, delay: 5}}
      - {type: cancel, params: {id: t}}
""")
    first, second, third, _ = chart.effects
    assert first == Send("parent", "hello", {"n": 1}, 0, "")
    assert second == Send("", "tick", {}, 2_000_000, "t")
    assert third == Send("o-7", "ping", {"n": 2}, 5_000, "")


def test_a_circle_of_eventless_transitions_is_an_error_and_not_a_hang() -> None:
    with pytest.raises(StepLimit, match=r"m: no rest within 1000 microsteps in [ab]"):
        Chart("{id: m, initial: a, states: {a: {always: b}, b: {always: a}}}")


def test_raised_events_that_multiply_hit_the_same_bound() -> None:
    with pytest.raises(StepLimit):
        Chart("""
id: m
initial: a
states:
  a:
    entry: {type: raise, params: {event: x}}
    on: {x: {actions: [{type: raise, params: {event: x}}, {type: raise, params: {event: x}}]}}
""")


def test_a_step_never_changes_the_snapshot_or_the_event() -> None:
    chart = Chart("""
id: m
initial: a
context: {items: [], deep: {n: 1}}
states:
  a:
    on:
      add: {actions: {type: assign, params: {items: {expr: "[*context.items, event.it]"}, deep: {expr: context.deep}}}}
""")
    before, event = chart.snapshot, Event("add", {"it": {"k": 1}})
    copy = repr(before)
    first = chart.send(event).snapshot
    again = Chart(chart.machine)
    assert again.send(event).snapshot == first
    assert repr(before) == copy and event.data == {"it": {"k": 1}}


def test_a_parallel_state_within_a_parallel_state_completes_both() -> None:
    chart = Chart("""
id: m
initial: p
states:
  p:
    type: parallel
    onDone: finished
    states:
      q:
        type: parallel
        states:
          x: {initial: x1, states: {x1: {on: {x: x2}}, x2: {type: final}}}
          y: {initial: y1, states: {y1: {on: {y: y2}}, y2: {type: final}}}
      z: {initial: z1, states: {z1: {on: {z: z2}}, z2: {type: final}}}
  finished: {}
""")
    assert chart.send("z").send("x").states == ["p.q.x.x2", "p.q.y.y1", "p.z.z2"]
    assert chart.send("y").states == ["finished"]


def test_an_initial_that_is_a_history_state_is_asked_each_time() -> None:
    chart = Chart("""
id: m
initial: a
states:
  a: {initial: h, on: {leave: c}, states: {h: {type: history, target: x}, x: {on: {go: y}}, y: {on: {go: x}}}}
  c: {initial: z, on: {back: a}, states: {k: {type: history, target: z}, z: {}}}
""")
    assert chart.states == ["a.x"]
    assert chart.send("leave").send("back").states == ["a.x"]
    assert chart.send("go").send("leave").send("back").states == ["a.y"]
    assert chart.send("go").send("leave").send("back").states == ["a.x"]


def test_an_eventless_transition_is_asked_again_after_an_event_that_nothing_takes() -> None:
    chart = Chart("""
id: m
initial: a
states:
  a:
    on: {known: {}}
    always: {target: b, guard: {expr: "event.type == 'go' and event.n > 1"}}
  b: {}
""")
    assert not chart.send("other").last.taken
    assert not chart.send("go", {"n": 1}).last.taken
    assert chart.send("go", {"n": 2}).last.taken and chart.states == ["b"]


def test_an_error_of_a_guard_that_is_asked_after_such_an_event_fails_the_chart() -> None:
    chart = Chart("""
id: m
initial: a
states:
  a: {always: {target: b, guard: {expr: "event.type == 'go' and event.n > 1"}}}
  b: {}
""")
    assert chart.send("go").snapshot.status == "failed"
