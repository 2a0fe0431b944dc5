"""What does not fit one transaction is recorded in it and performed in order, once, whoever dies in between."""

from __future__ import annotations

import itertools

import pytest

from casework.backends.drive import run
from casework.backends.memory import MemoryBackend
from casework.backends.surroundings import VirtualClock
from casework.errors import CorruptItem, Misuse
from casework.executions import control, deliver
from casework.executions.advance import advance
from casework.executions.runtime import Options, Runtime
from casework.kernel.effects import Transact
from casework.kernel.items import Delete, Key
from casework.kernel.schema import EXECUTIONS
from casework.statechart import Machine
from tests.executions.stepping import Stepped, Torn, fresh_backend, items_of

FAN = """
id: fan
initial: idle
context: {n: 0, got: null}
states:
  idle:
    on:
      Go: spread
      Add: {actions: [{type: assign, params: {n: {expr: "context.n + 1"}}}]}
  spread:
    invoke:
      id: kids
      src: {machine: kid}
      each: {expr: "event.items"}
      input: {i: {expr: "item"}}
      join: all
      onDone: {target: idle, actions: [{type: assign, params: {got: {expr: "len(event)"}}}]}
    on:
      Add: {actions: [{type: assign, params: {n: {expr: "context.n + 1"}}}]}
      Leave: idle
"""

KID = """
id: kid
initial: done
context: {i: {expr: "input.i"}}
states: {done: {type: final, output: {expr: "context.i"}}}
"""


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def backend(clock: VirtualClock) -> MemoryBackend:
    return fresh_backend(clock=clock)


@pytest.fixture
def rt() -> Runtime:
    return Runtime([Machine.from_yaml(FAN), Machine.from_yaml(KID)], Options())


def children_of(backend: MemoryBackend, id: str) -> list[str]:
    stored = backend.tables._tables["executions"].items
    return sorted({partition for partition, sort in stored if sort == "0" and partition.startswith(f"{id}/")})


def work_off(rt: Runtime, backend: MemoryBackend, ids: list[str]) -> None:
    for id in ids:
        while run(advance(rt, id), backend).has_more:
            pass


def test_a_fan_out_larger_than_a_transaction_starts_every_child_once(rt: Runtime, backend: MemoryBackend) -> None:
    run(deliver.start(rt, "fan", "f", None), backend)
    run(deliver.handle(rt, "f", "Go", {"items": list(range(300))}), backend)
    assert len(children_of(backend, "f")) == 300
    assert items_of(backend, "f", "x/") == []
    work_off(rt, backend, [*children_of(backend, "f"), "f"])
    execution = run(deliver.load(rt, "f"), backend)
    assert execution.configuration == ["idle"]
    assert execution.context["got"] == 300


def test_who_dies_in_a_drain_leaves_it_to_the_next_and_no_part_runs_twice(
    rt: Runtime, backend: MemoryBackend, clock: VirtualClock
) -> None:
    """Die before each of the drain's transactions in turn; the state's own entry in the index finds it again."""
    for dies_at in itertools.count():
        id = f"f{dies_at}"
        run(deliver.start(rt, "fan", id, None), backend)
        dying = Stepped(deliver.handle(rt, id, "Go", {"items": list(range(200))}), backend)
        for _ in range(dies_at + 1):
            if not dying.done:
                dying.until(Transact)
                dying.step()
        if dying.done:
            break
        dying.program.close()
        state = items_of(backend, id, "0")[0]
        assert str(state["pending"]).startswith("work/"), "the spill itself wakes a worker"
        work_off(rt, backend, [id])
        assert len(children_of(backend, id)) == 200
        assert items_of(backend, id, "x/") == []
        work_off(rt, backend, [*children_of(backend, id), id])
        assert run(deliver.load(rt, id), backend).context["got"] == 200
    assert dies_at >= 3


def test_the_next_event_drains_before_it_is_taken(rt: Runtime, backend: MemoryBackend) -> None:
    run(deliver.start(rt, "fan", "f", None), backend)
    dying = Stepped(deliver.handle(rt, "f", "Go", {"items": list(range(200))}), backend).until(Transact)
    dying.step()
    dying.program.close()
    assert children_of(backend, "f") == []
    run(deliver.handle(rt, "f", "Add", {}), backend)
    assert len(children_of(backend, "f")) == 200
    assert run(deliver.load(rt, "f"), backend).context["n"] == 1


def test_two_who_drain_at_once_start_every_child_once(rt: Runtime, backend: MemoryBackend) -> None:
    run(deliver.start(rt, "fan", "f", None), backend)
    first = Stepped(deliver.handle(rt, "f", "Go", {"items": list(range(400))}), backend).until(Transact)
    first.step()
    first.until(Transact)  # about to perform the first part
    second = Stepped(advance(rt, "f"), backend).until(Transact)
    second.step()
    first.step()  # refused: the other one moved the note
    second.finish()
    first.finish()
    children = children_of(backend, "f")
    assert len(children) == 400
    assert all(items_of(backend, child, "0")[0]["version"] == 1 for child in children)


def test_leaving_the_state_cancels_children_that_were_spilled(rt: Runtime, backend: MemoryBackend) -> None:
    run(deliver.start(rt, "fan", "f", None), backend)
    run(deliver.handle(rt, "f", "Go", {"items": list(range(250))}), backend)
    run(deliver.handle(rt, "f", "Leave", {}), backend)
    children = children_of(backend, "f")
    assert len(children) == 250
    work_off(rt, backend, children)
    work_off(rt, backend, ["f"])
    execution = run(deliver.load(rt, "f"), backend)
    assert execution.context["got"] is None
    assert execution.waiting_for == []


def test_an_input_too_large_to_spill_is_said_and_nothing_is_written(rt: Runtime, backend: MemoryBackend) -> None:
    run(deliver.start(rt, "fan", "f", None), backend)
    before = items_of(backend, "f")
    with pytest.raises(Misuse, match="input 0 of invocation 'kids'"):
        run(deliver.handle(rt, "f", "Go", {"items": ["x" * 260_000] + [1] * 100}), backend)
    assert items_of(backend, "f") == before


def test_a_spilled_item_that_was_lost_is_reported_and_parks_the_execution(rt: Runtime, backend: MemoryBackend) -> None:
    run(deliver.start(rt, "fan", "f", None), backend)
    dying = Stepped(deliver.handle(rt, "f", "Go", {"items": list(range(200))}), backend).until(Transact)
    dying.step()
    dying.program.close()
    sort = items_of(backend, "f", "x/")[0]["sort"]
    backend.execute(Transact([Delete(Key(EXECUTIONS, "f", sort))]))
    assert "is missing" in run(advance(rt, "f"), backend).parked
    with pytest.raises(CorruptItem, match="is missing"):
        run(deliver.handle(rt, "f", "Add", {}), backend)
    run(control.purge(rt, "f", force=True), backend)
    assert items_of(backend, "f") == []


def test_an_event_in_line_that_meets_somebody_elses_drain_waits_for_it(rt: Runtime, backend: MemoryBackend) -> None:
    """Found by the simulator: the refusal of a part that another had performed came out of ``handle``."""
    run(deliver.start(rt, "fan", "f", None), backend)
    dying = Stepped(deliver.handle(rt, "f", "Go", {"items": list(range(200))}), backend).until(Transact)
    dying.step()
    dying.program.close()
    handler = Stepped(deliver.handle(rt, "f", "Add", {}), backend).until(Transact)  # about to drain
    run(advance(rt, "f"), backend)
    handler.finish()
    assert run(deliver.load(rt, "f"), backend).context["n"] == 1
    assert len(children_of(backend, "f")) == 200


def test_a_note_that_is_visible_before_what_it_names_is_no_damage(rt: Runtime, backend: MemoryBackend) -> None:
    """Found by the simulator: a transaction's items become visible one by one, the state perhaps first."""
    run(deliver.start(rt, "fan", "f", None), backend)
    torn = Torn(backend)
    first = Stepped(deliver.handle(rt, "f", "Go", {"items": list(range(200))}), torn).until(Transact)
    first.step()
    first.program.close()
    assert torn.in_flight, "the spilled items are not visible yet"
    other = Stepped(advance(rt, "f"), torn).until(Transact)
    other.step()  # it asks for the item's transaction, and is told that it is under way
    torn.land()
    torn.tears = False
    other.finish()
    assert len(children_of(backend, "f")) == 200
