"""Tables, keys, items and the four writes.

An item is a flat mapping of names to scalars, as every store can hold it: ``str``, ``int`` (signed 64-bit), ``bool``
and ``bytes``. ``None`` is never stored: an attribute that is not there is absent. There are no floats and no nested
values; whoever owns structured values encodes them as JSON text. Attribute names that begin with ``_`` belong to the
stores (a writer's nonce, for example) and are never seen here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from casework.arguments import check_choice, check_instance, check_list, check_text
from casework.kernel.conditions import Condition

Scalar = str | int | bool | bytes
Item = dict[str, Scalar]
"""What a read hands out. It belongs to the reader, who treats it as read-only."""


class Index(msgspec.Struct, frozen=True, kw_only=True):
    """A sparse, eventually consistent index: an item stands in it while it has both attributes.

    It holds keys only: the attributes of the index and of the table's key.
    """

    name: str
    partition: str
    """Attribute (``str``) that is the index's partition."""
    sort: str
    """Attribute that orders the partition."""
    sort_type: Literal["str", "int"] = "str"

    def __post_init__(self) -> None:
        """Misuse for what cannot be."""
        for name in ("name", "partition", "sort"):
            check_text(name, getattr(self, name), 255)
        check_choice("sort_type", self.sort_type, ("str", "int"))


def _check_index(what: str, given: Any) -> None:
    check_instance(what, given, Index, "a casework.Index(...)")


class Table(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """A table: the attributes of its key, its indexes, and the attribute by which the store forgets items.

    Tables are compared by identity; a store knows one by its ``name``, to which it adds its own prefix.
    """

    name: str
    partition: str
    """Attribute (``str``) that is the key's first part."""
    sort: str | None = None
    """Attribute that is the key's second part, if there is one."""
    sort_type: Literal["str", "int"] = "str"
    indexes: tuple[Index, ...] = ()
    ttl: str | None = None
    """Attribute (epoch seconds) after which the store may delete the item, late or never."""

    def __post_init__(self) -> None:
        """Misuse for what cannot be."""
        for name in ("name", "partition", "sort", "ttl"):
            if name in ("name", "partition") or getattr(self, name) is not None:
                check_text(name, getattr(self, name), 255)
        check_choice("sort_type", self.sort_type, ("str", "int"))
        check_list("indexes", self.indexes, _check_index, "a tuple of casework.Index")

    def key(self, partition: str, sort: str | int | None = None) -> Key:
        """The key of one item of this table."""
        return Key(self, partition, sort)

    def key_of(self, item: Mapping[str, Scalar]) -> Key:
        """The key of ``item``; KeyError when the item lacks it."""
        partition = item[self.partition]
        sort = None if self.sort is None else item[self.sort]
        return Key(self, partition, sort)  # type: ignore[arg-type]

    def index(self, name: str) -> Index:
        """The index of that name; KeyError with the names that there are."""
        for index in self.indexes:
            if index.name == name:
                return index
        raise KeyError(f"table {self.name!r} has no index {name!r}, only {[i.name for i in self.indexes]}")


class Key(msgspec.Struct, frozen=True, gc=False):
    """The place of one item."""

    table: Table
    partition: str
    sort: str | int | None = None

    def __str__(self) -> str:
        sort = "" if self.sort is None else f" {self.sort!r}"
        return f"{self.table.name}[{self.partition!r}{sort}]"

    __repr__ = __str__


class Put(msgspec.Struct, frozen=True, gc=False):
    """Store ``item`` in place of whatever is there."""

    table: Table
    item: Mapping[str, Scalar]
    when: Condition | None = None

    @property
    def key(self) -> Key:
        """Where the item goes; KeyError when the item lacks its key."""
        return self.table.key_of(self.item)


class Update(msgspec.Struct, frozen=True, gc=False):
    """Set and remove attributes of the item at ``key``, which is made when it is not there.

    There is no ``add``: a writer knows the value that it replaces. An increment could neither be repeated after a lost
    answer nor be bounded.
    """

    key: Key
    set: Mapping[str, Scalar] = {}
    remove: Sequence[str] = ()
    when: Condition | None = None


class Delete(msgspec.Struct, frozen=True, gc=False):
    """Remove the item at ``key``; without a condition it is fine when there is none."""

    key: Key
    when: Condition | None = None


class Check(msgspec.Struct, frozen=True, gc=False):
    """Write nothing; refuse the transaction unless the condition holds."""

    key: Key
    when: Condition


AnyWrite = Put | Update | Delete | Check


def apply_write(write: AnyWrite, before: Mapping[str, Scalar] | None) -> Item | None:
    """The item after ``write``, given the item before it (None: absent). The reference meaning, conditions apart."""
    if type(write) is Put:
        return dict(write.item)
    if type(write) is Update:
        table = write.key.table
        after: Item = {table.partition: write.key.partition}
        if table.sort is not None:
            after[table.sort] = write.key.sort  # type: ignore[assignment]
        if before is not None:
            after.update(before)
        after.update(write.set)
        for name in write.remove:
            after.pop(name, None)
        return after
    if type(write) is Delete:
        return None
    return None if before is None else dict(before)
