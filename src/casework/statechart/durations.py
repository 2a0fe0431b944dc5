"""Delays as people write them: milliseconds as a number, or text such as ``30s``, ``5m``, ``1h30m``, ``7d``."""

from __future__ import annotations

import re
from typing import Any

from casework.kernel.containment import shown

_UNITS_US = {"us": 1, "ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_PART = re.compile(r"(\d+(?:\.\d+)?|\.\d+)(us|ms|s|m|h|d)")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_TEXT_MAX = 100
"""Longest text of a delay. Whoever sends an event may choose it, and a long one would be searched for minutes."""
MAX_DELAY_US = 100 * 366 * 86_400_000_000
"""A hundred years; more is a mistake in the unit."""

HOW_TO = "use milliseconds such as 1500, or a duration such as 500ms, 30s, 5m, 1h30m, 7d"


def delay_us(value: Any) -> int:
    """The delay in microseconds; a number, or text of digits only, counts milliseconds.

    Raises ``ValueError`` for anything else, for a negative delay and for more than a hundred years.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{shown(value, 200)} is not a delay ({HOW_TO})")
    if isinstance(value, str):
        if len(value) > _TEXT_MAX:
            raise ValueError(f"a text of {len(value):,} characters is no delay ({HOW_TO})")
        total = _text_us(value.strip())
    else:
        if not 0 <= value <= MAX_DELAY_US / 1000:
            raise ValueError(f"the delay {value!r} is out of range (0 to 100 years)")
        total = round(value * 1000)
    if total > MAX_DELAY_US:
        raise ValueError(f"the delay {value!r} is out of range (0 to 100 years)")
    return total


def _text_us(text: str) -> int:
    if _NUMBER.fullmatch(text):
        return round(float(text) * 1000)
    total, at = 0.0, 0
    for part in _PART.finditer(text):
        if part.start() != at:
            break
        total += float(part[1]) * _UNITS_US[part[2]]
        at = part.end()
    if not text or at != len(text):
        raise ValueError(f"{text!r} is not a delay ({HOW_TO})")
    return round(total) if total <= MAX_DELAY_US else MAX_DELAY_US + 1
