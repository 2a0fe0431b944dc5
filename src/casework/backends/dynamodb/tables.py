"""Making the tables, and finding out what is wrong with those that are there. Steps like those of ``plan.py``: no I/O.

Tables are billed on demand, their indexes hold keys only, and their TTL attribute is switched on, also on a table that
was there before. Nothing that exists is changed otherwise: :func:`verify_steps` names the differences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from casework.backends.dynamodb.encode import Wire, encode_get, encode_key, encode_query, encode_transaction, table_name
from casework.backends.dynamodb.faults import TRANSIENT, Fault, Reply, error_of, reasons_of
from casework.backends.dynamodb.plan import Pause, Send, Steps
from casework.errors import Unavailable
from casework.kernel.conditions import present
from casework.kernel.effects import Query
from casework.kernel.items import AnyWrite, Check, Delete, Key, Put, Table, Update

WAIT_S = 120.0
"""Tables become active within so many seconds, or ``Unavailable`` is raised."""

_POLL_S = 0.5
ATTEMPTS = 5


# --- what a table should be -----------------------------------------------------------------------------------------


def _wire_type(kind: str) -> str:
    return "S" if kind == "str" else "N"


def _schema(partition: str, sort: str | None) -> list[Wire]:
    keys = [{"AttributeName": partition, "KeyType": "HASH"}]
    return keys if sort is None else [*keys, {"AttributeName": sort, "KeyType": "RANGE"}]


def _attribute_types(table: Table) -> dict[str, str]:
    types = {table.partition: "S"}
    if table.sort is not None:
        types[table.sort] = _wire_type(table.sort_type)
    for index in table.indexes:
        types[index.partition] = "S"
        types[index.sort] = _wire_type(index.sort_type)
    return types


def describe(prefix: str, table: Table) -> Wire:
    """The parameters of ``create_table``; the CloudFormation template is made from them as well."""
    request: Wire = {
        "TableName": table_name(prefix, table),
        "KeySchema": _schema(table.partition, table.sort),
        "AttributeDefinitions": [
            {"AttributeName": name, "AttributeType": kind} for name, kind in _attribute_types(table).items()
        ],
        "BillingMode": "PAY_PER_REQUEST",
    }
    if table.indexes:
        request["GlobalSecondaryIndexes"] = [
            {
                "IndexName": index.name,
                "KeySchema": _schema(index.partition, index.sort),
                "Projection": {"ProjectionType": "KEYS_ONLY"},
            }
            for index in table.indexes
        ]
    return request


# --- calls ----------------------------------------------------------------------------------------------------------


def _call(method: str, request: Wire, attempts: int = ATTEMPTS) -> Steps[Reply]:
    """The reply to one call of the control plane; what is transient is tried a few times."""
    for attempt in range(1, attempts + 1):
        reply: Reply = yield Send(method, request)
        if reply.fault is None or reply.fault.kind not in TRANSIENT or attempt == attempts:
            break
        yield Pause(_POLL_S * attempt)
    return reply


def _described(name: str, attempts: int = ATTEMPTS) -> Steps[Mapping[str, Any] | None]:
    """The description of a table; None when there is none."""
    reply = yield from _call("describe_table", {"TableName": name}, attempts)
    if reply.fault is None:
        return reply.response["Table"]  # type: ignore[index, no-any-return]
    if reply.fault.kind == "missing_table":
        return None
    raise error_of(reply.fault, f"look at table {name}", doubt=False, writes=False)


def _is_active(description: Mapping[str, Any]) -> bool:
    indexes = description.get("GlobalSecondaryIndexes") or ()
    statuses = (part.get("TableStatus", part.get("IndexStatus", "ACTIVE")) for part in (description, *indexes))
    return all(status == "ACTIVE" for status in statuses)


def answers_steps(prefix: str, table: Table, wait_s: float) -> Steps[None]:
    """Wait until the service answers at all, whatever it says; Unavailable after ``wait_s`` seconds without."""
    request = {"TableName": table_name(prefix, table)}
    first_s: float | None = None
    while True:
        reply: Reply = yield Send("describe_table", request)
        fault = reply.fault
        if fault is None or fault.kind not in ("unsent", "lost"):
            if fault is not None and fault.kind in ("setup", "credentials"):
                raise error_of(fault, "look for the service", doubt=False, writes=False)
            return
        first_s = reply.sent_s if first_s is None else first_s
        if reply.received_s - first_s >= wait_s:
            raise error_of(fault, f"no answer within {wait_s:g} s", doubt=False, writes=False)
        yield Pause(_POLL_S)


# --- create ---------------------------------------------------------------------------------------------------------


def create_steps(
    prefix: str, tables: Sequence[Table], wait_s: float = WAIT_S, attempts: int = ATTEMPTS
) -> Steps[list[str]]:
    """Make the tables that are missing, wait until all are active, and switch TTL on.

    The first look is tried ``attempts`` times, where the service does not answer.

    Returns notes of what it could not do.

    Raises Unavailable when a table is not active in time; the errors of ``faults.py`` when a call is refused.
    """
    for table in tables:
        name = table_name(prefix, table)
        if (yield from _described(name, attempts)) is None:
            reply = yield from _call("create_table", describe(prefix, table))
            if reply.fault is not None and reply.fault.code != "ResourceInUseException":
                raise error_of(reply.fault, f"make table {name}", doubt=False, writes=False)
    notes = []
    for table in tables:
        name = table_name(prefix, table)
        yield from _wait_until_active(name, wait_s)
        if table.ttl is not None:
            notes += yield from _enable_ttl(name, table.ttl)
    return notes


def _wait_until_active(name: str, wait_s: float) -> Steps[None]:
    waited_s = 0.0
    while True:
        description = yield from _described(name)
        if description is not None and _is_active(description):
            return
        if waited_s >= wait_s:
            status = "missing" if description is None else description.get("TableStatus")
            raise Unavailable(f"table {name} is {status} after {wait_s:g} s; look at it in the console and try again")
        yield Pause(_POLL_S)
        waited_s += _POLL_S


def _ttl(name: str) -> Steps[tuple[str, str | None] | Fault]:
    """Status and attribute of a table's TTL."""
    reply = yield from _call("describe_time_to_live", {"TableName": name})
    if reply.fault is not None:
        return reply.fault
    found = (reply.response or {}).get("TimeToLiveDescription", {})
    return found.get("TimeToLiveStatus", "DISABLED"), found.get("AttributeName")


def _enable_ttl(name: str, attribute: str) -> Steps[list[str]]:
    found = yield from _ttl(name)
    if not isinstance(found, Fault) and found[0] in ("ENABLED", "ENABLING"):
        if found[1] in (attribute, None):
            return []
        return [f"table {name}: TTL is on {found[1]!r}, not on {attribute!r}; expired items stay until that is changed"]
    specification = {"Enabled": True, "AttributeName": attribute}
    request = {"TableName": name, "TimeToLiveSpecification": specification}
    reply = yield from _call("update_time_to_live", request)
    if reply.fault is None or "already enabled" in reply.fault.message.lower():
        return []
    why = f"{reply.fault.code}: {reply.fault.message}"
    return [f"table {name}: TTL could not be switched on, expired items stay: {why}"]


# --- verify ---------------------------------------------------------------------------------------------------------


def verify_steps(prefix: str, tables: Sequence[Table], token: str) -> Steps[list[str]]:
    """Everything that is missing or different; empty when all is well. Changes nothing.

    Args:
        prefix: of the tables' names.
        tables: what should be there.
        token: a fresh one; it makes the keys under which permissions are tried out.
    """
    problems: list[str] = []
    present_tables = []
    for table in tables:
        name = table_name(prefix, table)
        reply = yield from _call("describe_table", {"TableName": name})
        if reply.fault is not None and reply.fault.kind == "missing_table":
            problems.append(f"table {name} is missing; make it with `casework dynamodb create`")
            continue
        present_tables.append(table)
        if reply.fault is not None:
            problems.append(f"table {name}: cannot be looked at: {reply.fault.code}: {reply.fault.message}")
            continue
        problems += differences(prefix, table, (reply.response or {})["Table"])
        if table.ttl is not None:
            problems += yield from _ttl_problems(name, table.ttl)
    for table in present_tables:
        problems += yield from _permission_problems(prefix, table, token)
    return problems


def differences(prefix: str, table: Table, found: Mapping[str, Any]) -> list[str]:
    """How the description of a table differs from what it should be."""
    wanted = describe(prefix, table)
    name = wanted["TableName"]
    problems = []
    if found.get("TableStatus", "ACTIVE") not in ("ACTIVE", "UPDATING"):
        problems.append(f"table {name} is {found['TableStatus']}, not ACTIVE")
    types = {one["AttributeName"]: one["AttributeType"] for one in found.get("AttributeDefinitions", ())}
    problems += _key_problems(f"table {name}", wanted["KeySchema"], found.get("KeySchema", ()), table, types)
    mode = (found.get("BillingModeSummary") or {}).get("BillingMode", "PROVISIONED")
    if mode != "PAY_PER_REQUEST":
        problems.append(f"table {name} is billed {mode}, not PAY_PER_REQUEST: its capacity can run out")
    if found.get("Replicas") or found.get("GlobalTableVersion"):
        problems.append(
            f"table {name} is a global table: transactions hold in one region only, or not at all; "
            "remove its replicas, or use another prefix"
        )
    indexes = {one["IndexName"]: one for one in found.get("GlobalSecondaryIndexes") or ()}
    for index in wanted.get("GlobalSecondaryIndexes", ()):
        where = f"index {name}/{index['IndexName']}"
        there = indexes.get(index["IndexName"])
        if there is None:
            problems.append(f"{where} is missing")
            continue
        problems += _key_problems(where, index["KeySchema"], there.get("KeySchema", ()), table, types)
        projection = (there.get("Projection") or {}).get("ProjectionType")
        if projection != "KEYS_ONLY":
            problems.append(f"{where} projects {projection}, not KEYS_ONLY: each write costs more")
        if there.get("IndexStatus", "ACTIVE") != "ACTIVE":
            problems.append(f"{where} is {there['IndexStatus']}, not ACTIVE")
    return problems


def _key_problems(
    where: str, wanted: Sequence[Wire], found: Sequence[Mapping[str, Any]], table: Table, types: Mapping[str, str]
) -> list[str]:
    right = _attribute_types(table)

    def text(schema: Sequence[Mapping[str, Any]], kinds: Mapping[str, str]) -> str:
        return ", ".join(f"{k['KeyType']} {k['AttributeName']} {kinds.get(k['AttributeName'])}" for k in schema)

    is_, should_be = text(found, types), text(wanted, right)
    return [] if is_ == should_be else [f"{where} has the key ({is_}), it should be ({should_be})"]


def _ttl_problems(name: str, attribute: str) -> Steps[list[str]]:
    found = yield from _ttl(name)
    if isinstance(found, Fault):
        return [f"table {name}: its TTL cannot be looked at: {found.code}: {found.message}"]
    if found[0] not in ("ENABLED", "ENABLING"):
        return [f"table {name}: TTL on {attribute!r} is {found[0]}: expired items stay for ever"]
    if found[1] not in (attribute, None):
        return [f"table {name}: TTL is on {found[1]!r}, not on {attribute!r}"]
    return []


def _permission_problems(prefix: str, table: Table, token: str) -> Steps[list[str]]:
    """What the caller may not do: a transaction that uses every action and is bound to be refused, and each read."""
    problems = []
    keys = [Key(table, f"_verify/{token}/{n}", _sort_of(table)) for n in range(4)]
    writes: list[AnyWrite] = [
        Put(table, _key_attributes(keys[0]), when=present()),
        Update(keys[1], when=present()),
        Delete(keys[2], when=present()),
        Check(keys[3], when=present()),
    ]
    queries = [Query(table, keys[0].partition, None, limit=1)]
    queries += [Query(table, keys[0].partition, index.name, limit=1) for index in table.indexes]
    name = table_name(prefix, table)
    reads: list[tuple[str, Wire]] = [
        ("get_item", encode_get(keys[0], prefix)),
        ("batch_get_item", {"RequestItems": {name: {"Keys": [encode_key(keys[0])]}}}),
        *(("query", encode_query(query, prefix)) for query in queries),
    ]
    calls = [("transact_write_items", encode_transaction(writes, prefix, token)), *reads]
    for method, request in calls:
        reply = yield from _call(method, request)
        if reply.fault is not None and not _is_the_expected_refusal(reply.fault):
            where = request.get("IndexName", "")
            what = f"{name}{'/' if where else ''}{where}"
            problems.append(f"table {what}: {method} is refused: {reply.fault.code}: {reply.fault.message}")
    return problems


def _is_the_expected_refusal(fault: Fault) -> bool:
    return fault.kind == "cancelled" and {one.code for one in reasons_of(fault)} == {"ConditionalCheckFailed"}


def _sort_of(table: Table) -> str | int | None:
    return None if table.sort is None else "_" if table.sort_type == "str" else 0


def _key_attributes(key: Key) -> dict[str, Any]:
    attributes: dict[str, Any] = {key.table.partition: key.partition}
    if key.table.sort is not None:
        attributes[key.table.sort] = key.sort
    return attributes
