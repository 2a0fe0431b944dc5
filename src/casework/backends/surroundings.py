"""Clocks and tokens that backends are given: the host's real ones, and virtual ones for tests and the simulator."""

from __future__ import annotations

import base64
import os
import random
import threading
import time
from typing import Protocol

from casework.kernel.effects import Instant


class Clock(Protocol):
    """Time and its passing."""

    def now(self) -> Instant:
        """The time, with its bounds; never runs backwards."""

    def sleep(self, seconds: float) -> None:
        """Let time pass."""


class HostClock:
    """The host's clock, taken as exact and kept from running backwards."""

    def __init__(self) -> None:
        self._last_us = 0

    def now(self) -> Instant:
        """The host's time."""
        now_us = max(time.time_ns() // 1000, self._last_us)
        self._last_us = now_us
        return Instant(now_us, now_us)

    def sleep(self, seconds: float) -> None:
        """Block the calling thread."""
        time.sleep(seconds)


class VirtualClock:
    """A clock that moves only when told; ``sleep`` moves it."""

    def __init__(self, start_us: int = 1_750_000_000_000_000) -> None:
        self._now_us = start_us
        self._lock = threading.Lock()

    def now(self) -> Instant:
        """The virtual time."""
        return Instant(self._now_us, self._now_us)

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        with self._lock:
            self._now_us += max(0, round(seconds * 1_000_000))

    sleep = advance


def random_token() -> str:
    """22 URL-safe characters, 128 bits, from the operating system; safe after a fork."""
    return base64.urlsafe_b64encode(os.urandom(16))[:22].decode()


class SeededTokens:
    """Tokens that a seed determines."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def __call__(self) -> str:
        """The next token."""
        return base64.urlsafe_b64encode(self._random.randbytes(16))[:22].decode()
