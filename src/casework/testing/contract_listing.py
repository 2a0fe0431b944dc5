"""The contract of an execution store: listing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from casework.errors import Misuse
from casework.executions.store_items import StoredExecution

New = Callable[..., StoredExecution]


def listed(store: Any, **filters: Any) -> list[str]:
    """Ids of all pages; no page holds more than its limit."""
    found: list[str] = []
    cursor = None
    for _ in range(2000):
        page = store.list_executions(cursor=cursor, **filters)
        assert len(page.items) <= filters.get("limit", 100)
        found += [exe.id for exe in page.items]
        cursor = page.next_cursor
        if cursor is None:
            return found
    raise AssertionError("the listing does not end")


class ListingContract:
    """Every execution once, page by page, by its filters. A page may be short; only a cursor of None ends it."""

    def _seed(self, store: Any, new: New) -> dict[str, StoredExecution]:
        made: dict[str, StoredExecution] = {}
        for n in range(12):
            parent = None if n < 8 else made["e0"].id
            exe = new(f"e{n}", status=("running", "done", "waiting for godot")[n % 3], parent_id=parent)
            store.save(exe)
            made[f"e{n}"] = exe
        return made

    @pytest.mark.parametrize("limit", [1, 5, 1000])
    def test_filters_say_what_is_listed(self, store: Any, new: New, limit: int) -> None:
        """Whatever the size of a page, each execution once."""
        made = self._seed(store, new)
        machine = made["e0"].machine
        ids = [made[f"e{n}"].id for n in range(12)]
        for filters, wanted in (
            ({}, range(12)),
            ({"status": "running"}, (0, 3, 6, 9)),
            ({"status": ["done", "waiting for godot"]}, (1, 2, 4, 5, 7, 8, 10, 11)),
            ({"status": "no such status"}, ()),
            ({"status": []}, ()),
            ({"roots_only": True}, range(8)),
            ({"parent": ids[0]}, range(8, 12)),
            ({"parent": ids[0], "status": "running"}, (9,)),
            ({"parent": "nobody"}, ()),
        ):
            found = listed(store, machine=machine, limit=limit, **filters)
            assert len(found) == len(set(found)) and set(found) == {ids[n] for n in wanted}, filters

    def test_items_are_the_executions(self, store: Any, new: New) -> None:
        exe = new(status="odd", data="text")
        store.save(exe)
        (item,) = store.list_executions(machine=exe.machine, status="odd", limit=1000).items
        assert (item.id, item.status, item.data, item.version) == (exe.id, "odd", "text", 1)

    def test_an_execution_is_listed_by_its_present_status(self, store: Any, new: New) -> None:
        exe = new(status="before")
        store.save(exe)
        exe.status = "after"
        store.save(exe)
        assert listed(store, machine=exe.machine, status="before") == []
        assert listed(store, machine=exe.machine, status="after") == [exe.id] == listed(store, machine=exe.machine)
        store.purge(exe.id, 2)
        assert listed(store, machine=exe.machine) == []

    def test_a_status_that_comes_up_during_a_listing_does_not_break_it(self, store: Any, new: New) -> None:
        """Cursors stay good, and what was there before is listed once."""
        made = self._seed(store, new)
        machine = made["e0"].machine
        first = store.list_executions(machine=machine, limit=2)
        late = new("late", status=f"aaa {machine}")
        store.save(late)
        found = [exe.id for exe in first.items]
        cursor = first.next_cursor
        while cursor is not None:
            page = store.list_executions(machine=machine, limit=2, cursor=cursor)
            found += [exe.id for exe in page.items]
            cursor = page.next_cursor
        assert set(found) - {late.id} == {exe.id for exe in made.values()} and len(found) == len(set(found))
        assert late.id in listed(store, machine=machine)

    def test_a_cursor_belongs_to_its_filters(self, store: Any, new: New) -> None:
        """With others it is refused, never silently another listing."""
        made = self._seed(store, new)
        machine = made["e0"].machine
        cursor = store.list_executions(machine=machine, limit=1).next_cursor
        assert cursor is not None
        for other in (
            {},
            {"machine": "other"},
            {"machine": machine, "roots_only": True},
            {"machine": machine, "status": "done"},
        ):
            with pytest.raises(Misuse):
                store.list_executions(cursor=cursor, limit=1, **other)
        with pytest.raises(Misuse):
            store.list_executions(machine=machine, cursor="nonsense")

    @pytest.mark.parametrize("limit", [0, -1, 1001, None, 1.5])
    def test_a_limit_is_from_1_to_1000(self, store: Any, limit: Any) -> None:
        with pytest.raises(Misuse, match="limit"):
            store.list_executions(limit=limit)
