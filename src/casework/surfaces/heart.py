"""The heartbeat: keeps claims alive while work runs.

One thread serves all blocking callers of a process. It is started by the first claim, sleeps until a claim is due, and
is not woken for every claim: most work ends long before a third of its lease has passed. On an event loop each claim
has a timer of that loop. After a fork the child begins with no thread and no claims.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import Any

from casework.idempotency.guarding import Claim, keep_alive

IDLE_S = 5.0
"""With nothing to keep alive the thread looks again after so long, and then ends."""


class HeartThread:
    """Renews the claims of blocking callers, each through its own store."""

    def __init__(self) -> None:
        self._watched: dict[int, tuple[Claim, Any]] = {}
        self._wakes_at_us = 0
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def watch(self, claim: Claim, store: Any) -> None:
        """Keep a claim alive until :meth:`unwatch`."""
        self._watched[id(claim)] = (claim, store)
        if self._thread is None:
            self._start()
        elif claim.beat_at_us < self._wakes_at_us:
            self._wake.set()

    def unwatch(self, claim: Claim) -> None:
        """Let a claim be."""
        self._watched.pop(id(claim), None)

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._wakes_at_us = 0
                self._thread = threading.Thread(target=self._beat, name="casework-heart", daemon=True)
                self._thread.start()

    def _beat(self) -> None:
        idle = 0
        while True:
            self._wake.clear()
            next_us = self._renew_due()
            idle = idle + 1 if next_us is None else 0
            if idle > 1:
                with self._lock:
                    if not self._watched:
                        self._thread = None
                        return
            pause_s = IDLE_S
            if next_us is not None:
                pause_s = min(pause_s, max(0.001, (next_us - _now_us()) / 1e6))
            self._wakes_at_us = _now_us() + int(pause_s * 1e6)
            if any(claim.beat_at_us < self._wakes_at_us for claim, _ in list(self._watched.values())):
                continue
            self._wake.wait(pause_s)

    def _renew_due(self) -> int | None:
        """Renew what is due; when the next one is, None when there is none."""
        next_us: int | None = None
        for claim, store in list(self._watched.values()):
            if claim.is_lost:
                self.unwatch(claim)
                continue
            now_us = store.shared.steady_us()
            if now_us >= claim.beat_at_us:
                claim.beat_at_us = now_us + round(claim.policy.lease_s * 1e6 / 3)
                if store.shared.direct is not None:
                    _renew(claim, store)
                else:  # a store that hangs must not keep the others' claims from being renewed
                    threading.Thread(target=_renew, args=(claim, store), name="casework-renewal", daemon=True).start()
            next_us = claim.beat_at_us if next_us is None else min(next_us, claim.beat_at_us)
        return next_us


def _renew(claim: Claim, store: Any) -> None:
    try:
        store.run(keep_alive(store.shared, claim))
    except Exception:  # noqa: BLE001 - one claim's trouble must not end all others'
        claim.beat_at_us = store.shared.steady_us() + 1_000_000


def _now_us() -> int:
    return time.monotonic_ns() // 1000


HEART = HeartThread()


def _begin_anew() -> None:
    HEART.__init__()  # type: ignore[misc]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


class ThreadHeart:
    """Keeps the claims of a blocking caller alive, by the process's thread."""

    __slots__ = ("_store",)

    def __init__(self, store: Any) -> None:
        self._store = store

    def watch(self, claim: Claim) -> None:
        """Keep a claim alive from now on."""
        HEART.watch(claim, self._store)

    def unwatch(self, claim: Claim) -> None:
        """Stop that."""
        HEART.unwatch(claim)


class LoopHeart:
    """Keeps one claim of a coroutine alive, by timers of its loop."""

    __slots__ = ("_claim", "_is_over", "_loop", "_store", "_task", "_timer")

    def __init__(self, store: Any) -> None:
        self._store = store
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False

    def watch(self, claim: Claim) -> None:
        """Keep a claim alive from now on."""
        self._claim = claim
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(self._pause_s(), self._fire)

    def _pause_s(self) -> float:
        left_us: int = self._claim.beat_at_us - self._store.shared.steady_us()
        return max(0.001, left_us / 1e6)

    def _fire(self) -> None:
        self._task = self._loop.create_task(self._renew(), name="casework-heartbeat")

    async def _renew(self) -> None:
        try:
            await self._store.run_on_loop(keep_alive(self._store.shared, self._claim))
        except Exception:  # noqa: BLE001 - a heartbeat that failed is tried again; the lease's end decides
            self._claim.beat_at_us = self._store.shared.steady_us() + 1_000_000
        if not self._is_over and not self._claim.is_lost:
            self._timer = self._loop.call_later(self._pause_s(), self._fire)

    def unwatch(self, claim: Claim) -> None:
        """Stop that. A renewal under way ends by itself: it names the claim, so it harms nobody."""
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
