"""The service's time, learned from the ``Date`` header of its answers. Pure: the host's clocks are passed in.

A condition in DynamoDB cannot compare with a clock of the service, so leases rest on the hosts' clocks, and a skewed
host would steal live ones. Every answer carries the service's time to the second. The header was written between the
sending of the request and the arrival of the answer, and the service's clock then stood between ``Date`` and ``Date +
1 s``; so each answer bounds the offset between the service's clock and this host's monotonic one, and the intersection
of many bounds it to little more than the time of a round trip.

Between answers the bound is carried forward by what the host's clocks say has passed. They are two, monotonic and wall,
and each can fail in its own way: monotonic time can stand still while a machine sleeps or a Lambda is frozen, wall time
can be set. The elapsed time lies between what the one and the other say, plus or minus their drift.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from threading import Lock

from casework.kernel.effects import Instant

DRIFT = 200e-6
"""Seconds that a host's clock gains or loses in a second, at most. Quartz stays below 100 ppm."""

FLEET_SKEW_S = 0.05
"""The service's hosts may differ from each other by so much."""

UNKNOWN_S = 300.0
"""Bound before the first answer: a host whose clock is off by more than five minutes cannot sign a request at all
(AWS General Reference, "Signature Version 4": a request must reach AWS within five minutes of its time stamp)."""


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
        monotonic_s: Callable[[], float] = time.monotonic,
        wall_s: Callable[[], float] = time.time,
        unknown_s: float = UNKNOWN_S,
    ) -> None:
        self.monotonic_s = monotonic_s
        self._wall_s = wall_s
        self._unknown_s = unknown_s
        self._lock = Lock()
        self._known: tuple[float, float, float, float] | None = None  # low, high, at monotonic, at wall
        self._last = Instant(0, 0)
        self._date: tuple[str, float | None] = ("", None)

    @property
    def has_sample(self) -> bool:
        """Whether an answer was ever seen."""
        return self._known is not None

    def observe(self, date: str | None, sent_s: float, received_s: float) -> None:
        """Take in one answer: its ``Date`` header, when its request was sent and when it was there (monotonic)."""
        date_s = self._parse(date)
        if date_s is None:
            return
        with self._lock:
            monotonic, wall = self.monotonic_s(), self._wall_s()
            since_received, since_sent = max(0.0, monotonic - received_s), max(0.0, monotonic - sent_s)
            low = date_s - FLEET_SKEW_S + since_received * (1 - DRIFT)
            high = date_s + 1.0 + FLEET_SKEW_S + since_sent * (1 + DRIFT)
            if self._known is not None:
                known_low, known_high = self._carried(monotonic, wall)
                if known_low <= high and low <= known_high:
                    low, high = max(low, known_low), min(high, known_high)
                else:  # they contradict each other: believe both, the next answers will narrow it again
                    low, high = min(low, known_low), max(high, known_high)
            self._known = (low, high, monotonic, wall)

    def now(self) -> Instant:
        """The service's time. The lower bound and the middle never run backwards."""
        with self._lock:
            monotonic, wall = self.monotonic_s(), self._wall_s()
            if self._known is None:
                low, high = wall - self._unknown_s, wall + self._unknown_s
            else:
                low, high = self._carried(monotonic, wall)
            earliest = max(int(low * 1e6), self._last.earliest_us)
            latest = max(int(high * 1e6) + 1, earliest)
            if self._known is not None and self._last.earliest_us:
                latest = max(latest, self._last.earliest_us + self._last.latest_us - earliest)
            now = Instant(earliest, latest)
            if self._known is not None:
                self._last = now
            return now

    def _carried(self, monotonic: float, wall: float) -> tuple[float, float]:
        """The known interval, carried forward to this moment."""
        assert self._known is not None
        low, high, at_monotonic, at_wall = self._known
        one, other = max(0.0, monotonic - at_monotonic), max(0.0, wall - at_wall)
        return low + min(one, other) * (1 - DRIFT), high + max(one, other) * (1 + DRIFT)

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
