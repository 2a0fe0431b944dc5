"""The number of buckets is raised while processes that were opened before go on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import casework
from casework.app.execution_store import SqliteStore
from casework.backends.drive import run
from casework.executions.buckets import raise_buckets
from casework.executions.membership import Membership, beat
from casework.executions.runtime import Runtime
from casework.executions.store_items import StoredExecution, TimerOp
from casework.kernel.effects import Get
from casework.kernel.schema import EXECUTIONS, bucket_of

MACHINE = casework.Machine.from_dict({
    "id": "m", "initial": "a",
    "states": {"a": {"on": {"go": "b", "stay": {}}}, "b": {"after": {"1ms": "c"}}, "c": {"type": "final"}},
})  # fmt: skip

OLD, NEW = 2, 7
IDS = [f"x-{n}" for n in range(40)]

Opener = Callable[..., Any]


@pytest.fixture
def opener(tmp_path: Path) -> Iterator[Opener]:
    """Opens the store as another process would."""
    with contextlib.ExitStack() as stack:
        yield lambda **options: stack.enter_context(
            casework.open(f"sqlite:///{tmp_path}/a.db", machines=[MACHINE], **options)
        )


def all_listed(app: Any, **filters: Any) -> list[str]:
    ids: list[str] = []
    cursor = None
    while True:
        page = app.list(cursor=cursor, **filters)
        ids += [execution.id for execution in page.items]
        cursor = page.next
        if cursor is None:
            return ids


def moves(id: str) -> bool:
    """It comes to stand in a bucket that was not there before, the next time that it is written."""
    return bucket_of(id, NEW) >= OLD


def test_a_listing_by_a_process_that_was_opened_before_misses_nothing(opener: Opener) -> None:
    app, before = opener(buckets=OLD), opener()
    for id in IDS[:20]:
        app.start("m", id=id)
    assert app.raise_buckets(NEW)
    for id in IDS[20:]:
        app.start("m", id=id)
    for id in IDS:
        app.handle(id, "go")  # rewritten, now in its new bucket
    assert app.core.rt.options.buckets == NEW
    assert before.core.rt.options.buckets == OLD
    assert sorted(all_listed(before)) == sorted(IDS)
    assert sorted(all_listed(opener(), status="running", machine="m")) == sorted(IDS)


@pytest.mark.parametrize("pages_before", [1, 2, 5, 8, 11])
def test_a_listing_under_way_while_the_number_is_raised_misses_nothing(opener: Opener, pages_before: int) -> None:
    app, before = opener(buckets=OLD), opener()
    for id in IDS:
        app.start("m", id=id)
    ids: list[str] = []
    cursor = None
    for _ in range(pages_before):
        page = before.list(limit=3, cursor=cursor)
        ids += [execution.id for execution in page.items]
        cursor = page.next
    app.raise_buckets(NEW)
    for id in IDS:
        app.handle(id, "stay")
    while cursor is not None:
        page = before.list(limit=3, cursor=cursor)
        ids += [execution.id for execution in page.items]
        cursor = page.next
    assert set(ids) == set(IDS)


def test_a_process_that_knows_of_fewer_buckets_does_not_put_a_state_back(opener: Opener) -> None:
    """A listing that goes through the buckets in order could miss one that goes back and forth."""
    app, before = opener(buckets=OLD), opener()
    for id in IDS:
        app.start("m", id=id)
    app.raise_buckets(NEW)
    for writer in (app, before, app, before):
        for id in IDS:
            writer.handle(id, "stay")
            listed = app.backend.execute(Get(EXECUTIONS.key(id, "0")))["listing"]
            assert listed == f"running/{bucket_of(id, NEW)}"
    assert before.core.rt.options.buckets == OLD


def test_dead_letters_in_new_buckets_are_listed_by_a_process_that_was_opened_before(opener: Opener) -> None:
    app, before = opener(buckets=OLD), opener()
    for id in IDS:
        app.start("m", id=id)
        app.terminate(id)
    app.raise_buckets(NEW)
    for id in IDS:
        app.send(id, "go", event_id=f"late-{id}")
    with app.worker(poll_s=0.01):
        seen: set[str] = set()
        while seen != set(IDS):
            letters, cursor = set(), None
            while True:
                page = before.dead_letters(limit=7, cursor=cursor)
                letters |= {letter.execution_id for letter in page.items}
                cursor = page.next
                if cursor is None:
                    break
            assert seen <= letters, "none that was listed once is missed later"
            seen = letters
    assert any(moves(id) for id in IDS)


def test_timers_and_messages_are_done_by_a_worker_that_was_opened_before(opener: Opener) -> None:
    app, before = opener(buckets=OLD), opener()
    for id in IDS[:10]:
        app.start("m", id=id)
        app.send(id, "go")
    with before.worker(poll_s=0.01, heartbeat_s=0.05) as worker:
        app.raise_buckets(NEW)
        for id in IDS[10:]:
            app.start("m", id=id)
            app.send(id, "go")
        for id in IDS:
            assert app.wait(id, timeout_s=60).status == "done"
    assert worker.rt.read_buckets == NEW


def test_nothing_new_is_put_where_a_living_worker_does_not_look(opener: Opener) -> None:
    app, other = opener(buckets=OLD), opener()
    unaware = Membership(other.core.rt)
    run(beat(unaware, 3600.0), other.backend)
    assert app.raise_buckets(NEW) is False
    assert app.core.rt.options.buckets == OLD, "writers wait for it"
    assert opener().core.rt.read_buckets == NEW, "readers do not"
    run(beat(unaware, 3600.0), other.backend)  # its next heartbeat completes the raise
    assert other.core.rt.options.buckets == NEW
    assert app.raise_buckets(NEW) is True
    assert app.core.rt.options.buckets == NEW


def test_a_process_that_only_sends_learns_of_it_within_a_minute(casework_app: Any) -> None:
    app = casework_app(MACHINE)
    app.start("m", id="x")
    run(raise_buckets(Runtime(), 64), app.backend)
    app.send("x", "stay")
    assert app.core.rt.options.buckets == 16
    app.advance("61s")
    app.send("x", "stay")
    assert app.core.rt.options.buckets == 64


def test_the_number_cannot_be_lowered_and_the_error_says_why(opener: Opener) -> None:
    app = opener(buckets=NEW)
    with pytest.raises(casework.Misuse, match="has 7 buckets and cannot go back to 2: what stands in buckets 2 to 6"):
        app.raise_buckets(OLD)
    for wrong in (0, -1, 1025, True, 2.0, "7", None):
        with pytest.raises(casework.Misuse, match="whole number from 1 to 1024"):
            app.raise_buckets(wrong)
    assert app.raise_buckets(NEW) is True
    assert opener().core.rt.read_buckets == NEW


def test_with_more_buckets_an_execution_keeps_its_own_or_moves_to_a_new_one() -> None:
    ids = [f"order-{n}" for n in range(3000)]
    for fewer, more in ((1, 2), (2, 7), (16, 17), (16, 32), (16, 40), (40, 1024)):
        moved = [id for id in ids if bucket_of(id, more) != bucket_of(id, fewer)]
        assert all(fewer <= bucket_of(id, more) < more for id in moved)
        assert 0.8 < len(moved) / (len(ids) * (1 - fewer / more)) < 1.2, "no more than have to"
    for buckets in (2, 7, 16, 40):
        sizes = [0] * buckets
        for id in ids:
            sizes[bucket_of(id, buckets)] += 1
        assert max(sizes) < 1.5 * len(ids) / buckets
        assert min(sizes) > 0.6 * len(ids) / buckets


def test_the_store_as_a_component_finds_what_stands_in_new_buckets(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with SqliteStore(path) as store, SqliteStore(path) as before:
        for id in IDS[:20]:
            store.commit(StoredExecution(id, "{}", machine="m"), [(None, id)], timers=[TimerOp("schedule", "t", 1.0)])
        assert store.raise_buckets(64) is True
        for id in IDS[20:]:
            store.commit(StoredExecution(id, "{}", machine="m"), [(None, id)], timers=[TimerOp("schedule", "t", 1.0)])
        assert before.shared.read_buckets == 16
        assert sorted(id for id, _, _ in before.due_timers(2.0)) == sorted(IDS)
        assert sorted(entry.event for entry in before.pending_outbox()) == sorted(IDS)
    with SqliteStore(path) as store:
        ids, cursor = [], None
        while True:
            page = store.list_executions(limit=7, cursor=cursor)
            ids += [exe.id for exe in page.items]
            cursor = page.next_cursor
            if cursor is None:
                break
        assert sorted(ids) == sorted(IDS)
        with pytest.raises(casework.Misuse, match="cannot go back"):
            store.raise_buckets(16)
