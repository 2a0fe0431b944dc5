"""Events that no transition takes: ignored, deferred until a state takes them, or failing the chart."""

from __future__ import annotations

import random
from typing import Any

import pytest

from casework.errors import InvalidMachine
from casework.statechart import Event, Machine, first_taken, start, step
from tests.statechart.charts import Chart


class Deferring:
    """A chart with its deferred events, by the plain rule: offered in order whenever the configuration changed."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.snapshot = start(machine, None, 0).snapshot
        self.deferred: list[Event] = []

    def send(self, type: str, **data: Any) -> Deferring:
        event = Event(type, data)
        result = step(self.machine, self.snapshot, event, 0)
        if result.fate == "defer":
            assert result.snapshot is self.snapshot and not result.effects and not result.taken
            self.deferred.append(event)
            return self
        changed = result.snapshot.configuration != self.snapshot.configuration
        self.snapshot = result.snapshot
        place = 0
        while changed and (found := first_taken(self.machine, self.snapshot, self.deferred, 0, place)):
            place, result = found
            del self.deferred[place]
            if result.snapshot.configuration != self.snapshot.configuration:
                place = 0
            self.snapshot = result.snapshot
        return self

    @property
    def states(self) -> list[str]:
        return self.snapshot.configuration


ORDER = """
id: order
initial: open
context: {log: []}
states:
  open: {defer: [Paid, ship.*], on: {Confirm: confirmed}}
  confirmed: {defer: [ship.*], on: {Paid: {target: paid, actions: LOG}}}
  paid: {on: {ship.now: {actions: LOG}, Close: closed, Paid: {actions: LOG}}}
  closed: {type: final}
"""


def order() -> Deferring:
    return Deferring(Machine.from_yaml(ORDER.replace("LOG", LOG)))


LOG = '{type: assign, params: {log: {expr: "context.log + [event.n]"}}}'


def test_an_event_before_its_state_is_kept_and_taken_when_the_state_comes() -> None:
    chart = order().send("Paid", n=1).send("ship.now", n=2).send("Paid", n=3)
    assert chart.states == ["open"] and [event.data["n"] for event in chart.deferred] == [1, 2, 3]
    chart.send("Confirm")
    assert chart.states == ["paid"] and chart.snapshot.context == {"log": [1, 2, 3]} and chart.deferred == []


def test_an_event_that_nothing_defers_is_ignored_by_default() -> None:
    machine = Machine.from_yaml(ORDER.replace("LOG", LOG))
    chart = Chart(machine).send("Close")
    assert (chart.last.taken, chart.last.fate, chart.states) == (False, "", ["open"])


CASES = [
    # (chart's states, initial, events sent, states afterwards, deferred afterwards)
    ("a: {defer: X, on: {X: {target: b, guard: {expr: event.ok}}, Go: b}}, b: {on: {X: c}}, c: {}",
     [("X", {"ok": False}), ("Go", {})], ["c"], 0),
    ("a: {defer: ['*'], on: {Go: b}}, b: {on: {Go: c}}, c: {}", [("X", {}), ("Go", {})], ["b"], 1),
    ("a: {defer: [p], on: {Go: b}}, b: {on: {p.q: c}}, c: {}", [("p.q", {}), ("pq", {}), ("Go", {})], ["c"], 0),
    ("a: {defer: [X], initial: i, on: {Go: b}, states: {i: {on: {In: j}}, j: {on: {X: k}}, k: {}}}, b: {}",
     [("X", {}), ("In", {})], ["a.k"], 0),
    ("a: {defer: [X], on: {Go: b}}, b: {on_unhandled: fail, on: {Go: c}}, c: {on: {X: d}}, d: {}",
     [("X", {}), ("Go", {})], ["b"], 1),
    ("a: {defer: [X, Y], on: {Go: b}}, b: {on: {Y: c}}, c: {on: {X: d}}, d: {}",
     [("X", {}), ("Y", {}), ("Go", {})], ["d"], 0),
    ("a: {defer: [X], on: {Go: b}}, b: {on: {X: {actions: []}}}", [("X", {}), ("X", {}), ("Go", {})], ["b"], 0),
    ("a: {defer: [X], on: {X: b}}, b: {}", [("X", {})], ["b"], 0),
]  # fmt: skip


@pytest.mark.parametrize(("states", "events", "wanted", "kept"), CASES)
def test_what_is_deferred_follows_the_rule(states: str, events: list[Any], wanted: list[str], kept: int) -> None:
    chart = Deferring(Machine.from_yaml(f"{{id: m, initial: a, context: {{}}, states: {{{states}}}}}"))
    for type, data in events:
        chart.send(type, **data)
    assert (chart.states, len(chart.deferred)) == (wanted, kept)


@pytest.mark.parametrize(
    ("root", "state", "fate"),
    [
        ("", "", ""),
        ("fail", "", "fail"),
        ("fail", "ignore", ""),
        ("defer", "fail", "fail"),
        ("ignore", "defer", "defer"),
    ],
)
def test_the_innermost_word_about_what_nobody_takes_counts(root: str, state: str, fate: str) -> None:
    machine = Machine.from_dict({
        "id": "m", "initial": "a", **({"on_unhandled": root} if root else {}),
        "states": {"a": {"initial": "i", "states": {"i": {}}, **({"on_unhandled": state} if state else {})}, "b": {}},
        "on": {"Go": ".b"},
    })  # fmt: skip
    chart = Chart(machine).send("X")
    assert chart.last.fate == fate and chart.snapshot.status == ("failed" if fate == "fail" else "running")
    if fate == "fail":
        assert chart.snapshot.error == {
            "message": "no transition takes 'X' in a.i", "type": "UnhandledEvent", "where": "a.i",
        }  # fmt: skip


def test_of_parallel_regions_the_strictest_word_counts_and_defer_of_any_comes_first() -> None:
    text = """
id: m
type: parallel
states:
  p: {initial: a, states: {a: {on_unhandled: FIRST}}}
  q: {initial: b, states: {b: {on_unhandled: SECOND, defer: [D]}}}
"""
    for first, second, fate in (("ignore", "defer", "defer"), ("fail", "defer", "fail"), ("ignore", "ignore", "")):
        chart = Chart(text.replace("FIRST", first).replace("SECOND", second))
        assert chart.send("X").last.fate == fate
        assert Chart(text.replace("FIRST", first).replace("SECOND", second)).send("D").last.fate == "defer"


def test_timers_reports_and_errors_are_neither_deferred_nor_a_failure() -> None:
    machine = Machine.from_yaml(
        "{id: m, initial: a, on_unhandled: fail, states: {a: {defer: ['*'], invoke: {id: j, src: {task: t}}, "
        "after: {1s: {target: b, guard: {expr: 'False'}}}}, b: {}}}"
    )
    first = start(machine, None, 0).snapshot
    for event in (
        Event("after:0:a", {}, stay=1), Event("done.invoke.j", 1, stay=1, invoke="j"),
        Event("done.invoke.j", 1, stay=9), Event("error.communication", {}),
    ):  # fmt: skip
        assert step(machine, first, event, 0).fate == "" and step(machine, first, event, 0).snapshot.status == "running"


def test_random_charts_keep_what_they_cannot_take_and_lose_nothing() -> None:
    """An oracle by hand: flat charts of five states, where what a state takes and defers is a table."""
    for seed in range(300):
        random_ = random.Random(seed)
        names, types = "abcde", "UVWXYZ"
        takes = {s: {t: random_.choice(names) for t in types if random_.random() < 0.3} for s in names}
        defers = {s: {t for t in types if random_.random() < 0.5} for s in names}
        states = {s: {"on": takes[s], "defer": sorted(defers[s])} for s in names}
        chart = Deferring(Machine.from_dict({"id": "m", "initial": "a", "states": states}))
        here, kept = "a", list[str]()
        for _ in range(40):
            sent = random_.choice(types)
            chart.send(sent)
            if sent not in takes[here]:
                kept += [sent] if sent in defers[here] else []
            else:
                before, here = here, takes[here][sent]
                place = 0
                while here != before and place < len(kept):
                    if kept[place] not in takes[here]:
                        place += 1
                        continue
                    target = takes[here][kept.pop(place)]
                    if target != here:
                        here, place = target, 0
            assert (chart.states, [event.type for event in chart.deferred]) == ([here], kept), seed


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("{defer: 5}", "are no events"), ("{defer: [5]}", "are no events"), ("{defer: ['']}", "event"),
        ("{on_unhandled: defr}", "defer"), ("{on_unhandled: 5}", "unknown word"),
        ("{type: final, defer: [X]}", "a final state has no 'defer'"),
        ("{type: history, defer: [X]}", "a history state has no 'defer'"), ("{deffer: [X]}", "defer"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused_with_what_to_write(state: str, said: str) -> None:
    with pytest.raises(InvalidMachine, match=said):
        Machine.from_yaml(f"{{id: m, initial: a, states: {{a: {{}}, b: {state}}}}}")


def test_a_document_of_scxml_has_no_such_thing() -> None:
    document = '<scxml xmlns="http://www.w3.org/2005/07/scxml" version="1.0" name="m"><state id="a" defer="X"/></scxml>'
    with pytest.raises(InvalidMachine, match="defer"):
        Machine.from_scxml(document)


def test_what_is_said_survives_the_stored_definition() -> None:
    machine = Machine.from_yaml("{id: m, initial: a, on_unhandled: fail, states: {a: {defer: [X]}}}")
    again = Machine.from_dict(machine.definition)
    assert again.hash == machine.hash and Chart(again).send("X").last.fate == "defer"
    assert Chart(again).send("Y").last.fate == "fail"
