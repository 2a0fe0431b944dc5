"""Planted faults in what hosts believe of their own clocks."""

from __future__ import annotations

from typing import Any

from casework.backends.dynamodb import clock
from casework.backends.dynamodb.clock import Mark, ServiceClock
from casework.simulation.scenarios import freezing
from tests.simulation.planting import Fault, patched


def _believes(self: Any) -> None:
    """After a freeze or a step the middle of a wide interval is taken for the time."""


def _only_behind_s(then: Mark, now: Mark) -> float:
    """A freeze in which the monotonic clock stands still is not seen."""
    return max(0.0, (now[0] - then[0]) - (now[1] - then[1]))


FAULTS = (
    Fault("a host believes its clocks after a freeze", freezing.Freezes, patched(ServiceClock, "doubt", _believes)),
    Fault("a monotonic clock stood still unseen", freezing.Freezes, patched(clock, "_apart_s", _only_behind_s)),
)  # fmt: skip
