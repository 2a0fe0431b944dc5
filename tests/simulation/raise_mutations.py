"""Planted faults in raising the number of buckets."""

from __future__ import annotations

from typing import Any

from casework.executions import buckets, listing, membership
from casework.executions.state import State
from casework.kernel.programs import get
from casework.kernel.schema import bucket_of
from casework.simulation.scenarios import raising
from tests.simulation.planting import Fault, patched


def _never_again(known: Any) -> Any:
    """A worker does not read the number again."""
    return (yield from get(buckets.SETTINGS))


def _nobody(row: Any, now_us: int) -> bool:
    """Whoever puts does not wait for those who look."""
    return False


FAULTS = (
    Fault(
        "a worker that never reads the number of buckets again",
        raising.Raises,
        patched(membership, "refresh", _never_again),
    ),
    Fault(
        "items are put into new buckets before all look there", raising.Raises, patched(buckets, "is_living", _nobody)
    ),
    Fault(
        "a process that knows of fewer buckets puts a state back into an older one",
        raising.Raises,
        patched(State, "bucket_in", lambda state, buckets: bucket_of(state.id, buckets)),
    ),
    Fault(
        "a listing goes by the number that its process was opened with",
        raising.Raises,
        patched(listing, "note_settings", lambda rt, item: None),
    ),
)
