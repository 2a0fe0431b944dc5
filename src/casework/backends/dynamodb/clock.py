"""The service's time, learned from the ``Date`` header of its answers. Pure: the host's clocks are passed in.

A condition in DynamoDB cannot compare with a clock of the service, so leases rest on the hosts' clocks, and a skewed
host would steal live ones. Every answer carries the service's time to the second. The header was written between the
sending of the request and the arrival of the answer, and the service's clock then stood between ``Date`` and ``Date +
1 s``; so each answer bounds the offset between the service's clock and this host's monotonic one, and the intersection
of many bounds it to little more than the time of a round trip.

Between answers the bound is carried forward by what the host's clocks say has passed. They are two, monotonic and wall,
and each can fail in its own way: monotonic time can stand still while a machine sleeps or a Lambda is frozen, wall time
can be set, or run fast or slow while it is corrected. The elapsed time lies between what the one and the other say,
plus or minus their drift, as long as not both fail between the same two answers.

Where the two differ by more than ``AGREE_S`` since the last answer, one of them has failed, perhaps both, and nobody
can say by how much: an hour that only the wall clock knows of was a sleep, or the clock was set. Then :meth:`doubt`
says so, the backend asks the service before it answers what time it is, and its answer replaces all that was carried.
What stays hidden is a failure of both by the same amount, such as a virtual machine that is stopped with both clocks;
the next answer shows it, and :meth:`doubt` asks for another one to tell which of the two was wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from threading import Lock
from typing import Literal

from casework.kernel.effects import Instant

DRIFT = 200e-6
"""Seconds that a host's clock gains or loses in a second, at most. Quartz that nobody corrects stays below 100 ppm."""

FLEET_SKEW_S = 0.05
"""The service's hosts may differ from each other by so much."""

UNKNOWN_S = 300.0
"""Bound before the first answer: a host whose clock is off by more than five minutes cannot sign a request at all
(AWS General Reference, "Signature Version 4": a request must reach AWS within five minutes of its time stamp)."""


AGREE_S = 1.0
"""The host's two clocks may differ by so much since the last answer, in what they say has passed."""

FRESH_S = 900.0
"""After so long without an answer another one is asked for, since the bound has widened by the drift."""

WIDE_S = 2.5
"""A wider bound is worth another question: the header tells a second, and a usual answer is on its way for less."""

Mark = tuple[float, float]
"""A moment on the host's monotonic and wall clock, in seconds."""

Doubt = Literal["unknown", "failed", "stale", "wide"]


def steady_s() -> float:
    """The monotonic clock that no time daemon speeds up or slows down (else the usual one), in seconds."""
    raw = getattr(time, "CLOCK_MONOTONIC_RAW", None)
    return time.monotonic() if raw is None else time.clock_gettime(raw)


class ServiceClock:
    """The service's time as an interval that narrows with every answer and never runs backwards. Thread-safe.

    Args:
        monotonic_s: the host's monotonic clock, in seconds.
        wall_s: the host's wall clock, in seconds since the epoch.
        unknown_s: half the width of the interval before the first answer.
    """

    def __init__(
        self,
        *,
        monotonic_s: Callable[[], float] = steady_s,
        wall_s: Callable[[], float] = time.time,
        unknown_s: float = UNKNOWN_S,
    ) -> None:
        self._monotonic_s = monotonic_s
        self._wall_s = wall_s
        self._unknown_s = unknown_s
        self._lock = Lock()
        self._known: tuple[float, float, Mark] | None = None  # the bounds, and when they were true
        self._settled: Mark | None = None  # when the last answer came that can be relied on
        self._last = Instant(0, 0)
        self._date: tuple[str, float | None] = ("", None)

    def mark(self) -> Mark:
        """This moment on both clocks of the host."""
        return self._monotonic_s(), self._wall_s()

    @property
    def has_sample(self) -> bool:
        """Whether an answer was ever seen."""
        return self._known is not None

    def doubt(self) -> Doubt | None:
        """Why :meth:`now` should not be relied on before the service was asked; None when it can be.

        ``unknown``: no answer yet. ``failed``: one of the host's clocks has failed since the last answer. ``stale``:
        the bounds hold, but the last answer is long past. ``wide``: they hold, but all that is known is an answer that
        was long on its way.
        """
        with self._lock:
            if self._known is None:
                return "unknown"
            now = self.mark()
            if self._has_failed(now):
                return "failed"
            assert self._settled is not None
            if now[0] - self._settled[0] > FRESH_S:
                return "stale"
            low, high = self._carried(now)
            return "wide" if high - low > WIDE_S else None

    def _has_failed(self, now: Mark) -> bool:
        """Whether a clock of the host has failed since the last answer that can be relied on."""
        return self._settled is None or _apart_s(self._settled, now) > AGREE_S

    def observe(self, date: str | None, sent: Mark, received: Mark) -> None:
        """Take in one answer: its ``Date`` header, when its request was sent and when the answer was there."""
        date_s = self._parse(date)
        if date_s is None:
            return
        with self._lock:
            now = self.mark()
            low = date_s - FLEET_SKEW_S + _least(received, now)
            high = date_s + 1.0 + FLEET_SKEW_S + _most(sent, now)
            if _apart_s(sent, received) > AGREE_S:  # a clock failed while it was under way: it bounds nothing
                if self._known is None:
                    self._known = (low, high, now)
                return
            settled: Mark | None = received
            if self._known is not None and not self._has_failed(received):
                known_low, known_high = self._carried(now)
                if known_low <= high and low <= known_high:
                    low, high = max(low, known_low), min(high, known_high)
                else:  # they contradict each other: believe both until the next answer, which replaces them
                    low, high = min(low, known_low), max(high, known_high)
                    settled = None
            self._known, self._settled = (low, high, now), settled

    def now(self) -> Instant:
        """The service's time. The lower bound and, while there is no :meth:`doubt`, the middle never run backwards."""
        with self._lock:
            moment = self.mark()
            if self._known is None:
                low, high = moment[1] - self._unknown_s, moment[1] + self._unknown_s
            else:
                low, high = self._carried(moment)
            earliest = max(int(low * 1e6), self._last.earliest_us)
            latest = max(int(high * 1e6) + 1, earliest)
            if self._known is None or self._has_failed(moment):
                return Instant(earliest, latest)  # a guess; the next answer is not bound by it
            if self._last.earliest_us:
                latest = max(latest, self._last.earliest_us + self._last.latest_us - earliest)
            self._last = Instant(earliest, latest)
            return self._last

    def _carried(self, now: Mark) -> tuple[float, float]:
        """The known interval, carried forward to this moment."""
        assert self._known is not None
        low, high, then = self._known
        return low + _least(then, now), high + _most(then, now)

    def _parse(self, date: str | None) -> float | None:
        """Seconds since the epoch of a ``Date`` header; None when there is none or it cannot be read."""
        if not date:
            return None
        text, parsed = self._date
        if text != date:
            try:
                parsed = parsedate_to_datetime(date).timestamp()
            except (ValueError, TypeError):
                parsed = None
            self._date = (date, parsed)
        return parsed


def _apart_s(then: Mark, now: Mark) -> float:
    """By how much the two clocks differ in what they say has passed between two moments."""
    return abs((now[0] - then[0]) - (now[1] - then[1]))


def _least(then: Mark, now: Mark) -> float:
    """At least so many seconds passed between two moments."""
    return min(max(0.0, now[0] - then[0]), max(0.0, now[1] - then[1])) * (1 - DRIFT)


def _most(then: Mark, now: Mark) -> float:
    """At most so many seconds passed between two moments."""
    return max(now[0] - then[0], now[1] - then[1], 0.0) * (1 + DRIFT)
