"""Planted faults in the repair of damaged streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from casework.kernel.items import AnyWrite, Put
from casework.kernel.programs import Program, transact
from casework.simulation.faults import ROUGH
from casework.simulation.scenarios.repairing import Repairs
from casework.streams import retention
from tests.simulation.planting import Fault, patched


def _over_what_is_there(writes: Sequence[AnyWrite]) -> Program[None]:
    """A marker is put over what has landed meanwhile."""
    yield from transact([msgspec.structs.replace(one, when=None) if isinstance(one, Put) else one for one in writes])


def _whatever_the_floor(writes: Sequence[AnyWrite]) -> Program[None]:
    """A marker does not ask whether the floor has moved."""
    yield from transact(writes[:1] if isinstance(writes[0], Put) else writes)


def _below_the_floor(stream: str, head: Any, *others: Any) -> Program[Any]:
    """What a truncation has left below the floor is looked at as what is above."""
    return (yield from _look_through(stream, msgspec.structs.replace(head, floor_seq=0), *others))


def _unmarked(stream: str, head: Any, kind: Any, first: int, last: int, *others: Any) -> Program[Any]:
    """A hole is reported as marked, and it is not."""
    return retention.Finding(kind, first, last, True)
    yield


class OftenTruncated(Repairs):
    """A truncation in every run, and hosts that stand still more often, and shorter: between two looks of a repair."""

    faults = msgspec.structs.replace(ROUGH, pause=0.03, pause_s_max=2.0)
    ops_n, uptos, windows_s = 1, (3,), (-100.0,)


_look_through = retention._look_through

FAULTS = (
    Fault("a marker is put over what has landed", Repairs, patched(retention, "transact", _over_what_is_there)),
    Fault("a marker does not ask for the floor", OftenTruncated, patched(retention, "transact", _whatever_the_floor)),
    Fault("a repair fills what was truncated", Repairs, patched(retention, "_look_through", _below_the_floor)),
    Fault("a hole is not marked", Repairs, patched(retention, "_mark", _unmarked)),
)
