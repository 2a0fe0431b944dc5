"""Publishing: an execution's transitions, or chosen events, in a stream, once and in the order of its commits.

What is published is decided in the transition and stored with it, as an item ``o/...`` in the execution's own partition
(promise P1). A worker appends it to the stream under ids made of execution, birth, version and position, so that a
repeat changes nothing, and removes it afterwards. It takes an execution's items in order, so a later one is never
appended before an earlier one; and a commit on a state that was only read checks the last item, so that items become
visible in order as well.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from casework.errors import CaseworkError, ConditionFailed, CorruptItem, StoreError
from casework.executions.runtime import Runtime
from casework.executions.state import State, short_birth
from casework.kernel.conditions import present
from casework.kernel.effects import Query
from casework.kernel.items import Delete, Item, Put, Update
from casework.kernel.programs import Program, all_reads, now, transact, write
from casework.kernel.schema import EXECUTIONS, FORMAT, bucket_of, check_format
from casework.statechart import Publish
from casework.statechart.nodes import any_matches
from casework.streams.append import append
from casework.streams.log import OP_ID_BYTES_MAX, Log, Op

log_ = logging.getLogger("casework.worker")

ITEM_BYTES = 300_000
"""Published entries of one commit go into one item up to so many bytes, the rest into more."""

LATER_US = 5_000_000
"""What could not be delivered is looked at again after so long."""


def entry(publish: Publish, event_type: str, data: Any, before: Sequence[str], after: Any, taken: bool) -> Any:
    """What is published of one event taken by the chart; None when it is not to be published.

    Chosen events are patterns as in ``on``, else a name that takes ``pay.late`` there would publish nothing of it here.
    """
    if publish.events is not None:
        if not (taken and any_matches(publish.events, event_type)):
            return None
    elif not taken and list(before) == list(after.configuration):
        return None
    found = {"event": event_type, "from": list(before), "to": list(after.configuration), "status": after.status}
    return {**found, "data": data} if publish.data and data is not None else found


def op_id(state: State, number: int) -> str:
    """The id of one operation that the commit of ``state`` publishes.

    The time of birth is a part of it: an id that was purged and is started again must not meet what its first life
    published. Execution ids may be as long as operation ids; such ones are hashed.
    """
    id = f"{state.id}-{short_birth(state.created_at_us)}/{state.version}/{number}"
    if len(id.encode()) <= OP_ID_BYTES_MAX:
        return id
    return f"~{hashlib.blake2b(id.encode(), digest_size=24).hexdigest()}"


def delivery_puts(
    publish: Publish, state: State, machine: str, at_us: int, entries: Sequence[Any], buckets: int
) -> list[Put]:
    """The items that the commit of ``state`` stores of what it publishes."""
    id, version = state.id, state.version
    puts: list[Put] = []
    group: list[list[str]] = []
    size = 0
    for number, one in enumerate(entries):
        body = {"execution": id, "machine": machine, "version": version, "at_us": at_us, **one}
        text = msgspec.json.encode(body).decode()
        if group and size + len(text) > ITEM_BYTES:
            puts.append(_put(publish, state, len(puts), group, at_us, buckets))
            group, size = [], 0
        group.append([op_id(state, number), text])
        size += len(text.encode())
    puts.append(_put(publish, state, len(puts), group, at_us, buckets))
    return puts


def _sort(state: State, part: int) -> str:
    """Where a delivery of the commit of ``state`` stands. No two lives of an id have a place in common, so that a late
    delete hits nothing of the next life, and a query that takes long has no hole: within a life places only ascend.
    """
    return f"o/{state.created_at_us:016d}/{state.version:016d}/{part:04d}"


def _put(publish: Publish, state: State, part: int, group: list[list[str]], at_us: int, buckets: int) -> Put:
    return Put(
        EXECUTIONS,
        {
            "id": state.id, "sort": _sort(state, part), "format": FORMAT, "stream": publish.stream,
            "ops": msgspec.json.encode(group).decode(),
            "pending": f"work/{bucket_of(state.id, buckets)}", "rank_us": at_us,
        },
    )  # fmt: skip


def deliver(log: Log, rt: Runtime, ids: Sequence[str]) -> Program[int]:
    """Append what the executions ``ids`` have to publish, and remove it; how many operations are done with.

    Everything for one stream goes in one append, so that executions do not contend with each other.
    """
    reads = [Query(EXECUTIONS, id, None, "o/", "o0", 50) for id in ids]
    pages = yield from all_reads(reads)
    by_stream: dict[str, tuple[list[Op], list[Item]]] = {}
    count = 0
    for page in pages:
        first = ""
        for n, item in enumerate(page.items):
            try:
                stream, new = _ops(item)
            except CorruptItem as error:  # the others of this round go on; what follows it here has to wait for it
                log_.warning("publishing: %s", error)
                yield from _put_off(page.items[n:], str(error))
                break
            first = first or stream
            if stream != first:
                break  # the order of commits holds over streams too: the other one's turn comes when this is done
            ops, items = by_stream.setdefault(stream, ([], []))
            ops += new
            items.append(item)
    for stream, (ops, items) in by_stream.items():
        try:
            yield from append(log, stream, ops)
            for start in range(0, len(items), 90):
                yield from transact([Delete(EXECUTIONS.key_of(item)) for item in items[start : start + 90]])
            count += len(ops)
        except CaseworkError as error:
            log_.warning("publishing to %r: %s: %s", stream, type(error).__name__, error)
            yield from _put_off(items, f"{type(error).__name__}: {error}")
    return count


def _ops(item: Mapping[str, Any]) -> tuple[str, list[Op]]:
    """The stream and the operations of a delivery. Raises CorruptItem, NewerFormat."""
    check_format(item, f"a delivery of execution {item['id']!r}")
    try:
        ops = msgspec.json.decode(item["ops"], type=list[tuple[str, str]])
        return str(item["stream"]), [Op(id, text.encode()) for id, text in ops]
    except (KeyError, TypeError, msgspec.DecodeError) as error:
        raise CorruptItem(f"a delivery of execution {item['id']!r} cannot be read: {error}") from None


def _put_off(items: Sequence[Item], reason: str) -> Program[None]:
    moment = yield from now()
    for item in items:
        try:
            yield from write(
                Update(
                    EXECUTIONS.key_of(item), {"rank_us": moment.middle_us + LATER_US, "parked": reason[:500]},
                    when=present(),
                )
            )  # fmt: skip
        except ConditionFailed:
            continue  # somebody else has delivered it
        except StoreError:
            return  # it stays due; the next sweep tries again
