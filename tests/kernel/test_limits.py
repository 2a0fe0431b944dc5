"""What is refused before it is sent: queries, keys, keys of indexes, and limits at their very edge."""

from __future__ import annotations

from typing import Any

import pytest

from casework.errors import ItemTooLarge, Misuse
from casework.kernel import limits
from casework.kernel.conditions import absent, all_of, any_of, equals, less_than, not_
from casework.kernel.effects import Query
from casework.kernel.items import Check, Delete, Index, Put, Table, Update
from casework.kernel.limits import (
    MAX_ITEM_BYTES,
    MAX_PARTITION_BYTES,
    MAX_SORT_BYTES,
    MAX_TRANSACTION_BYTES,
    check_key,
    check_query,
    check_transaction,
    check_value,
    check_write,
    size_of,
)

PLAIN = Table(name="plain", partition="id")
NUMBERED = Table(name="numbered", partition="id", sort="n", sort_type="int")
SORTED = Table(
    name="sorted",
    partition="id",
    sort="sort",
    indexes=(
        Index(name="due", partition="b", sort="d", sort_type="int"),
        Index(name="named", partition="b", sort="name"),
    ),
)
OTHER = Table(name="other", partition="id")


# --- queries --------------------------------------------------------------------------------------------------------

GOOD = [
    Query(PLAIN, "p"),
    Query(PLAIN, "p", limit=1),
    Query(SORTED, "p", low="a", high="a"),
    Query(SORTED, "p", high="b"),
    Query(NUMBERED, "p", low=0, high=0),
    Query(SORTED, "p", index="due", low=1, high=2),
    Query(SORTED, "p", index="named", low="a"),
    Query(SORTED, "\u00e9"),
]
BAD = [
    (Query(PLAIN, "p", limit=0), "limit is 0; it must be at least 1"),
    (Query(PLAIN, "p", limit=-1), "limit is -1"),
    (Query(PLAIN, "p", limit=True), "limit is True"),
    (Query(PLAIN, "p", limit="2"), "limit is 2"),  # type: ignore[arg-type]
    (Query(PLAIN, "p", low="a"), "no sort key"),
    (Query(PLAIN, "p", high="a"), "no sort key"),
    (Query(SORTED, "p", index="nobody"), "table 'sorted' has no index 'nobody'"),
    (Query(SORTED, "p", low=1), "1 is no bound for a sort key of type str"),
    (Query(SORTED, "p", high=1), "1 is no bound for a sort key of type str"),
    (Query(SORTED, "p", low=""), "'' is no bound"),
    (Query(SORTED, "p", high=""), "'' is no bound"),
    (Query(SORTED, "p", low="a\0"), "a bound: a string holds a NUL"),
    (Query(SORTED, "p", high="\ud800"), "a bound: .* is not valid Unicode"),
    (Query(NUMBERED, "p", high=2**63), "a bound: .* does not fit in 64 bits"),
    (Query(NUMBERED, "p", low=True), "True is no bound"),
    (Query(SORTED, "p", index="due", low="a"), "'a' is no bound for a sort key of type int"),
    (Query(SORTED, "p", index="named", low=1), "1 is no bound for a sort key of type str"),
    (Query(SORTED, "p", low="b", high="a"), "the low bound 'b' is above the high bound 'a'"),
    (Query(SORTED, ""), "'' is not a partition"),
    (Query(SORTED, None), "None is not a partition"),  # type: ignore[arg-type]
    (Query(SORTED, 3), "3 is not a partition"),  # type: ignore[arg-type]
    (Query(SORTED, "p\0"), "sorted.id: a string holds a NUL"),
    (Query(SORTED, "\ud800"), "sorted.id: .* is not valid Unicode"),
]


@pytest.mark.parametrize("query", GOOD, ids=str)
def test_a_query_that_can_work_passes(query: Query) -> None:
    check_query(query)
    check_query(query, query)


@pytest.mark.parametrize(("query", "says"), BAD, ids=[says for _, says in BAD])
@pytest.mark.parametrize("passed", [None, *GOOD], ids=str)
def test_a_query_that_cannot_work_is_refused_whatever_passed_before(
    query: Query, says: str, passed: Query | None
) -> None:
    with pytest.raises(Misuse, match=says):
        check_query(query, passed)


def test_a_query_of_another_table_is_checked_though_all_else_is_the_same() -> None:
    passed = Query(SORTED, "p", low="a", high="b")
    for wrong in (Query(OTHER, "p", low="a", high="b"), Query(NUMBERED, "p", low="a", high="b")):
        with pytest.raises(Misuse):
            check_query(wrong, passed)


# --- keys -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "size"),
    [
        (PLAIN.key("p"), 1),
        (PLAIN.key("p" * 512), 512),
        (PLAIN.key("p" * 513), 513),
        (PLAIN.key("p" * MAX_PARTITION_BYTES), MAX_PARTITION_BYTES),
        (SORTED.key("p", "s" * 512), 513),
        (SORTED.key("p", "s" * 513), 514),
        (SORTED.key("p", "s" * MAX_SORT_BYTES), 1 + MAX_SORT_BYTES),
        (NUMBERED.key("p", 0), 1 + 2),
        (NUMBERED.key("p", -(2**63)), 1 + 12),
        (NUMBERED.key("p", 2**63 - 1), 1 + 12),
    ],
    ids=lambda value: f"{value!s:.30}",
)
def test_the_size_of_a_key_up_to_its_limit(key: Any, size: int) -> None:
    assert check_key(key) == size


@pytest.mark.parametrize(
    ("key", "says"),
    [
        (PLAIN.key("p" * (MAX_PARTITION_BYTES + 1)), "1 to 2048 bytes, this one has 2049"),
        (SORTED.key("p", "s" * (MAX_SORT_BYTES + 1)), "1 to 1024 bytes, this one has 1025"),
        (PLAIN.key(""), "plain.id: a key has 1 to 2048 bytes, this one has 0"),
        (SORTED.key("p", ""), "sorted.sort: a key has 1 to 1024 bytes, this one has 0"),
        (PLAIN.key("p\0"), "plain.id: a string holds a NUL"),
        (SORTED.key("p", "s\0"), "sorted.sort: a string holds a NUL"),
        (PLAIN.key(3), "plain.id: 3 is a int; this key is a str"),  # type: ignore[arg-type]
        (PLAIN.key("p", "s"), "plain has no sort key, but 's' was given"),
        (SORTED.key("p", 3), "sorted.sort: 3 is a int; this key is a str"),
        (NUMBERED.key("p", "3"), "numbered.n: '3' is a str; this key is a int"),
        (NUMBERED.key("p", True), "numbered.n: True is a bool; this key is a int"),
        (NUMBERED.key("p", 2**63), "numbered.n: .* does not fit in 64 bits"),
    ],
    ids=lambda value: f"{value!s:.30}",
)
def test_what_is_no_key_is_refused_with_its_attribute(key: Any, says: str) -> None:
    with pytest.raises(Misuse, match=says):
        check_key(key)
    for write in (Update(key, {"x": 1}), Delete(key), Check(key, absent())):
        with pytest.raises(Misuse, match=says):
            check_write(write)


INDEXED = [
    ({"b": "x" * MAX_PARTITION_BYTES}, None),
    ({"b": "x" * (MAX_PARTITION_BYTES + 1)}, "sorted.b: a key has 1 to 2048 bytes"),
    ({"b": ""}, "sorted.b: a key has 1 to 2048 bytes"),
    ({"b": 1}, "sorted.b: 1 is a int"),
    ({"d": 0}, None),
    ({"d": "0"}, "sorted.d: '0' is a str; this key is a int"),
    ({"d": True}, "sorted.d: True is a bool"),
    ({"name": "\u00e9" * 512}, None),
    ({"name": "\u00e9" * 513}, "sorted.name: a key has 1 to 1024 bytes, this one has 1026"),
    ({"name": ""}, "sorted.name: a key has 1 to 1024 bytes"),
    ({"name": 7}, "sorted.name: 7 is a int"),
]


@pytest.mark.parametrize(("attributes", "says"), INDEXED, ids=lambda value: f"{value!s:.30}")
def test_an_attribute_of_an_index_is_a_key_as_well(attributes: dict[str, Any], says: str | None) -> None:
    for write in (Put(SORTED, {"id": "k", "sort": "s", **attributes}), Update(SORTED.key("k", "s"), attributes)):
        if says is None:
            check_write(write)
        else:
            with pytest.raises(Misuse, match=says):
                check_write(write)


# --- writes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (({"id": "x"}, ()), "'id' is the item's key and cannot be changed"),
        (({"sort": "x"}, ()), "'sort' is the item's key"),
        (({"x": 1}, ("id",)), "'id' is the item's key"),
        (({}, ("y", "sort")), "'sort' is the item's key"),
        (({"x": 1}, ("x", "y")), r"both sets and removes \['x'\]"),
    ],
)
def test_an_update_leaves_the_key_alone_and_does_not_contradict_itself(changes: Any, says: str) -> None:
    with pytest.raises(Misuse, match=says):
        check_write(Update(SORTED.key("k", "s"), *changes))


def test_an_update_counts_its_key_and_what_it_sets() -> None:
    assert check_write(Update(SORTED.key("key", "s"), {"data": "12345"}, ("gone",))) == len("key" + "s" + "data12345")
    assert check_write(Update(PLAIN.key("k"), {"d": "x" * (MAX_ITEM_BYTES - 2)})) == MAX_ITEM_BYTES
    with pytest.raises(ItemTooLarge):
        check_write(Update(PLAIN.key("k"), {"d": "x" * (MAX_ITEM_BYTES - 1)}))


def test_a_transaction_counts_all_of_its_writes_and_is_as_large_as_its_limit_says() -> None:
    assert check_transaction([Put(PLAIN, {"id": "a", "n": 1}), Delete(SORTED.key("b", "c"))]) == 2 + 1 + 1 + 2 + 2
    full = [Put(PLAIN, {"id": f"{n:02}", "d": "x" * (400_000 - 5)}) for n in range(10)]
    rest = MAX_TRANSACTION_BYTES - 10 * 400_000
    assert check_transaction([*full, Put(PLAIN, {"id": "zz", "d": "x" * (rest - 5)})]) == MAX_TRANSACTION_BYTES
    with pytest.raises(ItemTooLarge, match=f"this one has {MAX_TRANSACTION_BYTES + 1:,}"):
        check_transaction([*full, Put(PLAIN, {"id": "zz", "d": "x" * (rest - 4)})])


def test_items_of_other_tables_or_other_sort_keys_are_not_the_same_item() -> None:
    check_transaction([Delete(PLAIN.key("a")), Delete(OTHER.key("a"))])
    check_transaction([Delete(SORTED.key("a", "1")), Delete(SORTED.key("a", "2"))])
    with pytest.raises(Misuse, match=r"this one has two for sorted\['a' '1'\]"):
        check_transaction([Delete(SORTED.key("a", "1")), Delete(SORTED.key("a", "1"))])


@pytest.mark.parametrize(
    "wrap",
    [
        lambda one: one,
        not_,
        lambda one: all_of(absent(), one),
        lambda one: any_of(one, absent()),
    ],
)
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (equals("v", 1.5), "1.5 is a float"),  # type: ignore[arg-type]
        (less_than("v", None), "leave the attribute out"),  # type: ignore[arg-type]
        (less_than("v", True), "booleans have no order"),  # type: ignore[arg-type]
    ],
)
def test_a_value_that_cannot_be_compared_is_found_anywhere_in_a_condition(wrap: Any, wrong: Any, says: str) -> None:
    with pytest.raises(Misuse, match=says):
        check_write(Delete(PLAIN.key("k"), wrap(wrong)))


def test_only_none_is_told_to_be_left_out() -> None:
    with pytest.raises(Misuse, match="leave the attribute out"):
        check_value(None, "here")
    with pytest.raises(Misuse, match=r"here.name: \[\] is a list; an attribute is a str, int, bool or bytes$"):
        check_value([], "here", "name")


def test_names_have_255_characters_and_many_of_them_are_known_no_more() -> None:
    assert size_of({"x" * 255: 1}, "here") == 255 + 2
    with pytest.raises(Misuse, match="not an attribute name"):
        size_of({"x" * 256: 1}, "here")
    for n in range(limits._MOST_NAMES + 10):
        size_of({f"name-{n}": 1}, "here")
    assert len(limits._sizes_of_names) <= limits._MOST_NAMES
    assert size_of({"n\u00e9w": 1}, "here") == 4 + 2
