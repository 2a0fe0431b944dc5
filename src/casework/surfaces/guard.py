"""What the surfaces share: one guarded kind of operation, with its store, policy, counts, cache and heartbeat."""

from __future__ import annotations

import asyncio
import collections
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from casework.app.aio import AsyncApp
from casework.app.current import current_claim, running_under
from casework.app.idempotency_store import AsyncIdempotencyStore, IdempotencyStore
from casework.app.sync import App
from casework.arguments import check_count, check_function, check_list, check_text, wrong
from casework.errors import CaseworkError, LeaseLost, Misuse, PayloadMismatch
from casework.idempotency.calling import call_once, outcome_of
from casework.idempotency.codecs import Codec, JsonCodec
from casework.idempotency.guarding import Claim, Policy, was_kept
from casework.idempotency.keys import FINGERPRINT_VERSION
from casework.idempotency.lifecycle import Shared
from casework.idempotency.record import Record
from casework.kernel.containment import guarded, in_words
from casework.kernel.effects import Outcome
from casework.surfaces.heart import LoopHeart, ThreadHeart

log = logging.getLogger("casework.idempotency")

Store = IdempotencyStore | AsyncIdempotencyStore
Target = App | AsyncApp | Store | Callable[[], App | AsyncApp | Store]
"""Where a surface keeps its records: an application, a store, or a function that returns one when it is needed."""


class Event(msgspec.Struct, frozen=True):
    """Something that happened to a guarded operation; handed to ``hooks``."""

    kind: str
    """``claimed``, ``reclaimed``, ``replayed``, ``waited``, ``completed``, ``released``, ``lost``, ``not_kept``,
    ``in_progress``, ``refused``, ``unavailable``, ``unprotected`` or ``unrecorded``."""
    name: str
    """The kind of operation: a function's name, a route, a queue."""
    key: str
    claim: Claim | None = None


Hook = Callable[[Event], None]


def _check_error(what: str, given: Any) -> None:
    if not isinstance(given, type) or not issubclass(given, BaseException):
        raise wrong(what, given, "a class of exceptions")


class Guard:
    """One kind of guarded operation.

    Args:
        target: where the records are.
        name: of the operation; a part of every key, so that two operations never share a record.
        policy: how it is guarded.
        codec: how results are stored.
        remember: exceptions that are results: they are stored and raised again.
        hooks: called with each :class:`Event`; what they raise is logged.
        cache: so many results are kept in this process, and replayed without a call.
    """

    def __init__(
        self,
        target: Target,
        *,
        name: str,
        policy: Policy,
        codec: Codec | None = None,
        remember: Sequence[type[BaseException]] = (),
        hooks: Sequence[Hook] = (),
        cache: int = 0,
    ) -> None:
        check_text("name", name, 500)
        check_count("cache", cache, 0, 100_000_000)
        check_list("hooks", hooks, check_function, "a list of functions of an event")
        check_list("remember", remember, _check_error, "a list of exception classes")
        self.name = name
        self.policy = policy
        self.codec: Codec = codec or JsonCodec()
        self.remember = tuple(remember)
        self.hooks = tuple(hooks)
        self._target = target
        self._store: Store | None = None
        self._counts: collections.Counter[str] = collections.Counter()
        self._cache_max = cache
        self._cache: collections.OrderedDict[str, tuple[str, int, int, bytes]] = collections.OrderedDict()
        self._lock = threading.Lock()

    # --- store ------------------------------------------------------------------------------------------------------

    @property
    def store(self) -> Store:
        """Where the records are. Misuse when the target is, or returns, something else."""
        if self._store is None:
            self._store = store_of(self._target)
        return self._store

    def blocking_store(self) -> IdempotencyStore:
        """The store, for a blocking caller; Misuse when it is an async one."""
        store = self._store or self.store
        if isinstance(store, AsyncIdempotencyStore):
            raise Misuse(
                f"{self.name} is a plain function on an async store; make it a coroutine function, or use "
                "casework.open and a store that blocks"
            )
        return store

    # --- what happened ----------------------------------------------------------------------------------------------

    @property
    def counts(self) -> Mapping[str, int]:
        """How often each kind of event happened in this process."""
        with self._lock:
            return dict(self._counts)

    def notify(self, kind: str, key: str, claim: Claim | None = None) -> None:
        """Count an event, and tell the hooks."""
        with self._lock:
            self._counts[kind] += 1
        for hook in self.hooks:
            try:
                guarded(hook, Event(kind, self.name, key, claim))
            except Exception as error:
                log.error("a hook of %s failed on %s: %s", self.name, kind, in_words(error), exc_info=error)

    # --- cache ------------------------------------------------------------------------------------------------------

    def keep(self, key: str, fingerprint: str, status: int, body: bytes) -> None:
        """Remember a result of this process for as long as the record is kept."""
        if self._cache_max:
            kept_s = self.policy.keep_s
            until_us = 2**62 if kept_s is None else self.store.shared.steady_us() + int(kept_s * 1e6)
            self._put(key, (fingerprint, until_us, status, body))

    def keep_record(self, shared: Shared, record: Record) -> None:
        """Remember a result that was read, for as long as is left of its time."""
        if not self._cache_max or record.fingerprint_version != FINGERPRINT_VERSION or not was_kept(record):
            return
        until_us = 2**62
        if record.expires_at_us:
            try:
                moment = self.store.backend.now()
            except CaseworkError:  # the time cannot be learned now: the result is right, it is only not kept here
                return
            until_us = shared.steady_us() + record.expires_at_us - moment.latest_us
        self._put(record.key, (record.fingerprint, until_us, record.status, record.body))

    def _put(self, key: str, entry: tuple[str, int, int, bytes]) -> None:
        with self._lock:
            self._cache[key] = entry
            self._cache.move_to_end(key)
            if len(self._cache) > self._cache_max:
                self._cache.popitem(last=False)

    def cached(self, key: str, fingerprint: str) -> Outcome[Any] | None:
        """The result that this process remembers. PayloadMismatch when it is of another payload."""
        entry = self._cache.get(key)
        if entry is None:
            return None
        if entry[1] <= self.store.shared.steady_us():
            with self._lock:
                self._cache.pop(key, None)
            return None
        if entry[0] != fingerprint:
            raise PayloadMismatch(
                f"key {key!r:.120} was used before with another payload; nothing was run. Use a new key for that"
            )
        self.notify("replayed", key)
        return outcome_of(entry[2], entry[3], self, None)

    def known(self, key: str, fingerprint: str) -> Record | None:
        """The completed record, where it is at hand in this process's memory and of the same payload."""
        direct = self.store.shared.direct
        record = None if direct is None else direct.completed(key)
        if record is None or record.fingerprint != fingerprint or record.fingerprint_version != FINGERPRINT_VERSION:
            return None
        self.notify("replayed", key)
        return record

    # --- running ----------------------------------------------------------------------------------------------------

    def run(self, key: str, fingerprint: str, function: Callable[[], Any]) -> Any:
        """Run a function once for its key, and return its result; or return, or raise, what came of it before."""
        store = self.blocking_store()
        known = self.known(key, fingerprint)
        if known is not None:
            return outcome_of(known.status, known.body, self, known).result()
        if self._cache_max:
            cached = self.cached(key, fingerprint)
            if cached is not None:
                return cached.result()
        refuse_own_key(key)

        def work(claim: Claim | None) -> Outcome[Any]:
            with running_under(claim):
                try:
                    return Outcome(function())
                except BaseException as error:  # noqa: BLE001 - handed on as it is, after the claim was settled
                    return Outcome(error=error)

        return store.run(call_once(self, store.shared, key, fingerprint, work, ThreadHeart(store))).result()

    async def run_async(self, key: str, fingerprint: str, function: Callable[[], Awaitable[Any]]) -> Any:
        """As :meth:`run`, for a coroutine function, on the running loop."""
        store = self._store or self.store
        known = self.known(key, fingerprint)
        if known is not None:
            return outcome_of(known.status, known.body, self, known).result()
        if self._cache_max:
            cached = self.cached(key, fingerprint)
            if cached is not None:
                return cached.result()
        refuse_own_key(key)
        task = asyncio.current_task()
        was_told = False

        async def work(claim: Claim | None) -> Outcome[Any]:
            with running_under(claim):
                try:
                    return Outcome(await function())
                except BaseException as error:  # noqa: BLE001 - handed on as it is, after the claim was settled
                    if was_told and task is not None and isinstance(error, asyncio.CancelledError):
                        task.uncancel()
                        return Outcome(error=LeaseLost(f"{self.name}: the lease was lost, so the call was cancelled"))
                    return Outcome(error=error)

        def tell() -> None:
            nonlocal was_told
            was_told = True
            if task is not None:
                task.cancel()

        cancels = self.policy.on_lease_lost == "cancel"

        async def told_work(claim: Claim | None) -> Outcome[Any]:
            if claim is not None and cancels:
                claim.when_lost(tell)
            return await work(claim)

        outcome = await store.run_on_loop(call_once(self, store.shared, key, fingerprint, told_work, LoopHeart(store)))
        return outcome.result()


def refuse_own_key(key: str) -> None:
    """Misuse when the calling code holds that key already: it would wait for itself."""
    claim = current_claim()
    while claim is not None:
        if claim.key == key and not claim.is_ended:
            raise Misuse(f"key {key!r:.120} is held by the very call that asks for it; it would wait for itself")
        claim = claim.outer


def store_of(target: Any) -> Store:
    """The store that a target means. Misuse when it means none."""
    found = target() if callable(target) and not isinstance(target, _STORES + _APPS) else target
    if isinstance(found, _APPS):
        found = found.idempotency
    if not isinstance(found, _STORES):
        raise Misuse(f"{found!r:.80} is neither an application (casework.open) nor an idempotency store")
    return found


_STORES = (IdempotencyStore, AsyncIdempotencyStore)
_APPS = (App, AsyncApp)
