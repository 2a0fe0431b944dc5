"""Order of one sender: nothing is sent before all is visible that the same sender sent before.

A transaction's items may become visible one by one. A commit therefore checks the items of the one before it, with a
condition that always holds: a transaction that is still under way conflicts with it.
"""

from __future__ import annotations

from collections.abc import Sequence

from casework.kernel.conditions import absent, any_of, present
from casework.kernel.items import AnyWrite, Check, Key
from casework.kernel.schema import EXECUTIONS

ANYTHING = any_of(absent(), present())
"""A condition that always holds: what matters is that its item is not in another transaction."""


def checks(places: Sequence[tuple[str, str]], taken: Sequence[AnyWrite]) -> list[AnyWrite]:
    """The checks of the items at ``places``, but for those that ``taken`` writes by itself."""
    if not places:
        return []
    written = {(write.key.partition, write.key.sort) for write in taken}
    return [
        Check(Key(EXECUTIONS, partition, sort), ANYTHING)
        for partition, sort in places
        if (partition, sort) not in written
    ]
