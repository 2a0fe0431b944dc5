"""The limits that hold on every store, and the check of a request before it is sent.

They are DynamoDB's documented ones (Amazon DynamoDB Developer Guide, "Quotas" and "Item sizes and formats"), so that
what works on an SQLite file works there too. Sizes are counted as DynamoDB counts them: the UTF-8 bytes of each name
and value, a number as its digits need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from casework.errors import ItemTooLarge, Misuse
from casework.kernel.conditions import Absent, AllOf, AnyOf, Compares, Condition, Equals, Not, Present
from casework.kernel.effects import Query
from casework.kernel.items import AnyWrite, Check, Delete, Key, Put, Table, Update

OWN_BYTES = 32
"""Kept back in each item for what a store adds of its own (a writer's nonce), so that the limit is the same on all."""

MAX_ITEM_BYTES = 400 * 1024 - OWN_BYTES
MAX_TRANSACTION_BYTES = 4 * 1024 * 1024 - 100 * OWN_BYTES
MAX_TRANSACTION_WRITES = 100
MAX_PARTITION_BYTES = 2048
MAX_SORT_BYTES = 1024
MIN_INT = -(2**63)
MAX_INT = 2**63 - 1

_SCALARS = frozenset((str, int, bool, bytes))


def check_value(value: Any, where: object, name: str = "") -> int:
    """The size of one attribute's value in bytes; Misuse when no store can hold it unchanged.

    ``where`` and ``name`` say in the message which attribute it is.
    """
    kind = type(value)
    if kind is str:
        if "\0" in value:
            position = value.index("\0")
            raise Misuse(f"{_place(where, name)}: a string holds a NUL character (at position {position}); remove it")
        if value.isascii():
            return len(value)
        try:
            return len(value.encode())
        except UnicodeEncodeError as error:
            raise Misuse(f"{_place(where, name)}: {value!r:.60} is not valid Unicode text ({error.reason})") from None
    if kind is bool:
        return 1
    if kind is int:
        if not MIN_INT <= value <= MAX_INT:
            raise Misuse(f"{_place(where, name)}: {value} does not fit in 64 bits; store it as a string")
        return value.bit_length() // 6 + 2  # type: ignore[no-any-return]
    if kind is bytes:
        return len(value)
    raise Misuse(
        f"{_place(where, name)}: {value!r:.60} is a {kind.__name__}; an attribute is a str, int, bool or bytes"
        + (" (leave the attribute out instead of storing None)" if value is None else "")
    )


def _place(where: object, name: str) -> str:
    return f"{where}.{name}" if name else str(where)


_sizes_of_names: dict[str, int] = {}
"""Names that were checked, with their bytes: programs use the same few again and again."""
_MOST_NAMES = 4096


def _check_name(name: Any, where: object) -> int:
    """The size of an attribute's name in bytes; Misuse when it cannot be one."""
    if type(name) is not str or not name or name.startswith("_") or len(name) > 255:
        raise Misuse(f"{where}: {name!r:.60} is not an attribute name (1 to 255 characters, no leading underscore)")
    size = check_value(name, f"{where}: the name {name!r:.60}")
    if len(_sizes_of_names) < _MOST_NAMES:
        _sizes_of_names[name] = size
    return size


def size_of(attributes: Mapping[str, Any], where: object) -> int:
    """The size of an item's attributes in bytes; Misuse when one cannot be stored.

    ``where`` is named in the message; it is turned into text only then, since this runs for every write.
    """
    total = 0
    for name, value in attributes.items():
        known = _sizes_of_names.get(name)
        total += known if known is not None and type(name) is str else _check_name(name, where)
        if type(value) is str and value.isascii() and "\0" not in value:
            total += len(value)
        elif type(value) is int and MIN_INT <= value <= MAX_INT:
            total += value.bit_length() // 6 + 2
        else:
            total += check_value(value, where, name)
    return total


def check_key(key: Key) -> int:
    """The size of a key in bytes; Misuse when it cannot be one."""
    table, partition, sort = key.table, key.partition, key.sort
    if type(partition) is str and partition.isascii() and 0 < len(partition) <= 512 and "\0" not in partition:
        size = len(partition)
    else:
        size = _check_key_part(partition, "str", MAX_PARTITION_BYTES, table, table.partition)
    if table.sort is None:
        if sort is not None:
            raise Misuse(f"{table.name} has no sort key, but {sort!r:.60} was given")
    elif (
        type(sort) is str and table.sort_type == "str" and sort.isascii() and 0 < len(sort) <= 512 and "\0" not in sort
    ):
        size += len(sort)
    else:
        size += _check_key_part(sort, table.sort_type, MAX_SORT_BYTES, table, table.sort)
    return size


def _check_key_part(value: Any, kind: str, max_bytes: int, table: Table, attribute: str) -> int:
    expected = str if kind == "str" else int
    if type(value) is not expected:
        raise Misuse(f"{table.name}.{attribute}: {value!r:.60} is a {type(value).__name__}; this key is a {kind}")
    size = check_value(value, table.name, attribute)
    if kind == "str" and not 1 <= size <= max_bytes:
        raise Misuse(f"{table.name}.{attribute}: a key has 1 to {max_bytes} bytes, this one has {size}: {value!r:.60}")
    return size


def _check_index_keys(table: Table, attributes: Mapping[str, Any]) -> None:
    """Misuse when an attribute of an index cannot be a key; :func:`size_of` has passed the attributes before."""
    for index in table.indexes:
        value = attributes.get(index.partition)
        if value is not None and not (type(value) is str and value.isascii() and 0 < len(value) <= MAX_SORT_BYTES):
            _check_key_part(value, "str", MAX_PARTITION_BYTES, table, index.partition)
        value = attributes.get(index.sort)
        if value is not None and not (type(value) is int and index.sort_type == "int"):
            _check_key_part(value, index.sort_type, MAX_SORT_BYTES, table, index.sort)


def _check_attribute(name: Any, where: object) -> None:
    if type(name) is not str or name not in _sizes_of_names:
        _check_name(name, where)


def check_condition(condition: Condition | None, where: object) -> None:
    """Misuse when a condition compares with a value that no store can hold, or orders booleans."""
    if condition is None:
        return
    kind = type(condition)
    if kind is Absent or kind is Present:
        if condition.attribute is not None:  # type: ignore[attr-defined]
            _check_attribute(condition.attribute, where)  # type: ignore[attr-defined]
        return
    if kind is Equals:
        _check_attribute(condition.attribute, where)  # type: ignore[attr-defined]
        check_value(condition.value, where)  # type: ignore[attr-defined]
    elif kind is Compares:
        _check_attribute(condition.attribute, where)  # type: ignore[attr-defined]
        check_value(condition.value, where)  # type: ignore[attr-defined]
        if type(condition.value) is bool:  # type: ignore[attr-defined]
            raise Misuse(f"{where}: booleans have no order; compare them with equals()")
    elif kind is AllOf or kind is AnyOf:
        if not condition.conditions:  # type: ignore[attr-defined]
            raise Misuse(f"{where}: {kind.__name__} of no conditions; leave the condition out")
        for part in condition.conditions:  # type: ignore[attr-defined]
            check_condition(part, where)
    elif kind is Not:
        check_condition(condition.condition, where)  # type: ignore[attr-defined]
    elif not isinstance(condition, Condition):
        raise Misuse(f"{where}: {condition!r:.60} is not a condition; make one with casework.equals() and its like")


def check_write(write: AnyWrite) -> int:
    """The size of one write in bytes, as far as it is known before it is sent (an update: what it sets)."""
    return checked_key(write)[1]


def checked_key(write: AnyWrite) -> tuple[Key, int]:
    """The key of one write beside its size, as :func:`check_write` does."""
    kind = type(write)
    if kind is Put:
        key, size = _check_put(write)  # type: ignore[arg-type]
    elif kind is Update:
        key = write.key
        size = check_key(key) + _check_update(write, key)  # type: ignore[arg-type]
    elif kind is Delete or kind is Check:
        key = write.key
        size = check_key(key)
    else:
        raise Misuse(f"{write!r:.80} is not a Put, Update, Delete or Check")
    if size > MAX_ITEM_BYTES:
        raise ItemTooLarge(f"{key}: the item has {size:,} bytes, the limit is {MAX_ITEM_BYTES:,}; store less in it")
    if write.when is not None:
        check_condition(write.when, key)
    elif kind is Check:
        raise Misuse(f"{key}: a Check without a condition checks nothing; give it one, or leave it out")
    return key, size


def _check_put(write: Put) -> tuple[Key, int]:
    table = write.table
    try:
        key = write.key
    except KeyError as error:
        raise Misuse(f"{table.name}: the item lacks its key attribute {error}: {sorted(write.item)}") from None
    check_key(key)
    size = size_of(write.item, key)
    _check_index_keys(table, write.item)
    return key, size


def _check_update(write: Update, key: Key) -> int:
    table, setting, removing = key.table, write.set, write.remove
    size = size_of(setting, key)
    _check_index_keys(table, setting)
    if table.partition in setting or table.sort in setting or table.partition in removing or table.sort in removing:
        name = next(n for n in (*setting, *removing) if n == table.partition or n == table.sort)
        raise Misuse(f"{key}: {name!r} is the item's key and cannot be changed; put a new item instead")
    if removing:
        both = [name for name in removing if name in setting]
        if both:
            raise Misuse(f"{key}: an update both sets and removes {both}; do one of them")
        for name in removing:
            _check_name(name, key)
    return size


def check_transaction(writes: Sequence[AnyWrite]) -> int:
    """The size of a transaction in bytes, as far as it is known before it is sent.

    Misuse when it breaks a limit: its number of writes, its size, or two writes of one item.
    """
    return checked_keys(writes)[1]


def checked_keys(writes: Sequence[AnyWrite]) -> tuple[list[Key], int]:
    """The keys of a transaction beside its size, as :func:`check_transaction` does."""
    if not 1 <= len(writes) <= MAX_TRANSACTION_WRITES:
        raise ItemTooLarge(
            f"a transaction has 1 to {MAX_TRANSACTION_WRITES} writes, this one has {len(writes)}; split it"
        )
    total = 0
    seen = set()
    keys = []
    for write in writes:
        key, size = checked_key(write)
        total += size
        place = (key.table.name, key.partition, key.sort)
        if place in seen:
            raise Misuse(f"a transaction has one write for each item, this one has two for {key}; merge them")
        seen.add(place)
        keys.append(key)
    if total > MAX_TRANSACTION_BYTES:
        raise ItemTooLarge(
            f"a transaction has at most {MAX_TRANSACTION_BYTES:,} bytes, this one has {total:,}; split it"
        )
    return keys, total


def check_query(query: Query, passed: Query | None = None) -> None:
    """Misuse when a query cannot work: its limit, its key, its bounds, or its index.

    ``passed`` is one that passed before: what the two have in common is not checked again.
    """
    if (
        passed is None
        or query.low is not passed.low
        or query.high is not passed.high
        or query.limit is not passed.limit
        or query.index is not passed.index
        or query.table is not passed.table
    ):
        _check_shape(query)
    partition = query.partition
    if type(partition) is not str or not partition:
        raise Misuse(f"{query.table.name}: {partition!r:.60} is not a partition; it must be a non-empty string")
    if not partition.isascii() or "\0" in partition:
        check_value(partition, query.table.name, query.table.partition)


def _check_shape(query: Query) -> None:
    if query.limit is not None and (type(query.limit) is not int or query.limit < 1):
        raise Misuse(f"{query.table.name}: limit is {query.limit}; it must be at least 1")
    sort_type = query.table.sort_type
    if query.index is not None:
        try:
            sort_type = query.table.index(query.index).sort_type
        except KeyError as error:
            raise Misuse(str(error.args[0])) from None
    elif query.table.sort is None and (query.low is not None or query.high is not None):
        raise Misuse(f"{query.table.name} has no sort key, so it has no bounds to query between")
    expected = str if sort_type == "str" else int
    for bound in (query.low, query.high):
        if bound is not None and (type(bound) is not expected or bound == ""):
            raise Misuse(f"{query.table.name}: {bound!r:.60} is no bound for a sort key of type {sort_type}")
        if bound is not None:
            check_value(bound, f"{query.table.name}: a bound")
    if query.low is not None and query.high is not None and query.low > query.high:  # type: ignore[operator]
        raise Misuse(f"{query.table.name}: the low bound {query.low!r} is above the high bound {query.high!r}")
