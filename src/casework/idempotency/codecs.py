"""Codecs: how a function's result is stored, and made again for the callers that come later. No pickle.

Without a type a result must be exactly JSON, since whoever comes second gets what was stored. With a type (the
function's return annotation, or ``result=``) dataclasses, msgspec's structs, dates, UUIDs, tuples and the like are
converted there and back; pydantic's models where pydantic is installed.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from casework.errors import CorruptItem, Misuse, NotJson
from casework.idempotency.naming import qualified_name
from casework.kernel.containment import text_of


class Codec(Protocol):
    """Turns results into bytes, and back."""

    def encode(self, value: Any) -> bytes:
        """The bytes to store. Raises NotJson when the value would not come back as it is."""

    def decode(self, data: bytes) -> Any:
        """The value that was given to ``encode``. Raises CorruptItem for bytes that it did not make."""


class JsonCodec:
    """Exactly JSON: dict with text keys, list, str, int, float, bool, None."""

    _encoder = msgspec.json.Encoder()
    _decoder = msgspec.json.Decoder()

    def encode(self, value: Any) -> bytes:
        """The value as JSON; NotJson with the path to what would come back changed."""
        data = self._encode(value)
        if type(value) not in _PLAIN and not _same(self._decoder.decode(data), value):
            raise NotJson(
                f"result: {value!r:.80} would not come back from JSON as it is; annotate the function's result"
            )
        return data

    def _encode(self, value: Any) -> bytes:
        try:
            return self._encoder.encode(value)
        except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
            raise NotJson(f"result: {value!r:.80} is not JSON: {error}; annotate the function's result") from None

    def decode(self, data: bytes) -> Any:
        """The value; CorruptItem when it is not JSON."""
        try:
            return self._decoder.decode(data)
        except msgspec.MsgspecError as error:
            raise CorruptItem(f"a stored result cannot be read: {error}") from None


_PLAIN = frozenset((str, bool, type(None)))


def _same(one: Any, other: Any) -> bool:
    """Equal, with the same types all the way down."""
    if type(one) is not type(other):
        return False
    if type(one) is dict:
        return len(one) == len(other) and all(key in other and _same(value, other[key]) for key, value in one.items())
    if type(one) is list:
        return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


class TypedCodec:
    """A type that msgspec can carry through JSON: dataclasses, structs, enums, dates, UUIDs, decimals, containers.

    Args:
        type_: the result's type.
    """

    def __init__(self, type_: Any) -> None:
        self._type = type_
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(type_)

    def encode(self, value: Any) -> bytes:
        """The value as JSON; NotJson when it is not of the type."""
        try:
            data = msgspec.json.encode(value)
            back = self._decoder.decode(data)
        except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
            raise NotJson(f"result: {value!r:.80} is not a {self._type!r}: {error}") from None
        if type(back) is not type(value) or back != value:
            raise NotJson(f"result: {value!r:.80} would come back as {back!r:.80}; correct the result's annotation")
        return data

    def decode(self, data: bytes) -> Any:
        """The value; CorruptItem when it is not of the type, as after a change of the class."""
        try:
            return self._decoder.decode(data)
        except msgspec.MsgspecError as error:
            raise CorruptItem(f"a stored result is not a {self._type!r} (any more): {error}") from None


class PydanticCodec:
    """A pydantic model, or anything that pydantic's TypeAdapter takes.

    Args:
        type_: the result's type.
    """

    def __init__(self, type_: Any) -> None:
        import pydantic

        self._type = type_
        self._adapter: Any = pydantic.TypeAdapter(type_)

    def encode(self, value: Any) -> bytes:
        """The value as JSON; NotJson when it is not of the type."""
        try:
            data: bytes = self._adapter.dump_json(value)
            back = self._adapter.validate_json(data)
        except ValueError as error:
            raise NotJson(f"result: {value!r:.80} is not a {self._type!r}: {error}") from None
        if back != value:
            raise NotJson(f"result: {value!r:.80} would come back as {back!r:.80}; correct the result's annotation")
        return data

    def decode(self, data: bytes) -> Any:
        """The value; CorruptItem when it is not of the type, as after a change of the class."""
        try:
            return self._adapter.validate_json(data)
        except ValueError as error:
            raise CorruptItem(f"a stored result is not a {self._type!r} (any more): {error}") from None


class NothingCodec:
    """For functions annotated with ``-> None``."""

    def encode(self, value: Any) -> bytes:
        """Nothing; NotJson for anything but None."""
        if value is not None:
            raise NotJson(f"result: {value!r:.80}, though the function is annotated with -> None")
        return b""

    def decode(self, data: bytes) -> None:
        """None."""


def codec_for(type_: Any) -> Codec:
    """The codec for a result's type. Misuse for a type that cannot be carried through JSON."""
    if type_ is Any or type_ is inspect.Signature.empty or type_ in (dict, list, str, int, float, bool, object):
        return JsonCodec()
    if type_ is None or type_ is type(None):
        return NothingCodec()
    if _is_pydantic(type_):
        return PydanticCodec(type_)
    try:
        return TypedCodec(type_)
    except TypeError as error:
        raise Misuse(
            f"results of type {type_!r} cannot be stored: {error}; give a codec=, or another result="
        ) from None


def _is_pydantic(type_: Any) -> bool:
    parts = typing.get_args(type_) if typing.get_origin(type_) is not None or isinstance(type_, types.UnionType) else ()
    return hasattr(type_, "__pydantic_validator__") or any(_is_pydantic(part) for part in parts)


def result_type(function: Callable[..., Any]) -> Any:
    """The annotation of a function's result; Any when there is none, or it cannot be resolved here."""
    if "return" not in getattr(function, "__annotations__", {}):
        return Any
    try:
        return typing.get_type_hints(function)["return"]
    except Exception:  # noqa: BLE001 - an annotation may be any code
        return Any


# --- exceptions -------------------------------------------------------------------------------------------------------


def encode_error(error: BaseException) -> bytes:
    """An exception as JSON: its class, its text and, where they are JSON, its arguments."""
    kind = type(error)
    body: dict[str, Any] = {"type": qualified_name(kind), "message": text_of(error, 10_000)}
    try:
        body["args"] = msgspec.json.decode(JsonCodec().encode(list(error.args)))
    except NotJson:
        pass
    return msgspec.json.encode(body)


def decode_error(data: bytes, known: tuple[type[BaseException], ...]) -> BaseException:
    """The exception again, where its class is one of ``known`` or below, else a RememberedError with its text."""
    from casework.errors import RememberedError

    try:
        body = msgspec.json.decode(data, type=dict[str, Any])
        name, message, args = str(body["type"]), str(body["message"]), body.get("args")
    except (msgspec.MsgspecError, KeyError) as error:
        raise CorruptItem(f"a remembered error cannot be read: {error}") from None
    for kind in _with_subclasses(known):
        if qualified_name(kind) == name and args is not None:
            try:
                made = kind(*args)
            except Exception:  # noqa: BLE001 - any class may demand anything
                break
            if str(made)[:10_000] == message:
                return made
            break
    return RememberedError(f"{name}: {message}", name)


def _with_subclasses(kinds: tuple[type[BaseException], ...]) -> list[type[BaseException]]:
    found: list[type[BaseException]] = []
    left = list(kinds)
    while left:
        kind = left.pop()
        if kind not in found:
            found.append(kind)
            left += kind.__subclasses__()
    return found
