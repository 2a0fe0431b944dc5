"""Definitions with one part replaced by anything: a machine or a list of problems, never another error."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from casework.errors import CaseworkError, InvalidMachine
from casework.statechart import Effect, Event, Machine, start, step
from casework.statechart.load.yaml import parse

RICH = parse(Path(__file__).with_name("rich.yaml").read_text("utf-8"))[0]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in items for place in places(item, (*path, key)))]


KEYS = ["target", "type", "params", "states", "x", "expr", "src", "event"]
ANYTHING = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-5, 10**20), st.floats(), st.text(max_size=5),
        st.just({"expr": "context.x"}),
        st.sampled_from(["cart", ".cart", "#rich", "#rich.cart", "", ".", "#", "1s", "assign", "parallel", "history"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    ),
    max_leaves=4,
)  # fmt: skip


def loaded(definition: Any) -> tuple[Machine | None, tuple[str, ...]]:
    try:
        return Machine.from_dict(definition), ()
    except InvalidMachine as error:
        return None, error.problems


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(places(RICH)), ANYTHING)
def test_a_damaged_definition_loads_or_is_refused(place: tuple[Any, ...], value: Any) -> None:
    definition = copy.deepcopy(RICH)
    if place:
        holder = definition
        for key in place[:-1]:
            holder = holder[key]
        holder[place[-1]] = value
    else:
        definition = value
    machine, problems = loaded(definition)
    assert (machine is None) is bool(problems)
    if machine is None:
        return
    assert isinstance(machine.check(), list)
    assert Machine.from_dict(machine.definition).hash == machine.hash
    try:
        snapshot = start(machine, {"amount": 1}, 0).snapshot
        for event in ("add", "pay", "abort"):
            snapshot = step(machine, snapshot, Event(event, {"sku": "x"}), 0).snapshot
    except CaseworkError:
        pass


def test_effects_and_snapshots_go_through_json() -> None:
    machine = Machine.from_dict(RICH)
    machine.action(name="noted")(lambda context, event: None)
    snapshot = start(machine, {"amount": 1}, 0).snapshot
    snapshot = step(machine, snapshot, Event("add", {"sku": "x"}), 0).snapshot
    effects = step(machine, snapshot, Event("pay"), 5).effects
    assert len(effects) == 3
    assert msgspec.json.decode(msgspec.json.encode(effects), type=list[Effect]) == effects
