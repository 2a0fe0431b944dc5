"""The part of Python that expressions may use, and all that they must not reach."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casework.statechart import Event, Machine
from casework.statechart.expressions import ExpressionError, compile_template, find_problem
from casework.statechart.nodes import Run

SMALL = Machine.from_dict({"id": "small", "initial": "a", "states": {"a": {}}})
CONTEXT = {"n": 3, "items": [{"sku": "a", "qty": 2}, {"sku": "b", "qty": 1}], "who": {"name": "Ann"}, "keys": "own"}


def value(text: Any, data: Any = None, event: str = "pay", active: frozenset[str] = frozenset()) -> Any:
    template = compile_template({"expr": text} if isinstance(text, str) else text)
    payload = {"ref": "r", "type": "payload"} if data is None else data
    return template.evaluate(run(CONTEXT, Event(event, payload, "e-1", "src"), active))


def run(context: Any, event: Event, active: frozenset[str] = frozenset()) -> Run:
    return Run(SMALL, context, event, event.data, 0, {}, 0, {}, active)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("context.n + 1", 4),
        ('context["n"]', 3),
        ("context.who.name", "Ann"),
        ("context.keys", "own"),
        ("context.items[0].sku", "a"),
        ("context.items[-1:]", [{"sku": "b", "qty": 1}]),
        ("event.ref", "r"),
        ("event.type", "pay"),
        ('event["type"]', "payload"),
        ("event.id + event.source", "e-1src"),
        ("event.data", {"ref": "r", "type": "payload"}),
        ("'x' in event", False),
        ("1 < context.n <= 3 and not False", True),
        ("'big' if context.n > 2 else 'small'", "big"),
        ("sum(i.qty for i in context.items)", 3),
        ("[i.sku for i in context.items if i.qty > 1]", ["a"]),
        ("{i.sku: i.qty for i in context.items}", {"a": 2, "b": 1}),
        ("[*context.items, 1][2]", 1),
        ("{**context.who, 'age': 5}", {"name": "Ann", "age": 5}),
        ("f'{context.who.name}: {context.n + 1}'", "Ann: 4"),
        ("get(context, 'none')", None),
        ("get(context, 'none', 7)", 7),
        ("get(context.items, 9, 'x')", "x"),
        ("max(1, 2) + min([3, 4]) + len('ab') + abs(-1)", 8),
        ("sorted([3, 1, 2], reverse=True)", [3, 2, 1]),
        ("round(2.555, 2) == 2.56 or round(2.5) == 2", True),
        ("context.n in (1, 3)", True),
        ("context.who is None", False),
        ("-context.n // 2", -2),
        ("7 % 4", 3),
        ("any(i.qty > 1 for i in context.items) and all([])", True),
        ("str(1) + str(2.5)", "12.5"),
        ("'ab' * 2", "abab"),
    ],
)
def test_what_is_permitted_gives_what_python_gives(text: str, expected: Any) -> None:
    assert value(text) == expected


def test_only_a_mapping_with_expr_is_an_expression() -> None:
    literal = {"a": "context.n", "b": [1, {"c": {"expr": "context.n"}}]}
    assert value(literal) == {"a": "context.n", "b": [1, {"c": 3}]}


def test_literals_are_fresh_each_time() -> None:
    template = compile_template({"a": []})
    first = template.evaluate(run({}, Event("x")))
    first["a"].append(1)
    assert template.evaluate(run({}, Event("x"))) == {"a": []}


def test_output_and_error_are_the_payload_of_their_events_and_keys_elsewhere() -> None:
    assert value("event.output", 5, "done.invoke.x") == 5
    assert value("event.error.message", {"message": "m"}, "error.invoke.x") == "m"
    assert value("event.output", {"output": 6}) == 6


def test_in_asks_for_active_states() -> None:
    template = compile_template({"expr": "In('a') and not In('b')"})
    assert template.asks_active
    assert template.evaluate(run({}, Event("x"), frozenset({"a"}))) is True
    assert not compile_template({"expr": "1"}).asks_active


@pytest.mark.parametrize(
    "text",
    [
        "context.__class__", "().__class__.__bases__", "context._private", "event.__init__", "__import__('os')",
        "open('x')", "eval('1')", "exec('1')", "globals()", "getattr(context, 'n')", "type(context)", "vars()",
        "context.items.append(1)", "'{0.__class__}'.format(context)", "f'{context!r}'", "f'{context.n:>99999999}'",
        "2 ** 99", "1 << 99", "~1", "1 | 2", "lambda: 1", "(x := 1)", "{1, 2}", "{x for x in [1]}", "x", "contxt.n",
        "[context for context in [1]]", "[len for len in [1]]", "[_x for _x in [1]]", "...", "b'x'", "1j",
        "print(1)", "len", "In", "sum([[]], [])", "sorted([1], key=len)", "len(*[[1]])", "len(obj=1)", "In('a', 'b')",
        "[a for a in [1] for b in [2] for c in [3]]", "[[[x for x in y] for y in z] for z in context.items]",
        "context.n is context.n", "await x", "yield 1", "(x for x in [1])", "1 +", "import os", "a = 1", "", "'" * 3,
        "99999999999999999999", "[x.y for x.y in [1]]", "1 if 1", "x if True else 1", "event._event", "_data",
        "_active",
        "_f_len([1])", "[i async for i in context.items]",
    ],
)  # fmt: skip
def test_what_is_not_on_the_list_is_refused_when_the_machine_is_loaded(text: str) -> None:
    with pytest.raises(ExpressionError):
        compile_template({"expr": text})
    assert find_problem([{"a": {"expr": text}}])[0] == (0, "a")  # type: ignore[index]


@pytest.mark.parametrize(
    "text",
    ["'x' * 999999999", "999999999 * [0]", "'%999999999d' % 1", "round(1, -999999999)", "context.items.n",
     "context.who[0]", "1 / 0", "event.gone", "int('9' * 5000)", "context.items.sku"],
)  # fmt: skip
def test_what_would_grow_without_bound_or_reach_an_object_is_an_error_at_run_time(text: str) -> None:
    with pytest.raises((ValueError, TypeError, KeyError, ZeroDivisionError, IndexError)):
        value(text)


def test_a_very_deep_or_long_expression_works_or_is_refused_and_never_crashes() -> None:
    for text in ("(" * 500 + "1" + ")" * 500, "1" + "+1" * 1990, "-" * 3000 + "1", "1" * 5000):
        try:
            result = value(text)
        except ExpressionError:
            result = 0
        assert isinstance(result, int)


def test_a_typing_error_gets_a_suggestion() -> None:
    with pytest.raises(ExpressionError, match="did you mean 'context'"):
        compile_template({"expr": "contxt.n"})
    with pytest.raises(ExpressionError, match="did you mean 'sorted'"):
        compile_template({"expr": "sortd([1])"})


@given(st.text(max_size=40))
def test_any_text_compiles_or_is_refused_with_a_message(text: str) -> None:
    found = find_problem({"expr": text})
    assert found is None or found[1]


SAFE = st.recursive(
    st.sampled_from(["context", "event", "context.n", "1", "'a'", "[]", "None", "event.data", "context.items"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "*", "%", "==", "in", "and", "/", "-"]), inner).map(
            lambda parts: f"({' '.join(parts)})"
        ),
        inner.map(lambda text: f"[x for x in {text}]"),
        inner.map(lambda text: f"str({text})"),
        st.tuples(inner, st.sampled_from(["a", "n", "items", "get", "keys", "copy"])).map(".".join),
    ),
    max_leaves=6,
)


@given(SAFE)
def test_a_permitted_expression_returns_plain_values_or_raises_an_ordinary_error(text: str) -> None:
    if find_problem({"expr": text}) is None:
        try:
            result = value(text)
        except (TypeError, ValueError, KeyError, IndexError, ZeroDivisionError):
            return
        assert isinstance(result, dict | list | str | int | float | bool | None)
