"""What waiting costs: by what happens in the streams, not by how many wait, nor for how many streams."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest

from casework.errors import LogChanged
from casework.kernel.effects import Effect, Get, GetMany, Handle, Query
from casework.kernel.items import Delete, Update
from casework.kernel.programs import Program, now, race, sleep, spawn, transact
from casework.kernel.schema import STREAMS, TABLES
from casework.simulation.faults import NONE
from casework.simulation.world import World
from casework.streams.append import append
from casework.streams.log import Log, Watcher, head_key
from casework.streams.read import OpPage, read_page
from casework.streams.waiting import SEEN_FOR_S, wait_again, wait_page
from tests.streams.stores import log, ops

T = TypeVar("T")
WAITERS = 400


def follower(process: Log, stream: str, until_s: float, *, wait_s: float = 3.0) -> Program[list[str]]:
    """The ids of what is appended, followed as an event stream does: waited for again and again."""
    started = yield from now()
    after, mark, seen = 0, "", []
    with Watcher(process, stream) as watcher:
        while True:
            page = yield from wait_again(process, watcher, after, 100, wait_s=wait_s, mark=mark)
            seen += [op.id for op in page.ops]
            after, mark = page.next_after, page.mark
            moment = yield from now()
            if moment.middle_us - started.middle_us > until_s * 1e6:
                return seen


def carried(main: Program[T]) -> T:
    """What a program and those that it spawns come to, in simulated time, on a store without faults."""
    world = World(1, TABLES, schedule="uniform", faults=NONE)
    results: list[T] = []

    def whole() -> Program[None]:
        results.append((yield from main))

    world.process("main", lambda process: whole(), may_crash=False)
    assert world.run(lambda: bool(results), steps_max=5_000_000)
    return results[0]


def noted(program: Program[T], reads: list[Effect]) -> Program[T]:
    """The program, whose reads are written down."""
    answer: Any = None
    error: BaseException | None = None
    while True:
        try:
            effect = program.send(answer) if error is None else program.throw(error)
        except StopIteration as end:
            result: T = end.value
            return result
        if isinstance(effect, GetMany | Query | Get):
            reads.append(effect)
        error = None
        try:
            answer = yield effect
        except Exception as raised:
            error = raised


def counted_while(
    followers: list[Program[T]], meanwhile: Program[Any], *, settled_s: float = 10.0
) -> tuple[list[T], list[Effect]]:
    """What the followers saw, and their reads from when all waited until ``meanwhile`` was over."""
    reads: list[Effect] = []

    def main() -> Program[tuple[list[T], list[Effect]]]:
        handles = []
        for follower in followers:
            handles.append((yield from spawn(noted(follower, reads), "follower")))
        yield from sleep(settled_s)
        reads.clear()
        yield from meanwhile
        during = list(reads)
        return (yield from all_results(handles)), during

    return carried(main())


def all_results(handles: list[Handle]) -> Program[list[Any]]:
    for handle in handles:
        while not handle.done:
            yield from race(handle)
    return [handle.outcome.result() for handle in handles if handle.outcome is not None]


@pytest.mark.parametrize("streams", [1, 90, WAITERS])
def test_an_idle_minute_costs_two_looks_a_second_whoever_waits(streams: int) -> None:
    process = log()
    followers = [follower(process, f"s{n % streams}", 80) for n in range(WAITERS)]
    _, reads = counted_while(followers, sleep(60))
    looks = [effect for effect in reads if isinstance(effect, GetMany)]
    assert len(looks) <= 60 / 0.5 + 1
    assert all(len(look.keys) <= streams for look in looks)
    others = len(reads) - len(looks)  # each stream is read again now and then, once for all: its log may have changed
    assert others <= streams * 3 * (60 / SEEN_FOR_S + 1)


def test_what_another_process_appends_is_read_once_by_all_who_wait_and_by_nobody_else() -> None:
    process, other = log(), log()
    followers = [follower(process, "busy" if n % 2 else f"idle{n}", 30) for n in range(200)]

    def meanwhile() -> Program[None]:
        for name in "abc":
            yield from append(other, "busy", ops(name))
            yield from sleep(1.0)

    seen, reads = counted_while(followers, meanwhile(), settled_s=SEEN_FOR_S)
    assert seen == [["a", "b", "c"] if n % 2 else [] for n in range(200)]
    reads_of_busy = [effect for effect in reads if isinstance(effect, Query) and effect.partition == "busy"]
    assert len(reads_of_busy) <= 3 * 8, "some looks of each append, not a hundred"


def test_an_append_of_this_process_wakes_its_stream_only() -> None:
    process = log()
    followers = [follower(process, f"s{n}", 30) for n in range(50)]

    def meanwhile() -> Program[None]:
        yield from append(process, "s7", ops("a"))
        yield from sleep(0.001)

    seen, reads = counted_while(followers, meanwhile(), settled_s=SEEN_FOR_S + 0.25)
    assert [n for n, ids in enumerate(seen) if ids] == [7]
    read = {effect.partition for effect in reads if isinstance(effect, Query)}
    assert read <= {"s7"}


def test_one_who_waits_again_and_again_is_told_that_the_log_is_another_one() -> None:
    process, other = log(), log()

    def watching() -> Program[str]:
        page: OpPage = yield from read_page(process, "s")
        with Watcher(process, "s") as watcher:
            while True:
                page = yield from wait_again(process, watcher, page.next_after, 10, wait_s=1.0, mark=page.mark)

    def main() -> Program[str]:
        yield from append(other, "s", ops("a"))
        yield from append(other, "s", ops("b"))
        handle = yield from spawn(watching(), "watching")
        yield from sleep(20.0)
        assert not handle.done
        yield from transact([Delete(STREAMS.key("s", 2)), Update(head_key("s"), {"last_seq": 1})])  # a restore
        yield from race(handle, timeout_s=2 * SEEN_FOR_S)
        return type(handle.outcome.error).__name__ if handle.outcome is not None else "still waiting"

    assert carried(main()) == LogChanged.__name__


@pytest.mark.parametrize("leaver", [0, 1, 5])
@pytest.mark.parametrize("leaves", ["its time is over", "it is cancelled"])
def test_whoever_leaves_hands_the_seat_over(leaver: int, leaves: str) -> None:
    """Of six who wait one gives up, at any place; what another process appends afterwards reaches the other five."""
    process, other = log(), log()

    def main() -> Program[list[int]]:
        handles = []
        for n in range(6):
            waits = wait_page(process, "s", wait_s=1.0 if n == leaver and leaves == "its time is over" else 60.0)
            handles.append((yield from spawn(waits, f"waiter {n}")))
        yield from sleep(2.0)
        gone = handles.pop(leaver)
        if leaves == "it is cancelled":
            gone.cancel()
        while not gone.done:
            yield from race(gone)
        started = yield from now()
        yield from append(other, "s", ops("a"))
        pages = yield from all_results(handles)
        moment = yield from now()
        assert moment.middle_us - started.middle_us < 3_000_000, "nobody looked for the others"
        return [len(page.ops) for page in pages]

    assert carried(main()) == [1] * 5
    assert process.watches == {} and not process.idle and len(process.seat) == 1
