"""Clocks and tokens that backends are given: the host's real ones, and virtual ones for tests and the simulator."""

from __future__ import annotations

import base64
import logging
import os
import random
import threading
import time
from collections.abc import Callable
from typing import Protocol

from casework.kernel.effects import Instant

logger = logging.getLogger("casework.clock")

_STEADY: int | None = getattr(time, "CLOCK_BOOTTIME", None)

SLOWER = 1000
"""Time that is ahead of the host's clock runs slower by one in so many, which is more than clocks drift by."""

STEP_US = 1_000_000
"""A difference above that is a step, told in the log."""

DOUBTED_US = 86_400_000_000
"""So long after a step forward nothing is deleted because of it."""


class Clock(Protocol):
    """Time and its passing."""

    def now(self) -> Instant:
        """The time, with its bounds; never runs backwards."""

    def sleep(self, seconds: float) -> None:
        """Let time pass."""


def host_steady_us() -> int:
    """The host's clock that is never set, in microseconds since it was started; where it can, it counts sleep, too."""
    return time.clock_gettime_ns(_STEADY) // 1000 if _STEADY is not None else time.monotonic_ns() // 1000


def host_wall_us() -> int:
    """The host's clock, in microseconds since the epoch."""
    return time.time_ns() // 1000


class HostClock:
    """The host's clock, taken as exact, but never set back: after a step back time goes on at the steady clock's pace.

    It then runs slower by a thousandth, until the host's clock has caught up: so what was armed for 15 minutes comes
    after 15 minutes, and the time of day is found again without a second step. A step forward is followed at once,
    since nobody on the host can tell it from a sleep in which the steady clock stood still. Both are told in the log.

    Args:
        steady_us: a clock that is never set, the same for all processes of the host.
        wall_us: the host's clock, since the epoch.
    """

    def __init__(
        self, *, steady_us: Callable[[], int] = host_steady_us, wall_us: Callable[[], int] = host_wall_us
    ) -> None:
        self.steady_us = steady_us
        self.wall_us = wall_us
        self._lock = threading.Lock()
        self._base: tuple[int, int] | None = None  # a steady time, and what time it was then
        self._is_ahead = False
        self._jumps: list[tuple[int, int]] = []  # when, on the steady clock, and by how much

    def now(self) -> Instant:
        """The time; never runs backwards."""
        with self._lock:
            now_us = self._look()[0]
        return Instant(now_us, now_us)

    def _look(self) -> tuple[int, int, int]:
        """The time, the steady clock and the host's; read in the order in which a pause makes nothing seem ahead."""
        wall_us = self.wall_us()
        steady_us = self.steady_us()
        if self._base is None:
            self._base = steady_us, wall_us
            return wall_us, steady_us, wall_us
        passed_us = max(0, steady_us - self._base[0])
        carried_us = self._base[1] + passed_us - passed_us // SLOWER
        if carried_us > wall_us:
            self._note_ahead(carried_us - wall_us)
            return carried_us, steady_us, wall_us
        self._note_jump(wall_us - self._base[1] - passed_us, passed_us, steady_us)
        if self._is_ahead:
            self._is_ahead = False
            logger.info("the host's clock has caught up with the time that casework kept")
        self._base = steady_us, wall_us
        return wall_us, steady_us, wall_us

    def _note_ahead(self, ahead_us: int) -> None:
        if ahead_us > STEP_US and not self._is_ahead:
            self._is_ahead = True
            logger.warning(
                "the host's clock was set back by %.1f s, or was ahead before; time goes on from where it was, slower"
                " by a thousandth, until the host's clock has caught up", ahead_us / 1e6,
            )  # fmt: skip

    def _note_jump(self, jump_us: int, passed_us: int, steady_us: int) -> None:
        if jump_us > STEP_US + passed_us // SLOWER:
            self._jumps.append((steady_us, jump_us))
            logger.warning(
                "the host's clock was set forward by %.1f s, or the host stood still; what is due by now is done now,"
                " and what has expired by now is kept in the file for another %d hours",
                jump_us / 1e6, DOUBTED_US // 3_600_000_000,
            )  # fmt: skip

    def mark(self) -> tuple[int, int]:
        """The time, and the steady clock at that time, for others to go on from."""
        with self._lock:
            now_us, steady_us, _ = self._look()
        return now_us, steady_us

    def learn(self, now_us: int, since_boot_us: int | None) -> None:
        """Take over what other processes of this host know.

        Args:
            now_us: the time is at least that.
            since_boot_us: what time it would be had nobody set the host's clock since they last looked; None when
                nobody has looked since the host was started.
        """
        with self._lock:
            is_first = self._base is None
            own_us, steady_us, wall_us = self._look()
            if is_first and since_boot_us is not None and not self._jumps:
                self._note_jump(wall_us - since_boot_us, 0, steady_us)
            if now_us > own_us:
                self._note_ahead(now_us - wall_us)
                self._base = steady_us, now_us

    def settled_us(self) -> int:
        """The time as far as nobody doubts it: a step forward counts only a day later, one back at once.

        For what cannot be undone, such as deleting what has expired.
        """
        with self._lock:
            now_us, steady_us, wall_us = self._look()
            self._jumps = [(at_us, by_us) for at_us, by_us in self._jumps if steady_us - at_us < DOUBTED_US]
            return min(now_us, wall_us) - sum(by_us for _, by_us in self._jumps)

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
