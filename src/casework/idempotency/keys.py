"""Keys and fingerprints: one text for each value, and never the same for two different ones.

The text of a value keeps types apart: ``1``, ``"1"``, ``True``, ``None`` and ``1.0`` are five keys, a list is not a
tuple, and a class is part of its instances' text. It is readable, so that a key can be recognised in a listing. What
has no certain text is refused: ``repr`` or ``hash`` of an unknown object would differ from process to process.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import decimal
import enum
import functools
import hashlib
import math
from collections.abc import Mapping
from typing import Any

import msgspec

from casework.errors import Misuse
from casework.idempotency.naming import qualified_name

FINGERPRINT_VERSION = 1
"""Of how fingerprints are made here; a record made in another way is not compared with ours."""

MAX_KEY_BYTES = 1024
"""A key is never longer."""
MAX_WHOLE_BYTES = MAX_KEY_BYTES - 40
"""A key of more bytes is cut here and ends with a digest of the whole, so that no whole key is as long as a cut one."""

MAX_DEPTH = 50

_json_text = msgspec.json.Encoder().encode


def text_of(value: Any, where: str = "key") -> str:
    """The one text of a value. Misuse, with the path below ``where``, for a value that has none."""
    return _text(value, where, 0)


def _text(value: Any, where: str, depth: int) -> str:
    kind = type(value)
    if kind is str:
        return _quoted(value, where)
    if kind is int:
        return _integer(value, where)
    if value is None:
        return "null"
    if kind is bool:
        return "true" if value else "false"
    if depth > MAX_DEPTH:
        raise Misuse(f"{where}: nested deeper than {MAX_DEPTH} levels")
    if kind is list or kind is tuple:
        parts = ",".join([_text(item, f"{where}[{n}]", depth + 1) for n, item in enumerate(value)])
        return f"[{parts}]" if kind is list else f"({parts})"
    if kind is dict:
        return _mapping(value, where, depth)
    known = _SCALARS.get(kind)
    if known is not None:
        text: str = known(value, where)
        return text
    return _structured(value, where, depth)


def _quoted(value: str, where: str) -> str:
    try:
        return _json_text(value).decode()
    except (msgspec.MsgspecError, UnicodeEncodeError, ValueError):
        raise Misuse(f"{where}: {value!r:.80} is not valid Unicode text (it holds a lone surrogate)") from None


def _integer(value: int, where: str) -> str:
    try:
        return str(value)
    except ValueError:  # more digits than Python turns into text
        raise Misuse(f"{where}: an integer of {value.bit_length():,} bits is too large; use a digest of it") from None


def _mapping(value: Mapping[Any, Any], where: str, depth: int) -> str:
    parts = [(_text(key, f"{where} key", depth + 1), item) for key, item in value.items()]
    parts.sort(key=lambda part: part[0])
    return "{" + ",".join(f"{key}:{_text(item, f'{where}.{key}', depth + 1)}" for key, item in parts) + "}"


def _float(value: float, where: str) -> str:
    if not math.isfinite(value):
        raise Misuse(f"{where}: {value!r} identifies nothing; use a finite number")
    return repr(value)


def _decimal(value: decimal.Decimal, where: str) -> str:
    if not value.is_finite():
        raise Misuse(f"{where}: {value!r} identifies nothing; use a finite number")
    return f'decimal"{value}"'


def _datetime(value: datetime.datetime, where: str) -> str:
    """With ``fold``, which tells the two hours apart that a clock shows twice when summer time ends."""
    return f'datetime"{value.isoformat()}"' + ("fold" if value.fold else "")


def _time(value: datetime.time, where: str) -> str:
    return f'time"{value.isoformat()}"' + ("fold" if value.fold else "")


_SCALARS: dict[type, Any] = {
    float: _float,
    decimal.Decimal: _decimal,
    bytes: lambda value, where: f'bytes"{base64.b64encode(value).decode()}"',
    datetime.datetime: _datetime,
    datetime.date: lambda value, where: f'date"{value.isoformat()}"',
    datetime.time: _time,
    datetime.timedelta: lambda value, where: f"timedelta({value.days},{value.seconds},{value.microseconds})",
}


def _structured(value: Any, where: str, depth: int) -> str:
    kind = type(value)
    name = qualified_name(kind)
    if name == "uuid.UUID":  # by its name: a program must not import what makes random ones
        return f'uuid"{value}"'
    if isinstance(value, enum.Enum):
        return f"{name}.{value.name}"
    if isinstance(value, frozenset | set):
        inner = ",".join(sorted(_text(item, f"{where} item", depth + 1) for item in value))
        return f"{'set' if kind is set else 'frozenset'}({inner})"
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return name + _mapping(dict(zip(kind._fields, value, strict=True)), where, depth)
    fields = _fields_of(value, kind)
    if fields is None:
        raise Misuse(
            f"{where}: {value!r:.80} of type {name} has no certain text; name the fields that identify it "
            '(such as key="order.id"), or give a function of the arguments'
        )
    beside = [field for field in getattr(value, "__dict__", ()) if field not in fields and _is_payload(kind, field)]
    if beside:
        raise Misuse(
            f"{where}: {name} has {', '.join(sorted(map(repr, beside)))} beside its declared fields, which would not "
            "count; declare them, or name the fields that identify it"
        )
    return name + _mapping(fields, where, depth)


def _is_payload(kind: type, field: str) -> bool:
    """Whether an attribute beside the declared fields says something: private and derived ones do not."""
    return not field.startswith("_") and not isinstance(getattr(kind, field, None), functools.cached_property)


def _fields_of(value: Any, kind: type) -> dict[str, Any] | None:
    """Everything that a structured value holds, by name; None when nothing says what it holds."""
    if isinstance(value, msgspec.Struct):
        return {field: getattr(value, field) for field in value.__struct_fields__}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if hasattr(kind, "model_fields") and hasattr(value, "model_dump"):  # a pydantic model
        fields = {field: getattr(value, field) for field in kind.model_fields}
        extra = getattr(value, "model_extra", None)  # of a model with extra="allow"
        return {**fields, **extra} if extra else fields
    if hasattr(kind, "__attrs_attrs__"):
        return {field.name: getattr(value, field.name) for field in kind.__attrs_attrs__}
    return None


def fingerprint_of(value: Any, where: str = "payload") -> str:
    """A digest of a value's text, 32 hexadecimal digits."""
    return digest(_text(value, where, 0).encode())


def digest(data: bytes) -> str:
    """A digest of bytes, 32 hexadecimal digits."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def make_key(kind: str, name: str, scope: str | None, value: Any, where: str = "key") -> str:
    """The key of a record: ``kind:name@scope/value``, a different one for every different four.

    Each part but the last is escaped, so that none can run into the next; the last is the value's text
    (:func:`text_of`) and holds anything. Without a kind there is no ``:``, without a scope no ``@``.

    Args:
        kind: of the surface; ``""`` for functions. A queue and a function of one name never share a record.
        name: of the operation.
        scope: who the caller is; None where all are one.
        value: what identifies the operation. Misuse when it identifies nothing, such as ``None``, ``""`` or ``()``.
        where: what the value is called in the error.
    """
    if not identifies(value):
        raise Misuse(
            f"{name}: the {where} is {value!r:.80}, in which something is missing; "
            "nothing would keep one call apart from another"
        )
    head = f"{kind}:{_escaped(name)}" if kind else _escaped(name)
    if scope is not None:
        head += "@" + _escaped(scope)
    key = f"{head}/{text_of(value, where)}"
    if len(key) <= MAX_KEY_BYTES // 4 or len(key.encode()) <= MAX_WHOLE_BYTES:
        return key
    return f"{key.encode()[:MAX_WHOLE_BYTES].decode(errors='ignore')}#{digest(key.encode())}"


def identifies(value: Any) -> bool:
    """Whether a value can keep one operation apart from another: it is there and not empty, and so are the parts of a
    tuple, of which none is None.
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        return False
    if isinstance(value, bytes | bytearray):
        return len(value) > 0
    if isinstance(value, Mapping):
        return any(identifies(part) for part in value.values())
    if isinstance(value, tuple):
        return None not in value and any(identifies(part) for part in value)
    if isinstance(value, list | set | frozenset):
        return any(identifies(part) for part in value)
    return True


def _escaped(part: str) -> str:
    """The part with its separators as ``%`` and two digits, as in a URL."""
    if not any(separator in part for separator in "%/@:#"):
        return part
    return "".join(f"%{ord(letter):02X}" if letter in "%/@:#" else letter for letter in part)
