"""The budgets of a step: what would take long or build much becomes an error in the chart while it runs."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from casework.errors import InvalidMachine, Misuse
from casework.statechart import Event, Machine, Snapshot, start, step
from casework.statechart.expressions import FUNCTIONS
from casework.statechart.operations import COMPARISONS

LONG = list(range(100_000))
TABLE = {f"k{n}": n for n in range(100_000)}
TEXT = "x" * 1_000_000
GIVEN: dict[str, Any] = {
    "L": LONG, "M": LONG.copy(), "S": [LONG, LONG, LONG], "D": TABLE, "E": dict(TABLE), "T": TEXT,
    "U": TEXT[:-1] + "y", "r": [0], "n": 0, "big": 2**63 - 1,
}  # fmt: skip
WORK, SIZE = 1_000_000, 20_000_000

TOO_MUCH = {
    "a loop in a loop": "sum(1 for x in context.L for y in context.L)",
    "a loop in the condition of a loop": "[x for x in context.L if any(x == -y for y in context.L)]",
    "lists in lists": "[[y for y in context.L] for x in context.L]",
    "a mapping of lists": "{str(x): [y for y in context.L] for x in context.L}",
    "list +": "[context.L + context.M for x in context.L]",
    "text +": "[context.T + context.U for x in context.L]",
    "list *": "context.L * 1000000",
    "number * list": "1000000000000 * context.r",
    "text *": "'a' * 10000000000",
    "slice": "[context.L[1:] for x in context.L]",
    "slice of text": "[context.T[1:] for x in context.L]",
    "[*list]": "[[*context.L] for x in context.L]",
    "{**mapping}": "[{**context.D} for x in context.L]",
    "f-string": "f'" + "{context.T}" * 300 + "'",
    "f-string of a list": "[f'{context.S}' for x in context.L]",
    "==": "[x for x in context.L if context.L == context.M]",
    "== of the same": "[x for x in context.L if context.L == context.L]",
    "!=": "[x for x in context.L if context.D != context.E]",
    "<": "[x for x in context.L if context.L < context.M]",
    "<=": "[x for x in context.L if context.L <= context.M]",
    ">": "[x for x in context.L if context.L > context.M]",
    ">=": "[x for x in context.L if context.L >= context.M]",
    "== of text": "[y for x in context.L for y in context.r if context.T < context.U]",
    "a chain": "[x for x in context.L if context.L == context.M == context.L]",
    "in": "[x for x in context.L if x + 100000 in context.L]",
    "not in": "[x for x in context.L if -1 not in context.L]",
    "in text": "[x for x in context.L if 'xy' in context.T]",
    "a list in a list": "[x for x in context.L if context.M in context.S]",
    "len": "[len([y for y in context.L]) for x in context.L]",
    "min": "[min(context.L) for x in context.L]",
    "max": "[max(context.L, context.M) for x in context.L]",
    "sum": "[sum(context.L) for x in context.L]",
    "sorted": "[sorted(context.L, reverse=True) for x in context.L]",
    "any": "[any(context.r * 1000) for x in context.L]",
    "all": "[all(context.M) for x in context.M]",
    "round": "[round(sum(context.L)) for x in context.L]",
    "abs": "[abs(max(context.L)) for x in context.L]",
    "int": "[int(sum(context.L)) for x in context.L]",
    "float": "[float(sum(context.L)) for x in context.L]",
    "bool": "[bool([*context.L]) for x in context.L]",
    "str": "[str(context.L) for x in context.L]",
    "get": "[get([*context.L], 5) for x in context.L]",
    "a copy": "[context.D for x in context.L]",
    "a text as often as it stands": "[context.T for x in context.L]",
}  # fmt: skip


def assign(text: str) -> dict[str, Any]:
    return {"type": "assign", "params": {"r": {"expr": text}}}


def chart(state: dict[str, Any], **more: Any) -> Machine:
    return Machine.from_dict({
        "id": "hungry", "initial": "a", "limits": {"work": WORK, "size": SIZE},
        "states": {"a": state, "b": {}, "handled": {}}, **more,
    })  # fmt: skip


def after(machine: Machine, event: str = "go") -> Snapshot:
    return step(machine, Snapshot(["a"], GIVEN), Event(event), 0).snapshot


@pytest.mark.parametrize("text", TOO_MUCH.values(), ids=TOO_MUCH)
def test_what_takes_or_builds_too_much_is_an_error_of_the_chart(text: str) -> None:
    machine = chart({"on": {"go": {"target": "b", "actions": assign(text)}}})
    snapshot = after(machine)
    assert snapshot.status == "failed" and snapshot.error is not None
    assert (snapshot.error["type"], snapshot.context["r"]) == ("OverBudget", [0])
    assert "raise limits." in snapshot.error["message"]


def test_every_function_and_comparison_is_in_the_table() -> None:
    symbols = {"Eq": "==", "NotEq": "!=", "Lt": "<", "LtE": "<=", "Gt": ">", "GtE": ">="}
    assert set(FUNCTIONS) | {symbols[name] for name in COMPARISONS} <= set(TOO_MUCH)


FOREACH = {"type": "foreach", "params": {"items": {"expr": "context.L"}, "item": "n"}}
PLACES: dict[str, dict[str, Any]] = {
    "a list that doubles in foreach": {"on": {"go": {"target": "b", "actions": {
        **FOREACH, "params": {**FOREACH["params"], "actions": assign("context.r + context.r")},
    }}}},
    "a text that doubles in foreach": {"on": {"go": {"target": "b", "actions": {
        **FOREACH, "params": {**FOREACH["params"], "actions": assign("str(context.r) + str(context.r)")},
    }}}},
    "foreach in foreach": {"on": {"go": {"target": "b", "actions": {
        **FOREACH, "params": {**FOREACH["params"], "actions": {
            **FOREACH, "params": {**FOREACH["params"], "actions": assign("1")},
        }},
    }}}},
    "microsteps": {"on": {"go": "b.x"}},
    "sends": {"on": {"go": {"target": "b", "actions": {**FOREACH, "params": {**FOREACH["params"], "actions": {
        "type": "send", "params": {"event": "e", "to": "o", "data": {"expr": "context.D"}}}}}}}},
    "logs": {"on": {"go": {"target": "b", "actions": {"type": "log", "params": {
        "value": {"expr": "[[float('nan')], [context.S for x in context.S for y in context.S]]"}}}}}},
    "a text in a log": {"on": {"go": {"target": "b", "actions": {"type": "log", "params": {
        "label": {"expr": "[context.T for x in context.L]"}}}}}},
    "a raise": {"on": {"go": {"target": "b", "actions": {
        "type": "raise", "params": {"event": "e", "data": {"expr": "[context.L for x in context.L]"}}}}}},
    "an input": {"on": {"go": {"target": "b.i"}}},
    "one input for each": {"on": {"go": {"target": "b.e"}}},
    "a delay": {"on": {"go": {"target": "b.d"}}},
    "an output": {"on": {"go": {"target": "b.f"}}},
}  # fmt: skip


@pytest.mark.parametrize("state", PLACES.values(), ids=PLACES)
def test_the_budget_is_one_for_the_whole_step(state: dict[str, Any]) -> None:
    many = {"expr": "[context.L for x in context.L]"}
    circle = {"always": {"target": "x", "reenter": True, "actions": assign("[x for x in context.L]")}}
    inner = {
        "z": {}, "x": circle, "i": {"invoke": {"src": "t", "input": {"x": many}, "onError": "z"}},
        "e": {"invoke": {"src": {"machine": "m"}, "each": {"expr": "context.L"}, "input": {"expr": "context.L"}}},
        "d": {"after": [{"delay": {"expr": "len(str([context.D for x in context.L]))"}, "target": "z"}]},
        "f": {"type": "final", "output": many},
    }  # fmt: skip
    target = state["on"]["go"]
    target = {"target": f"#hungry.{target}"} if isinstance(target, str) else target
    if target["target"].startswith("b."):
        target = {**target, "target": f"#hungry.{target['target']}"}
    machine = Machine.from_dict({
        "id": "hungry", "initial": "a", "limits": {"work": WORK, "size": SIZE},
        "states": {"a": {"on": {"go": target}}, "b": {"initial": "z", "states": inner}},
    })  # fmt: skip
    snapshot = after(machine)
    assert snapshot.error is not None and snapshot.error["type"] == "OverBudget", snapshot.error


def test_a_guard_that_takes_too_much_is_false_and_an_error() -> None:
    guard = {"expr": TOO_MUCH["a loop in a loop"]}
    machine = chart({"on": {"go": {"target": "b", "guard": guard}, "error.execution": "handled"}})
    assert after(machine).configuration == ["handled"]


def test_the_chart_can_handle_it_with_a_budget_of_its_own() -> None:
    handler = {"target": ".handled", "actions": assign("len([x for x in context.L])")}
    much = {"target": "b", "actions": assign(TOO_MUCH["lists in lists"])}
    machine = chart({"on": {"go": much}}, on={"error": handler})
    snapshot = after(machine)
    assert (snapshot.configuration, snapshot.context["r"], snapshot.status) == (["handled"], 100_000, "running")


def test_a_handler_that_takes_too_much_itself_ends_the_execution() -> None:
    much = {"actions": assign(TOO_MUCH["lists in lists"])}
    machine = chart({"on": {"go": much}}, on={"error": much})
    snapshot = after(machine)
    assert snapshot.error is not None
    assert (snapshot.status, snapshot.error["type"]) == ("failed", "OverBudget")


@pytest.mark.parametrize("name", ["work", "size"])
def test_each_budget_is_an_option_of_the_machine(name: str) -> None:
    state = {"on": {"go": {"target": "b", "actions": assign("[x for x in context.L]")}}}
    small = chart(state, limits={name: 50_000})
    assert (after(small).error or {}).get("type") == "OverBudget"
    assert f"limits.{name}" in (after(small).error or {})["message"]
    assert after(chart(state, limits={name: 10**7})).context["r"] == LONG
    assert after(chart(state, limits={})).context["r"] == LONG


def test_limits_belong_to_the_definition() -> None:
    plain, limited = (
        {"id": "m", "initial": "a", "states": {"a": {}}, **more} for more in ({}, {"limits": {"work": 9999}})
    )
    machine = Machine.from_dict(limited)
    assert machine.hash != Machine.from_dict(plain).hash
    assert machine.rebound(machine.definition).tables.limits.work == 9999


@pytest.mark.parametrize("limits", [
    5, [], {"work": 0}, {"work": -1}, {"work": 1.5}, {"work": "5"}, {"work": True}, {"size": 10**15}, {"sise": 5000},
])  # fmt: skip
def test_limits_that_are_none_are_refused(limits: Any) -> None:
    with pytest.raises(InvalidMachine, match="limits"):
        Machine.from_dict({"id": "m", "initial": "a", "states": {"a": {}}, "limits": limits})


def test_a_first_context_that_takes_too_much_is_misuse() -> None:
    machine = Machine.from_dict({
        "id": "m", "initial": "a", "states": {"a": {}},
        "context": {"n": {"expr": "[1 for x in input.L for y in input.L]"}},
    })  # fmt: skip
    with pytest.raises(Misuse, match="units of"):
        start(machine, {"L": LONG}, 0)


def test_copies_for_functions_count() -> None:
    machine = chart({"on": {"go": {"target": "b", "actions": ["look"] * 20}}})
    machine.action(name="look")(lambda context, event: None)
    assert (after(machine).error or {})["type"] == "OverBudget"


def test_what_functions_return_counts() -> None:
    machine = chart({"on": {"go": {"target": "b", "actions": "much"}}})
    machine.action(name="much")(lambda context, event: {"r": [[1] * 1000] * 10_000})
    assert (after(machine).error or {})["type"] == "OverBudget"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("'9' * 400", "is no number"), ("context.T", "is no number"),
        (" * ".join(["context.big"] * 20), "bits"), ("{context.big * context.big: 1 for x in context.r}", "64 bits"),
    ],
)  # fmt: skip
def test_whole_numbers_stay_short(text: str, why: str) -> None:
    expression = text if "big" in text else f"int({text})"
    error = after(chart({"on": {"go": {"target": "b", "actions": assign(expression)}}})).error
    assert error is not None and why in error["message"]


ENOUGH = {
    "sum(x for x in context.L)": sum(LONG), "len([x for x in context.L if x > 5])": 99_994, "max(context.L)": 99_999,
    "len(sorted(context.L[:20000]))": 20_000, "99999 in context.L": True, "context.L == context.M": True,
    "len(context.L + context.M)": 200_000, "len(str(context.L[:10]))": 30, "any(x > 3 for x in context.L)": True,
}  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), ENOUGH.items(), ids=ENOUGH)
def test_a_list_of_a_hundred_thousand_can_be_worked_with(text: str, expected: Any) -> None:
    assert after(chart({"on": {"go": {"target": "b", "actions": assign(text)}}})).context["r"] == expected


def hungry(seed: int, count: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.statechart.hungry", str(seed), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout))


def test_no_random_expression_takes_more_than_its_budget_allows() -> None:
    found = hungry(1, 60)
    assert found["ran"] == 60 and 20 < found["spent"] < 60


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 108))
def test_thousands_of_random_expressions_take_no_more_than_their_budget_allows(seed: int) -> None:
    assert hungry(seed, 2000)["ran"] == 2000


DIGITS = "9" * 200_000 + "x"
DELAYED = """
id: m
initial: a
context: {}
states:
  a: {on: {Wait: {actions: {type: send, params: {event: Over, delay: {expr: event.d}}}}, In: b, error.execution: c}}
  b: {}
  c: {}
"""
DOCUMENT = """<scxml xmlns="http://www.w3.org/2005/07/scxml" version="1.0" datamodel="ecmascript" name="m" initial="a">
<datamodel><data id="r"/></datamodel><state id="a"><transition event="E" target="b">
<assign location="r" expr="[isNaN(_event.data.d), _event.data.d == 9]"/></transition></state><state id="b"/></scxml>"""


def test_a_long_text_of_digits_in_an_event_is_looked_at_once() -> None:
    """A pattern that tries every way to divide it would hold the process for minutes."""
    delayed = Machine.from_yaml(DELAYED)
    before = start(delayed, {}, now_us=0).snapshot
    assert step(delayed, before, Event("Wait", {"d": DIGITS}), now_us=1).snapshot.configuration == ["c"]
    assert step(delayed, before, Event("Wait", {"d": "1.5h"}), now_us=1).effects[0].delay_us == 5_400_000_000
    document = Machine.from_scxml(DOCUMENT)
    taken = step(document, start(document, {}, now_us=0).snapshot, Event("E", {"d": DIGITS}), now_us=1)
    assert taken.snapshot.context == {"r": [True, False]}
