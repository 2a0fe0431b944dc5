"""``with casework.once(key)``: a block that runs once for its key.

Python has no way to leave a block out, so the block asks::

    with casework.once(app, "invoice-17") as claim:
        if claim.is_mine:
            claim.result = make_invoice(17)
    print(claim.result)
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

from casework.app.current import enter_claim, leave_claim
from casework.errors import LeaseLost, Misuse
from casework.idempotency.calling import Heartbeat, begun_or_refused, outcome_of, settle_block
from casework.idempotency.codecs import Codec
from casework.idempotency.guarding import Begun, Claim, Policy
from casework.idempotency.keys import fingerprint_of, make_key
from casework.kernel.effects import Outcome
from casework.surfaces.guard import Guard, Hook, Target, refuse_own_key
from casework.surfaces.heart import LoopHeart, ThreadHeart

_NOTHING = object()


def once(
    target: Target,
    key: Any,
    *,
    payload: Any = None,
    name: str = "block",
    codec: Codec | None = None,
    lease_s: float = 30.0,
    max_run_s: float = 900.0,
    keep_s: float | None = 86_400.0,
    wait_s: float = 30.0,
    on_unavailable: str = "refuse",
    on_lease_lost: str = "raise",
    hooks: Sequence[Hook] = (),
) -> Once:
    """A block that runs once for its key; with ``async with`` on an event loop.

    Args:
        target: an application, an idempotency store, or a function that returns one.
        key: what identifies the operation: text, a number, or a tuple of such.
        payload: what must be the same in every block with this key.
        name: of the operation, a part of the key.
        codec: how the result is stored.
        lease_s: another block takes over so long after this process was last heard of.
        max_run_s: the longest that the block may take.
        keep_s: the result is kept so long; None: for ever.
        wait_s: wait so long for another block with the key.
        on_unavailable: ``refuse`` or ``run``.
        on_lease_lost: ``raise`` or ``return``.
        hooks: called with an ``Event`` for everything that happens.

    Raises PayloadMismatch, InProgress, StoreError when the block is entered; LeaseLost when it is left. An exception
    inside the block releases the key.
    """  # fmt: skip
    policy = Policy(
        lease_s=lease_s, max_run_s=max_run_s, keep_s=keep_s, wait_s=wait_s, on_unavailable=on_unavailable,
        on_lease_lost=on_lease_lost,
    )  # fmt: skip
    if on_lease_lost == "cancel":
        raise Misuse("a block cannot be cancelled; use on_lease_lost='raise' and look at claim.is_lost")
    guard = Guard(target, name=name, policy=policy, codec=codec, hooks=hooks)
    return Once(guard, make_key("once", name, None, key), fingerprint_of(payload))


class Once:
    """A block under way; see :func:`once`."""

    def __init__(self, guard: Guard, key: str, fingerprint: str) -> None:
        self.guard, self.key, self.fingerprint = guard, key, fingerprint
        self._claim: Claim | None = None
        self._token: Any = None
        self._result: Any = _NOTHING
        self.is_mine = False
        """Whether the block is to do the work; else ``result`` is what came of it before."""

    @property
    def claim(self) -> Claim | None:
        """The claim, while the block is under way and protected."""
        return self._claim

    @property
    def is_lost(self) -> bool:
        """Whether another caller may have taken over."""
        return self._claim is not None and self._claim.is_lost

    @property
    def result(self) -> Any:
        """The result: set it where ``is_mine``; None when it was never set."""
        return None if self._result is _NOTHING else self._result

    @result.setter
    def result(self, value: Any) -> None:
        if not self.is_mine:
            raise Misuse(f"key {self.key!r:.120} has a result already; set one only where is_mine")
        self._result = value

    def _entered(self, begun: Begun, heart: Heartbeat) -> Once:
        if begun.record is not None:
            self.guard.notify("replayed", self.key)
            self._result = outcome_of(begun.record.status, begun.record.body, self.guard, begun.record).result()
            return self
        self.is_mine = True
        if begun.claim is None:
            self.guard.notify("unprotected", self.key)
            return self
        self._claim, self._heart = begun.claim, heart
        self._token = enter_claim(self._claim)
        heart.watch(self._claim)
        return self

    def _leaving(self) -> Claim | None:
        claim = self._claim
        if claim is not None:
            self._heart.unwatch(claim)
            leave_claim(self._token)
        return claim

    def _left(self, outcome: Outcome[Any]) -> None:
        if isinstance(outcome.error, LeaseLost):
            raise outcome.error

    def __enter__(self) -> Once:
        store = self.guard.blocking_store()
        refuse_own_key(self.key)
        begun = store.run(begun_or_refused(self.guard, store.shared, self.key, self.fingerprint))
        return self._entered(begun, ThreadHeart(store))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        claim = self._leaving()
        if claim is not None:
            store = self.guard.blocking_store()
            settle = settle_block(self.guard, store.shared, claim, self.fingerprint, Outcome(self.result, error))
            self._left(store.run(settle))

    async def __aenter__(self) -> Once:
        store = self.guard.store
        refuse_own_key(self.key)
        begun = await store.run_on_loop(begun_or_refused(self.guard, store.shared, self.key, self.fingerprint))
        return self._entered(begun, LoopHeart(store))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        claim = self._leaving()
        if claim is not None:
            store = self.guard.store
            settle = settle_block(self.guard, store.shared, claim, self.fingerprint, Outcome(self.result, error))
            self._left(await store.run_on_loop(settle))
