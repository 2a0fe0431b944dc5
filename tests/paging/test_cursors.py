"""Cursors in users' hands: opaque, fit for a URL, bound to their filters; and what comes and goes between pages."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import casework
from casework.app.execution_store import ExecutionStore
from casework.app.idempotency_store import IdempotencyStore
from casework.app.streams import StreamStore
from casework.backends.memory import MemoryBackend
from casework.cli.idempotency import _page
from casework.executions.store_items import StoredExecution
from casework.kernel.schema import TABLES
from casework.streams.log import Op
from tests.paging.test_pages import World

Read = Callable[..., Any]
"""A listing with some filters, by its limit and cursor; answers the cursor of the next page."""


@pytest.fixture
def world() -> Iterator[World]:
    backend = MemoryBackend()
    backend.create_tables(TABLES)
    with contextlib.ExitStack() as stack:
        yield World(backend, stack)


def executions(world: World) -> list[Read]:
    for i in range(6):
        world.app.start("m", id=f"x-{i}")
        world.app.terminate(f"x-{i}")
        world.app.start("m", id=f"y-{i}")

    def read(**filters: Any) -> Read:
        return lambda limit, cursor: world.app.list(limit=limit, cursor=cursor, **filters).next

    return [read(), read(status="cancelled"), read(status="running"), read(machine="m")]


def children(world: World) -> list[Read]:
    for id in ("p", "q"):
        world.app.start("m", id=id)
        world.app.send(id, "Each", {"inputs": list(range(6))})
    with world.worker():
        world.all_done(["p", "q"])
    return [
        lambda limit, cursor, id=id: world.app.list(parent=id, limit=limit, cursor=cursor).next  # type: ignore[misc]
        for id in ("p", "q")
    ]


def dead_letters(world: World) -> list[Read]:
    for i in range(6):
        world.app.start("m", id=f"x-{i}")
        world.app.terminate(f"x-{i}")
        world.app.send(f"x-{i}", "Add", {"i": 1})
    with world.worker():
        while len(world.app.dead_letters().items) < 6:
            world.backend.sleep(0.005)
    return [lambda limit, cursor: world.app.dead_letters(limit=limit, cursor=cursor).next, executions(world)[0]]


def component(world: World) -> list[Read]:
    store = ExecutionStore(world.backend, buckets=2)
    for i in range(6):
        store.commit(StoredExecution(f"c-{i}", "{}", machine="c"))

    def read(**filters: Any) -> Read:
        return lambda limit, cursor: store.list_executions(limit=limit, cursor=cursor, **filters).next_cursor

    return [read(), read(machine="c"), read(status=["running", "pending"], machine="c"), read(roots_only=True)]


def stream_names(world: World) -> list[Read]:
    for i in range(6):
        world.streams.append(f"s-{i}", [Op("a", b"x")])
    return [lambda limit, cursor: world.streams.list(limit=limit, cursor=cursor).next_cursor, executions(world)[0]]


def keys(world: World) -> list[Read]:
    store = IdempotencyStore(world.backend)
    for i in range(6):
        store.claim(f"k/{i}", "f", 1, 600.0)
    return [
        lambda limit, cursor, filters=filters: _page(store, *filters, limit, cursor)[2]  # type: ignore[misc]
        for filters in ((None, "k/"), ("claimed", "k/"), (None, ""))
    ]


LISTINGS = (executions, children, dead_letters, component, stream_names, keys)


@pytest.mark.parametrize("listing", LISTINGS, ids=lambda listing: listing.__name__)
def test_a_cursor_is_fit_for_a_url_and_bound_to_its_listing_and_filters(world: World, listing: Any) -> None:
    reads = listing(world)
    cursors = [read(limit=1, cursor=None) for read in reads]
    for cursor in cursors:
        assert re.fullmatch(r"[A-Za-z0-9_-]+", cursor)
    for n, read in enumerate(reads):
        read(limit=2, cursor=cursors[n])  # another limit is no other listing
        for m, cursor in enumerate(cursors):
            if m != n:
                with pytest.raises(casework.WrongCursor, match=r"another (listing|query)|is not a cursor"):
                    read(limit=1, cursor=cursor)
        for wrong in ("", "nonsense", "\u00e9", cursors[n][:-5], cursors[n] + "!", "x" * 5000, "W10", "bnVsbA"):
            with pytest.raises(casework.WrongCursor, match=r"is not a cursor|another"):
                read(limit=1, cursor=wrong)


def test_a_cursor_of_results_is_bound_to_their_number(world: World) -> None:
    text = "x" * 3000
    world.app.start("m", id="p")
    world.app.send("p", "Each", {"inputs": [text] * 40})
    with world.worker():
        world.all_done(["p"])
    output = world.app.get("p").output
    cursor = world.app.child_results("p", output, limit=3).next
    assert re.fullmatch(r"[A-Za-z0-9_-]+", cursor)
    assert [r.ordinal for r in world.app.child_results("p", output, limit=3, cursor=cursor).items] == [3, 4, 5]
    for wrong in ("nonsense", "\u00e9", "Y2Nj", "YzQx"):  # the last: position 41
        with pytest.raises(casework.WrongCursor, match="not a cursor of these results"):
            world.app.child_results("p", output, cursor=wrong)


def test_what_is_there_all_the_time_is_listed_once_whatever_comes_and_goes_between_pages(world: World) -> None:
    stay = [f"stay-{i}" for i in range(12)]
    for i, id in enumerate(stay):
        world.app.start("m", id=id)
        world.app.start("m", id=f"gone-{i}")
    listed: list[str] = []
    cursor, n = None, 0
    while True:
        page = world.app.list(limit=2, cursor=cursor)
        listed += [execution.id for execution in page.items]
        cursor = page.next
        if cursor is None:
            break
        if n < 12:
            world.app.purge(f"gone-{n}", force=True)
            world.app.start("m", id=f"come-{n}")
            n += 1
    assert sorted(id for id in listed if id.startswith("stay")) == sorted(stay)
    assert len(set(listed)) == len(listed)


def test_names_of_streams_come_between_pages(world: World) -> None:
    streams = StreamStore(world.backend)
    for name in ("b", "d", "f"):
        streams.append(name, [Op("a", b"x")])
    first = streams.list(limit=1)
    streams.append("a", [Op("a", b"x")])
    streams.append("e", [Op("a", b"x")])
    rest = streams.list(limit=10, cursor=first.next_cursor)
    more = streams.list(limit=10, cursor=rest.next_cursor) if rest.next_cursor else None
    assert [*first.streams, *rest.streams, *(more.streams if more else [])][:3] == ["b", "d", "e"]
