"""Checks of what happened: linearizability of records, and reads of streams.

A history is a list of :class:`Operation`, each with the steps at which it was called and answered. Operations whose
outcome is unknown stay open: they may have happened at any time after their call, or never.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import msgspec


class Operation(msgspec.Struct, frozen=True):
    """One call and its answer, as its caller saw them."""

    key: Hashable
    name: str
    argument: Any
    answer: Any
    called: int
    """Step of the call."""
    answered: int | None
    """Step of the answer; None: the outcome is unknown."""


Model = Callable[[Any, Operation], tuple[bool, Any]]
"""What an operation does to a state: whether the answer fits, and the state afterwards."""


def not_linearizable(history: Sequence[Operation], model: Model, start: Any = None) -> str:
    """Why a history cannot be explained by operations that happen one at a time; empty when it can.

    Each key is checked by itself, since linearizability composes (Herlihy and Wing, 1990, theorem 1). The search is
    that of Wing and Gong with memory of states already tried (Lowe, "Testing for linearizability", 2017).
    """
    by_key: dict[Hashable, list[Operation]] = {}
    for operation in history:
        by_key.setdefault(operation.key, []).append(operation)
    for key, operations in by_key.items():
        if not _explained(operations, model, start):
            shown = ", ".join(f"{o.name}({o.argument!r})={o.answer!r}" for o in operations[:12])
            return f"no order explains what callers saw of {key!r}: {shown}"
    return ""


def _explained(operations: Sequence[Operation], model: Model, start: Any) -> bool:
    """Whether some order of the operations, each within its call and answer, gives these answers."""
    operations = sorted(operations, key=_called)
    count = len(operations)
    answered = [math.inf if operation.answered is None else operation.answered for operation in operations]
    certain = sum(1 << i for i, operation in enumerate(operations) if operation.answered is not None)
    tried: set[tuple[int, Hashable]] = set()
    stack: list[tuple[int, Any]] = [(0, start)]
    while stack:
        done, state = stack.pop()
        if done & certain == certain:
            return True
        here = (done, _frozen(state))
        if here in tried:
            continue
        tried.add(here)
        # Only those may come next that were called before every other one left was answered. They are in order of
        # their calls and no answer is older than its call, so the first that was called too late ends the search.
        border = math.inf
        for i in range(count):
            if done >> i & 1:
                continue
            operation = operations[i]
            if operation.called > border:
                break
            border = min(border, answered[i])
            fits, after = model(state, operation)
            if fits:
                stack.append((done | 1 << i, after))
    return False


_called = operator.attrgetter("called")


def _frozen(state: Any) -> Hashable:
    """A state as something that can be compared quickly."""
    if isinstance(state, dict):
        return tuple(sorted(state.items()))
    try:
        hash(state)
    except TypeError:
        return repr(state)
    return state  # type: ignore[no-any-return]


def read_problems(written: Iterable[Any], read: Sequence[tuple[int, Any]], first: int = 1) -> Iterable[str]:
    """What is wrong with what a stream's reader saw, as (sequence, operation): holes, repeats, disorder, strangers."""
    expected = first
    known = set(written)
    seen: set[Any] = set()
    for sequence, operation in read:
        if sequence != expected:
            yield f"read {sequence} where {expected} comes next"
            return
        expected += 1
        if operation in seen:
            yield f"{operation!r} was read twice"
        if operation not in known:
            yield f"{operation!r} was read and never written"
        seen.add(operation)
