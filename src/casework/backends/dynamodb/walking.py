"""Walking a whole table, page by page: for operators' listings only. It reads, and is charged for, every item."""

from __future__ import annotations

from typing import Any

import msgspec

from casework.backends.dynamodb.encode import decode_item, table_name
from casework.backends.dynamodb.faults import Reply, error_of
from casework.backends.dynamodb.plan import Send, Steps
from casework.errors import Misuse
from casework.kernel.items import Item, Table


def walk_steps(prefix: str, table: Table, limit: int, after: str | None) -> Steps[tuple[list[Item], str | None]]:
    """A page of a whole table, and where the next one begins."""
    request: dict[str, Any] = {"TableName": table_name(prefix, table), "Limit": limit}
    if after is not None:
        try:
            request["ExclusiveStartKey"] = msgspec.json.decode(after, type=dict[str, dict[str, str]])
        except msgspec.MsgspecError:
            raise Misuse(f"{after!r:.80} is not a cursor; pass the one that a page handed back, unchanged") from None
    reply: Reply = yield Send("scan", request)
    if reply.fault is not None:
        raise error_of(reply.fault, f"walk through {table.name}", doubt=False, writes=False)
    response = reply.response or {}
    last = response.get("LastEvaluatedKey")
    items = [decode_item(wire) for wire in response.get("Items", ())]
    return items, msgspec.json.encode(last).decode() if last else None
