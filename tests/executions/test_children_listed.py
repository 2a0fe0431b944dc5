"""Children are found by their parent, their machine and their status, once each, whatever the size of a page."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from casework.app.sync import App
from casework.executions.state import STATUSES, state_of
from casework.kernel.effects import Get, GetMany, Query
from casework.kernel.items import Item
from casework.kernel.schema import EXECUTIONS
from tests.executions.test_children import CHILD, JOIN, PARENT, QUICK, kids_of
from tests.executions.watching import WatchedBackend, machine, watched_app, work

NESTED = """
id: grand
initial: forking
context: {inputs: {expr: "get(input, 'inputs', [])"}}
states:
  forking:
    invoke:
      id: mid
      src: {machine: parent}
      each: {expr: context.inputs}
      input: {inputs: {expr: item}}
      onDone: good
      onError: bad
    on: {again: {target: forking, reenter: true}}
  good: {type: final}
  bad: {}
"""

STARTED = JOIN.replace("initial: idle", "initial: waiting")


def states(app: App) -> dict[str, Item]:
    stored = app.backend.tables.stored(EXECUTIONS).items  # type: ignore[attr-defined]
    return {key[0]: item for key, item in stored.items() if key[1] == "0"}


def settle(app: App) -> None:
    for _ in range(20):
        for id in states(app):
            work(app, id)


def listed(app: App, limit: int = 1000, **filters: Any) -> list[str]:
    """All pages of a listing."""
    found: list[str] = []
    cursor = None
    for _ in range(3000):
        page = app.list(limit=limit, cursor=cursor, **filters)
        assert len(page.items) <= limit and not page.unreadable
        found += [each.id for each in page.items]
        cursor = page.next
        if cursor is None:
            return found
    raise AssertionError("the listing does not end")


def of_two(*, limit: int = 1000) -> tuple[App, list[str]]:
    app, _ = watched_app(machine(STARTED), machine(CHILD))
    app.start("parent", id="p", input={"inputs": [1, 2]})
    settle(app)
    return app, kids_of(app, "p")


@pytest.mark.parametrize("limit", [1, 2, 3, 1000])
def test_a_listing_by_parent_has_its_children_and_nobody_elses(limit: int) -> None:
    app, kids = of_two()
    assert listed(app, limit, parent="p") == kids and len(kids) == 2
    assert sorted(listed(app, limit)) == sorted(["p", *kids])
    assert listed(app, limit, parent="other") == [] == listed(app, limit, parent=kids[0])


@pytest.mark.parametrize("limit", [1, 1000])
def test_a_child_of_a_join_that_failed_is_found_by_parent_by_machine_and_by_status(limit: int) -> None:
    app, kids = of_two()
    app.handle(kids[1], "fail")
    settle(app)
    assert app.get("p").configuration == ["bad"]
    for filters in (
        {"status": "failed"},
        {"status": "failed", "machine": "child"},
        {"status": "failed", "parent": "p"},
    ):
        assert listed(app, limit, **filters) == [kids[1]]
    assert sorted(listed(app, limit, machine="child")) == sorted(kids) == sorted(listed(app, limit, parent="p"))
    assert listed(app, limit, status="cancelled") == [kids[0]], "its sibling was told to end"
    (children,) = app.inspect("p").children
    assert [each["status"] for each in children.children] == ["cancelled", "failed"]
    assert children.children[1]["error"] == "error.custom: broken" or "broken" in children.children[1]["error"]


def test_a_failed_child_that_is_driven_again_is_listed_as_what_it_is() -> None:
    app, kids = of_two()
    app.handle(kids[0], "fail")
    app.redrive(kids[0], skip=True)
    assert app.get(kids[0]).status == "running"
    assert sorted(listed(app, status="running")) == sorted(["p", *kids]) and listed(app, status="failed") == []
    assert sorted(listed(app)) == sorted(["p", *kids])


def test_a_child_that_an_operator_suspended_is_listed_as_suspended() -> None:
    app, kids = of_two()
    app.suspend(kids[0])
    assert listed(app, status="suspended") == [kids[0]] == listed(app, status="suspended", machine="child")
    assert sorted(listed(app, 1)) == sorted(["p", *kids])


def test_children_of_earlier_stays_are_still_found() -> None:
    app, _ = watched_app(machine(PARENT), machine(CHILD))
    app.start("parent", id="p")
    for _ in range(3):
        app.handle("p", "go")
        settle(app)
        app.handle("p", "leave")
        settle(app)
    app.handle("p", "go")
    settle(app)
    kids = kids_of_any(app)
    assert len(kids) == 4 and sorted(listed(app, parent="p")) == kids
    assert len(listed(app, parent="p", status="cancelled")) == 3
    assert [each.is_open for each in app.inspect("p").children] == [False, False, False, True]


def kids_of_any(app: App) -> list[str]:
    return sorted(id for id, item in states(app).items() if item.get("parent_id") == "p")


def many_kinds() -> App:
    """Two generations of children in every status, of joins that wait and joins that wait no longer."""
    app, _ = watched_app(machine(NESTED), machine(STARTED), machine(CHILD), machine(CHILD.replace("child", "child2")))
    for n, inputs in enumerate(([[1, 2, 3], [4]], [[5, 6], [7, 8]], [[9], []], [])):
        app.start("grand", id=f"g{n}", input={"inputs": inputs})
        settle(app)
    leaves = sorted(id for id, item in states(app).items() if item["machine"] == "child")
    for leaf, how in zip(leaves, itertools.cycle(["end", "fail", "", "cancel", "suspend"]), strict=False):
        if app.get(leaf).has_ended:
            continue
        if how in ("end", "fail"):
            app.handle(leaf, how)
        elif how:
            getattr(app, how)(leaf)
        if how == "cancel":
            settle(app)
    app.start("child2", id="alone")
    app.handle("g1", "again")
    settle(app)
    app.start("grand", id="g4", input={"inputs": [[1], [2]]})  # its children are pending
    return app


@pytest.mark.parametrize("limit", [1, 2, 5, 1000])
def test_every_filter_finds_each_execution_once_in_pages_of_any_size(limit: int) -> None:
    app = many_kinds()
    all_states = {id: state_of(item) for id, item in states(app).items()}
    assert {state.status for state in all_states.values()} >= set(STATUSES) - {"purging"}
    parents = {state.parent_id for state in all_states.values() if state.parent_id}
    for status in (None, *STATUSES):
        for name in (None, "grand", "parent", "child", "child2", "nobody"):
            wanted = {
                id for id, state in all_states.items()
                if status in (None, state.status) and name in (None, state.machine)
            }  # fmt: skip
            found = listed(app, limit, status=status, machine=name)
            assert len(found) == len(set(found)) and set(found) == wanted, (status, name)
    for parent in parents:
        found = listed(app, limit, parent=parent)
        assert sorted(found) == sorted(id for id, state in all_states.items() if state.parent_id == parent)


def reads(backend: WatchedBackend) -> int:
    """Items that were asked for."""
    asked = sum(len(each.keys) if isinstance(each, GetMany) else 1 for each in backend.reads)
    assert all(isinstance(each, Get | GetMany | Query) for each in backend.reads)
    return asked


def test_what_it_costs_to_find_children_does_not_grow_with_what_is_stored() -> None:
    app, backend = watched_app(machine(STARTED), machine(CHILD), machine(QUICK.replace("child", "other")))
    app.start("parent", id="p", input={"inputs": [1, 2, 3]})
    settle(app)
    app.handle(kids_of(app, "p")[0], "fail")
    settle(app)
    costs = []
    for n in range(2):
        for filters in ({"parent": "p"}, {"status": "failed"}, {"machine": "child"}):
            backend.forget()
            assert listed(app, **filters)
            costs.append(reads(backend))
        for i in range(40):
            app.start("other", id=f"{n}-{i}")
    assert costs[:3] == costs[3:]


def test_a_join_notes_its_children_once_and_puts_none_of_them_into_the_index() -> None:
    app, backend = watched_app(machine(STARTED), machine(QUICK))
    app.start("parent", id="p", input={"inputs": [1, 2, 3]})
    settle(app)
    entries = [item for item in backend.tables.stored(EXECUTIONS).items.values() if "listing" in item]
    assert sorted(str(item["sort"])[:2] for item in entries) == ["0", "f/"]
    app.purge("p")
    assert not [item for item in backend.tables.stored(EXECUTIONS).items.values() if item["id"] == "p"]
