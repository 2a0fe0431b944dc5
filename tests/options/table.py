"""A row of the tables: an option, and the smallest thing that is another one where the option is.

A row has a function, which makes what it needs, gives the option a value and returns what is seen; and pairs of a value
and what is seen with it. ``SOMETHING`` stands where only the difference counts. No two values may look the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

SOMETHING = object()
"""Whatever it is, it is not what the other values show."""


class Row(NamedTuple):
    """How an option is looked at, and what is seen."""

    see: Callable[..., Any]
    pairs: tuple[tuple[Any, Any], ...]

    def differs(self, make: Callable[[], Any] | None = None) -> bool:
        """Look at each value, in a fresh world each time; AssertionError where it is not as it should be."""
        seen: list[Any] = []
        for value, expected in self.pairs:
            if make is None:
                found = self.see(value)
            else:
                with contextlib.closing(make()) as world:
                    found = self.see(world, value)
            assert expected is SOMETHING or found == expected, f"{value!r:.80} shows {found!r}, not {expected!r}"
            assert found not in seen, f"{value!r:.80} changes nothing: {found!r}"
            seen.append(found)
        return len(seen) > 1


def row(see: Callable[..., Any], *pairs: tuple[Any, Any]) -> Row:
    """A row: how to look at it, and what each value shows."""
    return Row(see, pairs)


Rows = Mapping[str, Mapping[str, Row]]
"""By place and option."""


def each(rows: Rows) -> list[Any]:
    """The rows one by one, for ``parametrize``, under the names of their options."""
    return [(place, option) for place, options in rows.items() for option in options]


def names(rows: Rows) -> list[str]:
    """What the tests of ``each`` are called."""
    return [f"{place}({option})" for place, option in each(rows)]


def refusal(call: Callable[[], Any]) -> str:
    """The name of the error that a call ends with; empty where it ends well."""
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return ""


class OnLoop:
    """What is made for an event loop, as a test without one calls it."""

    def __init__(self, inner: Any, runner: asyncio.Runner) -> None:
        self._inner, self._runner = inner, runner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return OnLoop(found, self._runner) if name in ("streams", "idempotency") else found

        def call(*args: Any, **kwargs: Any) -> Any:
            answer = found(*args, **kwargs)
            if inspect.iscoroutine(answer):
                return self._runner.run(answer)
            return self._each(answer) if hasattr(answer, "__anext__") else answer

        return call

    def _each(self, answer: Any) -> Iterator[Any]:
        while True:
            try:
                yield self._runner.run(answer.__anext__())
            except StopAsyncIteration:
                return
