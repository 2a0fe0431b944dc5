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
"""A longer key is cut, and ends with a digest of the whole."""

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
        return str(value)
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
    return f'datetime"{value.isoformat()}"'


_SCALARS: dict[type, Any] = {
    float: _float,
    decimal.Decimal: _decimal,
    bytes: lambda value, where: f'bytes"{base64.b64encode(value).decode()}"',
    datetime.datetime: _datetime,
    datetime.date: lambda value, where: f'date"{value.isoformat()}"',
    datetime.time: lambda value, where: f'time"{value.isoformat()}"',
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
    if isinstance(value, msgspec.Struct):
        fields = {field: getattr(value, field) for field in value.__struct_fields__}
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif hasattr(kind, "model_fields") and hasattr(value, "model_dump"):  # a pydantic model
        fields = {field: getattr(value, field) for field in kind.model_fields}
    else:
        raise Misuse(
            f"{where}: {value!r:.80} of type {name} has no certain text; name the fields that identify it "
            '(such as key="order.id"), or give a function of the arguments'
        )
    return name + _mapping(fields, where, depth)


def fingerprint_of(value: Any, where: str = "payload") -> str:
    """A digest of a value's text, 32 hexadecimal digits."""
    return digest(_text(value, where, 0).encode())


def digest(data: bytes) -> str:
    """A digest of bytes, 32 hexadecimal digits."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def make_key(*parts: str) -> str:
    """One key of several parts, none of which can run into the next: ``/`` and ``%`` inside a part are escaped.

    The last part may hold anything, so that keys stay readable.
    """
    *heads, last = parts
    key = "/".join([*(_escaped(head) for head in heads), last])
    if len(key) <= MAX_KEY_BYTES // 4 or len(key.encode()) <= MAX_KEY_BYTES:
        return key
    whole = digest(key.encode())
    return f"{key.encode()[: MAX_KEY_BYTES - 40].decode(errors='ignore')}#{whole}"


def _escaped(part: str) -> str:
    return part.replace("%", "%25").replace("/", "%2F") if "/" in part or "%" in part else part
