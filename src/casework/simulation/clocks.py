"""Hosts that know the service's time only from its answers, as on DynamoDB; see ``casework.backends.dynamodb.clock``.

The code under test is the real one: a :class:`~casework.backends.dynamodb.clock.ServiceClock` on a host whose monotonic
clock drifts and may stand still while the host does, and whose wall clock is off and may be set. As a backend does, a
host asks the service for the time where its own clocks are in doubt.
"""

from __future__ import annotations

from email.utils import formatdate

from casework.backends.dynamodb.clock import DRIFT, FLEET_SKEW_S, UNKNOWN_S, Mark, ServiceClock
from casework.simulation.carrier import Carrier

_dates: dict[int, str] = {}


def _date(seconds: int) -> str:
    """The ``Date`` header of that second; made once, since a run has few of them."""
    text = _dates.get(seconds)
    if text is None:
        if len(_dates) > 10_000:
            _dates.clear()
        text = _dates[seconds] = formatdate(seconds, usegmt=True)
    return text


class SampledClock:
    """A process's knowledge of the service's time.

    Args:
        world: has the true time.
        skew_us: how far the host's wall clock is off; it also decides how its monotonic clock drifts.
        before: of the same host's process before this one: the host's clocks go on, what was learned is gone.
    """

    def __init__(self, world: Carrier, skew_us: int, before: SampledClock | None = None) -> None:
        self._world = world
        self._skew_s = skew_us / 1e6
        self._rate = 1 + DRIFT * (skew_us % 201 - 100) / 200
        self._lost_s: float = 0.0
        if before is not None:
            self._lost_s, self._skew_s = before._lost_s, before._skew_s
        self.service = ServiceClock(monotonic_s=self._monotonic_s, wall_s=self._wall_s)

    def _monotonic_s(self) -> float:
        return (self._world.now_us / 1e6 - 1.75e9) * self._rate - self._lost_s

    def _wall_s(self) -> float:
        return self._world.now_us / 1e6 + self._skew_s

    def stands_still(self, duration_us: int) -> None:
        """The monotonic clock does not count a pause, as that of a frozen virtual machine."""
        self._lost_s += duration_us / 1e6

    def is_set(self, by_us: int) -> None:
        """The wall clock is set forward, or back."""
        self._skew_s += by_us / 1e6

    def asks(self, asked_n: int) -> bool:
        """Whether the service is asked (again) before the time is told. At the first look it may not have been.

        Except by a host whose wall clock is off by more than a request may be: the service takes nothing that it signs,
        and each refusal tells the time.
        """
        doubt = self.service.doubt()
        if doubt == "unknown":
            return abs(self._skew_s) > UNKNOWN_S
        return doubt == "failed" or (doubt == "wide" and asked_n < 3)

    def saw_answer(self, sent: Mark) -> None:
        """An answer arrives, dated by one of the service's hosts, which differ a little from each other."""
        world = self._world
        fleet_s = FLEET_SKEW_S * (world.steps % 19 - 9) / 10
        self.service.observe(_date(int(world.now_us / 1e6 + fleet_s)), sent, self.service.mark())
