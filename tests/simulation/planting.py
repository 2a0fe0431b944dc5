"""What a planted fault is: a guard taken out while a context is open, and the scenario that must notice it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

from casework.kernel.conditions import absent, any_of, present

ALWAYS = any_of(absent(), present())
"""A condition that always holds."""

Plant = Callable[[], contextlib.AbstractContextManager[Any]]


class Fault(NamedTuple):
    """A planted fault and the scenario that must find it."""

    name: str
    scenario: Any
    plant: Plant = contextlib.nullcontext
    """Of none: the scenario itself is one with a guard less."""


def patched(target: Any, name: str, value: Any) -> Plant:
    """While it is planted, ``target`` has ``value`` under ``name``."""
    return lambda: mock.patch.object(target, name, value)


@contextlib.contextmanager
def together(*managers: contextlib.AbstractContextManager[Any]) -> Iterator[None]:
    """Several at once."""
    with contextlib.ExitStack() as stack:
        for manager in managers:
            stack.enter_context(manager)
        yield
