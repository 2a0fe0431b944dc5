"""What each operation of an expression costs: a table, since a budget that counts too little protects nobody."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from casework.statechart import operations
from casework.statechart.budget import LIMIT_MAX, Limits, OverBudget
from casework.statechart.jsonable import checked_copy, copy_json

L, T, U, M = [1] * 40, "a" * 640, "\u00e9" * 640, {str(n): n for n in range(40)}
"""A list, two texts (in UTF-8 the second takes more), a mapping."""


class Counter:
    """Stands for a run: adds up what is charged."""

    def __init__(self) -> None:
        self.work = self.size = 0

    def charge(self, work: int, size: int = 0) -> None:
        self.work += work
        self.size += size


def operation(name: str) -> Callable[..., Any]:
    if name == "copy":
        return lambda run, value: checked_copy(value, "value", run)
    if name == "copy_json":
        return lambda run, value: copy_json(value, run)
    tables: list[dict[str, Callable[..., Any]]] = [operations.FUNCTIONS, operations.COMPARISONS, vars(operations)]
    return next(table[name] for table in tables if name in table)


CHARGES: list[tuple[str, tuple[Any, ...], int, int]] = [
    ("weigh", (T,), 0, 0),
    ("weigh", (7,), 0, 0),
    ("weigh", (L,), 41, 0),
    ("weigh", (M,), 41, 0),
    ("weigh", ([T, L],), 44, 0),
    ("weigh", ({"a": T},), 2, 0),
    ("add", (T, U), 10, 3200),
    ("add", (L, L), 10, 1280),
    ("add", (1, 2), 0, 0),
    ("multiply", (T, 3), 240, 1920),
    ("multiply", (3, U), 240, 7680),
    ("multiply", (L, 3), 15, 1920),
    ("multiply", (L, -1), 0, 0),
    ("multiply", (2, 3), 0, 0),
    ("contains", (1, L), 10, 0),
    ("contains", (T, [T]), 1, 0),
    ("contains", ("a", T), 40, 0),
    ("contains", ("1", M), 0, 0),
    ("weighed", (L,), 82, 0),
    ("weighed", (7,), 0, 0),
    ("sliced", (T,), 5, 640),
    ("sliced", (U,), 5, 2560),
    ("sliced", (L,), 5, 640),
    ("sliced", (7,), 0, 0),
    ("spread", (L,), 40, 640),
    ("spread", (M,), 40, 2560),
    ("looped", (L, 3, 16), 121, 640),
    ("looped", (M, 1, 0), 41, 0),
    ("Eq", (T, T + "b"), 5, 0),
    ("Eq", (L, [1] * 39), 40, 0),
    ("Eq", (L, L), 5, 0),
    ("Eq", (M, dict(M)), 41, 0),
    ("Eq", (M, {}), 0, 0),
    ("Eq", ([T], [T + ""]), 7, 0),
    ("Eq", ([L], [list(L)]), 43, 0),
    ("Eq", ({"a": L}, {"a": list(L)}), 43, 0),
    ("Eq", ({"a": L}, {"b": list(L)}), 2, 0),
    ("Eq", (L, T), 0, 0),
    ("Eq", (1, 2), 0, 0),
    ("Lt", ([[1], 2], [[1], 3]), 5, 0),
    ("str", (L,), 81, 280),
    ("str", (M,), 121, 610),
    ("str", (T,), 0, 0),
    ("str", ([T],), 44, 1288),
    ("in_text", (L,), 81, 400),
    ("in_text", (T,), 5, 640),
    ("in_text", (U,), 5, 2560),
    ("sum", (L,), 41, 0),
    ("any", (L,), 41, 0),
    ("all", (L,), 41, 0),
    ("sorted", (L,), 368, 640),
    ("sorted", (M,), 368, 640),
    ("min", (L,), 123, 0),
    ("max", (3, 4), 0, 0),
    ("max", ([L, L],), 171, 0),
    ("len", (L,), 0, 0),
    ("copy", (L,), 81, 640),
    ("copy", (M,), 121, 2560),
    ("copy", ({"a": 1},), 0, 0),
    ("copy", ({"a": {"b": 1}},), 4, 64),
    ("copy", ([T],), 13, 656),
    ("copy", (["a" * 16],), 3, 16),
    ("copy", (["a" * 17],), 3, 33),
    ("copy", ({"k" * 17: 1},), 0, 17),
    ("copy", ([U],), 13, 2576),
    ("copy_json", (L,), 40, 0),
    ("copy_json", ([1] * 8,), 0, 0),
    ("copy_json", ([1] * 9,), 9, 0),
    ("copy_json", ({"a": [1], "b": [2]},), 2, 0),
    ("copy_json", (7,), 0, 0),
    ("copy_json", ([[1] * 9],), 10, 0),
]


@pytest.mark.parametrize(("name", "args", "work", "size"), CHARGES, ids=lambda value: f"{value!s:.24}")
def test_an_operation_costs_what_it_touches_and_builds(name: str, args: Any, work: int, size: int) -> None:
    run = Counter()
    operation(name)(run, *args)
    assert (run.work, run.size) == (work, size)


def test_every_function_and_comparison_is_in_the_table_or_costs_nothing() -> None:
    free = {"round", "abs", "int", "float", "bool", "get", "NotEq", "LtE", "Gt", "GtE"}
    assert {*operations.FUNCTIONS, *operations.COMPARISONS} - {name for name, *_ in CHARGES} == free


@pytest.mark.parametrize(
    ("name", "args", "says"),
    [
        ("modulo", ("%d", 1), "formats no text"),
        ("spread", (3,), "take a list or a mapping, not int"),
        ("looped", (3, 1, 1), "a loop goes over a list, a mapping or text, not int"),
        ("key_of", (2**64,), "64 bits"),
        ("sum", (3,), r"sum\(\) goes over a list, not int"),
        ("any", (True,), r"any\(\) goes over a list, not bool"),
        ("max", (2.5,), r"max\(\) goes over a list, not float"),
        ("get", ("text", 0), r"get\(\) reads a mapping or a list, not str"),
        ("round", (1, 31), "-30 to 30 digits"),
        ("round", (1, -31), "-30 to 30 digits"),
        ("int", ("9" * (operations._INT_TEXT_MAX + 1),), "is no number"),
        ("float", ("9" * (4 * operations._INT_TEXT_MAX + 1),), "is no number"),
        ("multiply", (1 << operations.INT_BITS_MAX - 1, 2), "a whole number of more than"),
    ],
)
def test_what_an_operation_cannot_do_says_why(name: str, args: Any, says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        operation(name)(Counter(), *args)


@pytest.mark.parametrize(
    ("name", "args", "expected"),
    [
        ("get", (["a", "b"], 0, "x"), "a"),
        ("get", (["a", "b"], 1, "x"), "b"),
        ("get", (["a", "b"], 2, "x"), "x"),
        ("get", (["a", "b"], -2, "x"), "a"),
        ("get", (["a", "b"], -3, "x"), "x"),
        ("get", (["a", "b"], "0", "x"), "x"),
        ("get", ({"a": None}, "a", "x"), None),
        ("get", ({}, "a"), None),
        ("round", (0.5, 30), 0.5),
        ("round", (7, -30), 0),
        ("round", (2.5,), 2),
        ("int", ("9" * operations._INT_TEXT_MAX,), 10**operations._INT_TEXT_MAX - 1),
        ("int", (), 0),
        ("float", ("9" * (4 * operations._INT_TEXT_MAX),), float("9" * (4 * operations._INT_TEXT_MAX))),
        ("float", (), 0.0),
        ("bool", (), False),
        ("str", (), ""),
        ("key_of", (2**64 - 1,), 2**64 - 1),
        ("key_of", ("9" * 100,), "9" * 100),
        ("multiply", (1 << operations.INT_BITS_MAX - 1, 1), 1 << operations.INT_BITS_MAX - 1),
        ("modulo", (7, 4), 3),
        ("sorted", ([2, 1, 3],), [1, 2, 3]),
        ("sorted", ([2, 1, 3], True), [3, 2, 1]),
        ("min", (3, 2), 2),
        ("max", ([1, 5],), 5),
    ],
)
def test_an_operation_gives_its_value_up_to_its_limits(name: str, args: Any, expected: Any) -> None:
    found = operation(name)(Counter(), *args)
    assert found == expected and type(found) is type(expected)


def test_a_budget_may_be_spent_to_the_last_unit() -> None:
    Limits(1000, 2000).refuse(1000, 2000)
    with pytest.raises(OverBudget, match=r"1,000 units of work .*limits\.work"):
        Limits(1000, LIMIT_MAX).refuse(1001, 0)
    with pytest.raises(OverBudget, match=r"2,000 units of size .*limits\.size"):
        Limits(LIMIT_MAX, 2000).refuse(0, 2001)
