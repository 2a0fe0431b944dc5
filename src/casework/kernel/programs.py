"""Programs: domain operations as generators, and one typed helper for each effect.

``Program[T]`` yields effects and returns a ``T``. Inside a program every effect is used through its helper, with
``yield from``, so that its result has an exact type::

    def rename(id: str, name: str) -> Program[bool]:
        item = yield from get(USERS.key(id))
        if item is None:
            return False
        yield from write(Update(USERS.key(id), {"name": name}, when=equals("name", item["name"])))
        return True

An error of the store is raised at the yield. ``except BaseException`` may yield a release and must re-raise;
``GeneratorExit`` may not yield.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, ParamSpec, TypeVar

from casework.errors import Contention
from casework.kernel.effects import (
    All,
    Call,
    Effect,
    Flag,
    Get,
    GetMany,
    Handle,
    Instant,
    Now,
    Outcome,
    Page,
    Query,
    Race,
    RunMany,
    Signal,
    Sleep,
    Spawn,
    Token,
    Transact,
    Write,
)
from casework.kernel.items import AnyWrite, Item, Key, Put, Table, Update
from casework.kernel.retry import RetryPolicy

T = TypeVar("T")
P = ParamSpec("P")

Program = Generator[Effect, Any, T]
"""A domain operation: yields effects, returns a ``T``."""


def get(key: Key) -> Program[Item | None]:
    """The item at ``key``, read consistently."""
    item: Item | None = yield Get(key)
    return item


def get_many(keys: Sequence[Key]) -> Program[list[Item | None]]:
    """The items at ``keys``, in order, each read consistently."""
    items: list[Item | None] = (yield GetMany(keys)) if keys else []
    return items


def query(
    table: Table,
    partition: str,
    *,
    index: str | None = None,
    low: str | int | None = None,
    high: str | int | None = None,
    limit: int | None = None,
    reverse: bool = False,
    after: str | None = None,
) -> Program[Page]:
    """One page of a partition; see :class:`casework.kernel.effects.Query`."""
    page: Page = yield Query(table, partition, index, low, high, limit, reverse, after)
    return page


def query_all(
    table: Table,
    partition: str,
    *,
    low: str | int | None = None,
    high: str | int | None = None,
) -> Program[list[Item]]:
    """All items of a range of one partition, page by page. For ranges whose size is bounded by their owner."""
    items: list[Item] = []
    after: str | None = None
    while True:
        page = yield from query(table, partition, low=low, high=high, after=after)
        items += page.items
        after = page.next
        if after is None:
            return items


def query_up_to(limit: int, table: Table, partition: str, *, low: str | int | None = None) -> Program[list[Item]]:
    """The first ``limit`` items of a partition from ``low`` on, fewer only where there are no more: a page of the store
    may be short.
    """
    items: list[Item] = []
    after: str | None = None
    while True:
        page = yield from query(table, partition, low=low, limit=limit - len(items), after=after)
        items += page.items
        after = page.next
        if after is None or len(items) >= limit:
            return items


def all_reads(reads: Sequence[Get | GetMany | Query]) -> Program[list[Any]]:
    """The answers to several reads, in order."""
    answers: list[Any] = yield All(reads)
    return answers


def write(one: Put | Update) -> Program[None]:
    """One put or update, at the price of a plain write."""
    yield Write(one)


def transact(writes: Sequence[AnyWrite]) -> Program[None]:
    """All of the writes, or none."""
    yield Transact(writes)


def now() -> Program[Instant]:
    """The store's time, with its bounds."""
    instant: Instant = yield Now()
    return instant


def token() -> Program[str]:
    """A fresh random identifier."""
    text: str = yield Token()
    return text


def sleep(seconds: float) -> Program[None]:
    """Let ``seconds`` pass."""
    yield Sleep(seconds)


def call(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Program[T]:
    """The result of a short function of the user's."""
    result: T = yield Call(function, args, kwargs)
    return result


def call_blocking(function: Callable[P, Any], *args: P.args, **kwargs: P.kwargs) -> Program[Any]:
    """The result of a function that may take long or is a coroutine function."""
    result = yield Call(function, args, kwargs, may_block=True)
    return result


def run_together(programs: Sequence[Program[T]]) -> Program[list[Outcome[T]]]:
    """Run programs side by side and wait for all."""
    outcomes: list[Outcome[T]] = (yield RunMany(programs)) if programs else []
    return outcomes


def spawn(program: Program[Any], name: str = "") -> Program[Handle]:
    """Start a program beside this one."""
    handle: Handle = yield Spawn(program, name)
    return handle


def race(*waits: Handle | Flag, timeout_s: float | None = None) -> Program[None]:
    """Wait for the first of the handles and flags, at most ``timeout_s``."""
    yield Race(waits, timeout_s)


def signal(flag: Flag) -> Program[None]:
    """Set a flag."""
    yield Signal(flag)


def lost_again(lost: int, policy: RetryPolicy, reason: str | Exception) -> Program[int]:
    """Pause after one more round that was lost, by ``policy``; the rounds lost in a row by now, ``lost`` and this one.

    When that is enough it gives up: it raises ``reason`` if that is an error, and ``Contention`` if it names what
    lost the races. Which errors are a lost round is the caller's to say: after ``Contention`` and ``Throttled``
    nothing was written, after ``OutcomeUnknown`` the next round must find out.
    """
    lost += 1
    if policy.gives_up(lost):
        if isinstance(reason, Exception):
            raise reason
        raise Contention(f"{reason}: lost {lost} races in a row; try again")
    dice = yield from token()
    yield from sleep(policy.pause_s(lost, dice))
    return lost
