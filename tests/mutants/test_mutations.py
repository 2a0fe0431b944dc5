"""The changes that ``make mutants`` makes: each kind is found where it should be, and nowhere else."""

from __future__ import annotations

import pytest

from tests.mutants.mutations import mutations


def changed(source: str) -> set[str]:
    """Every mutant of a function's body, as the one line that differs."""
    text = f"def f(a, b=7, *c):\n    {source}\n"
    before = text.splitlines()
    mutants = [mutation.apply(text.encode()).decode().splitlines() for mutation in mutations(text.encode())]
    return {
        new.strip()
        for mutant in mutants
        for old, new in zip(before, mutant, strict=False)
        if new != old and not new.startswith("def")
    }


@pytest.mark.parametrize(
    ("source", "mutants"),
    [
        ("a = b < c", {"a = b <= c", "a = b >= c"}),
        ("a = b is not c", {"a = b is c"}),
        ("a = b is c", {"a = b is not c"}),
        ("a = b in c", {"a = b not in c"}),
        ("a = b and c", {"a = b or c", "a = True and c", "a = b and True"}),
        ("a = b or c", {"a = b and c", "a = False or c", "a = b or False"}),
        ("a = not b", {"a = (b)"}),
        ("a = b + c", {"a = b - c"}),
        ("a = 3", {"a = (4)"}),
        ("a = True", {"a = False"}),
        ("a = 'name'", {"a = 'name_'"}),
        ("return a", {"return None"}),
        ("return False", {"return True"}),
        ("a(b, when=c)", {"pass", "a(b, )"}),
        ("a(b, when=c, then=b)", {"pass", "a(b, then=b)", "a(b, when=c, )"}),
        ("a.b = c", {"pass"}),
        ("raise a", {"pass"}),
        ("a = b if c else b", {"a = b if (not (c)) else b"}),
    ],
)
def test_each_slip_is_made_where_it_can_happen(source: str, mutants: set[str]) -> None:
    assert changed(source) == mutants


@pytest.mark.parametrize(
    "source",
    [
        "'A sentence.'",
        "a = 'some words'",
        "a = f'{b}/x'",
        "log.warning(a)",
        "assert a",
        "return None",
        "a = b",
        "a = zip(b, c, strict=True)",
    ],
)
def test_texts_for_people_and_things_without_a_slip_are_left_alone(source: str) -> None:
    assert changed(source) == set()


def test_a_default_is_changed_too_and_code_outside_functions_is_not() -> None:
    source = b"A = 5\ndef f(b=7):\n    pass\n"
    assert [mutation.apply(source) for mutation in mutations(source)] == [b"A = 5\ndef f(b=(8)):\n    pass\n"]


def test_places_after_other_scripts_are_still_found() -> None:
    source = "def f(a):\n    # \u00e4\u00f6\u00fc \u6f22\n    return 'ärger' or a == 'b'\n".encode()
    assert any("a != 'b'" in mutation.apply(source).decode() for mutation in mutations(source))
