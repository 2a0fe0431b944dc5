"""Charts of a thousand regions: loading, checking and stepping cost by what is there, not by its square.

Operations of the interpreter are counted, not time: all that run in this package while a chart twice as large goes
through the same steps.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

import casework.statechart as package
from casework.errors import StepLimit
from casework.statechart import Event, Machine, configuration, start, step
from casework.statechart.diagram import mermaid
from casework.statechart.outline import outline

Definition = dict[str, Any]
FOLDER = package.__path__[0]


def regions(count: int, states: Callable[[int], Definition], **more: Any) -> Definition:
    inside = {f"r{n}": {"initial": "x", "states": states(n)} for n in range(count)}
    return {"id": "m", "type": "parallel", "states": inside, **more}


def below(count: int, **more: Any) -> Definition:
    return {k: v for k, v in regions(count, lambda n: {"x": {}, "y": {}}, **more).items() if k != "id"}


def asking(n: int) -> Definition:
    look = {"type": "assign", "params": {"a": {"expr": f"In('r{n // 2}.x')"}}}
    return {"x": {"on": {"go": "y"}, "exit": look}, "y": {"entry": look, "on": {"go": "x"}}}


SHAPES: dict[str, Callable[[int], Definition]] = {
    "regions": lambda n: regions(n, lambda i: {"x": {"on": {"go": "y"}}, "y": {"on": {"go": "x"}}}),
    "events of their own": lambda n: regions(n, lambda i: {"x": {"on": {f"go.{i}": "y"}}, "y": {"on": {f"b{i}": "x"}}}),
    "eventless": lambda n: regions(n, lambda i: {"x": {"on": {"go": "y"}}, "y": {"always": "x"}}),
    "endless": lambda n: regions(
        n, lambda i: {"x": {"always": "y"}, "y": {"always": "x"}}, limits={"work": 1000 + 20 * n}
    ),
    "guards": lambda n: regions(n, lambda i: {
        "x": {"on": {"go": {"target": "y", "guard": {"expr": f"In('r{n - 1 - i}.x')"}}}}, "y": {}}),
    "In() on the way": lambda n: regions(n, asking),
    "final states": lambda n: regions(n, lambda i: {"x": {"on": {"go": "y"}}, "y": {"type": "final"}}),
    "final regions": lambda n: {"id": "m", "initial": "p", "states": {"q": {}, "p": {
        "type": "parallel", "onDone": "q", "states": {f"r{i}": {"type": "final"} for i in range(n)}}}},
    "timers": lambda n: regions(n, lambda i: {
        "x": {"after": {"0s": "y"}, "on": {"go": "y"}}, "y": {"after": {"1": "x"}}}),
    "tasks": lambda n: regions(n, lambda i: {
        "x": {"invoke": {"src": f"t{i}", "onDone": "y", "onError": "y"}}, "y": {}}),
    "history": lambda n: {"id": "m", "initial": "p", "states": {"q": {"on": {"go": "p.h"}}, "p": below(
        n, on={"go": "q"}) | {"states": {**below(n)["states"], "h": {"type": "history", "history": "deep"}}}}},
    "shallow history": lambda n: {"id": "m", "initial": "p", "states": {"q": {"on": {"go": "p.h"}}, "p": below(
        n, on={"go": "q"}) | {"states": {**below(n)["states"], "h": {"type": "history"}}}}},
    "many targets": lambda n: {"id": "m", "initial": "a", "states": {"p": below(n), "a": {
        "on": {"go": {"target": [f"#m.p.r{i}.y" for i in range(n)]}}}}},
    "out of each region": lambda n: {"id": "m", "initial": "p", "states": {"q": {"on": {"go": "p"}}, "p": regions(
        n, lambda i: {"x": {"on": {"go": "#m.q"}}, "y": {}}) | {"id": "p"}}},
    "across regions": lambda n: regions(n, lambda i: {
        "x": {"on": {"go": f"#m.r{(i + 1) % n}.y"}}, "y": {"on": {"go": "x"}}}),
    "a ring": lambda n: {"id": "m", "initial": "s0", "states": {
        f"s{i}": {"on": {"go": f"s{(i + 1) % n}"}} for i in range(n)}},
    "a chain without events": lambda n: {"id": "m", "initial": "s0", "states": {
        f"s{i}": {"always": f"s{i + 1}"} if i < n - 1 else {} for i in range(n)}},
    "events of one state": lambda n: {"id": "m", "initial": "a", "states": {
        "a": {"on": {**{f"e.{i}": "b" for i in range(n)}, "go": "b"}}, "b": {"on": {f"e.{i}": "a" for i in range(n)}}}},
    "candidates of one event": lambda n: {"id": "m", "initial": "a", "states": {"b": {}, "a": {"on": {
        "go": [{"target": "b", "guard": {"expr": f"context.n == {i}"}} for i in range(n)]}}}, "context": {"n": 0}},
}  # fmt: skip


def once(definition: Definition) -> None:
    machine = Machine.from_dict(definition)
    machine.check()
    mermaid(machine)
    list(outline(machine.definition))
    try:
        snapshot = start(machine, {}, 0).snapshot
        for _ in range(2):
            snapshot = step(machine, snapshot, Event("go"), 0).snapshot
    except StepLimit:
        pass


def operations(definition: Definition) -> int:
    count = 0

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal count
        if not frame.f_code.co_filename.startswith(FOLDER) and frame.f_code.co_filename != "<expression>":
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        once(definition)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_twice_the_chart_is_twice_the_work(shape: Callable[[int], Definition]) -> None:
    once(shape(10))  # what is imported and compiled once
    small, large = operations(shape(60)), operations(shape(120))
    assert large < 2.4 * small, f"{small:,} operations, then {large:,}"


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_thousand_of_each_go_through(shape: Callable[[int], Definition]) -> None:
    once(shape(1000))
    assert len(Machine.from_dict(shape(1000)).hash) > 0


@pytest.mark.parametrize("count", [3, 300])
def test_the_configurations_that_are_kept_are_bounded_in_bytes(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configuration, "MAX_CACHE_BYTES", 3_000_000)
    states = {"x": {"on": {f"go.{n}": "y" for n in range(count)}}, "y": {"on": {"*": "x"}}}
    machine = Machine.from_dict(regions(count, lambda n: {**states, "x": {"on": {f"go.{n}": "y"}}}))
    snapshot = start(machine, {}, 0).snapshot
    seen = 0
    for n in range(2 * count):
        snapshot = step(machine, snapshot, Event(f"go.{n % count}" if n < count else f"other.{n}"), 0).snapshot
        assert machine.tables.cached_bytes <= 3_000_000
        seen = max(seen, machine.tables.cached_bytes)
        kept = machine.tables.configurations.values()
        assert sum(configuration.STATE_BYTES * len(each.active) for each in kept) <= machine.tables.cached_bytes
    assert seen > (2_000_000 if count == 300 else 0)
