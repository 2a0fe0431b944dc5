"""What a partition takes in a second: 1,000 write units and 3,000 read units, of the table and of each index by itself.

Amazon DynamoDB Developer Guide, "Burst and adaptive capacity" and "Designing partition keys": a single partition is
bounded so whatever the table's capacity is. Unused capacity is kept for up to five minutes, but not promised; here it
is not kept beyond one second. An index that is throttled throttles the writes of its table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from casework.backends.dynamodb.units import read_units, write_units
from casework.backends.memory import MemoryTables
from casework.kernel.items import AnyWrite, Item, Key, Table
from casework.kernel.limits import size_of

WRITE_UNITS_A_SECOND = 1000
READ_UNITS_A_SECOND = 3000

_Partition = tuple[str, str, str]


class PartitionMeter:
    """The units that each partition has left."""

    def __init__(self) -> None:
        self._writes: dict[_Partition, tuple[float, int]] = {}
        self._reads: dict[_Partition, tuple[float, int]] = {}

    def take_writes(self, now_us: int, tables: MemoryTables, writes: Sequence[AnyWrite], price: int) -> bool:
        """Take what a request's writes cost; False, and nothing is taken, when one partition has not enough left.

        Args:
            now_us: the service's time.
            tables: the items as they are.
            writes: the request.
            price: 1 for a plain write, 2 for a transaction.
        """
        wanted: dict[_Partition, float] = {}
        for write in writes:
            for partition, units in _units(tables, write, price):
                wanted[partition] = wanted.get(partition, 0.0) + units
        left = {partition: _left(self._writes, partition, now_us, WRITE_UNITS_A_SECOND) for partition in wanted}
        # A request that costs more than a second's worth is taken when the second is unused.
        if any(left[partition] < min(units, WRITE_UNITS_A_SECOND) for partition, units in wanted.items()):
            return False
        for partition, units in wanted.items():
            self._writes[partition] = (left[partition] - units, now_us)
        return True

    def take_read(
        self, now_us: int, table: Table, partition: str, index: str | None, items: Sequence[Item | None]
    ) -> bool:
        """Take what a read costs; False when its partition has nothing left. The price is known only afterwards."""
        place = (table.name, index or "", partition)
        left = _left(self._reads, place, now_us, READ_UNITS_A_SECOND)
        if left <= 0:
            return False
        sizes = [0 if item is None else size_of(item, table.name) for item in items]
        self._reads[place] = (left - read_units(sizes, consistent=index is None), now_us)
        return True


def _left(kept: dict[_Partition, tuple[float, int]], partition: _Partition, now_us: int, a_second: int) -> float:
    before = kept.get(partition)
    if before is None:
        return float(a_second)
    return min(float(a_second), before[0] + (now_us - before[1]) / 1e6 * a_second)


def _units(tables: MemoryTables, write: AnyWrite, price: int) -> Iterator[tuple[_Partition, float]]:
    """The partitions that a write touches, of the table and of its indexes, with what each is asked."""
    key: Key = write.key
    before = tables.peek(key)
    units = write_units(write, before, transactional=price == 2)
    yield (key.table.name, "", key.partition), units.base
    if units.index:
        attributes = {**(before or {}), **getattr(write, "item", {}), **getattr(write, "set", {})}
        for index in key.table.indexes:
            if index.partition in attributes:
                yield (key.table.name, index.name, str(attributes[index.partition])), units.index
