"""Random charts and random events: the configuration is always legal, and a step depends on nothing else."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from casework.errors import StepLimit
from casework.statechart import (
    ArmTimer,
    CancelTimer,
    Event,
    Machine,
    Snapshot,
    StartTask,
    Step,
    StopInvoke,
    active_names,
    canonical_json,
    done_invoke,
    error_invoke,
    start,
    step,
    timer_event,
)
from casework.statechart.configuration import is_legal
from casework.statechart.loops import loops

EVENTS = ["e", "f", "g.h"]


@st.composite
def machines(draw: Any) -> dict[str, Any]:
    """A chart of up to three levels whose transitions lead anywhere, by absolute ids."""
    paths: list[str] = []
    counter = [0]

    def state(path: str, depth: int) -> dict[str, Any]:
        kinds = ["atomic", "atomic", "compound", "parallel"] if depth < 3 else ["atomic"]
        kind = draw(st.sampled_from(kinds))
        node: dict[str, Any] = {}
        paths.append(path)
        if kind in ("compound", "parallel"):
            keys = [f"s{index}" for index in range(draw(st.integers(2, 3)))]
            node["states"] = {key: state(f"{path}.{key}", depth + 1) for key in keys}
            if kind == "compound":
                node["initial"] = draw(st.sampled_from(keys))
            else:
                node["type"] = "parallel"
            if draw(st.booleans()):  # a final state may be a region, too
                node["states"]["end"] = {"type": "final"}
                paths.append(f"{path}.end")
            if draw(st.integers(0, 3)) == 0:
                node["states"]["h"] = {"type": "history", "history": draw(st.sampled_from(["shallow", "deep"]))}
                paths.append(f"{path}.h")
            if draw(st.booleans()):
                node["onDone"] = {"target": "?"}
        if draw(st.integers(0, 3)) == 0:
            node["after"] = {"1s": "?"}
        if draw(st.integers(0, 3)) == 0:
            counter[0] += 1
            node["invoke"] = {"src": {"task": "t"}, "id": f"i{counter[0]}", "onDone": "?"}
        return node

    keys = [f"s{index}" for index in range(draw(st.integers(1, 3)))]
    root: dict[str, Any] = {
        "id": "m", "initial": draw(st.sampled_from(keys)), "context": {"n": 0, "seen": []},
        "states": {key: state(key, 1) for key in keys},
    }  # fmt: skip
    targets = [f"#m.{path}" for path in paths]
    bump = {"type": "assign", "params": {"n": {"expr": "context.n + 1"}}}

    def fill(node: dict[str, Any]) -> None:
        if node.get("type") in ("final", "history"):
            return
        for holder, key in ((node.get("after"), "1s"), (node.get("invoke"), "onDone"), (node, "onDone")):
            if holder and key in holder:
                holder[key] = draw(st.sampled_from(targets))
        on = {}
        for event in draw(st.lists(st.sampled_from([*EVENTS, "g", "*"]), max_size=2, unique=True)):
            on[event] = {
                "target": draw(st.sampled_from(targets)), "reenter": draw(st.booleans()), "actions": bump,
                "guard": {"expr": draw(st.sampled_from(["True", "context.n % 2 == 0", "In('s0')"]))},
            }  # fmt: skip
        node["on"] = on
        if draw(st.integers(0, 5)) == 0:
            node["always"] = {
                "target": draw(st.sampled_from(targets)),
                "guard": {"expr": "context.n % 5 == 4"},
                "actions": bump,
            }
        for part in ("entry", "exit"):
            if draw(st.booleans()):
                node[part] = bump
        for child in node.get("states", {}).values():
            fill(child)

    fill(root)
    return root


SCRIPTS = st.lists(st.one_of(st.sampled_from(EVENTS), st.integers(0, 20)), max_size=12)


def event_for(machine: Machine, snapshot: Snapshot, choice: Any) -> Event:
    """An event by name, or the report of some timer or task that is running."""
    if isinstance(choice, str):
        return Event(choice)
    reports = []
    for path, stay in snapshot.stays.items():
        state = machine.state(path)
        reports += [timer_event(timer.name, stay) for timer in state.timers]
        for invoke in state.invokes:
            reports += [done_invoke(invoke.id, stay, {}), error_invoke(invoke.id, stay, {"message": "x"})]
    return reports[choice % len(reports)] if reports else Event("e")


def play(machine: Machine, script: list[Any]) -> list[Step]:
    """Every step until the script ends or the chart does not come to rest."""
    steps: list[Step] = []
    try:
        steps.append(start(machine, None, 0))
        for index, choice in enumerate(script):
            snapshot = steps[-1].snapshot
            steps.append(step(machine, snapshot, event_for(machine, snapshot, choice), index))
    except StepLimit:
        pass
    return steps


@settings(max_examples=150, deadline=None)
@given(machines(), SCRIPTS)
def test_the_configuration_is_always_legal(definition: dict[str, Any], script: list[Any]) -> None:
    machine = Machine.from_dict(definition)
    for each in play(machine, script):
        nodes = tuple(machine.state(path) for path in each.snapshot.configuration)
        assert is_legal(machine.tables.root, nodes)
        if each.snapshot.status == "running":
            with_stay = {
                s.path for s in machine.tables.states if s.has_stay and s.name in active_names(machine, each.snapshot)
            }
            assert set(each.snapshot.stays) == with_stay
        else:
            assert each.snapshot.stays == {}


@settings(max_examples=100, deadline=None)
@given(machines(), SCRIPTS)
def test_a_snapshot_that_went_through_json_goes_on_in_the_same_way(
    definition: dict[str, Any], script: list[Any]
) -> None:
    machine = Machine.from_dict(definition)
    fresh = Machine.from_dict(msgspec.json.decode(canonical_json(machine.definition)))
    steps = play(machine, script)
    for before, after, choice in zip(steps, steps[1:], script, strict=False):
        stored = msgspec.json.decode(msgspec.json.encode(before.snapshot), type=Snapshot)
        assert stored == before.snapshot
        event = event_for(machine, stored, choice)
        index = steps.index(after) - 1
        again = step(fresh, stored, event, index)
        assert again.snapshot == after.snapshot and again.taken == after.taken
        assert [repr(effect) for effect in again.effects if not hasattr(effect, "due_us")] == [
            repr(effect) for effect in after.effects if not hasattr(effect, "due_us")
        ]


@settings(max_examples=100, deadline=None)
@given(machines(), SCRIPTS)
def test_what_is_armed_and_started_is_cancelled_and_stopped_exactly_once(
    definition: dict[str, Any], script: list[Any]
) -> None:
    machine = Machine.from_dict(definition)
    running: set[tuple[str, int]] = set()
    for each in play(machine, script):
        for effect in each.effects:
            if isinstance(effect, ArmTimer):
                key = (effect.name, effect.stay)
                assert key not in running
                running.add(key)
            elif isinstance(effect, StartTask):
                running.add((effect.invoke_id, effect.stay))
            elif isinstance(effect, CancelTimer):
                running.remove((effect.name, effect.stay))
            elif isinstance(effect, StopInvoke):
                running.remove((effect.invoke_id, effect.stay))
        assert {stay for _, stay in running} == set(each.snapshot.stays.values())


@settings(max_examples=60, deadline=None)
@given(machines(), SCRIPTS)
def test_two_machines_of_one_definition_step_alike(definition: dict[str, Any], script: list[Any]) -> None:
    first = play(Machine.from_dict(definition), script)
    # Another instance whose caches were filled by other events before.
    other = Machine.from_dict(definition)
    play(other, list(reversed(script)))
    second = play(other, script)
    assert [each.snapshot for each in first] == [each.snapshot for each in second]


@settings(max_examples=150, deadline=None)
@given(machines(), SCRIPTS)
def test_no_step_ends_where_check_sees_a_circle(definition: dict[str, Any], script: list[Any]) -> None:
    machine = Machine.from_dict(definition)
    circles = {
        name for loop in loops(machine.tables, machine.tables.states) if not loop.has_timer for name in loop.names
    }
    for each in play(machine, script):
        if each.snapshot.status == "running":
            assert ", ".join(each.snapshot.configuration) not in circles
