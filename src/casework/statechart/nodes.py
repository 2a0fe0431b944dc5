"""The compiled machine as tables: states, transitions, invocations. Built once by ``compile``, never changed after.

States are numbered in document order, so that comparing indexes compares document order, and each knows the index of
its last descendant, so that "is a descendant" is two comparisons.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from casework.statechart.expressions import Template

Guard = Callable[[Any], bool]
"""Called with the run; errors become ``error.execution`` and False."""
Op = Callable[[Any], None]
"""One thing to do in a microstep, called with the run."""


class Timer(NamedTuple):
    """One delay of ``after``."""

    name: str
    """``after:<index>:<state path>``, also the type of its event."""
    delay_us: int | None
    template: Template | None
    """The delay when it is an expression."""


class Invoke(NamedTuple):
    """One invocation of a state."""

    id: str
    kind: str
    """``task``, ``machine`` or ``name`` (either; decided by what is registered)."""
    src: str
    input: Template
    each: Template | None
    join: str | int
    options: dict[str, Any]


class Block(NamedTuple):
    """Executable content of one place: an error ends the block, not the ones after it."""

    op: Op
    asks_active: bool
    weight: int = 1
    """Operations in it, each counted once."""


def any_matches(descriptors: tuple[str, ...], event_type: str) -> bool:
    """Whether one of the descriptors is the event's type, a prefix of it that ends at a dot, or ``*``."""
    for descriptor in descriptors:
        if descriptor == event_type:
            return True
        if not event_type.startswith("after:"):
            prefix = descriptor.removesuffix(".*")
            if prefix in ("*", event_type) or event_type.startswith(prefix + "."):
                return True
    return False


class Transition:
    """A transition; ``targets`` empty means that no state is left."""

    __slots__ = (
        "block", "by_scxml", "descriptors", "exact", "guard", "guard_asks_active", "index", "raw", "reenter", "source",
        "targets", "weight",
    )  # fmt: skip

    def __init__(
        self, index: int, source: StateNode, descriptors: tuple[str, ...], exact: bool, guard: Guard | None,
        guard_asks_active: bool, block: Block | None, reenter: bool,
    ) -> None:  # fmt: skip
        self.index = index
        self.source = source
        self.descriptors = descriptors
        """Event descriptors; empty for an eventless transition."""
        self.exact = exact
        """Only that very event type (timers, done and error events of this state): no prefix, no wildcard."""
        self.guard = guard
        self.guard_asks_active = guard_asks_active
        self.targets: tuple[StateNode, ...] = ()
        self.block = block
        self.reenter = reenter
        self.by_scxml = False
        """The machine's rules are those of SCXML; see ``configuration``."""
        self.weight = 0
        """Operations in the guard."""
        self.raw: dict[str, Any] = {}
        """It in the normalised definition."""

    def matches(self, event_type: str) -> bool:
        """Whether a descriptor matches: the same, a prefix that ends at a dot, or ``*``."""
        if self.exact:
            return event_type in self.descriptors
        return any_matches(self.descriptors, event_type)


class StateNode:
    """One state. ``kind``: atomic, compound, parallel, final or history."""

    __slots__ = (
        "ancestors", "children", "default", "default_block", "defer", "depth", "description", "done_name", "entry",
        "exit", "histories", "id", "index", "invokes", "is_deep", "key", "kind", "last", "meta", "name", "on_unhandled",
        "output", "parent",
        "path", "tags", "timers", "transitions",
    )  # fmt: skip

    def __init__(self, index: int, path: str, key: str, kind: str, parent: StateNode | None) -> None:
        self.index = index
        self.path = path
        self.key = key
        self.kind = kind
        self.parent = parent
        self.ancestors: tuple[StateNode, ...] = (parent, *parent.ancestors) if parent else ()
        """Proper ancestors, the nearest first."""
        self.depth = len(self.ancestors)
        self.id = ""
        self.name = path
        """The id where one is given, else the path."""
        self.children: tuple[StateNode, ...] = ()
        """Child states, history states not among them."""
        self.histories: tuple[StateNode, ...] = ()
        self.last = index
        """Index of the last descendant."""
        self.default: tuple[StateNode, ...] = ()
        """Initial targets of a compound state; default targets of a history state."""
        self.default_block: Block | None = None
        self.entry: Block | None = None
        self.exit: Block | None = None
        self.transitions: tuple[Transition, ...] = ()
        self.timers: tuple[Timer, ...] = ()
        self.invokes: tuple[Invoke, ...] = ()
        self.is_deep = False
        self.output: Template | None = None
        self.done_name = ""
        self.tags: tuple[str, ...] = ()
        self.meta: Any = None
        self.description = ""
        self.defer: tuple[str, ...] = ()
        """Descriptors of events that are kept while this state is active and no transition takes them."""
        self.on_unhandled = ""
        """What becomes of an event that no transition takes: ``ignore``, ``defer`` or ``fail``; empty: as outside."""

    @property
    def is_atomic(self) -> bool:
        """True for atomic and final states: those that a configuration lists."""
        return self.kind in ("atomic", "final")

    @property
    def has_stay(self) -> bool:
        """True when stays in this state are numbered."""
        return bool(self.timers or self.invokes)

    def holds(self, other: StateNode) -> bool:
        """True when ``other`` is a proper descendant."""
        return self.index < other.index <= self.last

    def __repr__(self) -> str:
        return f"<{self.kind} state {self.path or '(root)'}>"


class Run(msgspec.Struct, gc=False):
    """The working memory of one step; guards and actions are called with it."""

    machine: Any
    context: dict[str, Any]
    event: Any
    data: Any
    now_us: int
    stays: dict[str, int]
    stay_n: int
    history: dict[str, list[str]]
    active: frozenset[str] = frozenset()
    """Names of the active states; exact only where something asks for it."""
    queue: list[Any] = []
    effects: list[Any] = []
    pending: list[Any] = []
    """(state, stay, delays, invokes) of stays that began in this step, and what of them is not yet started."""
    has_ended: bool = False
    output: Any = None
    error: dict[str, Any] | None = None
    work: int = 0
    size: int = 0
    """What was charged so far."""
    exhausted: int = 0
    """How often the budget was spent. After the first time the chart gets it once more, to handle the error."""

    def charge(self, work: int, size: int = 0) -> None:
        """Count so much more. Raises OverBudget when a budget is spent."""
        self.work += work
        self.size += size
        limits = self.machine.tables.limits
        if self.work > limits.work or self.size > limits.size:
            limits.refuse(self.work, self.size)
