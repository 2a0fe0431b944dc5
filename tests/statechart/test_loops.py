"""What ``check`` finds of loops: sure ones, and nothing where a guard or history decides."""

from __future__ import annotations

import pytest

from casework.errors import StepLimit
from casework.statechart import MAX_MICROSTEPS, Machine
from casework.statechart.loops import FOLLOWED_MAX
from casework.statechart.step import start


def findings(text: str) -> list[str]:
    return [str(problem) for problem in Machine.from_yaml(text, source="m.yaml").check()]


CIRCLES = [
    "{id: m, initial: a, states: {a: {always: b}, b: {always: a}}}",
    "{id: m, initial: a, states: {a: {always: {target: a}}}}",
    "{id: m, initial: a, states: {a: {always: {actions: {type: assign, params: {n: 1}}}}}}",
    "{id: m, initial: a, states: {a: {always: b.c}, b: {initial: c, always: a, states: {c: {}}}}}",
    "{id: m, type: parallel, states: {p: {initial: a, states: {a: {always: b}, b: {always: a}}}, q: {}}}",
    "{id: m, initial: a, states: {a: {entry: {type: raise, params: {event: go}}, on: {go: c}, always: b},"
    " b: {always: a}, c: {}}}",
]


@pytest.mark.parametrize("text", CIRCLES)
def test_a_circle_of_eventless_transitions_without_guards_is_an_error_and_never_rests(text: str) -> None:
    found = [each for each in findings(text) if each.startswith("error")]
    assert len(found) == 1 and "eventless transitions go round for ever" in found[0]
    with pytest.raises(StepLimit):
        start(Machine.from_yaml(text), None, 0)


def test_the_finding_names_the_line_and_the_way_round() -> None:
    (found,) = findings("id: m\ninitial: a\nstates:\n  a: {on: {go: b}}\n  b: {always: c}\n  c: {always: b}\n")
    assert found == (
        "error: m.yaml:5: states.b: eventless transitions go round for ever: b -> c -> b "
        "(give one of them a guard or an event)"
    )


@pytest.mark.parametrize(
    "text",
    [
        "{id: m, initial: a, states: {a: {always: {target: b, guard: {expr: 'context.n < 3'}}}, b: {always: a}}}",
        "{id: m, initial: a, states: {a: {always: [{target: b, guard: {expr: 'False'}}, c]}, b: {always: a},"
        " c: {type: final}}}",
        "{id: m, initial: a, always: .a, states: {a: {type: final}}}",
        "{id: m, initial: a, states: {a: {on: {go: b}}, b: {always: a}}}",
        "{id: m, initial: a, states: {a: {after: {1s: b}}, b: {after: {0: a}}}}",
        "{id: m, initial: a, states: {a: {after: {0: {actions: {type: assign, params: {n: 1}}}}}}}",
        "{id: m, initial: a, states: {a: {initial: x, after: {0: .x}, states: {x: {}}}}}",
        "{id: m, initial: a, states: {a: {after: {0: {target: b, guard: {expr: 'False'}}}}, b: {after: {0: a}}}}",
    ],
)
def test_what_a_guard_an_event_a_delay_or_the_end_stops_is_no_finding(text: str) -> None:
    assert findings(text) == []


@pytest.mark.parametrize(
    ("text", "way"),
    [
        ("{id: m, initial: a, states: {a: {after: {0: b}}, b: {after: {0: a}}}}", "a -> b -> a"),
        ("{id: m, initial: a, states: {a: {after: {0: b}}, b: {always: a}}}", "a -> b -> a"),
        ("{id: m, initial: a, states: {a: {after: {0: {target: a, reenter: true}}}}}", "a -> a"),
    ],
)
def test_timers_without_delay_that_go_round_are_a_warning(text: str, way: str) -> None:
    (found,) = findings(text)
    assert found.startswith("warning: m.yaml:") and f"without delay go round without end: {way} (" in found


def test_circles_side_by_side_that_meet_again_after_thousands_of_steps_are_found_at_once() -> None:
    def circle(name: str, count: int) -> dict[str, object]:
        return {
            "initial": f"{name}0",
            "states": {f"{name}{n}": {"always": f"{name}{(n + 1) % count}"} for n in range(count)},
        }

    regions = {name: circle(name, count) for name, count in zip("abcd", (7, 8, 9, 11), strict=True)}
    machine = Machine.from_dict({"id": "m", "type": "parallel", "states": regions})
    found, *_ = machine.check()
    assert found.severity == "error" and "eventless transitions go round for ever" in found.text
    assert len(found.text) < 1000
    with pytest.raises(StepLimit):
        start(machine, None, 0)
    assert FOLLOWED_MAX == MAX_MICROSTEPS
