"""Programs that the kernel itself has: what they ask for, effect by effect, without a store."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from casework.backends.drive import run
from casework.backends.memory import MemoryBackend
from casework.errors import CorruptItem, NewerFormat, WrongCursor
from casework.kernel.cursor import make_cursor, read_cursor
from casework.kernel.effects import All, Call, Flag, Handle, Page, Query, Race, Spawn
from casework.kernel.items import Put, Table
from casework.kernel.paging import Walk, walk_all
from casework.kernel.programs import (
    call,
    call_blocking,
    get_many,
    query,
    query_all,
    query_up_to,
    race,
    run_together,
    spawn,
    transact,
)
from casework.kernel.schema import FORMAT, bucket_of, check_format

NUMBERED = Table(name="numbered", partition="id", sort="n", sort_type="int")


def asked(program: Any, *answers: Any) -> list[Any]:
    """The effects that a program yields when it is answered so."""
    effects = [next(program)]
    for answer in answers:
        try:
            effects.append(program.send(answer))
        except StopIteration as end:
            effects.append(end.value)
    return effects


def item(n: int) -> dict[str, Any]:
    return {"id": "p", "n": n}


# --- reads ----------------------------------------------------------------------------------------------------------


def test_a_range_is_read_to_its_end_with_its_bounds_on_every_page() -> None:
    first = Query(NUMBERED, "p", low=1, high=9)
    assert asked(
        query_all(NUMBERED, "p", low=1, high=9), Page([item(1)], "c1"), Page([], "c2"), Page([item(2)], None)
    ) == [
        first,
        msgspec.structs.replace(first, after="c1"),
        msgspec.structs.replace(first, after="c2"),
        [item(1), item(2)],
    ]


def test_the_first_so_many_are_read_over_short_pages_and_no_more_than_asked_for() -> None:
    first = Query(NUMBERED, "p", low=1, limit=3)
    assert asked(query_up_to(3, NUMBERED, "p", low=1), Page([item(1)], "c1"), Page([item(2), item(3)], "c2")) == [
        first,
        msgspec.structs.replace(first, limit=2, after="c1"),
        [item(1), item(2), item(3)],
    ]
    assert asked(query_up_to(3, NUMBERED, "p", low=1), Page([item(1)], None)) == [first, [item(1)]]


def test_a_page_is_asked_for_with_all_that_was_given() -> None:
    given = {"index": "due", "low": 1, "high": 2, "limit": 3, "reverse": True, "after": "c"}
    assert next(query(NUMBERED, "p", **given)) == Query(NUMBERED, "p", **given)  # type: ignore[arg-type]


def test_nothing_is_asked_of_the_store_for_no_keys_and_no_programs() -> None:
    for program in (get_many([]), run_together([])):
        with pytest.raises(StopIteration) as end:
            next(program)
        assert end.value.value == []


def test_ranges_are_read_side_by_side_each_to_its_end() -> None:
    a, b = Query(NUMBERED, "a"), Query(NUMBERED, "b", limit=2)
    effects = asked(walk_all([a, b]), [Page([item(1)], "ca"), Page([item(2)], None)], [Page([item(3)], None)])
    assert effects == [All([a, b]), All([msgspec.structs.replace(a, after="ca")]), [item(1), item(2), item(3)]]


def test_a_limit_of_a_walk_holds_for_each_range_and_is_not_kept() -> None:
    walk = Walk([Query(NUMBERED, "a"), Query(NUMBERED, "b", limit=9)])
    pages = [Page([item(1)], "ca"), Page([], "cb")]
    [effect, items] = asked(walk.next_pages(4), pages)
    assert [each.limit for each in effect.reads] == [4, 4] and items == [item(1)]
    assert [(each.partition, each.after) for each in walk.left] == [("a", "ca"), ("b", "cb")]


def test_a_walk_stands_where_it_stood_after_an_error() -> None:
    walk = Walk([Query(NUMBERED, "a")])
    program = walk.next_pages()
    next(program)
    with pytest.raises(ConnectionError):
        program.throw(ConnectionError())
    assert walk.left == [Query(NUMBERED, "a")]


# --- functions and programs beside ----------------------------------------------------------------------------------


def test_only_a_function_that_may_block_is_called_as_one() -> None:
    assert next(call(print, 1, end="")) == Call(print, (1,), {"end": ""})
    assert next(call_blocking(print, 1, end="")) == Call(print, (1,), {"end": ""}, may_block=True)


def test_a_program_is_spawned_under_its_name_and_raced_for_so_long() -> None:
    program, handle, flag = transact([Put(NUMBERED, item(1))]), Handle("h"), Flag()
    assert next(spawn(program, "named")) == Spawn(program, "named")
    assert next(race(handle, flag, timeout_s=2.5)) == Race((handle, flag), 2.5)


def test_a_flag_tells_each_listener_and_can_be_cleared() -> None:
    flag = Flag()
    heard: list[str] = []
    flag.listeners[lambda: heard.append("a")] = None
    flag.listeners[lambda: heard.append("b")] = None
    assert not flag.is_set
    flag.set()
    assert flag.is_set and heard == ["a", "b"]
    flag.clear()
    assert not flag.is_set


def test_who_is_cancelled_is_woken() -> None:
    handle = Handle("h")
    woken: list[bool] = []
    handle.cancel()
    assert handle.cancel_requested and not handle.done and handle.name == "h"
    handle.wake = lambda: woken.append(handle.cancel_requested)
    handle.cancel()
    assert woken == [True]


def test_programs_side_by_side_each_have_their_outcome() -> None:
    backend = MemoryBackend(seed=1)
    backend.create_tables([NUMBERED])

    def fails() -> Any:
        yield from get_many([NUMBERED.key("p", 1)])
        raise ValueError("no")

    one, two = run(run_together([get_many([NUMBERED.key("p", 1)]), fails()]), backend)
    assert one.result() == [None] and isinstance(two.error, ValueError)


# --- cursors and formats --------------------------------------------------------------------------------------------


def test_a_cursor_holds_the_smallest_and_the_largest_number_and_none_beyond() -> None:
    first = Query(NUMBERED, "p")
    for n in (-(2**63), 2**63 - 1):
        for position in ((n, "p", None), (None, "p", n)):
            cursor = make_cursor(first, position)  # type: ignore[arg-type]
            assert read_cursor(msgspec.structs.replace(first, after=cursor)) == position
    for n in (-(2**63) - 1, 2**63, True, 1.5, [1]):
        for position in ((n, "p", None), (None, "p", n)):
            cursor = make_cursor(first, position)  # type: ignore[arg-type]
            with pytest.raises(WrongCursor, match="is not a cursor"):
                read_cursor(msgspec.structs.replace(first, after=cursor))


def test_a_cursor_whose_partition_is_no_text_is_none() -> None:
    first = Query(NUMBERED, "p")
    cursor = make_cursor(first, (1, 5, 1))  # type: ignore[arg-type]
    with pytest.raises(WrongCursor, match="is not a cursor"):
        read_cursor(msgspec.structs.replace(first, after=cursor))


def test_a_cursor_is_text_for_urls_without_padding() -> None:
    for text in ("", "a", "ab", "abc", "\u00ff\u00fe???>>>"):
        cursor = make_cursor(Query(NUMBERED, "p"), (text, "p", None))
        assert cursor.replace("-", "").replace("_", "").isalnum()


def test_an_item_of_a_newer_format_or_of_none_is_refused_with_what_it_is() -> None:
    check_format({"format": FORMAT}, "item x")
    check_format({"format": FORMAT - 1}, "item x")
    with pytest.raises(NewerFormat, match=f"item x has format {FORMAT + 1}, this casework reads up to {FORMAT}"):
        check_format({"format": FORMAT + 1}, "item x")
    for wrong in ({}, {"format": "1"}, {"format": True}, {"format": None}):
        with pytest.raises(CorruptItem, match="item x has no format number"):
            check_format(wrong, "item x")


def test_the_bucket_of_an_execution_never_changes() -> None:
    """They are stored: another hash would hide what is there."""
    assert [bucket_of(id, 16) for id in ("", "a", "order-1", "order-2", "\u00e9")] == [0, 14, 8, 5, 0]
    for id in map(str, range(300)):
        assert bucket_of(id, 1) == 0
        assert all(bucket_of(id, n) in (bucket_of(id, n - 1), n - 1) for n in range(2, 40))
