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

INT_MIN, INT_MAX = -(2**63), 2**63 - 1
MAX_DEPTH = 100
"""Deeper nesting is refused: it is a mistake (a cycle, mostly), and decoders elsewhere stop near there as well."""

_FIXES: dict[type, str] = {
    tuple: "use a list",
    set: "use a sorted list",
    frozenset: "use a sorted list",
    bytes: "encode it as text, such as base64",
    bytearray: "encode it as text, such as base64",
}


def check_json(value: Any, where: str = "value") -> None:
    """Return when ``value`` is exactly JSON: dict with str keys, list, str, int of 64 bits, finite float, bool, None.

    Raises :class:`~casework.errors.NotJson` with the path below ``where`` to the first value that is not.
    """
    checked_copy(value, where)


def checked_copy(value: Any, where: str = "value") -> Any:
    """A deep copy of ``value`` that shares nothing mutable with it, checked as :func:`check_json` does."""
    return _copy(value, where, 0)


def copy_json(value: Any) -> Any:
    """A deep copy of a value that is known to be JSON already; nothing is checked."""
    kind = type(value)
    if kind is dict:
        return {key: item if type(item) in _SCALARS else copy_json(item) for key, item in value.items()}
    if kind is list:
        return [item if type(item) in _SCALARS else copy_json(item) for item in value]
    return value


_SCALARS = frozenset({str, int, float, bool, type(None)})


def _copy(value: Any, where: str, depth: int) -> Any:
    kind = type(value)
    if kind is str:
        return _checked_text(value, where)
    if kind is bool or value is None:
        return value
    if kind is int:
        if INT_MIN <= value <= INT_MAX:
            return value
        raise NotJson(f"{where}: an integer beyond 64 bits cannot be stored (store it as text)")
    if kind is float:
        if math.isfinite(value):
            return value
        raise NotJson(f"{where}: {value!r} is not a JSON number (use None, or text)")
    if depth > MAX_DEPTH:
        raise NotJson(f"{where}: nested deeper than {MAX_DEPTH} levels (is it part of itself?)")
    if kind is list:
        return [_copy(item, f"{where}[{index}]", depth + 1) for index, item in enumerate(value)]
    if isinstance(value, dict):
        return {_checked_key(key, where): _copy(item, f"{where}.{key}", depth + 1) for key, item in value.items()}
    fix = _FIXES.get(kind, "use dict, list, str, int, float, bool or None")
    raise NotJson(f"{where}: {_shown(value)} of type {kind.__name__} is not JSON ({fix})")


def _checked_key(key: Any, where: str) -> str:
    if type(key) is not str:
        raise NotJson(f"{where}: the key {_shown(key)} is not a string (JSON has string keys only)")
    return _checked_text(key, where)


def _checked_text(value: str, where: str) -> str:
    """Lone surrogates cannot be written as UTF-8."""
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise NotJson(f"{where}: {_shown(value)} is not valid Unicode text (it holds a lone surrogate)") from None
    return value


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - any class may have any repr
        text = "a value"
    return text if len(text) <= 80 else text[:77] + "..."
