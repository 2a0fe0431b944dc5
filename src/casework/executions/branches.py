"""Which children an execution has, and has had: found from the parent, at a cost that grows with its children only.

Children have ids that derive from the parent, the stay and an ordinal, so a :class:`Branch` (one invocation of a
machine) names them all. Those that a parent waits for stand in its state. When it waits no longer, a note of the branch
goes into its partition, in the same transaction. The note stands in the ``listing`` index under the children's machine,
in partitions of its own; the children do not, but for those that failed, or that an operator has touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from casework.errors import CorruptItem
from casework.executions.joins import child_id, id_digest
from casework.executions.runtime import Runtime
from casework.executions.state import Invoke, State, decode_data
from casework.kernel.items import Item, Put
from casework.kernel.programs import Program, query_all
from casework.kernel.schema import EXECUTIONS, FORMAT, check_format

NOTE_BEGIN, NOTE_END = "f/", "f0"
"""Bounds of the notes' sort keys."""

NOTES = "children"
"""The notes' partitions of the ``listing`` index begin so; no status is named so."""


class Branch(msgspec.Struct, kw_only=True, gc=False):
    """The children of one invocation."""

    parent: str
    born_us: int
    """When the parent was started."""
    invoke: str
    stay: int
    machine: str
    total: int
    done: int = 0
    """How many had reported that they are done while the parent waited."""
    needed: int = 0
    failed: list[int] = []
    """Ordinals of the first that reported a failure."""
    is_open: bool = False
    """Whether the parent waits for them."""

    @property
    def order(self) -> tuple[int, str]:
        """Its place among the branches of its parent."""
        return self.stay, self.invoke

    def child(self, ordinal: int) -> str:
        """The id of one child."""
        return child_id(self.parent, self.invoke, self.stay, ordinal, self.born_us)

    def children(self, begin: int, end: int) -> list[str]:
        """Ids of the children from ordinal ``begin`` to before ``end``."""
        return [self.child(ordinal) for ordinal in range(begin, min(end, self.total))]

    def note(self, bucket: int) -> Put:
        """The write that remembers it, once the parent waits no longer; ``bucket`` is that in which this is listed."""
        item: Item = {
            "id": self.parent,
            "sort": f"{NOTE_BEGIN}{self.stay:08d}/{self.invoke}",
            "format": FORMAT,
            "machine": self.machine,
            "born_us": self.born_us,
            "total": self.total,
            "done": self.done,
            "needed": self.needed,
            "listing": f"{NOTES}/{bucket}",
            "listed": f"{self.machine}/{self.parent}/{self.stay:08d}/{id_digest(self.invoke)}",
        }
        if self.failed:
            item["failed"] = ",".join(str(ordinal) for ordinal in self.failed)
        return Put(EXECUTIONS, item)


def branch_of(state: State, invoke: str, waiting: Invoke, *, is_open: bool = True) -> Branch:
    """The branch of an invocation that ``state`` waits for."""
    return Branch(
        parent=state.id, born_us=state.created_at_us, invoke=invoke, stay=waiting.stay, machine=waiting.machine,
        total=waiting.total, done=waiting.done, needed=waiting.need, failed=waiting.failed, is_open=is_open,
    )  # fmt: skip


def noted_branch(item: Mapping[str, Any]) -> Branch:
    """The branch in a note. Raises CorruptItem, NewerFormat when it cannot be read."""
    where = f"the note {item['sort']!r} of the children of execution {item['id']!r}"
    check_format(item, where)
    try:
        stay, invoke = str(item["sort"]).removeprefix(NOTE_BEGIN).split("/", 1)
        failed = [int(ordinal) for ordinal in str(item.get("failed", "")).split(",") if ordinal]
        return Branch(
            parent=item["id"], born_us=item["born_us"], invoke=invoke, stay=int(stay), machine=item["machine"],
            total=item["total"], done=item["done"], needed=item["needed"], failed=failed,
        )  # fmt: skip
    except (KeyError, ValueError) as error:
        raise CorruptItem(f"{where} cannot be read: {error}") from None


def open_branches(rt: Runtime, state: State) -> list[Branch]:
    """Those that the execution waits for, in order. Raises CorruptItem."""
    if not state.machine:
        return []  # cancelled before it was started
    invokes = decode_data(state, rt.decode(state.data)).invokes
    return sorted(
        (branch_of(state, name, waiting) for name, waiting in invokes.items() if not waiting.task),
        key=lambda branch: branch.order,
    )


def branches_of(rt: Runtime, state: State) -> Program[list[Branch]]:
    """All that the execution has and has had, in order. Raises CorruptItem."""
    notes = yield from query_all(EXECUTIONS, state.id, low=NOTE_BEGIN, high=NOTE_END)
    found = {branch.order: branch for branch in map(noted_branch, notes)}
    found |= {branch.order: branch for branch in open_branches(rt, state)}
    return [found[order] for order in sorted(found)]


def chunks(begin: int, end: int, size: int) -> Iterator[tuple[int, int]]:
    """Ranges of at most ``size`` from ``begin`` to before ``end``."""
    for low in range(begin, end, size):
        yield low, min(end, low + size)
