"""Counting calls and capacity units, by operation and by table and index.

With ``meter=True`` a backend asks the service to report what each call consumed, and counts it here under the current
label::

    with backend.meter.label("claim"):
        store.claim(...)
    backend.meter.snapshot()["claim"].write_units
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import msgspec

_READS = frozenset(("get_item", "query", "batch_get_item"))
METERED = _READS | frozenset(("put_item", "update_item", "transact_write_items"))
"""Methods of the client that report their consumption when asked to."""

_label: ContextVar[str] = ContextVar("casework_meter_label", default="")


class Usage(msgspec.Struct):
    """What the calls under one label consumed."""

    calls: int = 0
    faults: int = 0
    """Calls among them that ended in a fault. The service does not say what these consumed; see ``units.py``."""
    read_units: float = 0.0
    write_units: float = 0.0
    index_read_units: float = 0.0
    index_write_units: float = 0.0


class Meter:
    """Usage by label. Thread-safe; the label belongs to the current thread or task."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._usage: dict[str, Usage] = {}

    @contextlib.contextmanager
    def label(self, name: str) -> Iterator[None]:
        """Count the calls made inside under ``name``."""
        token = _label.set(name)
        try:
            yield
        finally:
            _label.reset(token)

    def count(self, method: str, response: Mapping[str, Any] | None) -> None:
        """Count one call; ``response`` is None when it ended in a fault."""
        with self._lock:
            usage = self._usage.setdefault(_label.get(), Usage())
            usage.calls += 1
            if response is None:
                usage.faults += 1
                return
            consumed = response.get("ConsumedCapacity") or ()
            for one in consumed if isinstance(consumed, Sequence) else (consumed,):
                total = float(one.get("CapacityUnits", 0.0))
                per_index = (one.get("GlobalSecondaryIndexes") or {}).values()
                index = sum(float(part.get("CapacityUnits", 0.0)) for part in per_index)
                if method in _READS:
                    usage.read_units += total - index
                    usage.index_read_units += index
                else:
                    usage.write_units += total - index
                    usage.index_write_units += index

    def snapshot(self) -> dict[str, Usage]:
        """A copy of the counts, by label; calls under no label stand under the empty one."""
        with self._lock:
            return {name: msgspec.structs.replace(usage) for name, usage in self._usage.items()}

    def reset(self) -> None:
        """Count from zero."""
        with self._lock:
            self._usage.clear()
