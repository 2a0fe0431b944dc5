"""The contract's part about reads: many keys, ranges, pages and indexes."""

from __future__ import annotations

from typing import Any

import pytest

from casework.backends.port import Backend
from casework.errors import Misuse
from casework.kernel.effects import GetMany, Query
from casework.kernel.items import Delete, Item, Put, Update
from casework.testing.contract_tables import (
    NUMBERED,
    NUMBERS_IN_ORDER,
    PLAIN,
    SORTED,
    TEXT_IN_ORDER,
    eventually,
    put_all,
    query_items,
    query_pages,
    write,
)


def _sorts(items: list[Item], name: str = "sort") -> list[Any]:
    return [item[name] for item in items]


class QueriesContract:
    """Reads of many items at once."""

    def test_get_many_answers_in_the_order_of_its_keys(self, backend: Backend, place: str) -> None:
        put_all(backend, [Put(SORTED, {"id": place, "sort": f"{n:03}", "n": n}) for n in range(0, 300, 2)])
        order = [*range(299, -1, -1), 4, 4, 5]
        items = backend.execute(GetMany([SORTED.key(place, f"{n:03}") for n in order]))
        expected = [None if n % 2 else {"id": place, "sort": f"{n:03}", "n": n} for n in order]
        assert items == expected

    def test_get_many_reads_from_several_tables_and_hands_out_separate_items(
        self, backend: Backend, place: str
    ) -> None:
        write(backend, Put(PLAIN, {"id": place}), Put(NUMBERED, {"id": place, "number": 0}))
        keys = [PLAIN.key(place), NUMBERED.key(place, 0), PLAIN.key(place), NUMBERED.key(place, 1)]
        items = backend.execute(GetMany(keys))
        assert items == [{"id": place}, {"id": place, "number": 0}, {"id": place}, None]
        items[0]["changed"] = 1
        assert items[2] == {"id": place}
        assert backend.execute(GetMany([])) == []

    def test_a_partition_is_sorted_by_code_point(self, backend: Backend, place: str) -> None:
        put_all(backend, [Put(SORTED, {"id": place, "sort": text}) for text in reversed(TEXT_IN_ORDER)])
        assert _sorts(query_items(backend, Query(SORTED, place))) == list(TEXT_IN_ORDER)
        assert _sorts(query_items(backend, Query(SORTED, place, reverse=True))) == list(reversed(TEXT_IN_ORDER))

    def test_numbers_are_sorted_as_numbers(self, backend: Backend, place: str) -> None:
        put_all(backend, [Put(NUMBERED, {"id": place, "number": n}) for n in reversed(NUMBERS_IN_ORDER)])
        assert _sorts(query_items(backend, Query(NUMBERED, place)), "number") == list(NUMBERS_IN_ORDER)
        found = query_items(backend, Query(NUMBERED, place, low=-9, high=2**53))
        assert _sorts(found, "number") == [n for n in NUMBERS_IN_ORDER if -9 <= n <= 2**53]

    def test_bounds_are_inclusive_and_either_may_be_open(self, backend: Backend, place: str) -> None:
        put_all(backend, [Put(SORTED, {"id": place, "sort": text}) for text in TEXT_IN_ORDER])
        for low in (None, "a", "aaa", "\uffff", "\U0001f600"):
            for high in (None, "a", "\uffff", "\U00010000", "\U0010ffff"):
                if low is not None and high is not None and low > high:
                    continue
                expected = [t for t in TEXT_IN_ORDER if (low is None or t >= low) and (high is None or t <= high)]
                for reverse in (False, True):
                    found = query_items(backend, Query(SORTED, place, low=low, high=high, reverse=reverse))
                    assert _sorts(found) == (expected[::-1] if reverse else expected)

    def test_a_query_sees_its_own_partition_only(self, backend: Backend, place: str) -> None:
        for partition in (place, place + "x", place + "\U00010000"):
            write(backend, Put(SORTED, {"id": partition, "sort": "s"}))
        assert query_items(backend, Query(SORTED, place)) == [{"id": place, "sort": "s"}]
        assert backend.execute(Query(SORTED, place + "-nobody")).items == []

    def test_a_query_of_a_table_without_sort_key(self, backend: Backend, place: str) -> None:
        write(backend, Put(PLAIN, {"id": place, "n": 1}))
        for reverse in (False, True):
            page = backend.execute(Query(PLAIN, place, limit=1, reverse=reverse))
            assert (page.items, page.next) == ([{"id": place, "n": 1}], None)
        with pytest.raises(Misuse):
            backend.execute(Query(PLAIN, place, low="a"))

    def test_many_queries_at_once_are_each_complete(self, backend: Backend, place: str) -> None:
        """Empty partitions, cut pages and a query asked twice, all in one call."""
        sizes = [0, 1, 2, 5, 0, 40, 3]
        put_all(
            backend,
            [
                Put(SORTED, {"id": f"{place}-{n}", "sort": f"{k:02}", "n": n})
                for n, size in enumerate(sizes)
                for k in range(size)
            ],
        )
        order = [5, 0, 3, 6, 2, 1, 4, 5]
        outcomes = backend.execute_many([Query(SORTED, f"{place}-{n}", limit=4) for n in order])
        for n, outcome in zip(order, outcomes, strict=True):
            page = outcome.result()
            expected = [{"id": f"{place}-{n}", "sort": f"{k:02}", "n": n} for k in range(min(4, sizes[n]))]
            assert page.items == expected
            assert (page.next is not None) == (sizes[n] > 4)
        # Each between bounds of its own: those of the first one are not the others'.
        between = [(6, "02", "04"), (5, "00", "01"), (6, "05", "05"), (3, None, None), (5, "02", "04"), (3, "01", None)]
        outcomes = backend.execute_many([Query(SORTED, f"{place}-{n}", low=low, high=high) for n, low, high in between])
        for (n, low, high), outcome in zip(between, outcomes, strict=True):
            sorts = [f"{k:02}" for k in range(sizes[n])]
            wanted = [sort for sort in sorts if (low or "") <= sort <= (high or "~")]
            assert [item["sort"] for item in outcome.result().items] == wanted

    # --- pages -----------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("reverse", [False, True])
    @pytest.mark.parametrize("limit", [1, 3, 7, 10, 11, None])
    def test_pages_follow_each_other_without_gap_or_repeat(
        self, backend: Backend, place: str, limit: int | None, reverse: bool
    ) -> None:
        put_all(backend, [Put(NUMBERED, {"id": place, "number": n}) for n in range(-5, 7)])
        pages = query_pages(backend, Query(NUMBERED, place, low=-4, high=5, limit=limit, reverse=reverse))
        found = [n for page in pages for n in _sorts(page.items, "number")]
        assert found == (list(range(5, -5, -1)) if reverse else list(range(-4, 6)))
        assert all(len(page.items) <= (limit or 10) for page in pages)

    def test_the_limit_may_change_from_page_to_page(self, backend: Backend, place: str) -> None:
        put_all(backend, [Put(SORTED, {"id": place, "sort": f"{n}"}) for n in range(6)])
        first = backend.execute(Query(SORTED, place, limit=2))
        rest = backend.execute(Query(SORTED, place, limit=100, after=first.next))
        assert _sorts(first.items) + _sorts(rest.items) == [f"{n}" for n in range(6)]
        assert rest.next is None

    def test_a_cursor_outlives_the_item_at_which_it_stands(self, backend: Backend, place: str) -> None:
        put_all(backend, [Put(SORTED, {"id": place, "sort": f"{n}"}) for n in range(4)])
        first = backend.execute(Query(SORTED, place, limit=2))
        write(backend, Delete(SORTED.key(place, "1")), Put(SORTED, {"id": place, "sort": "15"}))
        assert _sorts(query_items(backend, Query(SORTED, place, after=first.next))) == ["15", "2", "3"]

    def test_a_page_ends_at_about_a_megabyte(self, backend: Backend, place: str) -> None:
        for n in range(8):
            write(backend, Put(SORTED, {"id": place, "sort": f"{n}", "data": "x" * 300_000}))
        pages = query_pages(backend, Query(SORTED, place))
        assert [item["sort"] for page in pages for item in page.items] == [f"{n}" for n in range(8)]
        assert len(pages) >= 2
        assert all(len(page.items) <= 4 for page in pages)
        together = backend.execute_many([Query(SORTED, place), Query(SORTED, place + "-nobody"), Query(SORTED, place)])
        for outcome in (together[0], together[2]):
            assert outcome.result().items == pages[0].items and outcome.result().next is not None
        assert together[1].result().items == []

    def test_a_foreign_cursor_is_misuse(self, backend: Backend, place: str) -> None:
        """A cursor is bound to its table, partition, index, bounds and direction; other text is none."""
        put_all(backend, [Put(SORTED, {"id": place, "sort": f"{n}"}) for n in range(4)])
        cursor = backend.execute(Query(SORTED, place, limit=1)).next
        assert cursor is not None and cursor.isascii() and not set(cursor) & set("+/= ")
        for query in (
            Query(SORTED, place + "x", after=cursor),
            Query(SORTED, place, after=cursor, reverse=True),
            Query(SORTED, place, after=cursor, low="1"),
            Query(SORTED, place, index="labels", after=cursor),
            Query(NUMBERED, place, after=cursor),
            Query(SORTED, place, after="nonsense"),
            Query(SORTED, place, after="\u00e9"),
            Query(SORTED, place, after=""),
        ):
            with pytest.raises(Misuse, match="cursor"):
                backend.execute(query)

    def test_a_query_that_cannot_work_is_misuse(self, backend: Backend, place: str) -> None:
        """A limit below 1, an unknown index, bounds of another type or upside down, values no store holds."""
        for query in (
            Query(SORTED, place, limit=0),
            Query(SORTED, ""),
            Query(SORTED, 7),  # type: ignore[arg-type]
            Query(SORTED, place, index="nobody"),
            Query(SORTED, place, low=7),
            Query(SORTED, place, low="b", high="a"),
            Query(NUMBERED, place, low="7"),
            Query(NUMBERED, place, low=True),
            Query(NUMBERED, place, high=2**63),
            Query(SORTED, place, high="\ud800"),
            Query(SORTED, "\ud800"),
        ):
            with pytest.raises(Misuse):
                backend.execute(query)

    # --- indexes (they may lag, so these ask until the answer is there) ----------------------------------------------

    def _found(self, backend: Backend, query: Query) -> list[Item]:
        return query_items(backend, query)

    def test_an_index_holds_the_keys_of_items_with_both_attributes(self, backend: Backend, place: str) -> None:
        write(
            backend,
            Put(SORTED, {"id": place, "sort": "both", "bucket": place, "due_at_us": 5, "other": "not in the index"}),
            Put(SORTED, {"id": place, "sort": "one", "bucket": place}),
            Put(SORTED, {"id": place, "sort": "none"}),
        )
        expected: list[Item] = [{"id": place, "sort": "both", "bucket": place, "due_at_us": 5}]
        eventually(backend, lambda: self._found(backend, Query(SORTED, place, "due")), expected)

    def test_an_item_moves_into_within_and_out_of_an_index(self, backend: Backend, place: str) -> None:
        """Setting, changing and removing either attribute, replacing and deleting the item."""
        key = SORTED.key(place, "s")

        def dues() -> list[Any]:
            return _sorts(self._found(backend, Query(SORTED, place, "due")), "due_at_us")

        write(backend, Put(SORTED, {"id": place, "sort": "s", "due_at_us": 1}))
        write(backend, Update(key, {"bucket": place}))
        eventually(backend, dues, [1])
        write(backend, Update(key, {"due_at_us": 2}))
        eventually(backend, dues, [2])
        write(backend, Update(key, {"elsewhere": True}))
        eventually(backend, dues, [2])
        write(backend, Update(key, {"bucket": place + "-other"}))
        eventually(backend, dues, [])
        eventually(backend, lambda: len(self._found(backend, Query(SORTED, place + "-other", "due"))), 1)
        write(backend, Update(key, remove=["due_at_us"]))
        eventually(backend, lambda: len(self._found(backend, Query(SORTED, place + "-other", "due"))), 0)
        write(backend, Put(SORTED, {"id": place, "sort": "s", "bucket": place, "due_at_us": 3}))
        eventually(backend, dues, [3])
        write(backend, Delete(key))
        eventually(backend, dues, [])

    def test_an_index_is_sorted_bounded_and_paged(self, backend: Backend, place: str) -> None:
        """Equal sort values too: pages neither repeat nor drop one of them."""
        put_all(
            backend,
            [
                Put(SORTED, {"id": f"{place}-{n % 3}", "sort": f"{n:02}", "bucket": place, "due_at_us": n // 2 - 3})
                for n in range(20)
            ],
        )
        every = [n // 2 - 3 for n in range(20)]
        eventually(
            backend, lambda: _sorts(self._found(backend, Query(SORTED, place, "due", limit=7)), "due_at_us"), every
        )
        reverse = self._found(backend, Query(SORTED, place, "due", limit=3, reverse=True))
        assert _sorts(reverse, "due_at_us") == every[::-1]
        bounded = self._found(backend, Query(SORTED, place, "due", low=-1, high=2, limit=2))
        assert _sorts(bounded, "due_at_us") == [due for due in every if -1 <= due <= 2]
        assert len({(item["id"], item["sort"]) for item in reverse}) == 20

    def test_two_indexes_of_one_table_are_apart(self, backend: Backend, place: str) -> None:
        write(
            backend,
            Put(SORTED, {"id": place, "sort": "1", "bucket": place, "due_at_us": 1}),
            Put(SORTED, {"id": place, "sort": "2", "shelf": place, "label": "\U0001f600"}),
            Put(SORTED, {"id": place, "sort": "3", "shelf": place, "label": "\uffff"}),
        )
        eventually(backend, lambda: _sorts(self._found(backend, Query(SORTED, place, "due"))), ["1"])
        eventually(backend, lambda: _sorts(self._found(backend, Query(SORTED, place, "labels"))), ["3", "2"])
        found = self._found(backend, Query(SORTED, place, "labels", low="\U00010000"))
        assert found == [{"id": place, "sort": "2", "shelf": place, "label": "\U0001f600"}]
