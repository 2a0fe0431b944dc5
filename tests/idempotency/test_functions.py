# ruff: noqa: PT012 - what is raised is raised at the end of a block, which is the point
"""``@idempotent`` and ``with once(key)``: what a function's callers can rely on."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import decimal
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import casework
from casework import (
    InProgress,
    LeaseLost,
    MemoryIdempotencyStore,
    Misuse,
    NotJson,
    PayloadMismatch,
    RememberedError,
    ResultNotKept,
    SqliteIdempotencyStore,
    Unavailable,
    current_claim,
    idempotent,
    once,
)
from casework.backends.surroundings import VirtualClock


@pytest.fixture(params=["memory", "app", "sqlite"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "memory":
        yield MemoryIdempotencyStore()
    elif request.param == "app":
        with casework.open("memory:") as app:
            yield app
    else:
        with SqliteIdempotencyStore(tmp_path / "keys.db") as store:
            yield store


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def store(clock: VirtualClock) -> MemoryIdempotencyStore:
    return MemoryIdempotencyStore(clock=clock)


class Ran:
    """Counts the calls of a function."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def __call__(self, *args: Any) -> int:
        self.calls.append(args)
        return len(self.calls)


def test_a_function_runs_once_for_its_key_and_every_caller_gets_the_first_result(target: Any) -> None:
    ran = Ran()

    @idempotent(target, key="order_id")
    def refund(order_id: str, amount: int) -> dict:  # type: ignore[type-arg]
        return {"n": ran(order_id, amount), "amount": amount}

    assert refund("o-1", 5) == refund("o-1", amount=5) == refund(amount=5, order_id="o-1") == {"n": 1, "amount": 5}
    assert refund("o-2", 5) == {"n": 2, "amount": 5}
    assert ran.calls == [("o-1", 5), ("o-2", 5)]
    assert refund.guard.counts == {"claimed": 2, "completed": 2, "replayed": 2}  # type: ignore[attr-defined]


def test_a_coroutine_function_works_on_every_kind_of_store_and_over_several_loops(target: Any) -> None:
    ran = Ran()

    @idempotent(target, key="n")
    async def work(n: int) -> int:
        await asyncio.sleep(0)
        return ran(n)

    async def many() -> list[int]:
        return list(await asyncio.gather(*(work(1) for _ in range(10))))

    assert asyncio.run(many()) == [1] * 10
    assert asyncio.run(many()) == [1] * 10
    assert ran.calls == [(1,)]


def test_another_payload_under_the_same_key_is_refused_however_it_came(target: Any) -> None:
    ran = Ran()

    @idempotent(target, key="order_id", remember=[KeyError])
    def refund(order_id: str, amount: int) -> int:
        if amount == 13:
            raise KeyError(amount)
        return ran(amount)

    refund("o-1", 5)
    with pytest.raises(PayloadMismatch):
        refund("o-1", 6)
    with pytest.raises(KeyError):
        refund("o-2", 13)
    with pytest.raises(PayloadMismatch):
        refund("o-2", 5)
    assert ran.calls == [(5,)]


def test_only_the_named_payload_is_compared(store: Any) -> None:
    @idempotent(store, key="a", payload=["b"])
    def some(a: int, b: int, c: int) -> int:
        return c

    @idempotent(store, key="a", payload=False)
    def none(a: int, b: int) -> int:
        return b

    assert (some(1, 2, 3), some(1, 2, 4), none(1, 2), none(1, 3)) == (3, 3, 2, 2)
    with pytest.raises(PayloadMismatch):
        some(1, 3, 3)


@dataclasses.dataclass(frozen=True)
class Order:
    id: str
    lines: tuple[int, ...] = ()


DISTINCT = [
    1, "1", True, 1.0, 0, False, "true", "None", b"1", decimal.Decimal(1), decimal.Decimal("1.0"),
    datetime.date(2026, 1, 1), datetime.datetime(2026, 1, 1), "2026-01-01", uuid.UUID(int=1), str(uuid.UUID(int=1)),  # noqa: DTZ001
    [1], (1,), ["1"], [[1]], {"a": 1}, {"a": "1"}, {1: "a"}, {"1": "a"}, Order("1"), Order("1", (1,)), frozenset({1}),
    "a/b", "a%2Fb", '"', "\\", datetime.timedelta(1), "\u00e9", "e\u0301",
]  # fmt: skip


def test_values_of_different_types_are_different_keys(store: Any) -> None:
    ran = Ran()

    @idempotent(store, key="value")
    def work(value: Any) -> int:
        return ran(value)

    assert [work(value) for value in DISTINCT] == list(range(1, len(DISTINCT) + 1))
    assert [work(value) for value in DISTINCT] == list(range(1, len(DISTINCT) + 1))
    assert work({"a": 1}) == work({"a": 1})


NOTHING = (
    None,
    "",
    " ",
    b"",
    (),
    [],
    {},
    set(),
    (None,),
    (None, None),
    ("", ""),
    [None],
    {"id": None},
    ((), ""),
    (1, None),
)


@pytest.mark.parametrize("value", [*NOTHING, float("nan"), object(), "\ud800", lambda: 0])
def test_what_identifies_nothing_is_no_key(store: Any, value: Any) -> None:
    @idempotent(store, key="value", payload=False)
    def work(value: Any) -> int:
        raise AssertionError("it ran")

    with pytest.raises(Misuse):
        work(value)


def test_a_key_that_the_function_or_the_call_lacks_is_misuse(store: Any) -> None:
    with pytest.raises(Misuse, match="no argument 'order'"):
        idempotent(store, key="order", name="n")(lambda order_id: 1)

    @idempotent(store, key=["order.id", "order.kind"])
    def work(order: dict) -> int:  # type: ignore[type-arg]
        return 1

    with pytest.raises(Misuse, match="kind"):
        work({"id": 1})
    assert work({"id": 1, "kind": "x"}) == 1


def test_two_functions_and_two_scopes_never_share_a_record(store: Any) -> None:
    tenant = "a"

    @idempotent(store, key="n")
    def one(n: int) -> str:
        return "one"

    @idempotent(store, key="n")
    def two(n: int) -> str:
        return "two"

    @idempotent(store, key="n", scope=lambda: tenant)
    def scoped(n: int) -> str:
        return tenant

    assert (one(1), two(1), scoped(1)) == ("one", "two", "a")
    tenant = "b"
    assert scoped(1) == "b"
    tenant = ""
    with pytest.raises(Misuse, match="scope"):
        scoped(1)


def test_methods_are_keyed_by_their_arguments_not_by_self(store: Any) -> None:
    class Shop:
        def __init__(self) -> None:
            self.ran = Ran()

        @idempotent(store, key="n")
        def sell(self, n: int) -> int:
            return self.ran(n)

        @staticmethod
        @idempotent(store, key="n")
        def free(n: int) -> int:
            return n

        @idempotent(store, key=lambda n: n)
        async def later(self, n: int) -> int:
            return self.ran(n)

    shop, other = Shop(), Shop()
    assert (shop.sell(1), other.sell(1), other.ran.calls, Shop.free(4)) == (1, 1, [], 4)
    assert asyncio.run(other.later(9)) == 1
    assert asyncio.run(shop.later(9)) == 1


def test_results_come_back_with_their_type(store: Any) -> None:
    @idempotent(store, key="n")
    def order(n: int) -> Order:
        return Order("x", (1, 2))

    @idempotent(store, key="n")
    def when(n: int) -> datetime.datetime | None:
        return datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)

    @idempotent(store, key="n", result=tuple[int, str])
    def pair(n: int):  # type: ignore[no-untyped-def]
        return (1, "a")

    @idempotent(store, key="n")
    def nothing(n: int) -> None:
        return None

    for function in (order, when, pair, nothing):
        assert function(1) == function(1)
        assert type(function(1)) is type(function(1))
    assert pair(1) == (1, "a")


def test_pydantic_models_come_back_as_models(store: Any) -> None:
    pydantic = pytest.importorskip("pydantic")

    class Invoice(pydantic.BaseModel):  # type: ignore[misc, name-defined]
        number: int
        due: datetime.date

    @idempotent(store, key="invoice.number", result=Invoice)
    def book(invoice: Any) -> Any:
        return invoice

    invoice = Invoice(number=1, due=datetime.date(2026, 1, 1))
    assert book(invoice) == book(invoice) == invoice
    assert isinstance(book(invoice), Invoice)


@pytest.mark.parametrize("value", [(1, 2), {1: "a"}, {"a": {1, 2}}, float("nan"), [b"x"], object()])
def test_a_result_that_would_not_come_back_as_it_is_is_an_error_and_not_a_second_run(store: Any, value: Any) -> None:
    ran = Ran()

    @idempotent(store, key="n")
    def work(n: int):  # type: ignore[no-untyped-def]
        ran(n)
        return value

    with pytest.raises(NotJson):
        work(1)
    with pytest.raises(ResultNotKept):
        work(1)
    assert len(ran.calls) == 1


def test_a_result_that_is_too_large_reaches_its_caller_and_is_not_made_again(store: Any) -> None:
    ran = Ran()

    @idempotent(store, key="n")
    def work(n: int) -> str:
        ran(n)
        return "x" * 4_000_000

    assert len(work(1)) == 4_000_000
    with pytest.raises(ResultNotKept, match="too large"):
        work(1)
    assert len(ran.calls) == 1


class Declined(Exception):
    pass


class Odd(Declined):
    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")


def test_chosen_exceptions_are_results_and_others_release_the_key(target: Any) -> None:
    ran = Ran()

    @idempotent(target, key="n", remember=[Declined])
    def pay(n: int) -> int:
        ran(n)
        if n == 1:
            raise Declined("no money", 7)
        if n == 2:
            raise Odd(code=3)
        if len(ran.calls) < 6:
            raise ValueError("try again")
        return 5

    for _ in range(2):
        with pytest.raises(Declined) as raised:
            pay(1)
        assert raised.value.args == ("no money", 7)
    with pytest.raises(Odd):
        pay(2)
    with pytest.raises(RememberedError, match="code 3") as remembered:  # its class cannot be made from its arguments
        pay(2)
    assert remembered.value.type_name.endswith(".Odd")
    for _ in range(3):
        with pytest.raises(ValueError, match="try again"):
            pay(3)
    assert (pay(3), pay(3)) == (5, 5)
    assert len(ran.calls) == 6


def test_even_stop_iteration_passes_through(store: Any) -> None:
    @idempotent(store, key="n")
    def work(n: int) -> int:
        return next(iter([]))  # type: ignore[no-any-return]

    for _ in range(2):
        with pytest.raises(StopIteration):
            work(1)


def test_fifty_threads_with_one_key_run_it_once(target: Any) -> None:
    ran, begun = Ran(), threading.Event()

    @idempotent(target, key="n")
    def work(n: int) -> int:
        begun.wait(10)
        return ran(n)

    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(work(1))) for _ in range(50)]
    for thread in threads:
        thread.start()
    begun.set()
    for thread in threads:
        thread.join(30)
    assert found == [1] * 50
    assert len(ran.calls) == 1


def test_a_duplicate_is_told_when_it_has_waited_long_enough(store: Any) -> None:
    @idempotent(store, key="n", wait_s=0, name="work", payload=False)
    def work(n: int) -> int:
        raise AssertionError("it ran")

    held = store.claim(work.key_of(1), fingerprint_of_nothing(), 1, 30)  # type: ignore[attr-defined]
    assert held.token
    with pytest.raises(InProgress) as raised:
        work(1)
    assert 1 <= raised.value.retry_after_s <= 30


def fingerprint_of_nothing() -> str:
    from casework.idempotency.keys import fingerprint_of

    return fingerprint_of(None)


def test_results_expire(store: Any, clock: VirtualClock) -> None:
    ran = Ran()

    @idempotent(store, key="n", keep_s=60, cache=10)
    def work(n: int) -> int:
        return ran(n)

    assert (work(1), work(1)) == (1, 1)
    clock.advance(59)
    assert work(1) == 1
    clock.advance(2)
    assert (work(1), work(1)) == (2, 2)


def test_the_local_cache_replays_without_the_store_and_checks_the_payload(store: Any) -> None:
    @idempotent(store, key="n", cache=2)
    def work(n: int, m: int) -> list:  # type: ignore[type-arg]
        return [n, m]

    first = work(1, 1)
    first.append("changed by its caller")
    store.records.remove(work.key_of(1, 1))  # type: ignore[attr-defined]
    assert work(1, 1) == [1, 1]
    with pytest.raises(PayloadMismatch):
        work(1, 2)
    work(2, 2)
    work(3, 3)
    store.records.remove(work.key_of(1, 1))  # type: ignore[attr-defined]
    assert work(1, 2) == [1, 2]  # no longer among the two that are kept


def test_nested_calls_complete_their_own_keys_and_a_call_within_itself_is_refused(target: Any) -> None:
    @idempotent(target, key="n")
    def inner(n: int) -> list:  # type: ignore[type-arg]
        claim = current_claim()
        assert claim is not None and claim.outer is not None
        return ["inner", n]

    @idempotent(target, key="n")
    def outer(n: int) -> list:  # type: ignore[type-arg]
        if n == 13:
            return outer(n)  # type: ignore[no-any-return]
        return ["outer", inner(n)]

    assert outer(1) == outer(1) == ["outer", ["inner", 1]]
    assert inner(1) == ["inner", 1]
    with pytest.raises(Misuse, match="wait for itself"):
        outer(13)
    assert current_claim() is None


def test_the_function_runs_in_its_callers_own_thread_with_its_context(target: Any) -> None:
    local = threading.local()
    local.value = "mine"

    @idempotent(target, key="n")
    def work(n: int) -> str:
        return str(local.value)

    assert work(1) == "mine"


class Down:
    """A store whose backend is down, at chosen operations."""

    def __init__(self, *operations: str) -> None:
        self.operations = operations

    def break_store(self, store: MemoryIdempotencyStore) -> MemoryIdempotencyStore:
        for name in self.operations:
            setattr(store.records, name, self._fail)
        return store

    def _fail(self, *args: Any) -> Any:
        raise Unavailable("no connection")


def test_when_the_store_is_down_nothing_runs_or_it_runs_unprotected_and_is_counted() -> None:
    store = Down("claim").break_store(MemoryIdempotencyStore())
    ran = Ran()

    @idempotent(store, key="n")
    def careful(n: int) -> int:
        return ran(n)

    @idempotent(store, key="n", on_unavailable="run")
    def eager(n: int) -> int:
        assert current_claim() is None
        return ran(n)

    with pytest.raises(Unavailable):
        careful(1)
    assert ran.calls == []
    assert (eager(1), eager(1)) == (1, 2)
    assert eager.guard.counts["unprotected"] == 2  # type: ignore[attr-defined]


def test_a_result_that_could_not_be_stored_reaches_its_caller_and_is_counted() -> None:
    store = Down("complete").break_store(MemoryIdempotencyStore())

    @idempotent(store, key="n")
    def work(n: int) -> int:
        return n

    assert work(1) == 1
    assert work.guard.counts["unrecorded"] == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("policy", ["raise", "return"])
def test_a_holder_that_was_overtaken_is_told_and_its_result_is_not_stored(store: Any, policy: str) -> None:
    @idempotent(store, key="n", on_lease_lost=policy, name="work", payload=False)
    def work(n: int) -> str:
        claim = current_claim()
        assert claim is not None
        store.release(claim.key, claim.token)
        taken = store.claim(claim.key, fingerprint_of_nothing(), 1, 30)
        store.complete(claim.key, taken.token, 0, None, b'"theirs"', 60)
        return "mine"

    if policy == "raise":
        with pytest.raises(LeaseLost):
            work(1)
    else:
        assert work(1) == "mine"
    assert work(1) == "theirs"
    assert work.guard.counts["lost"] == 1  # type: ignore[attr-defined]


def test_a_coroutine_whose_lease_is_lost_can_be_cancelled(store: Any) -> None:
    @idempotent(store, key="n", on_lease_lost="cancel")
    async def work(n: int) -> str:
        claim = current_claim()
        assert claim is not None
        claim.lose()
        await asyncio.sleep(3600)
        return "never"

    async def main() -> None:
        with pytest.raises(LeaseLost):
            await work(1)
        task = asyncio.current_task()
        assert task is not None and not task.cancelling()

    asyncio.run(main())


def test_a_cancelled_caller_releases_its_key(target: Any) -> None:
    ran = Ran()

    @idempotent(target, key="n")
    async def work(n: int) -> int:
        if not ran.calls:
            ran(n)
            await asyncio.sleep(3600)
        return ran(n)

    async def main() -> None:
        task = asyncio.create_task(work(1))
        while not ran.calls:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await work(1) == 2

    asyncio.run(main())


def test_a_plain_function_on_an_async_store_and_a_generator_are_misuse(store: Any) -> None:
    from casework import AsyncIdempotencyStore
    from casework.backends.memory import MemoryBackend
    from casework.backends.threaded import ThreadedBackend

    @idempotent(lambda: AsyncIdempotencyStore(ThreadedBackend(MemoryBackend())), key="n")
    def work(n: int) -> int:
        return n

    with pytest.raises(Misuse, match="coroutine function"):
        work(1)
    with pytest.raises(Misuse, match="generator"):

        @idempotent(store, key="n")
        def numbers(n: int) -> Iterator[int]:
            yield n

    with pytest.raises(Misuse, match="lease_s"):
        idempotent(store, key="n", lease_s=0)(work)
    with pytest.raises(Misuse, match="application"):
        idempotent(object(), key="n", name="n")(lambda n: n)(1)  # type: ignore[arg-type, call-arg]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_it_works_in_a_forked_child(tmp_path: Path) -> None:
    with SqliteIdempotencyStore(tmp_path / "keys.db") as store:

        @idempotent(store, key="n")
        def work(n: int) -> int:
            return os.getpid()

        @idempotent(store, key="n")
        async def later(n: int) -> int:
            return os.getpid()

        assert work(0) == asyncio.run(later(0)) == os.getpid()
        child = os.fork()
        if child == 0:
            is_fine = work(0) != os.getpid() and work(1) == asyncio.run(later(1)) == os.getpid()
            os._exit(0 if is_fine else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert work(1) == asyncio.run(later(1)) == child


# --- once ----------------------------------------------------------------------------------------------------------


def test_a_block_runs_once_and_hands_out_its_result(target: Any) -> None:
    ran = Ran()
    for _ in range(2):
        with once(target, ("invoice", 17)) as block:
            if block.is_mine:
                block.result = ran()
            else:
                with pytest.raises(Misuse):
                    block.result = 5
        assert block.result == 1
    with pytest.raises(PayloadMismatch), once(target, ("invoice", 17), payload={"other": 1}):
        raise AssertionError("it was entered")


def test_an_exception_in_a_block_releases_its_key(target: Any) -> None:
    with pytest.raises(ZeroDivisionError), once(target, "k") as block:
        assert block.is_mine and current_claim() is block.claim
        raise ZeroDivisionError
    with once(target, "k") as block:
        assert block.is_mine
    assert current_claim() is None


def test_blocks_work_with_await(target: Any) -> None:
    async def main() -> list[Any]:
        found = []
        for _ in range(2):
            async with once(target, "k") as block:
                if block.is_mine:
                    block.result = [1]
            found.append(block.result)
        return found

    assert asyncio.run(main()) == [[1], [1]]


def test_hooks_are_told_and_their_own_errors_harm_nobody(store: Any) -> None:
    told: list[str] = []

    def broken(event: Any) -> None:
        raise RuntimeError("a hook")

    @idempotent(store, key="n", name="work", hooks=[broken, lambda event: told.append(f"{event.kind} {event.key}")])
    def work(n: int) -> int:
        return n

    work(1)
    work(1)
    assert told == ["claimed work/1", "completed work/1", "replayed work/1"]


Decorated = Callable[..., Any]
