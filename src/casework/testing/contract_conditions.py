"""The contract's part about conditions."""

from __future__ import annotations

import itertools

import pytest

from casework.backends.port import Backend
from casework.errors import ConditionFailed, Misuse
from casework.kernel.conditions import (
    Condition,
    absent,
    all_of,
    any_of,
    at_least,
    at_most,
    differs,
    equals,
    evaluate,
    greater_than,
    less_than,
    not_,
    present,
)
from casework.kernel.effects import Transact, Write
from casework.kernel.items import Check, Delete, Item, Key, Put, Update
from casework.testing.contract_tables import EDGE_VALUES, PLAIN, get, refused, write


def _verdicts(backend: Backend, key: Key, conditions: list[Condition]) -> list[bool]:
    """Whether each condition holds, as the store sees it."""
    outcomes = backend.execute_many([Transact([Check(key, condition)]) for condition in conditions])
    verdicts = []
    for condition, outcome in zip(conditions, outcomes, strict=True):
        assert outcome.error is None or isinstance(outcome.error, ConditionFailed), (condition, outcome.error)
        verdicts.append(outcome.error is None)
    return verdicts


class ConditionsContract:
    """Conditions mean on every store what ``evaluate`` says that they mean."""

    def _agrees(self, backend: Backend, key: Key, item: Item | None, conditions: list[Condition]) -> None:
        verdicts = _verdicts(backend, key, conditions)
        wrong = [
            (condition, verdict)
            for condition, verdict in zip(conditions, verdicts, strict=True)
            if verdict != evaluate(condition, item)
        ]
        assert wrong == []

    def test_equality_of_any_two_values_is_that_of_value_and_type(self, backend: Backend, place: str) -> None:
        item: Item = {"id": place, **{f"a{n}": value for n, value in enumerate(EDGE_VALUES)}}
        write(backend, Put(PLAIN, item))
        pairs = itertools.product(range(len(EDGE_VALUES)), EDGE_VALUES)
        self._agrees(backend, PLAIN.key(place), item, [equals(f"a{n}", value) for n, value in pairs])

    def test_true_is_not_one_and_text_is_not_bytes(self, backend: Backend, place: str) -> None:
        write(backend, Put(PLAIN, {"id": place, "flag": True, "one": 1, "text": "a", "bytes": b"a", "zero": 0}))
        conditions = [
            equals("flag", 1),
            equals("one", True),
            equals("text", b"a"),
            equals("bytes", "a"),
            equals("zero", False),
            equals("one", "1"),
        ]
        assert _verdicts(backend, PLAIN.key(place), conditions) == [False] * len(conditions)

    @pytest.mark.parametrize("compare", [less_than, at_most, greater_than, at_least])
    def test_order_is_that_of_one_type_and_of_code_points(self, backend: Backend, place: str, compare: object) -> None:
        item: Item = {"id": place, **{f"a{n}": value for n, value in enumerate(EDGE_VALUES)}}
        write(backend, Put(PLAIN, item))
        values = [value for value in EDGE_VALUES if type(value) is not bool]
        pairs = itertools.product(range(len(EDGE_VALUES)), values)
        self._agrees(backend, PLAIN.key(place), item, [compare(f"a{n}", value) for n, value in pairs])  # type: ignore[operator]

    def test_no_comparison_holds_for_what_is_absent(self, backend: Backend, place: str) -> None:
        write(backend, Put(PLAIN, {"id": place, "here": 1}))
        comparisons = [
            equals("gone", 0),
            equals("gone", ""),
            less_than("gone", 5),
            at_most("gone", "zzz"),
            greater_than("gone", -5),
            at_least("gone", b""),
        ]
        for key in (PLAIN.key(place), PLAIN.key(place + "-nobody")):
            assert _verdicts(backend, key, comparisons) == [False] * len(comparisons)

    def test_presence_and_absence_of_items_and_attributes(self, backend: Backend, place: str) -> None:
        item: Item = {"id": place, "here": False, "empty": ""}
        write(backend, Put(PLAIN, item))
        conditions = [
            make(attribute) for make in (absent, present) for attribute in (None, "here", "empty", "gone", "id")
        ]
        self._agrees(backend, PLAIN.key(place), item, conditions)
        self._agrees(backend, PLAIN.key(place + "-nobody"), None, conditions)

    def test_combined_conditions(self, backend: Backend, place: str) -> None:
        """All, any and not, nested, of conditions that hold, fail, and meet what is absent."""
        item: Item = {"id": place, "n": 5, "s": "x"}
        write(backend, Put(PLAIN, item))
        yes, no = equals("n", 5), equals("n", 6)
        conditions = [
            all_of(yes, equals("s", "x")),
            all_of(yes, no),
            all_of(yes, all_of(yes, any_of(no, yes))),
            any_of(no, no),
            any_of(no, not_(no)),
            not_(yes),
            not_(no),
            not_(not_(yes)),
            not_(all_of(yes, no)),
            not_(any_of(no, no)),
            not_(less_than("gone", 1)),
            differs("n", 5),
            differs("n", 6),
            differs("gone", 1),
            differs("n", "5"),
            all_of(present(), absent("gone"), at_least("n", 5), at_most("n", 5)),
        ]
        self._agrees(backend, PLAIN.key(place), item, conditions)
        self._agrees(backend, PLAIN.key(place + "-nobody"), None, conditions)

    def test_conditions_on_the_key_itself(self, backend: Backend, place: str) -> None:
        write(backend, Put(PLAIN, {"id": place}))
        conditions = [equals("id", place), equals("id", "other"), present("id"), less_than("id", place + "x")]
        self._agrees(backend, PLAIN.key(place), {"id": place}, conditions)

    def test_every_kind_of_write_obeys_its_condition(self, backend: Backend, place: str) -> None:
        """Refused, each leaves the item as it was and hands it back; accepted, each does its work."""
        key = PLAIN.key(place)
        before: Item = {"id": place, "n": 1}
        write(backend, Put(PLAIN, before))
        wrong = equals("n", 2)
        for effect in (
            Write(Put(PLAIN, {"id": place, "n": 9}, when=wrong)),
            Write(Update(key, {"n": 9}, when=wrong)),
            Transact([Put(PLAIN, {"id": place, "n": 9}, when=wrong)]),
            Transact([Update(key, {"n": 9}, when=wrong)]),
            Transact([Delete(key, when=wrong)]),
            Transact([Check(key, wrong)]),
        ):
            error = refused(backend, effect)
            assert error is not None, effect
            (refusal,) = error.refusals
            assert refusal is not None and refusal.why == "condition" and refusal.item == before
            assert get(backend, key) == before
        write(backend, Put(PLAIN, {"id": place, "n": 3}, when=equals("n", 1)))
        write(backend, Update(key, {"n": 4}, when=equals("n", 3)))
        write(backend, Check(key, equals("n", 4)))
        write(backend, Delete(key, when=equals("n", 4)))
        assert get(backend, key) is None

    def test_put_if_absent_stores_once(self, backend: Backend, place: str) -> None:
        write(backend, Put(PLAIN, {"id": place, "by": "first"}, when=absent()))
        error = refused(backend, Transact([Put(PLAIN, {"id": place, "by": "second"}, when=absent())]))
        assert error is not None and error.refusals[0] is not None
        assert error.refusals[0].item == {"id": place, "by": "first"}

    def test_a_refusal_by_an_absent_item_hands_back_none(self, backend: Backend, place: str) -> None:
        error = refused(backend, Transact([Delete(PLAIN.key(place), when=present())]))
        assert error is not None and error.refusals[0] is not None
        assert error.refusals[0].item is None

    def test_a_condition_that_no_store_can_judge_is_misuse(self, backend: Backend, place: str) -> None:
        """Values outside what a store holds, an order of booleans, a combination of nothing."""
        key = PLAIN.key(place)
        for condition in (
            equals("n", 2**63),
            equals("n", 1.5),  # type: ignore[arg-type]
            equals("n", None),  # type: ignore[arg-type]
            equals("n", "\ud800"),
            less_than("n", True),
            all_of(),
            any_of(),
        ):
            with pytest.raises(Misuse):
                backend.execute(Transact([Check(key, condition)]))
