"""The limits that hold on every store, and the check of a request before it is sent.

They are DynamoDB's documented ones (Amazon DynamoDB Developer Guide, "Quotas" and "Item sizes and formats"), so that
what works on an SQLite file works there too. Sizes are counted as DynamoDB counts them: the UTF-8 bytes of each name
and value, a number as its digits need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from casework.errors import ItemTooLarge, Misuse
from casework.kernel.conditions import AllOf, AnyOf, Compares, Condition, Equals, Not
from casework.kernel.effects import Query
from casework.kernel.items import AnyWrite, Check, Delete, Key, Put, Table, Update

OWN_BYTES = 32
"""Kept back in each item for what a store adds of its own (a writer's nonce)."""

MAX_ITEM_BYTES = 400 * 1024 - OWN_BYTES
MAX_TRANSACTION_BYTES = 4 * 1024 * 1024 - 100 * OWN_BYTES
MAX_TRANSACTION_WRITES = 100
MAX_PARTITION_BYTES = 2048
MAX_SORT_BYTES = 1024
MIN_INT = -(2**63)
MAX_INT = 2**63 - 1

_names: dict[str, int] = {}
"""Sizes of attribute names found valid. There are few, since they are written in code; it is emptied when it grows."""


def check_value(value: Any, where: object, name: str = "") -> int:
    """The size of one attribute's value in bytes; Misuse when no store can hold it unchanged.

    Args:
        value: the value.
        where: says whose it is, in the error only.
        name: of the attribute.
    """
    kind = type(value)
    if kind is str:
        if "\0" in value:
            raise Misuse(
                f"{_at(where, name)}: a string holds a NUL character (at position {value.index(chr(0))}); remove it"
            )
        if value.isascii():
            return len(value)
        try:
            return len(value.encode())
        except UnicodeEncodeError as error:
            raise Misuse(f"{_at(where, name)}: {value!r:.60} is not valid Unicode text ({error.reason})") from None
    if kind is bool:
        return 1
    if kind is int:
        if not MIN_INT <= value <= MAX_INT:
            raise Misuse(f"{_at(where, name)}: {value} does not fit in 64 bits; store it as a string")
        return value.bit_length() // 6 + 2  # type: ignore[no-any-return]
    if kind is bytes:
        return len(value)
    raise Misuse(
        f"{_at(where, name)}: {value!r:.60} is a {kind.__name__}; an attribute is a str, int, bool or bytes"
        + (" (leave the attribute out instead of storing None)" if value is None else "")
    )


def _at(where: object, name: str) -> str:
    return f"{where}.{name}" if name else str(where)


def _check_name(name: Any, where: object) -> int:
    if type(name) is not str or not name or name.startswith("_") or len(name) > 255:
        raise Misuse(f"{where}: {name!r:.60} is not an attribute name (1 to 255 characters, no leading underscore)")
    if len(_names) > 10_000:
        _names.clear()
    size = _names[name] = len(name.encode())
    return size


def size_of(attributes: Mapping[str, Any], where: object) -> int:
    """The size of an item's attributes in bytes; Misuse when one cannot be stored."""
    total = 0
    for name, value in attributes.items():
        size = _names.get(name)
        total += _check_name(name, where) if size is None else size
        # The two common kinds first, without a call: this runs for every attribute of every write.
        if type(value) is str and value.isascii() and "\0" not in value:
            total += len(value)
        elif type(value) is int and MIN_INT <= value <= MAX_INT:
            total += value.bit_length() // 6 + 2
        else:
            total += check_value(value, where, name)
    return total


def check_key(key: Key) -> int:
    """The size of a key in bytes; Misuse when it cannot be one."""
    table = key.table
    size = _check_key_part(key.partition, str, MAX_PARTITION_BYTES, table, table.partition)
    if table.sort is not None:
        kind = str if table.sort_type == "str" else int
        size += _check_key_part(key.sort, kind, MAX_SORT_BYTES, table, table.sort)
    elif key.sort is not None:
        raise Misuse(f"{table.name} has no sort key, but {key.sort!r:.60} was given")
    return size


def _check_key_part(value: Any, kind: type, max_bytes: int, table: Table, name: str) -> int:
    if type(value) is not kind:
        raise Misuse(f"{table.name}.{name}: {value!r:.60} is a {type(value).__name__}; this key is a {kind.__name__}")
    if kind is str and value.isascii() and "\0" not in value:
        size = len(value)
    else:
        size = check_value(value, table.name, name)
    if kind is str and not 1 <= size <= max_bytes:
        raise Misuse(f"{table.name}.{name}: a key has 1 to {max_bytes} bytes, this one has {size}: {value!r:.60}")
    return size


def _check_index_keys(table: Table, attributes: Mapping[str, Any]) -> None:
    for index in table.indexes:
        if index.partition in attributes:
            _check_key_part(attributes[index.partition], str, MAX_PARTITION_BYTES, table, index.partition)
        if index.sort in attributes:
            kind = str if index.sort_type == "str" else int
            _check_key_part(attributes[index.sort], kind, MAX_SORT_BYTES, table, index.sort)


def check_condition(condition: Condition | None, where: object) -> None:
    """Misuse when a condition compares with a value that no store can hold, or orders booleans."""
    if condition is None:
        return
    kind = type(condition)
    if kind is Equals:
        check_value(condition.value, where)  # type: ignore[attr-defined]
    elif kind is Compares:
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


def check_write(write: AnyWrite) -> int:
    """The size of one write in bytes, as far as it is known before it is sent (an update: what it sets)."""
    if type(write) is Put:
        table = write.table
        try:
            key = write.key
        except KeyError as error:
            raise Misuse(f"{table.name}: the item lacks its key attribute {error}: {sorted(write.item)}") from None
        check_key(key)
        size = size_of(write.item, key)
        _check_index_keys(table, write.item)
    elif type(write) is Update:
        key = write.key
        table = key.table
        size = check_key(key) + size_of(write.set, key)
        _check_index_keys(table, write.set)
        for name in (*write.set, *write.remove):
            if name == table.partition or name == table.sort:
                raise Misuse(f"{key}: {name!r} is the item's key and cannot be changed; put a new item instead")
        both = [name for name in write.remove if name in write.set]
        if both:
            raise Misuse(f"{key}: an update both sets and removes {both}; do one of them")
        if any(type(name) is not str or not name or name.startswith("_") for name in write.remove):
            raise Misuse(f"{key}: {list(write.remove)!r:.80} are not all attribute names")
    elif type(write) is Delete or type(write) is Check:
        key = write.key
        size = check_key(key)
    else:
        raise Misuse(f"{write!r:.80} is not a Put, Update, Delete or Check")
    if size > MAX_ITEM_BYTES:
        raise ItemTooLarge(f"{key}: the item has {size:,} bytes, the limit is {MAX_ITEM_BYTES:,}; store less in it")
    if write.when is not None:
        check_condition(write.when, key)
    return size


def check_transaction(writes: Sequence[AnyWrite]) -> int:
    """The size of a transaction in bytes, as far as it is known; Misuse when a transaction breaks a limit: its number of writes, its size, or two writes of one item."""
    if not 1 <= len(writes) <= MAX_TRANSACTION_WRITES:
        raise ItemTooLarge(
            f"a transaction has 1 to {MAX_TRANSACTION_WRITES} writes, this one has {len(writes)}; split it"
        )
    total = 0
    seen = set()
    for write in writes:
        total += check_write(write)
        key = write.key
        place = (key.table.name, key.partition, key.sort)
        if place in seen:
            raise Misuse(f"a transaction has one write for each item, this one has two for {key}; merge them")
        seen.add(place)
    if total > MAX_TRANSACTION_BYTES:
        raise ItemTooLarge(
            f"a transaction has at most {MAX_TRANSACTION_BYTES:,} bytes, this one has {total:,}; split it"
        )
    return total


def check_query(query: Query) -> None:
    """Misuse when a query cannot work: its limit, its key, its bounds, or its index."""
    if query.limit is not None and query.limit < 1:
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
    if query.low is not None and query.high is not None and query.low > query.high:  # type: ignore[operator]
        raise Misuse(f"{query.table.name}: the low bound {query.low!r} is above the high bound {query.high!r}")
    if type(query.partition) is not str or not query.partition:
        raise Misuse(f"{query.table.name}: {query.partition!r:.60} is not a partition; it must be a non-empty string")
