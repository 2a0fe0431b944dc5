"""What one step may spend: a budget of work and one of size, counted while expressions run.

A unit of work is about one operation of an expression: a loop costs the length of the list times the operations in its
body, before it begins; a sort, a copy and a comparison cost by what they touch. A unit of size is about a byte of what
a step builds and keeps: 16 for an element of a list, 64 for a key of a mapping, 1 for a character (4 beyond ASCII).
Both are counted over the whole step (SCXML's macrostep: every guard, action, input and output of it together), and
nothing is given back when a value is dropped. What Python functions do inside is not counted, their copies are.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

WORK_MAX = 5_000_000
"""Default budget of work: a quarter of a second to a second."""
SIZE_MAX = 50_000_000
"""Default budget of size: some 50 to 200 MB of Python objects."""
LIMIT_MIN, LIMIT_MAX = 1_000, 1_000_000_000_000
"""What ``limits`` may say."""

ELEMENT, KEY, EFFECT = 16, 64, 256
"""Size of an element of a list, of a key of a mapping (the value not included), and of a send or an entry of a log."""


class OverBudget(ValueError):
    """A step has spent its budget; it becomes ``error.execution`` in the chart, as other errors of expressions do."""


class Limits(NamedTuple):
    """The budgets of one machine."""

    work: int = WORK_MAX
    size: int = SIZE_MAX

    def refuse(self, work: int, size: int) -> None:
        """Raise OverBudget if so much is more than the budget."""
        way = "shorten the lists, use a named Python function, or raise limits"
        if work > self.work:
            raise OverBudget(f"the step takes more than its {self.work:,} units of work ({way}.work)")
        if size > self.size:
            raise OverBudget(f"the step builds more than its {self.size:,} units of size ({way}.size)")


class Meter(Protocol):
    """Whatever counts; in a step it is the run."""

    def charge(self, work: int, size: int = 0) -> None:
        """Count so much more. Raises OverBudget when a budget is spent."""


def text_size(text: str) -> int:
    """The size of a text."""
    return len(text) if text.isascii() else 4 * len(text)
