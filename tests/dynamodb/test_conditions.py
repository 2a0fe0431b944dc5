"""A condition means on the server what ``evaluate`` says, for every condition, type and edge value."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from casework.backends.dynamodb import DynamoDBBackend
from casework.backends.dynamodb.encode import Expressions, compile_condition
from casework.errors import ConditionFailed, Misuse
from casework.kernel import conditions as c
from casework.kernel.conditions import Condition, evaluate
from casework.kernel.effects import Get, Transact
from casework.kernel.items import Check, Item, Put, Table

THINGS = Table(name="things", partition="id", sort="n", sort_type="int")
KEY = THINGS.key("k", -1)

_INTS = st.sampled_from([-(2**63), -(10**18), -1, 0, 1, 2, 9, 10, 2**53, 2**53 + 1, 2**63 - 1])
_TEXTS = st.sampled_from(["", "0", "1", "a", "A", "b", "ab", "é", "~", "\U0001f600", "\uffff", "true"])
_BYTES = st.sampled_from([b"", b"\0", b"a", b"\xff", b"\xff\0"])
_VALUES: Any = st.one_of(_INTS, _TEXTS, _BYTES, st.booleans())
_ORDERED: Any = st.one_of(_INTS, _TEXTS, _BYTES)
_NAMES = st.sampled_from(["a", "b", "size", "and.or[0]", "ключ", "id", "n"])
_OWN = st.sampled_from(["a", "b", "size", "and.or[0]", "ключ"])

_LEAVES: Any = st.one_of(
    st.builds(c.absent),
    st.builds(c.present),
    st.builds(c.absent, _NAMES),
    st.builds(c.present, _NAMES),
    st.builds(c.equals, _NAMES, _VALUES),
    st.builds(c.differs, _NAMES, _VALUES),
    st.builds(lambda make, name, value: make(name, value), st.sampled_from([c.less_than, c.at_most]), _NAMES, _ORDERED),
    st.builds(
        lambda make, name, value: make(name, value), st.sampled_from([c.greater_than, c.at_least]), _NAMES, _ORDERED
    ),
)
_CONDITIONS: Any = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.builds(c.not_, inner),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: c.all_of(*parts)),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: c.any_of(*parts)),
    ),
    max_leaves=6,
)
_ITEMS: Any = st.one_of(st.none(), st.dictionaries(_OWN, _VALUES, max_size=4))


@pytest.fixture(scope="module", params=["ministack", "roto"])
def store(request: pytest.FixtureRequest) -> Any:
    import uuid

    url = request.getfixturevalue(f"{request.param}_url")
    with DynamoDBBackend(endpoint_url=url, prefix=f"c-{uuid.uuid4().hex[:8]}") as backend:
        backend.create_tables([THINGS])
        yield backend


def holds_on(store: Any, place: int, condition: Condition, attributes: dict[str, Any] | None) -> tuple[bool, Any]:
    key = THINGS.key("k", place)
    item: Item | None = None if attributes is None else {"id": "k", "n": place, **attributes}
    if item is not None:
        store.execute(Transact([Put(THINGS, item)]))
    expected = evaluate(condition, item)
    try:
        store.execute(Transact([Check(key, condition)]))
        return True, expected
    except ConditionFailed as error:
        refusal = error.refusals[0]
    assert refusal is not None
    assert refusal.item == store.execute(Get(key)) == item
    return False, expected


_places = itertools.count()


@given(condition=_CONDITIONS, attributes=_ITEMS)
@settings(max_examples=400, deadline=None)
def test_a_compiled_condition_holds_exactly_when_evaluate_says_so(
    store: Any, condition: Condition, attributes: dict[str, Any] | None
) -> None:
    found, expected = holds_on(store, next(_places), condition, attributes)
    assert found == expected


_EDGES: list[Any] = [0, 1, -1, 2**53 + 1, "", "1", "a", "é", b"", b"1", True, False]


def test_values_of_different_types_are_never_equal_and_never_ordered(store: Any) -> None:
    wrong = []
    makers: list[Callable[[str, Any], Condition]] = [c.equals, c.differs, c.less_than, c.at_least]
    for stored, value, make in itertools.product(_EDGES, _EDGES, makers):
        if type(value) is bool and make in (c.less_than, c.at_least):
            continue
        found, expected = holds_on(store, next(_places), make("a", value), {"a": stored})
        if found != expected:
            wrong.append((make.__name__, stored, value, found))
    assert wrong == []


def test_names_and_values_always_go_through_placeholders() -> None:
    terms = Expressions()
    text = compile_condition(c.all_of(c.equals("size", "size"), c.absent("and"), c.less_than("size", 1)), THINGS, terms)
    assert text == "#0 = :0 AND attribute_not_exists(#1) AND #0 < :1"
    assert terms.fields() == {
        "ExpressionAttributeNames": {"#0": "size", "#1": "and"},
        "ExpressionAttributeValues": {":0": {"S": "size"}, ":1": {"N": "1"}},
    }


@pytest.mark.parametrize(
    ("condition", "text"),
    [
        (c.not_(c.not_(c.present("a"))), "attribute_exists(#0)"),
        (c.differs("a", 1), "NOT (#0 = :0)"),
        (
            c.all_of(c.any_of(c.absent("a"), c.present("b")), c.present("a")),
            "(attribute_not_exists(#0) OR attribute_exists(#1)) AND attribute_exists(#0)",
        ),
        (
            c.any_of(c.all_of(c.absent("a"), c.present("b")), c.present("a")),
            "attribute_not_exists(#0) AND attribute_exists(#1) OR attribute_exists(#0)",
        ),
        (c.not_(c.any_of(c.absent("a"), c.present("b"))), "NOT (attribute_not_exists(#0) OR attribute_exists(#1))"),
    ],
)
def test_parentheses_stand_only_where_they_are_needed(condition: Condition, text: str) -> None:
    """DynamoDB refuses ``((a = b))``: "The expression has redundant parentheses"."""
    assert compile_condition(condition, THINGS, Expressions()) == text


def test_a_condition_too_long_for_dynamodb_is_refused_before_it_is_sent(store: Any) -> None:
    condition = c.any_of(*(c.equals("a", n) for n in range(600)))
    with pytest.raises(Misuse, match="use fewer parts"):
        store.execute(Transact([Check(KEY, condition)]))
