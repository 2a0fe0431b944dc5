"""From the refusals of a request's writes to the one error that they amount to."""

from __future__ import annotations

from collections.abc import Sequence

from casework.errors import ConditionFailed, ItemTooLarge, Refusal
from casework.kernel.limits import MAX_ITEM_BYTES


def raise_refusals(refusals: Sequence[Refusal | None]) -> None:
    """Raise the error that these refusals amount to: a failed condition first, then a limit; none: return."""
    if any(refusal is not None and refusal.why == "condition" for refusal in refusals):
        raise ConditionFailed([r if r is not None and r.why == "condition" else None for r in refusals])
    for position, refusal in enumerate(refusals):
        if refusal is not None:
            raise ItemTooLarge(
                f"write {position}: with what is stored already, the item would be over {MAX_ITEM_BYTES:,} bytes"
            )
