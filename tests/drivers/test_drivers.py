"""The drivers: programs that yield many times, errors thrown in, releases still carried out, groups in lockstep."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from casework.backends import drive, drive_async
from casework.backends.drive import run, run_many
from casework.backends.drive_async import run_async, shielded
from casework.backends.memory import MemoryBackend
from casework.backends.sqlite import SqliteBackend
from casework.backends.surroundings import VirtualClock
from casework.backends.threaded import ThreadedBackend
from casework.errors import ConditionFailed, Misuse, StepLimit, Unavailable
from casework.kernel.conditions import absent, equals
from casework.kernel.effects import Call, Get, Transact, Write
from casework.kernel.items import Put, Table, Update
from casework.kernel.programs import (
    Program,
    all_reads,
    call,
    call_blocking,
    get,
    now,
    query,
    run_together,
    sleep,
    spawn,
    token,
    transact,
    write,
)

ITEMS = Table(name="items", partition="id")


class Recorded(MemoryBackend):
    """A memory backend that notes its groups and does ``before`` ahead of each effect, which may raise."""

    shares_commits = True

    def __init__(self) -> None:
        super().__init__(seed=1, clock=VirtualClock())
        self.create_tables([ITEMS])
        self.groups: list[list[str]] = []
        self.before: Callable[[Any], None] = lambda effect: None

    def execute(self, effect: Any) -> Any:
        self.before(effect)
        return super().execute(effect)

    def execute_many(self, effects: Any) -> Any:
        self.groups.append([type(effect).__name__ for effect in effects])
        return super().execute_many(effects)


@pytest.fixture
def backend() -> Recorded:
    return Recorded()


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "memory":
        yield Recorded()
        return
    with SqliteBackend(tmp_path / "store.db", clock=VirtualClock()) as sqlite:
        sqlite.create_tables([ITEMS])
        yield sqlite


def count_to(id: str, rounds: int) -> Program[int]:
    """Reads, a token, the time and a conditional write in each round."""
    for n in range(rounds):
        item = yield from get(ITEMS.key(id))
        assert (0 if item is None else item["n"]) == n
        mark = yield from token()
        moment = yield from now()
        assert len(mark) == 22 and moment.earliest_us > 0
        yield from write(Update(ITEMS.key(id), {"n": n + 1}, when=equals("n", n) if n else absent()))
        (again, page) = yield from all_reads([Get(ITEMS.key(id)), (yield from _asked(id))])
        assert again == page.items[0] == {"id": id, "n": n + 1}
    return rounds


def _asked(id: str) -> Program[Any]:
    from casework.kernel.effects import Query

    yield from query(ITEMS, id)
    return Query(ITEMS, id)


def test_a_program_that_yields_many_times(store: Any) -> None:
    assert run(count_to("a", 50), store) == 50
    assert run(count_to("b", 3), store) == 3


def test_a_group_of_programs_of_different_length(store: Any) -> None:
    outcomes = run_many([count_to(f"p{n}", n) for n in range(12)], store)
    assert [outcome.result() for outcome in outcomes] == list(range(12))


def test_programs_on_a_loop(store: Any) -> None:
    async def main() -> list[int]:
        backend = ThreadedBackend(store, pool_size=4)
        try:
            return list(await asyncio.gather(*(run_async(count_to(f"p{n}", 5), backend) for n in range(8))))
        finally:
            await backend.close()

    assert asyncio.run(main()) == [5] * 8


# --- errors and interrupts thrown in ----------------------------------------------------------------------------------


def claim_and_release(log: list[str]) -> Program[str]:
    try:
        yield from write(Put(ITEMS, {"id": "claim", "state": "held"}))
        yield from get(ITEMS.key("work"))
        return "done"
    except BaseException as error:
        log.append(type(error).__name__)
        yield from write(Update(ITEMS.key("claim"), {"state": "released"}))
        raise


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, asyncio.CancelledError, Unavailable])
def test_what_is_thrown_into_a_program_still_lets_it_release(backend: Recorded, error: type[BaseException]) -> None:
    def before(effect: Any) -> None:
        if type(effect) is Get:
            raise error("stop")

    backend.before = before
    log: list[str] = []
    with pytest.raises(error):
        run(claim_and_release(log), backend)
    assert log == [error.__name__]
    backend.before = lambda effect: None
    assert backend.execute(Get(ITEMS.key("claim"))) == {"id": "claim", "state": "released"}


def test_a_program_that_is_closed_may_not_yield(backend: Recorded) -> None:
    program = claim_and_release([])
    program.send(None)
    with pytest.raises(RuntimeError, match="ignored GeneratorExit"):
        program.close()


def test_an_error_of_one_program_leaves_the_rest_of_its_group(store: Any) -> None:
    def fails(id: str) -> Program[None]:
        yield from write(Put(ITEMS, {"id": id}))
        raise ZeroDivisionError(id)

    def loses(id: str) -> Program[str]:
        try:
            yield from transact([Put(ITEMS, {"id": id, "by": "loser"}, when=equals("id", "never"))])
        except ConditionFailed:
            return "lost"
        return "won"

    outcomes = run_many([fails("a"), loses("b"), count_to("c", 2)], store)
    assert isinstance(outcomes[0].error, ZeroDivisionError)
    assert [outcome.value for outcome in outcomes[1:]] == ["lost", 2]


def test_an_interrupt_in_a_group_closes_every_program_of_it(backend: Recorded) -> None:
    closed: list[int] = []

    def program(n: int) -> Program[None]:
        try:
            yield from get(ITEMS.key("a"))
            if n == 1:
                raise KeyboardInterrupt
            yield from get(ITEMS.key("b"))
        finally:
            closed.append(n)

    with pytest.raises(KeyboardInterrupt):
        run_many([program(n) for n in range(3)], backend)
    assert sorted(closed) == [0, 1, 2]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, Unavailable])
def test_what_stops_a_whole_group_lets_each_program_of_it_release(
    backend: Recorded, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    stops = iter([False, False, True])
    carried_out = backend.execute_many

    def execute_many(effects: Any) -> Any:
        if next(stops, False):
            raise error("stop")
        return carried_out(effects)

    monkeypatch.setattr(backend, "execute_many", execute_many)

    def program(n: int) -> Program[None]:
        yield from get(ITEMS.key("a"))
        try:
            yield from write(Put(ITEMS, {"id": f"claim{n}", "state": "held"}))
            yield from sleep(1.0) if n == 2 else get(ITEMS.key("b"))
        except BaseException:
            yield from write(Update(ITEMS.key(f"claim{n}"), {"state": "released"}))
            raise

    if issubclass(error, Exception):
        outcomes = run_many([program(n) for n in range(3)], backend)
        assert [type(outcome.error) for outcome in outcomes] == [error, error, type(None)]
    else:
        with pytest.raises(error):
            run_many([program(n) for n in range(3)], backend)
    states = [backend.execute(Get(ITEMS.key(f"claim{n}")))["state"] for n in range(3)]
    assert states == ["released", "released", "held" if issubclass(error, Exception) else "released"]


def test_the_reads_of_an_all_join_those_of_the_group(backend: Recorded) -> None:
    backend.execute(Transact([Put(ITEMS, {"id": "a"}), Put(ITEMS, {"id": "b"})]))

    def both() -> Program[Any]:
        answers = yield from all_reads([Get(ITEMS.key("a")), Get(ITEMS.key("nobody")), Get(ITEMS.key("b"))])
        return answers

    def wrong() -> Program[Any]:
        try:
            yield from all_reads([Get(ITEMS.key("a")), Get(ITEMS.key("")), Get(ITEMS.key("b", "sort"))])
        except Misuse as error:
            return str(error)

    outcomes = run_many([both(), get(ITEMS.key("b")), wrong()], backend)
    assert outcomes[0].result() == [{"id": "a"}, None, {"id": "b"}]
    assert outcomes[1].result() == {"id": "b"}
    assert "1 to 2048 bytes" in outcomes[2].result()  # the first error by position
    assert backend.groups == [["Get"] * 7]


# --- calls, sleeps and limits -----------------------------------------------------------------------------------------


def test_the_writes_of_a_group_share_one_commit_and_a_slow_call_comes_last(backend: Recorded) -> None:
    order: list[str] = []

    def slow() -> str:
        order.append("call")
        assert backend.execute(Get(ITEMS.key("w0"))) is not None  # the others have committed already
        return "called"

    def caller() -> Program[str]:
        result: str = yield from call(slow)
        yield from write(Put(ITEMS, {"id": "after-call"}))
        return result

    def writer(n: int) -> Program[str]:
        yield from get(ITEMS.key(f"w{n}"))
        yield from write(Put(ITEMS, {"id": f"w{n}"}))
        order.append(f"w{n}")
        return "written"

    outcomes = run_many([caller(), writer(0), writer(1)], backend)
    assert [outcome.result() for outcome in outcomes] == ["called", "written", "written"]
    assert order == ["w0", "w1", "call"]
    assert backend.groups[:2] == [["Get", "Get"], ["Write", "Write"]]


def test_those_who_sleep_wait_for_nobody_else_of_the_group(backend: Recorded) -> None:
    started = backend.now().earliest_us

    def sleeper(seconds: float) -> Program[int]:
        yield from sleep(seconds)
        moment = yield from now()
        yield from write(Put(ITEMS, {"id": f"s{seconds}"}))
        return moment.earliest_us - started

    outcomes = run_many([sleeper(3.0), sleeper(1.0), count_to("c", 2)], backend)
    assert outcomes[2].result() == 2
    assert outcomes[1].result() == 1_000_000
    assert outcomes[0].result() == 3_000_000


async def coroutine_function() -> None:
    """Never awaited: the sync drivers refuse it."""


@pytest.mark.parametrize("how", [call, call_blocking])
def test_a_coroutine_function_is_refused_by_the_sync_driver(backend: Recorded, how: Any) -> None:
    def program() -> Program[None]:
        yield from how(coroutine_function)

    with pytest.raises(Misuse, match="coroutine_function is a coroutine function"):
        run(program(), backend)
    assert isinstance(run_many([program()], backend)[0].error, Misuse)


def test_an_effect_of_shells_is_refused_by_the_sync_driver(backend: Recorded) -> None:
    def program() -> Program[None]:
        yield from spawn(program())

    with pytest.raises(Misuse, match="run_async"):
        run(program(), backend)


def test_a_program_without_end_is_stopped(backend: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drive, "STEP_LIMIT", 50)
    monkeypatch.setattr(drive_async, "STEP_LIMIT", 50)

    def endless(effect: Callable[[], Program[Any]]) -> Program[None]:
        while True:
            yield from effect()

    with pytest.raises(StepLimit):
        run(endless(token), backend)
    outcomes = run_many([endless(token), endless(lambda: get(ITEMS.key("a"))), count_to("c", 1)], backend)
    assert [type(outcome.error) for outcome in outcomes] == [StepLimit, StepLimit, type(None)]

    async def main() -> None:
        await run_async(endless(token), ThreadedBackend(backend, pool_size=1))

    with pytest.raises(StepLimit):
        asyncio.run(main())


def test_programs_of_programs_run_together(store: Any) -> None:
    def parent() -> Program[list[int]]:
        outcomes = yield from run_together([count_to(f"k{n}", n) for n in range(4)])
        return [outcome.result() for outcome in outcomes]

    assert run(parent(), store) == [0, 1, 2, 3]


# --- cancellation on a loop -------------------------------------------------------------------------------------------


class SlowWrites(Recorded):
    """A backend whose writes wait for the test."""

    def __init__(self) -> None:
        super().__init__()
        self.sent, self.go_on = threading.Event(), threading.Event()
        self.log: list[str] = []

    def execute(self, effect: Any) -> Any:
        if type(effect) in (Write, Transact) and not self.sent.is_set():
            self.sent.set()
            self.go_on.wait()
        answer = super().execute(effect)
        self.log.append(type(effect).__name__)
        return answer


def test_a_cancelled_caller_waits_for_its_write_so_that_no_release_overtakes_its_claim() -> None:
    backend = SlowWrites()
    log: list[str] = []

    async def main() -> None:
        threaded = ThreadedBackend(backend, pool_size=2)
        task = asyncio.create_task(run_async(claim_and_release(log), threaded))
        await asyncio.to_thread(backend.sent.wait)
        task.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not task.done() and log == []
        backend.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        await threaded.close()

    asyncio.run(main())
    assert log == ["CancelledError"]
    assert backend.log == ["Write", "Write"]
    assert backend.execute(Get(ITEMS.key("claim"))) == {"id": "claim", "state": "released"}


def test_the_shield_of_a_sent_write_ends_after_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drive_async, "SHIELD_S", 0.0)

    async def main() -> bool:
        never = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(shielded(never))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return True

    assert asyncio.run(main())


def test_a_coroutine_function_is_awaited_on_a_loop(backend: Recorded) -> None:
    async def double(n: int) -> int:
        await asyncio.sleep(0)
        return 2 * n

    def program() -> Program[tuple[int, int]]:
        first = yield from call_blocking(double, 4)
        second: int = yield Call(lambda n: n + 1, (first,), {}, may_block=True)
        return first, second

    async def main() -> tuple[int, int]:
        threaded = ThreadedBackend(backend, pool_size=1)
        try:
            return await run_async(program(), threaded)
        finally:
            await threaded.close()

    assert asyncio.run(main()) == (8, 9)
