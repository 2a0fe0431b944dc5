"""Each option of the execution store as a component changes something, blocking or on an event loop."""

from __future__ import annotations

import contextlib

import pytest

import casework
from tests.options.component_rows import COMPONENT, OF_THE_STORE, World
from tests.options.table import each, names


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize(("place", "option"), each(COMPONENT), ids=names(COMPONENT))
def test_an_option_changes_something(place: str, option: str, kind: str) -> None:
    assert COMPONENT[place][option].differs(lambda: World(kind))


@pytest.mark.parametrize("field", OF_THE_STORE)
def test_a_new_execution_has_nothing_of_the_one_that_it_is_a_copy_of(field: str) -> None:
    found = []
    for given in ({}, {field: OF_THE_STORE[field]}):
        with contextlib.closing(World("sync")) as world:
            exe = casework.StoredExecution("x", "{}", **given)
            world.store.commit(exe, processed_event_id="e", trace={"n": 1})
            read = world.plain.load("x")
            assert exe == read and [each["index"] for each in world.plain.read_trace("x")] == [0]
            found.append(read)
    assert found[0] == found[1]
