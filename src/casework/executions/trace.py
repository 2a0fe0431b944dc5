"""The trace: what happened to an execution, commit by commit, in a ring of its last entries.

Off by default. An entry is written in its commit's own transaction, its number comes from a counter in the state, and
the entry that leaves the ring is removed by its exact key, so that no read is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from casework.executions.state import State
from casework.kernel.items import AnyWrite, Delete, Key, Put
from casework.kernel.programs import Program, query_all
from casework.kernel.schema import EXECUTIONS, FORMAT

TRACE_BEGIN, TRACE_END = "z/", "z0"

_SHRINK = 4
"""After ``trace_max`` was lowered, each commit removes up to so many old entries beside the one that leaves."""


def trace_sort(n: int) -> str:
    """The sort key of entry ``n``."""
    return f"z/{n:012d}"


def trace_writes(state: State, events: Sequence[Mapping[str, Any]], at_us: int, trace_max: int) -> list[AnyWrite]:
    """The writes that add an entry to ``state``'s trace; moves the state's counter."""
    state.trace_n += 1
    entry = {"version": state.version, "at_us": at_us, "status": state.status, "events": events}
    writes, state.trace_low = entry_writes(state.id, state.trace_n, state.trace_low, entry, trace_max)
    return writes


def entry_writes(
    id: str, n: int, low: int, entry: dict[str, Any], trace_max: int, *, counts_from: int = 1
) -> tuple[list[AnyWrite], int]:
    """The writes that make ``entry`` number ``n`` of a trace whose first entry is ``low``, and remove the ones that
    leave the ring; the trace's first entry then. The first entry of all bears the index ``counts_from``.
    """
    text = msgspec.json.encode({"index": n - 1 + counts_from, **entry}).decode()
    kept = min(max(low, n - trace_max + 1), low + 1 + _SHRINK)
    writes: list[AnyWrite] = [Put(EXECUTIONS, {"id": id, "sort": trace_sort(n), "format": FORMAT, "entry": text})]
    writes += [Delete(Key(EXECUTIONS, id, trace_sort(old))) for old in range(low, kept)]
    return writes, kept


def read_trace(id: str) -> Program[list[dict[str, Any]]]:
    """The entries of an execution's trace, oldest first."""
    items = yield from query_all(EXECUTIONS, id, low=TRACE_BEGIN, high=TRACE_END)
    return [msgspec.json.decode(str(item["entry"])) for item in items]
