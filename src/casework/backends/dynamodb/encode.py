"""From casework's items, conditions and writes to DynamoDB's requests, and back. Pure: no I/O, no SDK.

The wire form is that of the low-level client (``{"S": "text"}``, ``{"N": "1"}``). Attribute names that begin with ``_``
are this backend's own and are taken off whatever a reader is shown; the only one is ``_n``, the nonce of the last
write. Attribute names always go through placeholders, so that no reserved word can get in the way.

A request is built once and then frozen: every repeat after a lost answer sends the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from casework.errors import CorruptItem, Misuse
from casework.kernel.conditions import Absent, AllOf, AnyOf, Compares, Condition, Equals, Not, Present
from casework.kernel.cursor import make_cursor, read_cursor
from casework.kernel.effects import Page, Query
from casework.kernel.items import AnyWrite, Delete, Item, Key, Put, Scalar, Table, Update

Wire = dict[str, Any]
"""One attribute value, a key, an item or a request in the low-level client's form."""

NONCE = "_n"
"""The attribute that names the last write of an item."""

MAX_EXPRESSION_BYTES = 4096
"""Amazon DynamoDB Developer Guide, "Quotas": the length of an expression string."""


# --- values ---------------------------------------------------------------------------------------------------------


def encode_value(value: Scalar) -> Wire:
    """One scalar in wire form. The value was checked by :mod:`casework.kernel.limits`."""
    kind = type(value)
    if kind is str:
        return {"S": value}
    if kind is bool:
        return {"BOOL": value}
    if kind is int:
        return {"N": str(value)}
    return {"B": bytes(value)}  # type: ignore[arg-type]


def encode_item(item: Mapping[str, Scalar]) -> Wire:
    """An item in wire form."""
    return {name: encode_value(value) for name, value in item.items()}


def encode_key(key: Key) -> Wire:
    """A key in wire form."""
    encoded = {key.table.partition: encode_value(key.partition)}
    if key.table.sort is not None:
        encoded[key.table.sort] = encode_value(key.sort)  # type: ignore[arg-type]
    return encoded


def decode_value(wire: Wire, where: str) -> Scalar:
    """The scalar of an attribute value; CorruptItem when it is not one that casework stores."""
    for kind, value in wire.items():
        if kind == "S" or kind == "BOOL":
            return value  # type: ignore[no-any-return]
        if kind == "N":
            try:
                return int(value)
            except ValueError:
                raise CorruptItem(f"{where} is the number {value}; casework stores whole numbers only") from None
        if kind == "B":
            return bytes(value)
        raise CorruptItem(f"{where} has DynamoDB's type {kind}; casework stores S, N, BOOL and B only")
    raise CorruptItem(f"{where} has no value")


def decode_item(wire: Mapping[str, Wire]) -> Item:
    """An item as its reader sees it: without the attributes that are this backend's own."""
    return {name: decode_value(value, f"attribute {name!r}") for name, value in wire.items() if name[0] != "_"}


def nonce_of(wire: Mapping[str, Wire] | None) -> str | None:
    """The nonce of the last write of an item in wire form."""
    return None if not wire else wire.get(NONCE, {}).get("S")


# --- expressions ----------------------------------------------------------------------------------------------------


class Expressions:
    """Placeholders of one request's expressions."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._values: dict[str, Wire] = {}

    def name(self, attribute: str) -> str:
        """The placeholder of an attribute's name."""
        return self._names.setdefault(attribute, f"#{len(self._names)}")

    def value(self, value: Scalar) -> str:
        """A placeholder for a value."""
        placeholder = f":{len(self._values)}"
        self._values[placeholder] = encode_value(value)
        return placeholder

    def fields(self) -> Wire:
        """The request's fields that explain the placeholders."""
        fields: Wire = {}
        if self._names:
            fields["ExpressionAttributeNames"] = {short: name for name, short in self._names.items()}
        if self._values:
            fields["ExpressionAttributeValues"] = self._values
        return fields


_OR, _AND, _NOT, _ATOM = range(4)


def compile_condition(condition: Condition, table: Table, terms: Expressions) -> str:
    """The condition expression that holds exactly when ``condition.holds(item)`` does.

    There is no ``<>`` here: DynamoDB's holds for an attribute of another type, and servers differ on one that is
    absent; ``NOT (a = b)`` says what :func:`~casework.kernel.conditions.differs` means. Parentheses stand only where
    they are needed, since DynamoDB refuses redundant ones.
    """
    return _compile(condition, table, terms)[0]


def _compile(condition: Condition, table: Table, terms: Expressions) -> tuple[str, int]:
    """An expression, and how tightly its outermost part binds."""
    if isinstance(condition, Absent):
        return f"attribute_not_exists({terms.name(condition.attribute or table.partition)})", _ATOM
    if isinstance(condition, Present):
        return f"attribute_exists({terms.name(condition.attribute or table.partition)})", _ATOM
    if isinstance(condition, Equals):
        return f"{terms.name(condition.attribute)} = {terms.value(condition.value)}", _ATOM
    if isinstance(condition, Compares):
        return f"{terms.name(condition.attribute)} {condition.operator} {terms.value(condition.value)}", _ATOM
    if isinstance(condition, Not):
        if isinstance(condition.condition, Not):
            return _compile(condition.condition.condition, table, terms)
        return f"NOT ({_compile(condition.condition, table, terms)[0]})", _NOT
    if isinstance(condition, AllOf | AnyOf):
        return _joined([_compile(part, table, terms) for part in condition.conditions], isinstance(condition, AllOf))
    raise Misuse(f"{condition!r:.80} is not a condition that DynamoDB can be given")


def _joined(parts: Sequence[tuple[str, int]], every: bool) -> tuple[str, int]:
    if len(parts) == 1:
        return parts[0]
    binds = _AND if every else _OR
    texts = (text if level >= binds else f"({text})" for text, level in parts)
    return (" AND " if every else " OR ").join(texts), binds


def _condition_fields(write: AnyWrite, table: Table, terms: Expressions, nonce: str | None) -> Wire:
    """The condition of one write, ``nonce`` given: and that the item's nonce is not this one."""
    parts = [] if write.when is None else [_compile(write.when, table, terms)]
    if nonce is not None:
        parts.append((f"NOT ({terms.name(NONCE)} = {terms.value(nonce)})", _NOT))
    if not parts:
        return {}
    expression, _ = _joined(parts, every=True)
    if len(expression) > MAX_EXPRESSION_BYTES:
        raise Misuse(
            f"{write.key}: the condition is {len(expression):,} characters long as DynamoDB's expression, "
            f"the limit is {MAX_EXPRESSION_BYTES:,}; use fewer parts"
        )
    return {"ConditionExpression": expression, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}


# --- requests -------------------------------------------------------------------------------------------------------


def table_name(prefix: str, table: Table) -> str:
    """The name of a table in the account; without a prefix it is the table's own."""
    return f"{prefix}_{table.name}" if prefix else table.name


def encode_write(write: AnyWrite, prefix: str, nonce: str) -> tuple[str, Wire]:
    """One write as (``put``, ``update``, ``delete`` or ``check``; its parameters).

    A put or an update stores the nonce, and demands that the item's is another one: so its repeat cannot hold twice,
    not even where a server forgets a transaction's token.
    """
    terms = Expressions()
    if isinstance(write, Put):
        table = write.table
        parameters: Wire = {"Item": {**encode_item(write.item), NONCE: {"S": nonce}}}
        kind = "put"
    else:
        table = write.key.table
        parameters = {"Key": encode_key(write.key)}
        kind = "update" if isinstance(write, Update) else "delete" if isinstance(write, Delete) else "check"
    if isinstance(write, Update):
        changes = {**write.set, NONCE: nonce}
        sets = ", ".join(f"{terms.name(name)} = {terms.value(value)}" for name, value in changes.items())
        removes = ", ".join(terms.name(name) for name in dict.fromkeys(write.remove))
        parameters["UpdateExpression"] = f"SET {sets}" + (f" REMOVE {removes}" if removes else "")
    own = nonce if kind in ("put", "update") else None
    parameters.update(_condition_fields(write, table, terms, own))
    return kind, {"TableName": table_name(prefix, table), **parameters, **terms.fields()}


_IN_TRANSACTION = {"put": "Put", "update": "Update", "delete": "Delete", "check": "ConditionCheck"}


def encode_transaction(writes: Sequence[AnyWrite], prefix: str, token: str) -> Wire:
    """The parameters of ``transact_write_items``; the token is also the nonce of the items that it writes."""
    actions = []
    for write in writes:
        kind, parameters = encode_write(write, prefix, token)
        actions.append({_IN_TRANSACTION[kind]: parameters})
    return {"TransactItems": actions, "ClientRequestToken": token}


def encode_get(key: Key, prefix: str) -> Wire:
    """The parameters of a consistent ``get_item``."""
    return {"TableName": table_name(prefix, key.table), "Key": encode_key(key), "ConsistentRead": True}


def encode_query(query: Query, prefix: str) -> Wire:
    """The parameters of ``query``: consistent on a table; on an index it cannot be."""
    table = query.table
    index = None if query.index is None else table.index(query.index)
    partition = table.partition if index is None else index.partition
    sort = table.sort if index is None else index.sort
    terms = Expressions()
    clause = f"{terms.name(partition)} = {terms.value(query.partition)}"
    if query.low is not None and query.high is not None:
        low, high = terms.value(query.low), terms.value(query.high)
        clause += f" AND {terms.name(sort or '')} BETWEEN {low} AND {high}"
    elif query.low is not None:
        clause += f" AND {terms.name(sort or '')} >= {terms.value(query.low)}"
    elif query.high is not None:
        clause += f" AND {terms.name(sort or '')} <= {terms.value(query.high)}"
    request: Wire = {"TableName": table_name(prefix, table), "KeyConditionExpression": clause, **terms.fields()}
    if index is None:
        request["ConsistentRead"] = True
    else:
        request["IndexName"] = index.name
    if query.limit is not None:
        request["Limit"] = query.limit
    if query.reverse:
        request["ScanIndexForward"] = False
    position = read_cursor(query)
    if position is not None:
        at, own_partition, own_sort = position
        start = encode_key(Key(table, own_partition, own_sort))
        if index is not None:
            start.update({index.partition: encode_value(query.partition), index.sort: encode_value(at)})
        request["ExclusiveStartKey"] = start
    return request


def decode_page(query: Query, response: Mapping[str, Any]) -> Page:
    """The page in the answer to a query."""
    items = [decode_item(wire) for wire in response.get("Items", ())]
    last = response.get("LastEvaluatedKey")
    table = query.table
    if not last or (query.index is None and table.sort is None):  # such a partition has one item, and no next page
        return Page(items)
    place = decode_item(last)
    own_sort = None if table.sort is None else place[table.sort]
    at = (0 if own_sort is None else own_sort) if query.index is None else place[table.index(query.index).sort]
    return Page(items, make_cursor(query, (at, place[table.partition], own_sort)))  # type: ignore[arg-type]
