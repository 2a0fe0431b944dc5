"""The contract is worth something only if it finds a broken backend: each of these is broken in one way."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from casework.backends import memory
from casework.backends.memory import MemoryBackend, MemoryTables
from casework.backends.port import Backend
from casework.errors import ConditionFailed, Refusal
from casework.kernel.conditions import Equals, evaluate
from casework.kernel.effects import GetMany, Outcome, Page, Query
from casework.kernel.items import Put, Update
from casework.testing.backend_contract import BackendContract
from casework.testing.contract_tables import CONTRACT_TABLES

Patch = pytest.MonkeyPatch


def findings(backend: Backend) -> Iterator[str]:
    """The names of the tests that fail, of those that need nothing but a backend and a place."""
    suite = BackendContract()
    for name, test in inspect.getmembers(BackendContract, inspect.isfunction):
        if not name.startswith("test_"):
            continue
        given: dict[str, Any] = {"backend": backend, "place": f"place-{name}"}
        wanted = [parameter for parameter in inspect.signature(test).parameters if parameter != "self"]
        if not set(wanted) <= set(given):
            continue
        try:
            test(suite, **{parameter: given[parameter] for parameter in wanted})
        except (Exception, pytest.fail.Exception):
            yield name


def true_is_one(patch: Patch) -> None:
    def lenient(condition: Any, item: Any) -> bool:
        if type(condition) is Equals:
            return item is not None and item.get(condition.attribute) == condition.value
        return evaluate(condition, item)

    patch.setattr(memory, "evaluate", lenient)


def absent_is_less(patch: Patch) -> None:
    def lenient(condition: Any, item: Any) -> bool:
        operator = getattr(condition, "operator", "")
        return evaluate(condition, item) or (operator == "<" and condition.attribute not in (item or {}))

    patch.setattr(memory, "evaluate", lenient)


def writes_before_the_refused_one_stay(patch: Patch) -> None:
    def commit(self: MemoryBackend, writes: Any, keys: Any) -> None:
        for write in writes:
            refusal = self.tables.refusal(write)
            if refusal is not None:
                raise ConditionFailed([refusal if one is write else None for one in writes])
            self.tables.apply(write)

    patch.setattr(MemoryBackend, "_commit", commit)


def a_refusal_hides_its_item(patch: Patch) -> None:
    refusal = MemoryTables.refusal

    def hidden(self: MemoryTables, write: Any, key: Any = None) -> Any:
        found = refusal(self, write, key)
        return None if found is None else Refusal(found.why, None)

    patch.setattr(MemoryTables, "refusal", hidden)


def put_merges(patch: Patch) -> None:
    apply = MemoryTables.apply

    def merged(self: MemoryTables, write: Any, key: Any = None) -> None:
        apply(
            self,
            Update(write.key, {k: v for k, v in write.item.items() if k not in _key_names(write)})
            if type(write) is Put
            else write,
        )

    patch.setattr(MemoryTables, "apply", merged)


def _key_names(write: Put) -> tuple[str | None, ...]:
    return write.table.partition, write.table.sort


def strings_are_ordered_as_utf_16(patch: Patch) -> None:
    query = MemoryTables.query

    def ordered(self: MemoryTables, asked: Query) -> Page:
        page = query(self, asked)
        sort = asked.table.sort
        if sort is not None and page.items and type(page.items[0][sort]) is str and not asked.reverse:
            page.items.sort(key=lambda item: str(item[sort]).encode("utf-16-be"))
        return page

    patch.setattr(MemoryTables, "query", ordered)


def a_page_repeats_the_last_item_of_the_one_before(patch: Patch) -> None:
    patch.setattr(memory.bisect, "bisect_right", memory.bisect.bisect_left)


def a_cut_page_is_taken_for_the_end(patch: Patch) -> None:
    query = MemoryTables.query
    patch.setattr(MemoryTables, "query", lambda self, asked: Page(query(self, asked).items))


def an_index_keeps_items_that_left_it(patch: Patch) -> None:
    move = memory.StoredTable._move

    def kept(self: Any, index: Any, key: Any, before: Any, after: Any) -> None:
        if memory._index_place(index, key, after) is not None:
            move(self, index, key, before, after)

    patch.setattr(memory.StoredTable, "_move", kept)


def an_index_hands_out_whole_items(patch: Patch) -> None:
    take_page = memory._take_page

    def whole(query: Any, places: Any, stored: Any) -> Any:
        page = take_page(query, places, stored)
        if query.index is None:
            return page
        keys = [query.table.key_of(item) for item in page.items]
        return Page([dict(stored.items[key.partition, key.sort]) for key in keys], page.next)

    patch.setattr(memory, "_take_page", whole)


def many_gets_leave_out_what_is_missing(patch: Patch) -> None:
    execute = MemoryBackend.execute

    def short(self: MemoryBackend, effect: Any) -> Any:
        answer = execute(self, effect)
        return [item for item in answer if item is not None] if type(effect) is GetMany else answer

    patch.setattr(MemoryBackend, "execute", short)


def the_stored_item_itself_is_handed_out(patch: Patch) -> None:
    def get(self: MemoryTables, key: Any) -> Any:
        return self.stored(key.table).items.get((key.partition, key.sort))

    patch.setattr(MemoryTables, "get", get)


def nothing_is_checked_before_it_is_sent(patch: Patch) -> None:
    patch.setattr(memory, "checked_key", lambda write: (write.key, 0))
    patch.setattr(memory, "checked_keys", lambda writes: ([write.key for write in writes], 0))
    for name in ("check_key", "check_query"):
        patch.setattr(memory, name, lambda anything: 0)


def an_update_needs_an_item(patch: Patch) -> None:
    refusal = MemoryTables.refusal

    def strict(self: MemoryTables, write: Any, key: Any = None) -> Any:
        found = refusal(self, write, key)
        return Refusal("condition", None) if type(write) is Update and self.get(write.key) is None else found

    patch.setattr(MemoryTables, "refusal", strict)


def one_error_fails_all_that_was_given_together(patch: Patch) -> None:
    execute_many = MemoryBackend.execute_many

    def together(self: MemoryBackend, effects: Any) -> Any:
        outcomes = execute_many(self, effects)
        error = next((outcome.error for outcome in outcomes if outcome.error is not None), None)
        return outcomes if error is None else [Outcome(error=error)] * len(outcomes)

    patch.setattr(MemoryBackend, "execute_many", together)


FAULTS: list[Callable[[Patch], None]] = [
    true_is_one,
    absent_is_less,
    writes_before_the_refused_one_stay,
    a_refusal_hides_its_item,
    put_merges,
    strings_are_ordered_as_utf_16,
    a_page_repeats_the_last_item_of_the_one_before,
    a_cut_page_is_taken_for_the_end,
    an_index_keeps_items_that_left_it,
    an_index_hands_out_whole_items,
    many_gets_leave_out_what_is_missing,
    the_stored_item_itself_is_handed_out,
    nothing_is_checked_before_it_is_sent,
    an_update_needs_an_item,
    one_error_fails_all_that_was_given_together,
]


MANY = 20
"""Tests that fail when nothing works at all are more than twice as many."""


class Sleepless(MemoryBackend):
    """An index that never shows what it should is waited for in no time."""

    def sleep(self, seconds: float) -> None:
        """Does not."""


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_the_contract_finds_a_planted_fault(monkeypatch: pytest.MonkeyPatch, plant: Callable[[Patch], None]) -> None:
    backend = Sleepless()
    backend.create_tables(CONTRACT_TABLES)
    plant(monkeypatch)
    assert 1 <= len(list(findings(backend))) < MANY, (
        "found, and it is this fault: a store that cannot be used fails all"
    )


def test_the_contract_finds_nothing_in_the_reference() -> None:
    backend = MemoryBackend()
    backend.create_tables(CONTRACT_TABLES)
    assert list(findings(backend)) == []
