"""One small operation under each surface for functions, blocks and messages, called without anything around it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import casework
from casework import MemoryIdempotencyStore
from casework.app.current import current_claim
from casework.backends.surroundings import VirtualClock

Call = Callable[[Any, Any], Any]


class Job:
    """An operation that counts its calls; ``inside`` is called during each, and what it raises is raised."""

    def __init__(self, surface: str, store: Any = None, **options: Any) -> None:
        self.calls = 0
        self.inside: Callable[[], Any] = lambda: None
        self.clock = VirtualClock()
        self.store = MemoryIdempotencyStore(clock=self.clock) if store is None else store
        self._call: Call = SURFACES[surface](self, self.store, options)

    def work(self) -> int:
        """The work itself: how often it was done."""
        self.calls += 1
        self.inside()
        return self.calls

    def call(self, key: Any = "k", data: Any = "d") -> Any:
        """Call it; what does not end well raises."""
        return self._call(key, data)

    def attempt(self, key: Any = "k", data: Any = "d") -> str:
        """The name of the error that a call ends with; empty where it ends well."""
        try:
            self.call(key, data)
        except Exception as error:
            return type(error).__name__
        return ""

    def during(self, look: Callable[[], Any]) -> Any:
        """What is seen from inside the work."""
        found: list[Any] = []
        self.inside = lambda: found.append(look())
        with contextlib.suppress(casework.LeaseLost):
            self.call()
        return found[0]

    def own(self) -> Any:
        """The record of the claim under which this code runs."""
        claim = current_claim()
        assert claim is not None
        return self.store.get(claim.key)


def function(job: Job, store: Any, options: Any) -> Call:
    def own(key: Any, data: Any) -> int:
        return job.work()

    return casework.idempotent(store, **{"key": "key", **options})(own)


def coroutine(job: Job, store: Any, options: Any) -> Call:
    async def own(key: Any, data: Any) -> int:
        done = job.work()
        await asyncio.sleep(0)  # a place to be cancelled at
        return done

    guarded = casework.idempotent(store, **{"key": "key", **options})(own)
    return lambda key, data: asyncio.run(guarded(key, data))


def block(job: Job, store: Any, options: Any) -> Call:
    def call(key: Any, data: Any) -> Any:
        with casework.once(store, key, **{"payload": data, **options}) as claim:
            if claim.is_mine:
                claim.result = job.work()
        return claim.result

    return call


def async_block(job: Job, store: Any, options: Any) -> Call:
    async def call(key: Any, data: Any) -> Any:
        async with casework.once(store, key, **{"payload": data, **options}) as claim:
            if claim.is_mine:
                claim.result = job.work()
        return claim.result

    return lambda key, data: asyncio.run(call(key, data))


MESSAGE: dict[str, Any] = {"queue": "q", "key": lambda message: message["id"], "payload": lambda message: message["d"]}


def message(job: Job, store: Any, options: Any) -> Call:
    handler = casework.message_handler(store, **{**MESSAGE, **options})(lambda message: job.work())

    def call(key: Any, data: Any) -> None:
        handled = handler({"id": key, "d": data})
        if handled.error is not None:
            raise handled.error

    return call


def batch(job: Job, store: Any, options: Any) -> Call:
    handler = casework.sqs_batch(store, **{"queue": "q", **options})(lambda record: job.work())

    def call(key: Any, data: Any) -> None:
        if handler({"Records": [{"messageId": key, "body": data}]})["batchItemFailures"]:
            raise Redelivered

    return call


class Redelivered(Exception):
    """A batch says so of a message, and not why."""


SURFACES: dict[str, Callable[[Job, Any, Any], Call]] = {
    "idempotent": function, "idempotent, coroutine": coroutine, "once": block, "once, async": async_block,
    "message_handler": message, "sqs_batch": batch,
}  # fmt: skip


@contextlib.contextmanager
def counted_looks(clock: VirtualClock, seconds: float) -> Iterator[None]:
    """Each look at the clock takes so long."""
    look = clock.now
    clock.now = lambda: clock.advance(seconds) or look()  # type: ignore[method-assign, func-returns-value]
    try:
        yield
    finally:
        clock.now = look  # type: ignore[method-assign]
