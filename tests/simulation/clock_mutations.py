"""Planted faults in what hosts believe of their own clocks."""

from __future__ import annotations

from typing import Any

from casework.backends.dynamodb.clock import ServiceClock
from casework.simulation.scenarios import freezing
from tests.simulation.planting import Fault, patched


def _believes(self: Any) -> None:
    """After a freeze or a step the middle of a wide interval is taken for the time."""


FAULTS = (
    Fault("a host believes its clocks after a freeze", freezing.Freezes, patched(ServiceClock, "doubt", _believes)),
)  # fmt: skip
