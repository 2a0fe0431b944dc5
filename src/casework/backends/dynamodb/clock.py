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
"""

from __future__ import annotations

import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from threading import Lock

from casework.kernel.effects import Instant

DRIFT = 200e-6
"""Seconds that a host's clock gains or loses in a second, at most. Quartz that nobody corrects stays below 100 ppm."""

FLEET_SKEW_S = 0.05
"""The service's hosts may differ from each other by so much."""

UNKNOWN_S = 300.0
"""Bound before the first answer: a host whose clock is off by more than five minutes cannot sign a request at all
(AWS General Reference, "Signature Version 4": a request must reach AWS within five minutes of its time stamp)."""


Mark = tuple[float, float]
"""A moment on the host's monotonic and wall clock, in seconds."""


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
        self._last = Instant(0, 0)
        self._date: tuple[str, float | None] = ("", None)

    def mark(self) -> Mark:
        """This moment on both clocks of the host."""
        return self._monotonic_s(), self._wall_s()

    @property
    def has_sample(self) -> bool:
        """Whether an answer was ever seen."""
        return self._known is not None

    def observe(self, date: str | None, sent: Mark, received: Mark) -> None:
        """Take in one answer: its ``Date`` header, when its request was sent and when the answer was there."""
        date_s = self._parse(date)
        if date_s is None:
            return
        with self._lock:
            now = self.mark()
            low = date_s - FLEET_SKEW_S + _least(received, now)
            high = date_s + 1.0 + FLEET_SKEW_S + _most(sent, now)
            if self._known is not None:
                known_low, known_high = self._carried(now)
                if known_low <= high and low <= known_high:
                    low, high = max(low, known_low), min(high, known_high)
                else:  # they contradict each other: believe both, the next answers will narrow it again
                    low, high = min(low, known_low), max(high, known_high)
            self._known = (low, high, now)

    def now(self) -> Instant:
        """The service's time. The lower bound and the middle never run backwards."""
        with self._lock:
            moment = self.mark()
            if self._known is None:
                low, high = moment[1] - self._unknown_s, moment[1] + self._unknown_s
            else:
                low, high = self._carried(moment)
            earliest = max(int(low * 1e6), self._last.earliest_us)
            latest = max(int(high * 1e6) + 1, earliest)
            if self._known is not None and self._last.earliest_us:
                latest = max(latest, self._last.earliest_us + self._last.latest_us - earliest)
            now = Instant(earliest, latest)
            if self._known is not None:
                self._last = now
            return now

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


def _least(then: Mark, now: Mark) -> float:
    """At least so many seconds passed between two moments."""
    return min(max(0.0, now[0] - then[0]), max(0.0, now[1] - then[1])) * (1 - DRIFT)


def _most(then: Mark, now: Mark) -> float:
    """At most so many seconds passed between two moments."""
    return max(now[0] - then[0], now[1] - then[1], 0.0) * (1 + DRIFT)
