"""Calls and units are counted as the service reports them, and agree with what the documented rules compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from casework.backends.dynamodb.metering import Meter
from casework.backends.dynamodb.units import Units, kilobytes, read_units, refusal_units, write_units
from casework.kernel.conditions import absent, present
from casework.kernel.effects import Get, GetMany, Query, Transact, Write
from casework.kernel.items import Check, Delete, Index, Put, Table, Update
from tests.dynamodb.conftest import Maker

THINGS = Table(
    name="things",
    partition="id",
    sort="n",
    sort_type="int",
    indexes=(Index(name="due", partition="bucket", sort="at_us", sort_type="int"),),
)
KEY = THINGS.key("a", 1)
PLAIN = {"id": "a", "n": 1}
DUE = {**PLAIN, "bucket": "b0", "at_us": 5}


@pytest.fixture
def backend(make: Maker, ministack_url: str, prefix: str) -> Any:
    backend = make(ministack_url, prefix=prefix, meter=True)
    backend.create_tables([THINGS])
    backend.execute(Write(Put(THINGS, DUE)))
    backend.meter.reset()
    return backend


CASES: list[Any] = [
    pytest.param(Write(Put(THINGS, PLAIN)), DUE, id="put-that-leaves-the-index"),
    pytest.param(Write(Put(THINGS, {**DUE, "at_us": 6})), DUE, id="put-that-moves-in-the-index"),
    pytest.param(Write(Update(KEY, {"v": 1})), DUE, id="update-that-leaves-the-entry-alone"),
    pytest.param(Write(Update(KEY, {"v": "x" * 3000})), DUE, id="update-of-three-kilobytes"),
    pytest.param(Transact([Update(KEY, {"v": 1})]), DUE, id="transaction"),
]


@pytest.mark.parametrize(("effect", "before"), CASES)
def test_reported_write_units_are_those_of_the_documented_rules(backend: Any, effect: Any, before: Any) -> None:
    with backend.meter.label("case"):
        backend.execute(effect)
    usage = backend.meter.snapshot()["case"]
    write = effect.write if isinstance(effect, Write) else effect.writes[0]
    expected = write_units(write, before, transactional=isinstance(effect, Transact))
    assert (usage.calls, usage.faults) == (1, 0)
    assert usage.write_units == expected.base
    assert usage.index_write_units == expected.index
    assert backend.meter.snapshot().keys() == {"case"}


def test_reported_read_units_are_those_of_the_documented_rules(backend: Any) -> None:
    for label, effect, base, index in (
        ("get", Get(KEY), read_units([60]), 0.0),
        ("nothing", Get(THINGS.key("b", 1)), read_units([0]), 0.0),
        ("query", Query(THINGS, "a"), read_units([60]), 0.0),
        ("index", Query(THINGS, "b0", index="due"), 0.0, read_units([60], consistent=False)),
    ):
        with backend.meter.label(label):
            backend.execute(effect)
        usage = backend.meter.snapshot()[label]
        assert (usage.calls, usage.read_units, usage.index_read_units) == (1, base, index), label
    with backend.meter.label("many"):
        backend.execute(GetMany([KEY, THINGS.key("b", 1)]))
    many = backend.meter.snapshot()["many"]
    assert many.calls == 1
    assert many.read_units in (0.0, read_units([60, 0], each=True)), "ministack reports nothing for a batch"


def test_a_refusal_is_counted_as_a_call_and_its_units_are_computed(backend: Any) -> None:
    with backend.meter.label("refused"), pytest.raises(Exception, match="condition failed"):
        backend.execute(Write(Put(THINGS, PLAIN, when=absent())))
    usage = backend.meter.snapshot()["refused"]
    assert (usage.calls, usage.faults, usage.write_units) == (1, 1, 0.0)
    assert refusal_units(DUE, THINGS, transactional=False) == 1
    assert refusal_units({**DUE, "v": "x" * 2000}, THINGS, transactional=True) == 4


@pytest.mark.parametrize(
    ("write", "before", "transactional", "units"),
    [
        (Put(THINGS, PLAIN), None, False, Units(1, 0)),
        (Put(THINGS, DUE), None, False, Units(1, 1)),
        (Put(THINGS, DUE), DUE, False, Units(1, 0)),
        (Put(THINGS, {**DUE, "at_us": 6}), DUE, True, Units(2, 2)),
        (Update(KEY, {}, ["bucket"]), DUE, False, Units(1, 1)),
        (Update(KEY, {"v": 1}), {**DUE, "v": "x" * 5000}, False, Units(5, 0)),
        (Delete(KEY), {**DUE, "v": "x" * 1100}, True, Units(4, 1)),
        (Delete(KEY), None, True, Units(2, 0)),
        (Check(KEY, present()), {**DUE, "v": "x" * 1100}, True, Units(4, 0)),
    ],
)
def test_write_units_by_the_documented_rules(write: Any, before: Any, transactional: bool, units: Units) -> None:
    assert write_units(write, before, transactional=transactional) == units


def test_read_units_by_the_documented_rules() -> None:
    assert [kilobytes(size) for size in (0, 1, 1024, 1025)] == [1, 1, 1, 2]
    assert read_units([4096, 1]) == 2
    assert read_units([4096, 1], consistent=False) == 1
    assert read_units([100, 100, 5000], each=True) == 4
    assert read_units([]) == 1


def test_labels_nest_and_a_label_may_be_counted_from_zero() -> None:
    meter = Meter()
    with meter.label("outer"):
        meter.count("put_item", {"ConsumedCapacity": {"CapacityUnits": 1.0}})
        with meter.label("inner"):
            meter.count("get_item", {"ConsumedCapacity": {"CapacityUnits": 0.5}})
        meter.count("put_item", None)
    found = meter.snapshot()
    assert (found["outer"].calls, found["outer"].write_units, found["outer"].faults) == (2, 1.0, 1)
    assert (found["inner"].calls, found["inner"].read_units) == (1, 0.5)
    meter.reset()
    assert meter.snapshot() == {}


def test_calls_side_by_side_are_counted_under_the_callers_label(
    make: Maker, ministack_url: str, unique: Callable[[str], str]
) -> None:
    backend = make(ministack_url, prefix=unique("t"), meter=True)
    backend.create_tables([THINGS])
    with backend.meter.label("together"):
        backend.execute_many([Get(THINGS.key("a", n)) for n in range(5)])
    assert backend.meter.snapshot()["together"].calls == 5
