"""What a function of a user's may do that nobody hopes for: each by a name, as a plain and as a coroutine function."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from typing import Any


class Speechless(Exception):
    """It has no text, and says so by raising."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class Rude(Exception):
    """Whoever asks for its text is to leave."""

    def __str__(self) -> str:
        raise SystemExit(4)


class Leaving(BaseException):
    """Neither an Exception nor one of Python's own."""


class Strange:
    """A value that nothing can be done with."""

    def __repr__(self) -> str:
        raise RuntimeError("cannot be shown")

    def __bool__(self) -> bool:
        raise RuntimeError("neither true nor false")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("cannot be compared")

    __hash__ = None  # type: ignore[assignment]


class Treacherous(dict[str, Any]):
    """A mapping that cannot be read."""

    def items(self) -> Any:
        raise SystemExit(5)

    keys = values = __iter__ = items


RAISED: dict[str, Callable[[], BaseException]] = {
    "ValueError": lambda: ValueError("no"),
    "SystemExit": lambda: SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "CancelledError": asyncio.CancelledError,
    "Leaving": Leaving,
    "StopIteration": StopIteration,
    "StopAsyncIteration": StopAsyncIteration,
    "RecursionError": RecursionError,
    "Speechless": Speechless,
    "Rude": Rude,
}

RETURNED: dict[str, Callable[[], Any]] = {
    "a strange value": Strange,
    "a treacherous mapping": lambda: Treacherous(a=1),
    "NaN": lambda: {"n": float("nan")},
    "500 KB": lambda: {"text": "x" * 500_000},
    "bytes": lambda: b"\xff",
    "a generator": lambda: (n for n in range(3)),
    "a lone surrogate": lambda: {"text": "\ud800"},
}

NAMES = (*RAISED, *RETURNED, "changes its input")


class Blocked:
    """Functions that do not return before the test says so."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.began = threading.Event()

    def plain(self, *args: Any, **kwargs: Any) -> Any:
        """Waits on its thread."""
        self.began.set()
        self.go_on.wait()
        return None

    async def coroutine(self, *args: Any, **kwargs: Any) -> Any:
        """Blocks the loop that it is on."""
        return self.plain()


def misbehaving(name: str, *, is_async: bool = False) -> Callable[..., Any]:
    """A function that does what ``name`` says, whatever it is called with."""

    def plain(*args: Any, **kwargs: Any) -> Any:
        if name in RAISED:
            raise RAISED[name]()
        if name in RETURNED:
            return RETURNED[name]()
        _change(args, kwargs)
        return None

    async def coroutine(*args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0)
        return plain(*args, **kwargs)

    return coroutine if is_async else plain


def _change(args: Any, kwargs: Any) -> None:
    for value in (*args, *kwargs.values()):
        if isinstance(value, dict):
            value.clear()
            value["spoilt"] = Strange()
        elif not inspect.ismodule(value):
            for attribute in ("name", "attempt", "type", "id"):
                try:
                    setattr(value, attribute, Strange())
                except Exception:
                    continue
