"""Marks: a reader notices that the log is not the one that it has read."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import casework
from casework.backends.drive import run
from casework.errors import LogChanged, Misuse
from casework.kernel.items import Delete
from casework.kernel.programs import query_all, transact
from casework.kernel.schema import STREAMS
from casework.streams.log import Op, claim_key
from casework.streams.marks import mark_of
from casework.streams.read import read_page
from casework.streams.retention import truncate
from tests.streams.stores import log, put


def until(holds: Callable[[], bool]) -> None:
    tick = threading.Event()
    for _ in range(3000):
        if holds():
            return
        tick.wait(0.01)
    pytest.fail("it did not come to hold")


def lose(store: Any, *ids: str) -> None:
    """What a restore does: the stream is as it was before anything of it was appended."""
    items = run(query_all(STREAMS, "s"), store)
    writes = [Delete(STREAMS.key("s", int(item["seq"]))) for item in items]
    run(transact([*writes, *(Delete(claim_key("s", id)) for id in ids)]), store)


def test_a_mark_is_the_same_from_a_page_of_any_size_and_from_a_look(store: Any) -> None:
    put(store, "a", "b", "c")
    put(store, "d")
    found = {1: "", 2: "", 3: "", 4: ""}
    for limit in (1, 2, 3, 4):
        after, mark = 0, ""
        while after < 4:
            page = run(read_page(log(), "s", after, limit, mark=mark), store)
            after, mark = page.next_after, page.mark
            assert mark and found[after] in ("", mark) and page.marks()[-1] == mark
            found[after] = mark
    assert [run(mark_of(log(), "s", seq), store) for seq in range(5)] == ["", *found.values()]
    assert len(set(found.values())) == 4


@pytest.mark.parametrize("ids", ["", "x", "xyzw", "ab", "abcd"])
def test_a_log_that_was_made_again_is_told_from_the_one_that_was_read(store: Any, ids: str) -> None:
    put(store, "a", "b", "c")
    marks = {after: run(mark_of(log(), "s", after), store) for after in (1, 2, 3)}
    lose(store, *"abc")
    if ids:
        put(store, *ids)
    for after, mark in marks.items():
        with pytest.raises(LogChanged) as raised:
            run(read_page(log(), "s", after, mark=mark), store)
        told = raised.value
        assert (told.stream, told.after, told.last_seq) == ("s", after, len(ids))
        assert str(pickle.loads(pickle.dumps(told))) == str(told)


def test_a_mark_asks_for_nothing_more_than_the_segment_at_the_cursor(store: Any) -> None:
    put(store, "a", "b")
    put(store, "c")
    page = run(read_page(log(), "s", 0, 2), store)
    assert [op.id for op in run(read_page(log(), "s", 2, mark=page.mark), store).ops] == ["c"]
    end = run(read_page(log(), "s", 3, mark=run(mark_of(log(), "s", 3), store)), store)
    assert end.ops == [] and end.mark == end.known, "an empty page keeps the mark that it was asked with"


def test_where_the_cursors_own_segment_was_truncated_the_mark_is_not_asked_for(store: Any) -> None:
    put(store, "a")
    put(store, "b")
    mark = run(mark_of(log(), "s", 1), store)
    run(truncate(log(), "s", 1, repush_window_s=-10), store)
    assert [op.id for op in run(read_page(log(), "s", 1, mark=mark), store).ops] == ["b"]


@pytest.mark.parametrize("mark", ["x", "o12", 7, None, b""])
def test_a_mark_that_is_none_is_refused(store: Any, mark: Any) -> None:
    with pytest.raises(Misuse, match="mark is"):
        run(read_page(log(), "s", 1, mark=mark), store)


def test_readers_of_the_store_carry_the_mark_on(tmp_path: Path) -> None:
    with casework.open(f"sqlite:///{tmp_path}/shop.db") as app:
        streams = app.streams
        streams.append("s", [Op("a", b""), Op("b", b"")])
        mark, tail = streams.mark("s", 2), streams.tail("s")
        assert [next(tail).id, next(tail).id] == ["a", "b"]
        lose(streams.backend, "a", "b")
        streams.append("s", [Op(id, b"") for id in "xyz"])
        with pytest.raises(LogChanged, match="another operation stands at 2"):
            next(tail)
        with pytest.raises(LogChanged):
            list(streams.read("s", 2, mark=mark))
        assert [op.id for op in streams.read("s", 2)] == ["z"], "without a mark it is any log"


async def readers_on_a_loop(url: str) -> None:
    async with casework.open_async(url) as app:
        streams = app.streams
        await streams.append("s", [Op("a", b"")])
        mark = await streams.mark("s", 1)
        assert [op.id async for op in streams.read("s", 1, mark=mark)] == []
        with pytest.raises(LogChanged):
            _ = [op async for op in streams.read("s", 1, mark="o" + "0" * 32)]
        with pytest.raises(LogChanged):
            _ = [op async for op in streams.tail("s", 1, mark="o" + "0" * 32)]


def test_readers_on_a_loop_do_the_same(tmp_path: Path) -> None:
    asyncio.run(readers_on_a_loop(f"sqlite:///{tmp_path}/shop.db"))


def test_a_group_stops_rather_than_go_on_in_another_log(tmp_path: Path) -> None:
    with casework.open(f"sqlite:///{tmp_path}/shop.db") as app:
        streams = app.streams
        seen: list[str] = []
        streams.append("s", [Op("a", b""), Op("b", b"")])
        with streams.consumer("g", ["s"], lambda op, writes: seen.append(op.id)):
            until(lambda: streams.cursor("g", "s").after == 2)
        assert streams.cursor("g", "s").mark == streams.mark("s", 2)
        lose(streams.backend, "a", "b")
        streams.append("s", [Op(id, b"") for id in "xyz"])
        with streams.consumer("g", ["s"], lambda op, writes: seen.append(op.id)):
            until(lambda: streams.cursor("g", "s").is_stopped)
        assert "is not the log that was read up to 2" in streams.cursor("g", "s").error
        streams.resume("g", "s")
        with streams.consumer("g", ["s"], lambda op, writes: seen.append(op.id)):
            until(lambda: streams.cursor("g", "s").after == 3)
        assert seen == ["a", "b", "z"], "whoever lets it go on takes the log that there is"
