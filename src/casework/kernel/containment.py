"""What users' functions raise, made safe to handle and to tell. Every place that calls one goes through here.

A function of the user's may raise anything. ``except Exception`` does not see ``SystemExit``, ``KeyboardInterrupt``,
``GeneratorExit`` or a ``CancelledError`` that the function made itself, so one of them would end a worker.
``StopIteration`` can be given neither to a generator nor to a future. And an exception may have a text that raises.
So a place that calls users' code catches ``BaseException``, asks :func:`is_interrupt` whether it is meant for the
process, and tells the rest with :func:`type_of` and :func:`text_of`.
"""

from __future__ import annotations

import dis
from collections.abc import Callable
from types import FrameType
from typing import Any

_RAISE = frozenset(dis.opmap[name] for name in ("RAISE_VARARGS", "RERAISE") if name in dis.opmap)

MAX_TEXT = 4_000


class Escape(Exception):
    """Carries, where only an ``Exception`` can go, what a user's function raised; :func:`original` has it."""

    def __init__(self, raised: BaseException) -> None:
        self.raised = raised
        super().__init__(f"{type(raised).__name__} raised by a function")


def is_interrupt(error: BaseException) -> bool:
    """Whether it is a real Ctrl-C, which ends the process, and no exception that the function raised by itself.

    A signal arrives between two instructions of whatever runs, or raises from within a handler (which has the frame
    that it interrupted); a function of the user's that says ``raise KeyboardInterrupt`` stands at just that statement.
    """
    if not isinstance(error, KeyboardInterrupt):
        return False
    place = error.__traceback__
    if place is None:
        return True
    while place.tb_next is not None:
        place = place.tb_next
    frame = place.tb_frame
    if frame.f_code.co_code[place.tb_lasti] not in _RAISE:
        return True
    return any(isinstance(value, FrameType) for value in frame.f_locals.values())


def contained(raised: BaseException) -> Exception:
    """What a user's function raised, as an exception that programs, futures and ``except Exception`` can take."""
    if isinstance(raised, Exception) and not isinstance(raised, StopIteration | StopAsyncIteration):
        return raised
    escape = Escape(raised)
    escape.__cause__ = raised
    return escape


def guarded(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a user's function; what it raises is an ``Exception`` afterwards, but for a real Ctrl-C."""
    try:
        return function(*args, **kwargs)
    except BaseException as raised:
        if is_interrupt(raised):
            raise
        error = contained(raised)
        if error is raised:
            raise
        raise error from raised


def original(error: BaseException) -> BaseException:
    """What the function itself raised."""
    return error.raised if isinstance(error, Escape) else error


def type_of(error: BaseException) -> str:
    """The name of its class."""
    return str.__str__(type(original(error)).__name__)


def text_of(error: BaseException, most: int = MAX_TEXT) -> str:
    """Its text, which may be empty; never raises, and always is text that can be stored."""
    error = original(error)
    if isinstance(error, SystemExit):
        return f"the function called sys.exit({shown(error.code)})"
    if isinstance(error, KeyError) and len(error.args) == 1:
        return f"there is no key {shown(error.args[0], most)}"
    try:
        text = str(error)
    except BaseException as second:
        if is_interrupt(second):
            raise
        return f"its text cannot be shown: __str__ raised {type(second).__name__}"
    return clean(text, most)


def shown(value: Any, most: int = 80) -> str:
    """``repr`` of any value; never raises."""
    try:
        text = repr(value)
    except BaseException as second:
        if is_interrupt(second):
            raise
        return f"<{type(value).__name__}: __repr__ raised {type(second).__name__}>"
    return clean(text, most)


def clean(text: str, most: int = MAX_TEXT) -> str:
    """Text that every store takes: no half of a surrogate pair, no NUL; cut to ``most`` characters."""
    return str.__getitem__(text, slice(0, most)).encode(errors="replace").decode().replace("\0", "\ufffd")


def in_words(error: BaseException, most: int = 1_000) -> str:
    """Class and text in one, for a log."""
    text = text_of(error, most)
    return f"{type_of(error)}: {text}" if text else type_of(error)
