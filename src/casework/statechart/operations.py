"""The operations of expressions whose cost grows with what they are given, each counted before or while it is done.

``expressions`` puts a call of one of these wherever Python's own operator or function could take long or build much;
what is left in place is bounded by the length of the expression itself. Each takes the run first, which counts
(``run.charge``). Results are those of Python, with the differences that ``docs/reference/machines.md`` names.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

from casework.statechart.budget import ELEMENT, KEY, Meter, text_size

INT_BITS_MAX = 1024
"""Longest whole number on the way to a result: as long as the largest float. What is kept has 64 bits."""
_INT_TEXT_MAX = 310
_GROWING = frozenset({str, list, dict})
_NUMBERS = frozenset({int, float, bool, type(None)})
_TEXT_UNIT = 128
"""So many characters are compared or searched as quickly as one operation is done."""

Run = Meter


# --- what things weigh --------------------------------------------------------------------------------------------


def weigh(run: Run, value: Any) -> int:
    """The operations of looking at all of ``value`` once, which are charged on the way."""
    kind = type(value)
    if kind is str:
        return 1 + len(value) // _TEXT_UNIT
    if kind not in _GROWING:
        return 1
    run.charge(1 + len(value))
    items = value if kind is list else value.values()
    if _NUMBERS.issuperset(map(type, items)):
        return 1 + len(value)
    return 1 + sum([weigh(run, item) for item in items])


def _charge_pair(run: Run, left: Any, right: Any) -> None:
    """Charge for comparing two values: as far as they could be alike."""
    kind = type(left)
    if kind is not type(right) or kind not in _GROWING:
        return
    both = min(len(left), len(right))
    if kind is str or left is right:  # elements that are the same object are not looked into
        run.charge(both // (_TEXT_UNIT if kind is str else 8))
        return
    if kind is dict and len(left) != len(right):
        return
    run.charge(1 + both)
    pairs: Iterator[tuple[Any, Any]] = (
        zip(left, right, strict=False) if kind is list else ((left[key], right[key]) for key in left if key in right)
    )
    for first, second in pairs:
        if type(first) in _GROWING:
            _charge_pair(run, first, second)


# --- operators ----------------------------------------------------------------------------------------------------


def add(run: Run, left: Any, right: Any) -> Any:
    """``left + right``."""
    kind = type(left)
    if kind is type(right):
        if kind is str:
            run.charge((len(left) + len(right)) // _TEXT_UNIT, text_size(left) + text_size(right))
        elif kind is list:
            run.charge((len(left) + len(right)) // 8, ELEMENT * (len(left) + len(right)))
    return left + right


def multiply(run: Run, left: Any, right: Any) -> Any:
    """``left * right``; whole numbers stay below :data:`INT_BITS_MAX` bits."""
    for sequence, count in ((left, right), (right, left)):
        if type(sequence) in (str, list) and isinstance(count, int):
            times = max(count, 0)
            size = text_size(sequence) if isinstance(sequence, str) else ELEMENT * len(sequence)
            run.charge(len(sequence) * times // 8, size * times)
    result = left * right
    if type(result) is int and result.bit_length() > INT_BITS_MAX:
        raise ValueError(f"a whole number of more than {INT_BITS_MAX:,} bits")
    return result


def modulo(run: Run, left: Any, right: Any) -> Any:
    """``left % right``, for numbers only."""
    if isinstance(left, str):
        raise TypeError("% formats no text here (use an f-string)")
    return left % right


def _compared(compare: Callable[[Any, Any], Any]) -> Callable[[Run, Any, Any], Any]:
    def compared(run: Run, left: Any, right: Any) -> Any:
        if type(left) in _GROWING:
            _charge_pair(run, left, right)
        return compare(left, right)

    return compared


COMPARISONS: dict[str, Callable[[Run, Any, Any], Any]] = {
    "Eq": _compared(operator.eq), "NotEq": _compared(operator.ne), "Lt": _compared(operator.lt),
    "LtE": _compared(operator.le), "Gt": _compared(operator.gt), "GtE": _compared(operator.ge),
}  # fmt: skip
"""By the name of the node in Python's syntax tree."""


def contains(run: Run, item: Any, inside: Any) -> bool:
    """``item in inside``."""
    kind = type(inside)
    if kind is list:
        run.charge(len(inside) * weigh(run, item) // 4)
    elif kind is str:
        run.charge(len(inside) // 16)
    return item in inside


def weighed(run: Run, value: Any) -> Any:
    """``value``, where it stands in a chain of comparisons."""
    if type(value) in _GROWING:
        run.charge(weigh(run, value))
    return value


def sliced(run: Run, value: Any) -> Any:
    """``value``, which was just cut out of something that was there."""
    kind = type(value)
    if kind is str:
        run.charge(len(value) // _TEXT_UNIT, text_size(value))
    elif kind is list:
        run.charge(len(value) // 8, ELEMENT * len(value))
    return value


def spread(run: Run, value: Any) -> Any:
    """``value`` in ``[*value]`` or ``{**value}``."""
    kind = type(value)
    if kind not in _GROWING:
        raise TypeError(f"'*' and '**' take a list or a mapping, not {kind.__name__}")
    run.charge(len(value), (KEY if kind is dict else ELEMENT) * len(value))
    return value


def key_of(run: Run, key: Any) -> Any:
    """A key of a mapping that a loop builds. Longer numbers could be made to collide, all of them."""
    if type(key) is int and key.bit_length() > 64:
        raise ValueError("a key of a mapping is text, or a number of 64 bits")
    return key


def looped(run: Run, source: Any, work: int, size: int) -> Any:
    """``source`` of a loop whose body takes ``work`` and keeps ``size`` each time round."""
    if type(source) not in _GROWING:
        raise TypeError(f"a loop goes over a list, a mapping or text, not {type(source).__name__}")
    run.charge(1 + len(source) * work, len(source) * size)
    return source


# --- functions ----------------------------------------------------------------------------------------------------


def _len(run: Run, value: Any) -> int:
    return len(value)


def _get(run: Run, mapping: Any, key: Any, default: Any = None) -> Any:
    """``mapping[key]``, or ``default`` where there is no such key."""
    if isinstance(mapping, list):
        return mapping[key] if isinstance(key, int) and -len(mapping) <= key < len(mapping) else default
    if not isinstance(mapping, dict):
        raise TypeError(f"get() reads a mapping or a list, not {type(mapping).__name__}")
    return mapping.get(key, default)


def _round(run: Run, number: float, digits: int | None = None) -> float:
    if digits is not None and not -30 <= digits <= 30:
        raise ValueError("round() takes -30 to 30 digits")
    return round(number, digits)


def _abs(run: Run, number: Any) -> Any:
    return abs(number)


def _bool(run: Run, value: Any = False) -> bool:
    return bool(value)


def _int(run: Run, value: Any = 0) -> int:
    if type(value) is str and len(value) > _INT_TEXT_MAX:
        raise ValueError(f"a text of {len(value):,} characters is no number (at most {_INT_TEXT_MAX})")
    return int(value)


def _float(run: Run, value: Any = 0.0) -> float:
    if type(value) is str and len(value) > 4 * _INT_TEXT_MAX:
        raise ValueError(f"a text of {len(value):,} characters is no number")
    return float(value)


def text(run: Run, value: Any = "") -> str:
    """``str(value)``."""
    if type(value) in (list, dict):
        _charge_repr(run, value)
        result = str(value)
        run.charge(0, text_size(result))
        return result
    return str(value)


def _charge_repr(run: Run, value: Any) -> None:
    kind = type(value)
    if kind is str:
        run.charge(1 + len(value) // 16, text_size(value))
    elif kind in _GROWING:
        run.charge(1 + 2 * len(value), 4 * len(value))
        if kind is dict:
            for key in value:
                _charge_repr(run, key)
        for item in value if kind is list else value.values():
            _charge_repr(run, item)


def in_text(run: Run, value: Any) -> str:
    """``value`` in an f-string: charged before the parts are joined."""
    result = text(run, value)
    run.charge(len(result) // _TEXT_UNIT, text_size(result))
    return result


def _counted(run: Run, values: Any, name: str) -> Any:
    """A list that a function goes through; a generator has been charged by its loops."""
    kind = type(values)
    if kind in _GROWING:
        run.charge(1 + len(values))
    elif kind in _NUMBERS:
        raise TypeError(f"{name}() goes over a list, not {kind.__name__}")
    return values


def _sum(run: Run, numbers: Any) -> Any:
    return sum(_counted(run, numbers, "sum"))


def _any(run: Run, values: Any) -> bool:
    return any(_counted(run, values, "any"))


def _all(run: Run, values: Any) -> bool:
    return all(_counted(run, values, "all"))


def _sorted(run: Run, values: Any, reverse: bool = False) -> list[Any]:
    _counted(run, values, "sorted")
    count = len(values)
    run.charge(count, ELEMENT * count)
    run.charge(weigh(run, values if type(values) is list else list(values)) * count.bit_length())
    return sorted(values, reverse=reverse)


def _extreme(pick: Callable[..., Any], name: str) -> Callable[..., Any]:
    def extreme(run: Run, *values: Any, **default: Any) -> Any:
        if len(values) == 1:
            run.charge(weigh(run, _counted(run, values[0], name)))
        else:
            for value in values:
                weighed(run, value)
        return pick(*values, **default)

    return extreme


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "len": _len, "min": _extreme(min, "min"), "max": _extreme(max, "max"), "sum": _sum, "sorted": _sorted, "any": _any,
    "all": _all, "round": _round, "abs": _abs, "int": _int, "str": text, "float": _float, "bool": _bool, "get": _get,
}  # fmt: skip
"""What expressions may call, by name."""
MATERIALISED = frozenset({"min", "max", "sorted"})
"""Functions that get a list where the expression gives them a generator, so that they can see how long it is."""
