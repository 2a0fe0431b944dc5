"""What the built-in actions do with computed values, and which errors they are when the values are wrong."""

from __future__ import annotations

from typing import Any

import pytest

from casework.statechart import Machine
from casework.statechart.diagram import mermaid
from tests.statechart.charts import Chart


def acting(*actions: Any, **also: Any) -> Machine:
    """A machine that runs ``actions`` for the event ``go`` and is in ``wrong`` after an error."""
    states: dict[str, Any] = {
        "a": {"on": {"go": {"actions": list(actions)}, "error.execution": {"target": "wrong"}, "out": {"target": "b"}}},
        "b": {},
        "wrong": {},
    }
    return Machine.from_dict({"id": "m", "initial": "a", "context": {"n": 1, "list": [1, 2]}, "states": states, **also})


def do(type: str, **params: Any) -> dict[str, Any]:
    return {"type": type, "params": params}


def assign(**params: Any) -> dict[str, Any]:
    return do("assign", **params)


def sent(*actions: Any, data: Any = None) -> Chart:
    return Chart(acting(*actions)).send("go", data)


# --- assign ---------------------------------------------------------------------------------------------------------


def test_a_whole_mapping_of_changes_can_be_computed() -> None:
    chart = sent(assign(expr="event.changes"), data={"changes": {"n": 5, "more": [1]}})
    assert chart.context == {"n": 5, "list": [1, 2], "more": [1]}


def test_what_was_assigned_as_a_whole_shares_nothing_with_the_event() -> None:
    data = {"changes": {"more": [1]}}
    chart = sent(assign(expr="event.changes"), data=data)
    chart.context["more"].append(2)
    assert data == {"changes": {"more": [1]}}


@pytest.mark.parametrize("value", [1, [1], "text", None])
def test_what_is_no_mapping_is_not_assigned_as_a_whole(value: Any) -> None:
    chart = sent(assign(expr="event.changes"), data={"changes": value})
    assert chart.states == ["wrong"] and chart.context == {"n": 1, "list": [1, 2]}


# --- foreach --------------------------------------------------------------------------------------------------------


def test_foreach_runs_its_actions_in_order_for_each_item_with_its_position() -> None:
    added = {"expr": "context.list + [[context.x, context.i]]"}
    loop = do("foreach", items={"expr": "event.items"}, item="x", index="i", actions=[assign(list=added)])
    chart = sent(loop, data={"items": ["a", "b"]})
    assert chart.context == {"n": 1, "list": [1, 2, ["a", 0], ["b", 1]], "x": "b", "i": 1}
    assert sent(loop, data={"items": []}).context == {"n": 1, "list": [1, 2]}


def test_foreach_without_an_index_leaves_none_behind() -> None:
    loop = do("foreach", items=[7], item="x", actions=[assign(n={"expr": "context.x + 1"})])
    assert sent(loop).context == {"n": 8, "list": [1, 2], "x": 7}


@pytest.mark.parametrize("items", [{"a": 1}, "text", 3, None])
def test_foreach_goes_over_a_list_only(items: Any) -> None:
    loop = do("foreach", items={"expr": "event.items"}, item="x", actions=[assign(n=2)])
    chart = sent(loop, data={"items": items})
    assert chart.states == ["wrong"] and chart.context == {"n": 1, "list": [1, 2]}


# --- raise ----------------------------------------------------------------------------------------------------------


def test_an_event_whose_name_is_computed_is_raised_with_its_data() -> None:
    machine = Machine.from_dict({
        "id": "m", "initial": "a", "context": {"got": None},
        "states": {"a": {"on": {
            "go": {"actions": [do("raise", event={"expr": "event.name"}, data={"v": {"expr": "event.v"}})]},
            "heard": {"actions": [assign(got={"expr": "event.v"})]},
            "error.execution": {"target": "wrong"},
        }}, "wrong": {}},
    })  # fmt: skip
    assert Chart(machine).send("go", {"name": "heard", "v": [1]}).context == {"got": [1]}
    for name in ("", 3, None, ["heard"]):
        chart = Chart(machine).send("go", {"name": name, "v": 1})
        assert chart.states == ["wrong"] and chart.context == {"got": None}


def test_an_event_that_is_raised_is_taken_before_the_next_one_from_outside() -> None:
    assert sent(do("raise", event="out")).states == ["b"]


# --- diagrams -------------------------------------------------------------------------------------------------------


def test_what_follows_the_end_of_a_state_and_an_invocation_is_drawn() -> None:
    text = mermaid(
        Machine.from_dict(
            {
                "id": "m",
                "initial": "a",
                "states": {
                    "a": {"initial": "x", "states": {"x": {"type": "final"}}, "onDone": {"target": "b"}},
                    "b": {
                        "invoke": {
                            "id": "i",
                            "src": {"task": "work"},
                            "onDone": {"target": "c"},
                            "onError": {"target": "d"},
                        },
                        "after": {"90s": {"target": "d"}},
                        "always": {"target": "c", "guard": {"expr": "context.n > 1"}},
                    },
                    "c": {},
                    "d": {},
                },
            }
        )
    )
    arrows = [line.strip() for line in text.splitlines() if "-->" in line and "[*]" not in line]
    assert arrows == [
        "a --> b : done",
        "b --> c : [context.n #62; 1]",
        "b --> d : after 90s",
        "b --> c : work done",
        "b --> d : work failed",
    ]
