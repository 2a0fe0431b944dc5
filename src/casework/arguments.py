"""Checks of options by kind: a count, a number of seconds, text, a choice, a flag, a function.

Whoever takes an option calls one of these where the option enters, before anything is opened or written. Each raises
Misuse that names the option, shows the value and says what it must be. ``None`` is a value like any other: where it is
allowed, the caller does not ask.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection
from typing import Any

from casework.errors import Misuse

COUNT_MAX = 2**63 - 1

SECONDS_MAX = 10 * 366 * 86_400
"""Ten years; what is longer is a mistake in the unit."""


def shown(value: Any) -> str:
    """A value in a message, at most 80 characters, whatever its own ``__repr__`` does."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - it is the user's code, and we are on the way to an error of theirs
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 80 else f"{text[:77]}..."


def wrong(what: str, value: Any, wanted: str) -> Misuse:
    """The error of an option: what it is, what was given, what must be given."""
    return Misuse(f"{what} is {shown(value)}; it must be {wanted}")


def check_count(what: str, value: Any, least: int = 0, most: int = COUNT_MAX) -> None:
    """A whole number; True and 2.0 are none."""
    if type(value) is not int or not least <= value <= most:
        upto = f"from {least} to {most}" if most < COUNT_MAX else f"of {least} or more"
        raise wrong(what, value, f"a whole number {upto}")


def check_seconds(what: str, value: Any, least: float = 0.0, most: float = SECONDS_MAX, *, above: bool = False) -> None:
    """A number of seconds, finite. ``above``: ``least`` itself is too little."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or value > most or value < least or (above and value == least):
        bound = f"above {least:g}" if above else f"from {least:g}"
        raise wrong(what, value, f"a number of seconds, {bound} to {most:g}")


def check_text(what: str, value: Any, bytes_max: int = 1024, *, may_be_empty: bool = False) -> str:
    """Text that every store can keep: UTF-8, without NUL. Hands it back as plain text: a member of an enumeration, say,
    is text, but formats as something else.
    """
    if not isinstance(value, str):
        raise wrong(what, value, "text")
    text = str.__str__(value)
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise wrong(what, value, "text that is valid Unicode (it has half of a surrogate pair)") from None
    if "\0" in text:
        raise wrong(what, value, "text without a NUL character")
    if size > bytes_max or (not size and not may_be_empty):
        raise wrong(what, value, f"text of {0 if may_be_empty else 1} to {bytes_max:,} bytes")
    return text


def is_unicode(value: Any) -> bool:
    """Whether it is text without half a surrogate pair."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_choice(what: str, value: Any, choices: Collection[str]) -> None:
    """One of a few words, exactly as written."""
    if type(value) is not str or value not in choices:
        raise wrong(what, value, f"one of {', '.join(repr(choice) for choice in choices)}")


def check_flag(what: str, value: Any) -> None:
    """True or False themselves, nothing that is only like them."""
    if type(value) is not bool:
        raise wrong(what, value, "True or False")


def check_function(what: str, value: Any, example: str = "a function") -> None:
    """Something that can be called."""
    if not callable(value):
        raise wrong(what, value, example)


def check_path(what: str, value: Any) -> None:
    """The path of a file; not the empty one, and no other program's word for memory."""
    if not isinstance(value, str | os.PathLike) or isinstance(value, bytes) or isinstance(os.fspath(value), bytes):
        raise wrong(what, value, "the path of a file, as text or a pathlib.Path")
    text = check_text(what, os.fspath(value), 4096)
    if text.startswith((":memory:", "file:")):
        raise Misuse(
            f"{what} is {shown(value)}; it must be the path of a file (for a store in memory use "
            "casework.open('memory:'), or ExecutionStore on a MemoryBackend)"
        )


def check_instance(what: str, value: Any, kind: type | tuple[type, ...], example: str) -> None:
    """An object of a class; ``example`` says what to write."""
    if not isinstance(value, kind):
        raise wrong(what, value, example)


def check_list(what: str, value: Any, check_one: Callable[[str, Any], object], example: str) -> None:
    """A list, tuple or set whose elements pass ``check_one``; a single text is none."""
    if not isinstance(value, list | tuple | set | frozenset):
        raise wrong(what, value, example)
    for position, one in enumerate(value):
        check_one(f"{what}[{position}]", one)
