"""The differential test: random sequences of effects must be answered as the memory reference answers them.

Hypothesis makes the sequences, from few keys and from values at the edges, so that writes meet each other; a failure
is shrunk to the shortest sequence on which the two stores differ. For whoever writes a backend::

    @given(sequences())
    def test_my_backend_agrees_with_the_reference(backend, steps):
        assert_same_answers(backend, steps)

Every run uses partitions of its own in the tables of the contract, so one real store serves all runs.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import strategies as st

from casework.backends.memory import MemoryBackend
from casework.backends.port import Backend, StoreEffect
from casework.errors import CaseworkError, ConditionFailed
from casework.kernel.conditions import (
    Condition,
    absent,
    all_of,
    any_of,
    at_least,
    at_most,
    differs,
    equals,
    greater_than,
    less_than,
    not_,
    present,
)
from casework.kernel.effects import Get, GetMany, Outcome, Page, Query, Transact, Write
from casework.kernel.items import AnyWrite, Check, Delete, Item, Key, Put, Scalar, Update
from casework.testing.contract_tables import CONTRACT_TABLES, EDGE_VALUES, NUMBERED, PLAIN, SORTED, eventually

PLACEHOLDER = "\u2691"
"""Stands in partitions where the run's own name goes, so that a sequence can be played again elsewhere."""

_PARTITIONS = (f"{PLACEHOLDER}a", f"{PLACEHOLDER}b")
_SORTS: dict[str, tuple[str | int | None, ...]] = {
    PLAIN.name: (None,),
    SORTED.name: ("0", "a", "\uffff", "\U00010000"),
    NUMBERED.name: (-(2**63), -1, 0, 10, 9),
}
_NAMES = ("n", "s", "b64", "x y", "attributes")

_tables = st.sampled_from(CONTRACT_TABLES)
_values: st.SearchStrategy[Scalar] = st.sampled_from(EDGE_VALUES) | st.integers(0, 3)
_ordered = _values.filter(lambda value: type(value) is not bool)
_attributes = st.dictionaries(st.sampled_from(_NAMES), _values, max_size=3)
_index_attributes: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "bucket": st.sampled_from(_PARTITIONS),
        "due_at_us": st.sampled_from((-5, 0, 7, 2**63 - 1)),
        "shelf": st.sampled_from(_PARTITIONS),
        "label": st.sampled_from(("a", "\uffff", "\U00010000")),
    },
)


def _conditions() -> st.SearchStrategy[Condition]:
    names = st.sampled_from((*_NAMES, "bucket", "id"))
    simple = st.one_of(
        st.builds(absent, st.none() | names),
        st.builds(present, st.none() | names),
        st.builds(equals, names, _values),
        st.builds(differs, names, _values),
        *(st.builds(compare, names, _ordered) for compare in (less_than, at_most, greater_than, at_least)),
    )
    return st.recursive(
        simple,
        lambda inner: st.one_of(
            st.builds(all_of, inner, inner), st.builds(any_of, inner, inner), st.builds(not_, inner)
        ),
        max_leaves=4,
    )


@st.composite
def _keys(draw: st.DrawFn) -> Key:
    table = draw(_tables)
    return table.key(draw(st.sampled_from(_PARTITIONS)), draw(st.sampled_from(_SORTS[table.name])))


@st.composite
def _writes(draw: st.DrawFn) -> AnyWrite:
    key = draw(_keys())
    table = key.table
    when = draw(st.none() | _conditions())
    kind = draw(st.sampled_from((Put, Update, Delete, Check)))
    if kind is Delete:
        return Delete(key, when)
    if kind is Check:
        return Check(key, when or draw(_conditions()))
    attributes: dict[str, Scalar] = draw(_attributes)
    if table is SORTED:
        attributes |= draw(_index_attributes)
    if kind is Put:
        own: Item = {table.partition: key.partition}
        if table.sort is not None:
            own[table.sort] = key.sort  # type: ignore[assignment]
        return Put(table, own | attributes, when)
    removable = st.sampled_from((*_NAMES, "bucket", "due_at_us", "shelf", "label"))
    remove = [name for name in draw(st.lists(removable, unique=True, max_size=2)) if name not in attributes]
    return Update(key, attributes, remove, when)


@st.composite
def _queries(draw: st.DrawFn) -> Query:
    table = draw(_tables)
    index = draw(st.sampled_from((None, *(index.name for index in table.indexes))))
    if index is not None:
        sorts: tuple[Any, ...] = (-5, 0, 8) if index == "due" else ("a", "b", "\U00010000")
    else:
        sorts = () if table.sort is None else _SORTS[table.name]
    bounds = st.none() if not sorts else st.none() | st.sampled_from(sorts)
    low, high = draw(bounds), draw(bounds)
    if low is not None and high is not None and low > high:
        low, high = high, low
    limit = draw(st.none() | st.integers(1, 3))
    return Query(table, draw(st.sampled_from(_PARTITIONS)), index, low, high, limit, draw(st.booleans()))


def _effects() -> st.SearchStrategy[StoreEffect]:
    distinct = st.lists(_writes(), min_size=1, max_size=4, unique_by=lambda write: _place_of(write.key))
    return st.one_of(
        st.builds(Transact, distinct),
        st.builds(Transact, distinct),
        st.builds(Write, _writes().filter(lambda write: isinstance(write, Put | Update))),
        st.builds(Get, _keys()),
        st.builds(GetMany, st.lists(_keys(), max_size=6)),
        _queries(),
    )


def sequences(max_size: int = 25) -> st.SearchStrategy[list[list[StoreEffect]]]:
    """Sequences of steps. A step is one effect, or several reads or several writes of separate items at once."""
    separate = st.lists(_writes(), min_size=1, max_size=6, unique_by=lambda write: _place_of(write.key))
    together = st.one_of(
        separate.map(lambda writes: [Transact([write]) for write in writes]),
        st.lists(st.one_of(st.builds(Get, _keys()), _queries()), min_size=2, max_size=5),
    )
    step: st.SearchStrategy[Any] = st.one_of(_effects().map(lambda effect: [effect]), together)
    return st.lists(step, min_size=1, max_size=max_size)


def _place_of(key: Key) -> tuple[str, str, str | int | None]:
    return key.table.name, key.partition, key.sort


def assert_same_answers(backend: Backend, steps: Sequence[Sequence[StoreEffect]]) -> None:
    """Play ``steps`` on ``backend`` and on the reference; every answer and every refusal must be the same.

    Pages are followed to their end on both. Queries of an index are asked again until they agree, since it may lag.
    """
    reference = MemoryBackend(seed=0)
    reference.create_tables(CONTRACT_TABLES)
    run = secrets.token_hex(8)
    for step in steps:
        effects = [_moved(effect, run) for effect in step]
        expected = [_plain(outcome) for outcome in reference.execute_many(effects)]
        if any(isinstance(effect, Query) and effect.index is not None for effect in effects):
            eventually(backend, lambda: [_plain(o) for o in backend.execute_many(effects)], expected)  # noqa: B023
        else:
            found = [_plain(outcome) for outcome in backend.execute_many(effects)]
            assert found == expected, step
        for effect in effects:
            if isinstance(effect, Query):
                _assert_same_pages(backend, reference, effect)


def _assert_same_pages(backend: Backend, reference: Backend, query: Query) -> None:
    def pages(of: Backend) -> list[list[Item]]:
        found: list[list[Item]] = []
        after: str | None = None
        while True:
            page: Page = of.execute(msgspec.structs.replace(query, after=after))
            found.append(page.items)
            after = page.next
            if after is None:
                return [[item for items in found for item in items]]

    if query.index is not None:
        eventually(backend, lambda: pages(backend), pages(reference))
    else:
        assert pages(backend) == pages(reference), query


def _plain(outcome: Outcome[Any]) -> Any:
    """An outcome as something that compares; types of values count.

    Cursors are each store's own: DynamoDB hands one out behind a full page even when nothing comes after it.
    """
    error = outcome.error
    if error is None:
        value = outcome.value
        if isinstance(value, Page):
            return "page", [_typed(item) for item in value.items]
        if isinstance(value, list):
            return "items", [_typed(item) for item in value]
        return "item", _typed(value)
    if isinstance(error, ConditionFailed):
        return "refused", [None if r is None else (r.why, _typed(r.item)) for r in error.refusals]
    if isinstance(error, CaseworkError):
        return "error", type(error).__name__
    raise error


def _typed(item: Any) -> Any:
    if item is None:
        return None
    return sorted((name, type(value).__name__, value) for name, value in item.items())


def _moved(effect: StoreEffect, run: str) -> StoreEffect:
    """``effect`` in the partitions of this run."""
    if isinstance(effect, Get):
        return Get(_moved_key(effect.key, run))
    if isinstance(effect, GetMany):
        return GetMany([_moved_key(key, run) for key in effect.keys])
    if isinstance(effect, Query):
        return msgspec.structs.replace(effect, partition=effect.partition.replace(PLACEHOLDER, run))
    if isinstance(effect, Write):
        moved: Any = _moved_write(effect.write, run)
        return Write(moved)
    return Transact([_moved_write(write, run) for write in effect.writes])


def _moved_key(key: Key, run: str) -> Key:
    return Key(key.table, key.partition.replace(PLACEHOLDER, run), key.sort)


def _moved_write(write: AnyWrite, run: str) -> AnyWrite:
    if isinstance(write, Put):
        return Put(write.table, _moved_values(write.item, run), write.when)
    if isinstance(write, Update):
        return Update(_moved_key(write.key, run), _moved_values(write.set, run), write.remove, write.when)
    if isinstance(write, Delete):
        return Delete(_moved_key(write.key, run), write.when)
    return Check(_moved_key(write.key, run), write.when)


def _moved_values(values: Any, run: str) -> dict[str, Scalar]:
    return {name: v.replace(PLACEHOLDER, run) if isinstance(v, str) else v for name, v in values.items()}


__all__ = ["assert_same_answers", "sequences"]
