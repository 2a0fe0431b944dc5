"""What JSON can hold unchanged, checked strictly.

A context, an input, a payload or a result is stored as JSON. Encoders are lenient: NaN becomes null, sets and tuples
become arrays, integer keys become strings. Whoever reads the value back would get another one than was written, so
everything else is refused here, with the path to the value. Import :func:`check_json`, :func:`checked_copy` and
:func:`copy_json` from here; nothing else of the statechart is needed for them.
"""

from __future__ import annotations

import math
from typing import Any

from casework.errors import NotJson
from casework.kernel.containment import shown
from casework.statechart.budget import ELEMENT, KEY, Meter, text_size

INT_MIN, INT_MAX = -(2**63), 2**63 - 1
MAX_DEPTH = 100
"""Deeper nesting is refused: it is a mistake (a cycle, mostly), and decoders elsewhere stop near there as well."""
MAX_VALUES = 1_000_000
"""Values inside one, shared ones counted each time that they stand in it: a list may hold one list a billion times."""
_FEW = 8
"""Fewer values are copied as quickly as they could be charged for."""
_CHARGED_TEXT = 16
"""Shorter texts count no more than the place they stand in."""

_FIXES: dict[type, str] = {
    tuple: "use a list",
    set: "use a sorted list",
    frozenset: "use a sorted list",
    bytes: "encode it as text, such as base64",
    bytearray: "encode it as text, such as base64",
}


class _Count:
    """What is charged where nothing else is: how many values there are, about."""

    __slots__ = ("left", "most")

    def __init__(self, most: int) -> None:
        self.left = self.most = most

    def charge(self, work: int, size: int = 0) -> None:
        """Count what a container holds."""
        self.left -= work // 3
        if self.left < 0:
            raise _Unfit(f"more than {self.most:,} values (does it hold the same ones many times?)")


def check_json(value: Any, where: str = "value", values_max: int = MAX_VALUES) -> None:
    """Return when ``value`` is exactly JSON: dict with str keys, list, str, int of 64 bits, finite float, bool, None.

    Raises :class:`~casework.errors.NotJson` with the path below ``where`` to the first value that is not, or when
    there are more than about ``values_max`` inside.
    """
    checked_copy(value, where, values_max=values_max)


def checked_copy(value: Any, where: str = "value", meter: Meter | None = None, values_max: int = MAX_VALUES) -> Any:
    """A deep copy of ``value`` that shares nothing mutable with it, checked as :func:`check_json` does.

    ``meter`` is charged for the copy while it is made, for texts as often as they stand in it.
    """
    try:
        return _copy(value, 0, meter or _Count(values_max))
    except _Unfit as unfit:
        path = "".join(reversed(unfit.path))
        raise NotJson(f"{where}{path}: {unfit}") from None


def copy_json(value: Any, meter: Meter | None = None) -> Any:
    """A deep copy of a value that is known to be JSON already; nothing is checked. ``meter`` is charged for it."""
    kind = type(value)
    if kind is not dict and kind is not list:
        return value
    if meter is not None and len(value) > _FEW:
        meter.charge(len(value))
    if kind is dict:
        return {key: item if type(item) in _SCALARS else _copy_inside(item, meter) for key, item in value.items()}
    return [item if type(item) in _SCALARS else _copy_inside(item, meter) for item in value]


def _copy_inside(value: Any, meter: Meter | None) -> Any:
    if meter is not None:
        meter.charge(1)
    return copy_json(value, meter)


_SCALARS = frozenset({str, int, float, bool, type(None)})


class _Unfit(ValueError):
    """What JSON cannot hold; ``path`` is filled on the way out, the innermost part first."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.path: list[str] = []


def _copy(value: Any, depth: int, meter: Meter | _Count) -> Any:
    kind = type(value)
    if kind is str:
        return _checked_text(value, meter)
    if kind is bool or value is None:
        return value
    if kind is int:
        if INT_MIN <= value <= INT_MAX:
            return value
        raise _Unfit("an integer beyond 64 bits cannot be stored (store it as text)")
    if kind is float:
        if math.isfinite(value):
            return value
        raise _Unfit(f"{value!r} is not a JSON number (use None, or text)")
    if depth > MAX_DEPTH:
        raise _Unfit(f"nested deeper than {MAX_DEPTH} levels (is it part of itself?)")
    if kind is list:
        meter.charge(1 + 2 * len(value), ELEMENT * len(value))
        copied: list[Any] = []
        try:
            for item in value:
                copied.append(_copy(item, depth + 1, meter))
        except _Unfit as unfit:
            unfit.path.append(f"[{len(copied)}]")
            raise
        return copied
    if isinstance(value, dict):
        return _copy_mapping(value, depth, meter)
    fix = _FIXES.get(kind, "use dict, list, str, int, float, bool or None")
    raise _Unfit(f"{_shown(value)} of type {kind.__name__} is not JSON ({fix})")


def _copy_mapping(value: dict[Any, Any], depth: int, meter: Meter | _Count) -> dict[str, Any]:
    if depth or len(value) > _FEW:
        meter.charge(1 + 3 * len(value), KEY * len(value))
    copied: dict[str, Any] = {}
    for key, item in value.items():
        checked = _checked_key(key, meter)
        try:
            copied[checked] = _copy(item, depth + 1, meter)
        except _Unfit as unfit:
            unfit.path.append(f".{key}")
            raise
    return copied


def _checked_key(key: Any, meter: Meter | _Count) -> str:
    if type(key) is not str:
        raise _Unfit(f"the key {_shown(key)} is not a string (JSON has string keys only)")
    return _checked_text(key, meter)


def _checked_text(value: str, meter: Meter | _Count) -> str:
    """Lone surrogates cannot be written as UTF-8."""
    if len(value) > _CHARGED_TEXT:
        meter.charge(len(value) // 64, text_size(value))
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _Unfit(f"{_shown(value)} is not valid Unicode text (it holds a lone surrogate)") from None
    return value


def _shown(value: Any) -> str:
    text = shown(value, 81)
    return text if len(text) <= 80 else text[:77] + "..."
