"""What the operators of ECMAScript do with values of JSON (ECMA-262, sections 7 and 13), for ``ecmascript``.

Null is None, undefined is :data:`UNDEFINED`, numbers are doubles whose whole values are kept as Python's integers. What
a stored context cannot tell (whether two objects are the same one) or what is inherited (``x.toString``) is an error.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from casework.statechart.budget import ELEMENT, KEY, Meter, text_size
from casework.statechart.operations import weigh

MAX_TEXT = 1_000_000
"""Longest text that ``+`` and ``join`` build, in characters."""
_EXACT = 2**53


class _Undefined:
    """The one value ``undefined``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "undefined"

    def __bool__(self) -> bool:
        return False


UNDEFINED = _Undefined()

INHERITED = frozenset([
    "constructor", "hasOwnProperty", "isPrototypeOf", "propertyIsEnumerable", "toLocaleString", "toString", "valueOf",
    "__proto__", "__defineGetter__", "__defineSetter__", "__lookupGetter__", "__lookupSetter__",
])  # fmt: skip
"""What every value inherits: functions, which are not JSON."""
_INHERITED_BY: dict[type, frozenset[str]] = {
    dict: INHERITED,
    bool: INHERITED,
    int: INHERITED.union(["toExponential", "toFixed", "toPrecision"]),
    float: INHERITED.union(["toExponential", "toFixed", "toPrecision"]),
    list: INHERITED.union([
        "at", "concat", "copyWithin", "entries", "every", "fill", "filter", "find", "findIndex", "findLast",
        "findLastIndex", "flat", "flatMap", "forEach", "includes", "indexOf", "join", "keys", "lastIndexOf", "map",
        "pop", "push", "reduce", "reduceRight", "reverse", "shift", "slice", "some", "sort", "splice", "toReversed",
        "toSorted", "toSpliced", "unshift", "values", "with",
    ]),
    str: INHERITED.union([
        "anchor", "at", "big", "blink", "bold", "charAt", "charCodeAt", "codePointAt", "concat", "endsWith",
        "fixed", "fontcolor", "fontsize", "includes", "indexOf", "isWellFormed", "italics", "lastIndexOf", "link",
        "localeCompare", "match", "matchAll", "normalize", "padEnd", "padStart", "repeat", "replace", "replaceAll",
        "search", "slice", "small", "split", "startsWith", "strike", "sub", "substr", "substring", "sup",
        "toLocaleLowerCase", "toLocaleUpperCase", "toLowerCase", "toUpperCase", "toWellFormed", "trim", "trimEnd",
        "trimLeft", "trimRight", "trimStart",
    ]),
}  # fmt: skip
# A long text of digits that is no number must not be tried at every place where it could be divided: hence ``++``.
_DECIMAL = re.compile(r"[-+]?(?:Infinity|(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][-+]?[0-9]++)?)")
_WITH_BASE = re.compile(r"0(?:[xX][0-9a-fA-F]+|[oO][0-7]+|[bB][01]+)")
_BLANKS = "\t\v\f \u00a0\ufeff\n\r\u2028\u2029\u1680\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))


# --- conversions --------------------------------------------------------------------------------------------------


def plain(number: float) -> Any:
    """A double, as an integer where it is whole (but minus zero)."""
    if number.is_integer() and abs(number) <= _EXACT and (number or math.copysign(1, number) > 0):
        return int(number)
    return number


def truth(value: Any) -> bool:
    """ToBoolean: lists and objects are true even when they are empty."""
    return True if isinstance(value, list | dict) else value == value and bool(value)


def typeof(value: Any) -> str:
    """``typeof``."""
    if value is UNDEFINED:
        return "undefined"
    if isinstance(value, bool):
        return "boolean"
    return "string" if isinstance(value, str) else "number" if isinstance(value, int | float) else "object"


def to_number(value: Any) -> Any:
    """ToNumber."""
    return plain(_double(value))


def _double(value: Any) -> float:
    if isinstance(value, bool | int | float):
        return float(value)
    if value is None:
        return 0.0
    if value is UNDEFINED:
        return math.nan
    if not isinstance(value, str):
        return _double(_primitive(value))
    text = value.strip(_BLANKS)
    if not text:
        return 0.0
    if _WITH_BASE.fullmatch(text):
        try:
            return float(int(text, 0))
        except OverflowError:
            return math.inf
    return float(text) if _DECIMAL.fullmatch(text) else math.nan


def to_text(value: Any) -> str:
    """ToString."""
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return _digits(float(value))
    return "undefined" if value is UNDEFINED else to_text(_primitive(value))


def _digits(number: float) -> str:
    """Number::toString with radix 10."""
    if number != number or number in (math.inf, -math.inf):
        return "NaN" if number != number else "Infinity" if number > 0 else "-Infinity"
    if number == 0:
        return "0"
    sign = "-" if number < 0 else ""
    whole, _, power = repr(abs(number)).partition("e")
    whole, _, rest = whole.partition(".")
    rest = rest.rstrip("0")
    point = len(whole) + int(power or 0)
    mantissa = whole + rest
    point -= len(mantissa) - len(mantissa.lstrip("0"))
    mantissa = mantissa.strip("0")
    count = len(mantissa)
    if count <= point <= 21:
        return sign + mantissa + "0" * (point - count)
    if 0 < point <= 21:
        return f"{sign}{mantissa[:point]}.{mantissa[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{mantissa}"
    return f"{sign}{mantissa[0]}{f'.{mantissa[1:]}' if count > 1 else ''}e{'+' if point > 0 else '-'}{abs(point - 1)}"


def _primitive(value: Any) -> Any:
    """ToPrimitive of a list or an object, neither of which has methods of its own here."""
    if isinstance(value, list):
        return join(value, ",")
    if isinstance(value, dict):
        if "toString" in value or "valueOf" in value:
            raise TypeError("an object with a key 'toString' or 'valueOf' is not turned into text")
        return "[object Object]"
    return value


def join(items: list[Any], between: str) -> str:
    """``Array.prototype.join``."""
    return _limited(between.join("" if each is None or each is UNDEFINED else to_text(each) for each in items))


def _limited(text: str) -> str:
    if len(text) > MAX_TEXT:
        raise ValueError(f"a text of more than {MAX_TEXT:,} characters")
    return text


# --- operators ----------------------------------------------------------------------------------------------------


def _add(left: Any, right: Any) -> Any:
    left, right = _primitive(left), _primitive(right)
    if isinstance(left, str) or isinstance(right, str):
        return _limited(to_text(left) + to_text(right))
    return plain(_double(left) + _double(right))


def _divide(left: Any, right: Any) -> Any:
    above, below = _double(left), _double(right)
    if below:
        return plain(above / below)
    if above != above or below != below or not above:
        return math.nan
    return math.copysign(math.inf, above) * math.copysign(1, below)


def _remainder(left: Any, right: Any) -> Any:
    above, below = _double(left), _double(right)
    if not below or above in (math.inf, -math.inf):
        return math.nan
    return plain(math.fmod(above, below))


def _same(left: Any, right: Any) -> bool:
    """``===``."""
    kind = typeof(left)
    if kind != typeof(right) or (left is None) != (right is None):
        return False
    if kind == "object" and left is not None:
        if isinstance(left, dict) is not isinstance(right, dict):
            return False
        raise TypeError("two objects or lists cannot be compared (ECMAScript asks whether they are the same one)")
    if kind == "number":
        return float(left) == float(right)
    return bool(left == right)


def _equal(left: Any, right: Any) -> bool:
    """``==``."""
    nothing = (None, UNDEFINED)
    if any(left is each for each in nothing) or any(right is each for each in nothing):
        return any(left is each for each in nothing) and any(right is each for each in nothing)
    if typeof(left) == typeof(right):
        return _same(left, right)
    left, right = _primitive(left), _primitive(right)
    if isinstance(left, str) and isinstance(right, str):
        return left == right
    return _double(left) == _double(right)


def _ordered(left: Any, right: Any, test: Callable[[Any, Any], bool]) -> bool:
    left, right = _primitive(left), _primitive(right)
    if isinstance(left, str) and isinstance(right, str):
        return test(_units(left), _units(right))
    return test(_double(left), _double(right))


def _units(text: str) -> bytes:
    """By code units of UTF-16, as ECMAScript orders, counts and cuts text."""
    return text.encode("utf-16-be")


def _text_of(units: bytes) -> str:
    try:
        return units.decode("utf-16-be")
    except UnicodeDecodeError:
        raise ValueError("half a surrogate pair is not text") from None


# --- members and methods ------------------------------------------------------------------------------------------


def _member(value: Any, key: Any) -> Any:
    name = to_text(key)
    if value is None or value is UNDEFINED:
        raise TypeError(f"{to_text(value)} has no {name!r}")
    if isinstance(value, dict):
        if name in value:
            return value[name]
    elif isinstance(value, list | str):
        if name == "length":
            return len(value) if isinstance(value, list) else len(_units(value)) // 2
        if name.isdecimal() and str(int(name[:10])) == name:
            return _at(value, int(name))
    if name in _INHERITED_BY[type(value)]:
        raise TypeError(f"{name!r} is a function of ECMAScript, which cannot be read here")
    return UNDEFINED


def _at(value: list[Any] | str, index: int) -> Any:
    if isinstance(value, list):
        return value[index] if index < len(value) else UNDEFINED
    units = _units(value)[2 * index : 2 * index + 2]
    return _text_of(units) if units else UNDEFINED


def _object(*pairs: Any) -> dict[str, Any]:
    """An object; a key with undefined is left out, and reads as undefined still."""
    made: dict[str, Any] = {}
    for key, value in zip(pairs[::2], pairs[1::2], strict=True):
        made.pop(key, None)
        if value is not UNDEFINED:
            made[key] = value
    return made


def _method(value: Any, name: str, *arguments: Any) -> Any:
    if isinstance(value, list) and name in _OF_LISTS:
        return _OF_LISTS[name](value, *arguments)
    if isinstance(value, str) and name in _OF_TEXTS:
        return _OF_TEXTS[name](value, *arguments)
    raise TypeError(f"{typeof(value)} has no method {name!r} here")


def _whole(value: Any, default: int) -> float:
    """ToIntegerOrInfinity."""
    if value is UNDEFINED:
        return default
    number = _double(value)
    return 0 if number != number else number if math.isinf(number) else math.trunc(number)


def _bounds(length: int, start: Any, end: Any) -> tuple[int, int]:
    """Of ``slice``: negative positions count from the end."""
    found = []
    for given, default in ((start, 0), (end, length)):
        at = _whole(given, default)
        found.append(int(max(length + at, 0) if at < 0 else min(at, length)))
    return found[0], found[1]


def _slice_list(value: list[Any], start: Any = UNDEFINED, end: Any = UNDEFINED, *_: Any) -> list[Any]:
    low, high = _bounds(len(value), start, end)
    return value[low:high]


def _slice_text(value: str, start: Any = UNDEFINED, end: Any = UNDEFINED, *_: Any) -> str:
    units = _units(value)
    low, high = _bounds(len(units) // 2, start, end)
    return _text_of(units[2 * low : 2 * high])


def _index_in_list(value: list[Any], wanted: Any = UNDEFINED, *rest: Any) -> int:
    if rest:
        raise TypeError("indexOf takes one value here")
    return next((index for index, each in enumerate(value) if _same(each, wanted)), -1)


def _list_includes(value: list[Any], wanted: Any = UNDEFINED, *rest: Any) -> bool:
    if rest:
        raise TypeError("includes takes one value here")
    is_nan = wanted != wanted
    return any(each != each if is_nan else _same(each, wanted) for each in value)


def _index_in_text(value: str, wanted: Any = UNDEFINED, *rest: Any) -> int:
    if rest:
        raise TypeError("indexOf takes one value here")
    found = value.find(to_text(wanted))
    return found if found < 0 else len(_units(value[:found])) // 2


def _only(test: Callable[[str, str], bool]) -> Callable[..., bool]:
    def method(value: str, wanted: Any = UNDEFINED, *rest: Any) -> bool:
        if rest:
            raise TypeError("a position is not supported here")
        return test(value, to_text(wanted))

    return method


def _concat_list(value: list[Any], *others: Any) -> list[Any]:
    made = list(value)
    for each in others:
        made += each if isinstance(each, list) else [each]
    return made


def _char_at(value: str, at: Any = UNDEFINED, *_: Any) -> str:
    position = _whole(at, 0)
    length = len(_units(value)) // 2
    return _at(value, int(position)) if 0 <= position < length else ""


_OF_LISTS: dict[str, Callable[..., Any]] = {
    "concat": _concat_list, "includes": _list_includes, "indexOf": _index_in_list, "slice": _slice_list,
    "join": lambda value, between=UNDEFINED, *_: join(value, "," if between is UNDEFINED else to_text(between)),
}  # fmt: skip
_OF_TEXTS: dict[str, Callable[..., Any]] = {
    "concat": lambda value, *others: _limited(value + "".join(map(to_text, others))),
    "includes": _only(lambda value, wanted: wanted in value), "startsWith": _only(str.startswith),
    "endsWith": _only(str.endswith), "indexOf": _index_in_text, "slice": _slice_text, "charAt": _char_at,
    "trim": lambda value, *_: value.strip(_BLANKS),
}  # fmt: skip
METHODS = frozenset([*_OF_LISTS, *_OF_TEXTS])
"""Methods that can be called."""


# --- functions ----------------------------------------------------------------------------------------------------


def _extreme(start: float, better: Callable[[float, float], bool]) -> Callable[..., Any]:
    def function(*values: Any) -> Any:
        best = start
        numbers = [_double(each) for each in values]
        if any(each != each for each in numbers):
            return math.nan
        for each in numbers:
            if better(each, best) or (each == best == 0 and better(math.copysign(1, each), math.copysign(1, best))):
                best = each
        return plain(best)

    return function


def _whole_part(round_it: Callable[[float], int]) -> Callable[..., Any]:
    def function(value: Any = UNDEFINED, *_: Any) -> Any:
        number = _double(value)
        if number != number or math.isinf(number):
            return number
        return plain(math.copysign(float(round_it(number)), number))

    return function


def _round(value: Any = UNDEFINED, *_: Any) -> Any:
    number = _double(value)
    if number != number or math.isinf(number) or number.is_integer():
        return plain(number)
    low = math.floor(number)
    return plain(math.copysign(float(low if number - low < 0.5 else low + 1), number))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Number": lambda value=0, *_: to_number(value), "String": lambda value="", *_: to_text(value),
    "Boolean": lambda value=UNDEFINED, *_: truth(value),
    "isNaN": lambda value=UNDEFINED, *_: math.isnan(_double(value)),
    "Array.isArray": lambda value=UNDEFINED, *_: isinstance(value, list),
    "Math.abs": lambda value=UNDEFINED, *_: plain(abs(_double(value))), "Math.floor": _whole_part(math.floor),
    "Math.ceil": _whole_part(math.ceil), "Math.trunc": _whole_part(math.trunc), "Math.round": _round,
    "Math.max": _extreme(-math.inf, lambda one, other: one > other),
    "Math.min": _extreme(math.inf, lambda one, other: one < other),
}  # fmt: skip
"""Functions that can be called, by name."""
GLOBAL_VALUES = {"undefined": "_js_undefined", "NaN": "_js_nan", "Infinity": "_js_infinity"}
"""Global values, and under which name the tree reads them."""
GLOBALS = frozenset([
    *(name.partition(".")[0] for name in FUNCTIONS), *GLOBAL_VALUES, "Object", "Function", "Symbol", "Date", "Promise",
    "RegExp", "Error", "AggregateError", "EvalError", "RangeError", "ReferenceError", "SyntaxError", "TypeError",
    "URIError", "JSON", "Intl", "Map", "BigInt", "Set", "WeakMap", "WeakSet", "WeakRef", "Proxy", "Reflect", "Atomics",
    "ArrayBuffer", "DataView", "globalThis", "console", "window", "document", "require", "process", "isFinite",
    "parseFloat", "parseInt", "decodeURI", "decodeURIComponent", "encodeURI", "encodeURIComponent", "escape",
    "unescape", "eval", "setTimeout", "structuredClone",
])  # fmt: skip
"""Names that are not data unless the document declares them."""


def _known(context: dict[str, Any], name: str) -> Any:
    return context.get(name, UNDEFINED)


def _read(context: dict[str, Any], name: str) -> Any:
    if name not in context:
        raise NameError(f"{name} is not defined")
    return context[name]


_PLAIN: dict[str, Any] = {
    "_js_undefined": UNDEFINED, "_js_nan": math.nan, "_js_infinity": math.inf,
    "_js_truth": truth, "_js_not": lambda value: not truth(value), "_js_typeof": typeof,
    "_js_nothing": lambda value: value is None or value is UNDEFINED, "_js_known": _known, "_js_read": _read,
    "_js_payload": lambda data: UNDEFINED if data is None or data == {} else data,
}  # fmt: skip
_GROWING: dict[str, Callable[..., Any]] = {
    "_js_number": to_number, "_js_negative": lambda value: plain(-_double(value)),
    "_js_add": _add, "_js_divide": _divide, "_js_remainder": _remainder,
    "_js_subtract": lambda left, right: plain(_double(left) - _double(right)),
    "_js_multiply": lambda left, right: plain(_double(left) * _double(right)),
    "_js_same": _same, "_js_not_same": lambda left, right: not _same(left, right),
    "_js_equal": _equal, "_js_not_equal": lambda left, right: not _equal(left, right),
    "_js_less": lambda left, right: _ordered(left, right, lambda one, other: one < other),
    "_js_greater": lambda left, right: _ordered(left, right, lambda one, other: one > other),
    "_js_at_most": lambda left, right: _ordered(left, right, lambda one, other: one <= other),
    "_js_at_least": lambda left, right: _ordered(left, right, lambda one, other: one >= other),
    "_js_member": _member, "_js_object": _object, "_js_method": _method,
    "_js_function": lambda name, *arguments: FUNCTIONS[name](*arguments),
}  # fmt: skip


def _counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The operator, which charges the run for what it is given and what it makes."""
    looks_inside = name not in ("_js_member", "_js_object", "_js_same", "_js_not_same")

    def counted(run: Meter, *values: Any) -> Any:
        for each in values:
            kind = type(each)
            if kind is str:
                run.charge(len(each) // 64)
            elif looks_inside and kind in (list, dict):
                weigh(run, each)
        result = function(*values)
        kind = type(result)
        if kind is str:
            run.charge(0, text_size(result))
        elif kind is list:
            run.charge(len(result) // 8, ELEMENT * len(result))
        elif kind is dict and name == "_js_object":
            run.charge(0, KEY * len(result))
        return result

    return counted


COUNTED = frozenset(_GROWING)
"""The operators that take the run first."""
OPERATORS: dict[str, Any] = {**_PLAIN, **{name: _counted(name, each) for name, each in _GROWING.items()}}
"""What the tree of :func:`~casework.statechart.ecmascript.translate` calls, by name."""
