"""Values at their edges: what JSON can hold, delays, and keys of states in a document."""

from __future__ import annotations

from typing import Any

import pytest

from casework.errors import InvalidMachine, NotJson
from casework.statechart import Event, Machine
from casework.statechart.durations import MAX_DELAY_US, delay_us
from casework.statechart.jsonable import INT_MAX, INT_MIN, MAX_DEPTH, check_json, checked_copy, copy_json
from casework.statechart.outline import _delay
from tests.statechart.charts import Chart


def nested(depth: int, innermost: Any = 1) -> Any:
    value = innermost
    for n in range(depth):
        value = [value] if n % 2 else {"k": value}
    return value


# --- JSON -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        None, True, False, 0, INT_MIN, INT_MAX, 1.5, -0.0, 1e308, "", "\u00e9", "\0", [], {}, [[]], {"": {}},
        nested(MAX_DEPTH), nested(MAX_DEPTH + 1, "text"), {"\u00e9" * 20: [None, {"a": 2.5}]},
    ],
    ids=lambda value: f"{value!r:.20}",
)  # fmt: skip
def test_what_is_json_is_copied_as_it_is_and_shares_nothing(value: Any) -> None:
    for copied in (checked_copy(value), copy_json(value)):
        assert copied == value and type(copied) is type(value)
        if type(value) in (list, dict):
            assert copied is not value
            pairs = zip(copied, value, strict=True) if type(value) is list else ((copied[k], value[k]) for k in value)
            assert all(ours is not theirs for ours, theirs in pairs if type(theirs) in (list, dict))
    check_json(value)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (INT_MAX + 1, "value: an integer beyond 64 bits"),
        ([0, INT_MIN - 1], r"value\[1\]: an integer beyond 64 bits"),
        ({"a": [1, float("nan")]}, r"value.a\[1\]: nan is not a JSON number"),
        (float("-inf"), "value: -inf is not a JSON number"),
        (nested(MAX_DEPTH + 1, []), "nested deeper than 100 levels"),
        (nested(MAX_DEPTH + 1, {}), "nested deeper than 100 levels"),
        ((1,), r"value: \(1,\) of type tuple is not JSON \(use a list\)"),
        ([{1}], r"value\[0\]: \{1\} of type set is not JSON \(use a sorted list\)"),
        (b"x", r"of type bytes is not JSON \(encode it as text"),
        ({1: 2}, "value: the key 1 is not a string"),
        ({"a": {None: 2}}, "value.a: the key None is not a string"),
        ("\ud800", "is not valid Unicode text"),
        ({"\ud800": 1}, "is not valid Unicode text"),
        (object, r"of type type is not JSON \(use dict, list, str"),
    ],
    ids=lambda value: f"{value!r:.20}",
)
def test_what_is_not_json_is_refused_with_its_path(value: Any, says: str) -> None:
    with pytest.raises(NotJson, match=says):
        check_json(value)


def test_a_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(NotJson) as caught:
        check_json(frozenset(["x" * 65]), "it")
    assert "'" + "x" * 65 + "'}) of type frozenset" in str(caught.value)
    with pytest.raises(NotJson) as caught:
        check_json(frozenset(["x" * 66]), "it")
    assert "'" + "x" * 65 + "... of type frozenset" in str(caught.value)


@pytest.mark.parametrize("names", [("one",), ("one", "two")])
@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("event.t", "plain"),
        ("event.t", "\u00e9"),
        ("event.n", INT_MAX),
        ("event.n", INT_MIN),
        ("event.n", None),
        ("event.n", False),
        ("event.n", [1]),
    ],
)
def test_what_is_assigned_is_in_the_context(names: tuple[str, ...], expression: str, value: Any) -> None:
    chart = Chart(assigning(names, expression)).send("go", {"t": value, "n": value})
    assert chart.states == ["b"] and {name: chart.context[name] for name in names} == dict.fromkeys(names, value)


@pytest.mark.parametrize("names", [("one",), ("one", "two")])
@pytest.mark.parametrize(
    "expression", [r"'\ud800'", "9223372036854775807 + 1", "-9223372036854775807 - 2", "1e308 * 10", r"['\ud800']"]
)
def test_what_the_context_cannot_hold_is_an_error_and_not_assigned(names: tuple[str, ...], expression: str) -> None:
    chart = Chart(assigning(names, expression)).send("go")
    assert chart.states == ["wrong"] and not set(names) & set(chart.context)


def assigning(names: tuple[str, ...], expression: str) -> Machine:
    value = {"expr": expression}
    assign = {"type": "assign", "params": dict.fromkeys(names, value)}
    wrong = {"error.execution": {"target": "wrong"}}
    states: dict[str, Any] = {"a": {"on": {"go": {"target": "b", "actions": [assign]}}, "exit": []}, "b": {"on": wrong}}
    return Machine.from_dict({"id": "m", "initial": "a", "states": {**states, "wrong": {}}})


# --- delays ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, 0), (1500, 1_500_000), (0.5, 500), ("1500", 1_500_000), ("1.5", 1_500), ("500ms", 500_000), ("7us", 7),
        ("30s", 30_000_000), ("5m", 300_000_000), ("1h30m", 5_400_000_000), ("7d", 604_800_000_000), (".5s", 500_000),
        (" 30s ", 30_000_000), ("36600d", MAX_DELAY_US), (MAX_DELAY_US / 1000, MAX_DELAY_US),
    ],
)  # fmt: skip
def test_a_delay_in_microseconds(value: Any, expected: int) -> None:
    assert delay_us(value) == expected


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (-1, "out of range"), (MAX_DELAY_US / 1000 + 1, "out of range"), ("36600d1us", "out of range"),
        ("3162240000001", "out of range"), (True, "True is not a delay"), (None, "None is not a delay"),
        ("", "'' is not a delay"), ("5x", "is not a delay"), ("5m x", "is not a delay"), ("x5m", "is not a delay"),
        ("5m 3s", "is not a delay"), ("-5m", "is not a delay"), (float("nan"), "out of range"),
    ],
)  # fmt: skip
def test_what_is_no_delay_says_how_to_write_one(value: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        delay_us(value)


@pytest.mark.parametrize(
    ("delay", "text"),
    [
        (0, "0ms"), (1, "0.001ms"), (1_500, "1.5ms"), (999_000, "999ms"), (1_000_000, "1s"), (90_000_000, "90s"),
        (60_000_000, "1m"), (5_400_000_000, "90m"), (3_600_000_000, "1h"), (129_600_000_000, "36h"),
        (86_400_000_000, "1d"), (604_800_000_000, "7d"), ({"expr": "context.wait"}, "context.wait"),
    ],
)  # fmt: skip
def test_a_delay_is_drawn_in_the_largest_unit_that_holds_it(delay: Any, text: str) -> None:
    assert _delay(delay) == text


# --- keys of states -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({"type": "history", "entry": []}, "a history state has no 'entry'"),
        ({"type": "history", "histroy": "deep"}, "unknown key 'histroy'.*history"),
        ({"type": "final", "on": {}}, "a final state has no 'on'"),
        ({"type": "final", "ouput": 1}, "unknown key 'ouput'.*output"),
        ({"history": "deep"}, "unknown key 'history'"),
        ({"onn": {}}, "unknown key 'onn'.*on"),
        ({"type": "final", "states": {"x": {}}}, "a final state holds no states"),
        ({"type": "atomic", "states": {"x": {}}}, "a atomic state holds no states"),
    ],
)
def test_a_key_that_a_state_cannot_have_is_named_with_its_kind(state: dict[str, Any], says: str) -> None:
    document = {"id": "m", "initial": "a", "states": {"a": {}, "b": state}}
    with pytest.raises(InvalidMachine, match=says):
        Machine.from_dict(document)


def test_an_event_is_not_changed_by_what_is_done_with_its_data() -> None:
    data = {"t": {"deep": [1]}}
    chart = Chart(assigning(("one",), "event.t"))
    chart.send(Event("go", data))
    chart.context["one"]["deep"].append(2)
    assert data == {"t": {"deep": [1]}}
