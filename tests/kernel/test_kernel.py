"""Items, conditions, limits, cursors and the retry policy: the kernel's own rules."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from casework.backends.drive import run
from casework.backends.memory import MemoryBackend
from casework.backends.surroundings import VirtualClock
from casework.errors import ConditionFailed, Contention, ItemTooLarge, Misuse, OutcomeUnknown
from casework.kernel import conditions as c
from casework.kernel.cursor import make_cursor, read_cursor
from casework.kernel.effects import Outcome, Query
from casework.kernel.items import Check, Delete, Index, Key, Put, Table, Update, apply_write
from casework.kernel.limits import (
    MAX_INT,
    MAX_ITEM_BYTES,
    MAX_TRANSACTION_BYTES,
    MIN_INT,
    check_key,
    check_query,
    check_transaction,
    check_value,
    check_write,
    size_of,
)
from casework.kernel.programs import lost_again
from casework.kernel.retry import RetryPolicy, fraction

# The first text that Hypothesis draws builds its table of Unicode, which takes seconds on a slow host.
at_any_speed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

PLAIN = Table(name="plain", partition="id")
SORTED = Table(name="sorted", partition="id", sort="sort", indexes=(Index(name="due", partition="b", sort="d"),))

scalars = st.one_of(st.text(max_size=8), st.integers(MIN_INT, MAX_INT), st.booleans(), st.binary(max_size=8))
names = st.sampled_from(("a", "b", "c"))
items = st.none() | st.dictionaries(names, scalars, max_size=3)


# --- items ----------------------------------------------------------------------------------------------------------


def test_a_key_says_where_it_is() -> None:
    assert str(SORTED.key("o-1", "0")) == "sorted['o-1' '0']"
    assert str(PLAIN.key("o-1")) == "plain['o-1']"
    assert SORTED.key_of({"id": "a", "sort": "b", "x": 1}) == SORTED.key("a", "b")
    assert PLAIN.key("a") == Key(PLAIN, "a") and hash(PLAIN.key("a")) == hash(Key(PLAIN, "a"))
    assert SORTED.index("due").partition == "b"
    with pytest.raises(KeyError, match="no index 'nobody', only"):
        SORTED.index("nobody")


@at_any_speed
@given(before=items, changes=st.dictionaries(names, scalars), removed=st.lists(names))
def test_what_an_update_leaves(before: Any, changes: Any, removed: list[str]) -> None:
    removed = [name for name in removed if name not in changes]
    stored = None if before is None else {"id": "k", **before}
    after = apply_write(Update(PLAIN.key("k"), changes, removed), stored)
    expected = {"id": "k", **(before or {}), **changes}
    assert after == {name: value for name, value in expected.items() if name not in removed}
    assert stored is None or stored == {"id": "k", **before}  # it was not changed in place


def test_what_the_other_writes_leave() -> None:
    item = {"id": "k", "n": 1}
    assert apply_write(Put(PLAIN, {"id": "k", "m": 2}), item) == {"id": "k", "m": 2}
    assert apply_write(Delete(PLAIN.key("k")), item) is None
    assert apply_write(Check(PLAIN.key("k"), c.present()), item) == item
    assert apply_write(Check(PLAIN.key("k"), c.absent()), None) is None


# --- conditions, against a naive model --------------------------------------------------------------------------------


def model(condition: c.Condition, item: Any) -> bool:
    """The meaning once more, in other words."""
    if isinstance(condition, c.Absent | c.Present):
        there = item is not None and (condition.attribute is None or condition.attribute in item)
        return there == isinstance(condition, c.Present)
    if isinstance(condition, c.Equals | c.Compares):
        if item is None or condition.attribute not in item:
            return False
        found, value = item[condition.attribute], condition.value
        if type(found) is not type(value):
            return False
        if isinstance(found, str):
            found, value = [ord(ch) for ch in found], [ord(ch) for ch in value]
        order = "=" if found == value else "<" if found < value else ">"
        return order in (condition.operator if isinstance(condition, c.Compares) else "=")
    if isinstance(condition, c.Not):
        return not model(condition.condition, item)
    parts = [model(part, item) for part in condition.conditions]  # type: ignore[attr-defined]
    return (min if isinstance(condition, c.AllOf) else max)(parts)


ordered = scalars.filter(lambda value: type(value) is not bool)
simple = st.one_of(
    st.builds(c.absent, st.none() | names),
    st.builds(c.present, st.none() | names),
    st.builds(c.equals, names, scalars),
    st.builds(c.differs, names, scalars),
    *(st.builds(compare, names, ordered) for compare in (c.less_than, c.at_most, c.greater_than, c.at_least)),
)
all_conditions = st.recursive(
    simple, lambda x: st.one_of(st.builds(c.all_of, x, x), st.builds(c.any_of, x, x), st.builds(c.not_, x))
)


@at_any_speed
@given(all_conditions, items)
def test_a_condition_means_what_the_model_says(condition: c.Condition, item: Any) -> None:
    assert c.evaluate(condition, item) == model(condition, item)
    assert c.evaluate(c.not_(condition), item) != c.evaluate(condition, item)


@at_any_speed
@given(names, scalars, scalars)
def test_two_values_stand_in_one_order_or_in_none(name: str, found: Any, value: Any) -> None:
    item = {name: found}
    if type(value) is not bool:
        verdicts = [make(name, value).holds(item) for make in (c.less_than, c.equals, c.greater_than)]
        assert sum(verdicts) == (type(found) is type(value))
    assert c.equals(name, value).holds(item) == (type(found) is type(value) and found == value)


def test_no_condition_always_holds() -> None:
    assert c.evaluate(None, None) and c.evaluate(None, {})


@pytest.mark.parametrize(
    ("condition", "text"),
    [
        (c.absent(), "absent()"),
        (c.present("a"), "present('a')"),
        (c.equals("a", 1), "equals('a', 1)"),
        (c.differs("a", 1), "not_(equals('a', 1))"),
        (c.less_than("a", 1), "less_than('a', 1)"),
        (c.at_most("a", "x" * 200), f"at_most('a', '{'x' * 79})"),
        (c.greater_than("a", b"x"), "greater_than('a', b'x')"),
        (c.at_least("a", 1), "at_least('a', 1)"),
        (c.all_of(c.absent(), c.equals("a", True)), "all_of(absent(), equals('a', True))"),
        (c.any_of(c.not_(c.absent("b")), c.absent("a")), "any_of(not_(absent('b')), absent('a'))"),
    ],
)
def test_a_condition_is_told_as_it_is_written(condition: c.Condition, text: str) -> None:
    assert c.spoken(condition) == text


# --- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "size"),
    [("", 0), ("abc", 3), ("\u00e9", 2), ("\U0001f600", 4), (True, 1), (b"\x00\x01", 2), ("a" * 1000, 1000)],
)
def test_the_size_of_a_value(value: Any, size: int) -> None:
    assert check_value(value, "here") == size
    assert size_of({"name": value}, "here") == size + 4


@at_any_speed
@given(st.integers(MIN_INT, MAX_INT))
def test_a_number_takes_no_more_than_the_documented_bytes(value: int) -> None:
    assert 1 <= check_value(value, "here") <= 21
    assert size_of({"n": value}, "here") == check_value(value, "here") + 1


@pytest.mark.parametrize(
    "value", [None, 1.0, float("inf"), [], {}, (), MAX_INT + 1, MIN_INT - 1, "\0", "a\0", "\ud83d", ...], ids=repr
)
def test_what_is_no_value_is_shown_with_its_place(value: Any) -> None:
    with pytest.raises(Misuse, match=r"^plain\['k'\]\.v: "):
        check_write(Put(PLAIN, {"id": "k", "v": value}))
    with pytest.raises(Misuse, match=r"^plain\['k'\]\.v: "):
        check_write(Update(PLAIN.key("k"), {"v": value}))
    with pytest.raises(Misuse, match=r"^plain\['k'\]"):
        check_write(Delete(PLAIN.key("k"), c.equals("v", value)))


class TextOfItsOwn(str):
    """A subclass of str: what it would come back as is not what was put."""


@pytest.mark.parametrize("name", ["", "_x", "x" * 256, 3, None, "\ud800", "\0", TextOfItsOwn("v")], ids=repr)
def test_what_is_no_name_of_an_attribute(name: Any) -> None:
    check_write(Put(PLAIN, {"id": "k", "v": 1}))  # the name is known now
    for write in (
        Put(PLAIN, {"id": "k", name: 1}),
        Update(PLAIN.key("k"), {name: 1}),
        Update(PLAIN.key("k"), {}, [name]),
    ):
        with pytest.raises(Misuse):
            check_write(write)


def test_the_limits_of_keys_are_in_bytes() -> None:
    assert check_key(SORTED.key("\u00e9" * 1024, "\U0001f600" * 256)) == 2048 + 1024
    for key in (
        SORTED.key("\u00e9" * 1025, "s"),
        SORTED.key("p", "\U0001f600" * 257),
        SORTED.key("p"),
        PLAIN.key("p", 1),
    ):
        with pytest.raises(Misuse):
            check_key(key)


def test_an_item_of_exactly_the_limit_fits() -> None:
    room = MAX_ITEM_BYTES - len("idkdata")
    assert check_write(Put(PLAIN, {"id": "k", "data": "x" * room})) == MAX_ITEM_BYTES
    with pytest.raises(ItemTooLarge, match=rf"plain\['k'\].*{MAX_ITEM_BYTES + 1:,}.*{MAX_ITEM_BYTES:,}"):
        check_write(Put(PLAIN, {"id": "k", "data": b"x" * (room + 1)}))


def test_the_limits_of_a_transaction() -> None:
    deletes = [Delete(PLAIN.key(f"{n}")) for n in range(101)]
    assert check_transaction(deletes[:100]) == 190
    for wrong in ([], deletes, [deletes[0], Check(PLAIN.key("0"), c.absent())]):
        with pytest.raises(Misuse):
            check_transaction(wrong)
    with pytest.raises(ItemTooLarge, match=f"{MAX_TRANSACTION_BYTES:,}"):
        check_transaction([Put(PLAIN, {"id": f"{n}", "data": "x" * 400_000}) for n in range(11)])
    with pytest.raises(Misuse, match="is not a Put"):
        check_transaction(["put"])  # type: ignore[list-item]
    with pytest.raises(Misuse, match="lacks its key attribute 'id'"):
        check_transaction([Put(PLAIN, {"n": 1})])


def test_what_is_no_condition_is_misuse() -> None:
    for wrong in (c.AllOf(()), c.AnyOf(()), c.not_(c.equals("a", 1.5)), c.less_than("a", True), "a = 1"):  # type: ignore[arg-type]
        with pytest.raises(Misuse):
            check_write(Delete(PLAIN.key("k"), wrong))  # type: ignore[arg-type]
    with pytest.raises(Misuse, match="checks nothing"):
        check_write(Check(PLAIN.key("k"), None))  # type: ignore[arg-type]


# --- cursors ----------------------------------------------------------------------------------------------------------


@at_any_speed
@given(st.text() | st.integers(MIN_INT, MAX_INT), st.text(), st.none() | st.text() | st.integers(MIN_INT, MAX_INT))
def test_a_cursor_comes_back_as_it_was_made(sort: Any, partition: str, own: Any) -> None:
    query = Query(SORTED, "p")
    try:
        cursor = make_cursor(query, (sort, partition, own))
    except UnicodeEncodeError:
        return  # no stored text holds a lone surrogate
    again = Query(SORTED, "p", after=cursor, limit=7)  # the limit may change
    check_query(again)
    assert read_cursor(again) == (sort, partition, own)
    for other in (
        Query(SORTED, "q", after=cursor),
        Query(SORTED, "p", reverse=True, after=cursor),
        Query(SORTED, "p", low="a", after=cursor),
        Query(SORTED, "p", index="due", after=cursor),
        Query(PLAIN, "p", after=cursor),
    ):
        with pytest.raises(Misuse, match="another query"):
            read_cursor(other)


@at_any_speed
@given(st.text(max_size=40))
def test_text_that_is_no_cursor_is_misuse(text: str) -> None:
    with pytest.raises(Misuse, match="cursor"):
        read_cursor(Query(SORTED, "p", after=text))


# --- retry ------------------------------------------------------------------------------------------------------------


@at_any_speed
@given(st.integers(1, 5000), st.text(max_size=30).filter(lambda text: text.isascii()))
def test_a_pause_grows_to_its_bound_and_no_further(lost: int, dice: str) -> None:
    policy = RetryPolicy(first_pause_s=0.01, max_pause_s=1.0)
    assert 0 <= fraction(dice) < 1
    assert policy.pause_s(lost, dice) == min(1.0, 0.01 * 2 ** min(lost - 1, 20)) * fraction(dice)


def test_pauses_are_spread_over_all_of_their_range() -> None:
    fractions = [fraction(f"dice-{n}") for n in range(400)]
    assert min(fractions) < 0.05 and max(fractions) > 0.95 and 0.4 < sum(fractions) / 400 < 0.6


def test_giving_up_is_bounded_by_rounds() -> None:
    assert [RetryPolicy(rounds_max=3).gives_up(rounds) for rounds in (1, 2, 3, 4)] == [False, False, True, True]


def test_a_lost_round_pauses_and_too_many_give_up_with_the_error_or_by_name() -> None:
    clock = VirtualClock()
    backend = MemoryBackend(seed=1, clock=clock)
    policy = RetryPolicy(rounds_max=3)
    before = clock.now()
    assert run(lost_again(0, policy, "the name"), backend) == 1
    assert run(lost_again(1, policy, "the name"), backend) == 2
    assert clock.now().middle_us > before.middle_us
    with pytest.raises(Contention, match="the name: lost 3 races in a row"):
        run(lost_again(2, policy, "the name"), backend)
    last = OutcomeUnknown("no answer")
    with pytest.raises(OutcomeUnknown) as raised:
        run(lost_again(2, policy, last), backend)
    assert raised.value is last


# --- outcomes ---------------------------------------------------------------------------------------------------------


def test_an_outcome_gives_its_value_or_raises_its_error() -> None:
    assert Outcome(3).result() == 3
    with pytest.raises(ZeroDivisionError):
        Outcome(error=ZeroDivisionError()).result()


def test_errors_with_contents_survive_pickling() -> None:
    error = pickle.loads(pickle.dumps(ConditionFailed([None], "no")))
    assert error.refusals == (None,) and str(error) == "no"
