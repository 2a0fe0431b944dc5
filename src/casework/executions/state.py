"""The state item of an execution, at sort key ``0`` of its partition.

The attributes that the store's conditions, indexes and listings need stand beside ``data``, which holds everything
else as one JSON text: the chart's snapshot, what it waits for, and whom it reports to. Arming a timer is part of the
state's own write, because the item's entry in the ``pending`` index is its earliest due time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from casework.errors import CorruptItem
from casework.kernel.conditions import Condition, absent, all_of, equals
from casework.kernel.items import Item, Key
from casework.kernel.schema import EXECUTIONS, FORMAT, bucket_of, check_format
from casework.statechart.snapshot import Snapshot

STATE = "0"
"""Sort key of the state item."""

BEHIND_STATE = "1"
"""Everything else of an execution stands behind this: all other sort keys begin with a letter."""

ENDED = frozenset(("done", "failed", "cancelled"))
"""Statuses in which an execution takes no more events."""

STATUSES = ("pending", "running", "suspended", "done", "failed", "cancelled", "purging")

RECENT_IDS = 32
"""So many ids of events given by callers are remembered in the state."""

ID_HASH_BYTES = 8


MAX_ID_BYTES = 512


def short_birth(born_us: int) -> str:
    """The last six digits to base 36 of a time of birth: tells the lives of an id apart that is started again."""
    return "".join("0123456789abcdefghijklmnopqrstuvwxyz"[born_us // 36**place % 36] for place in range(6))


def is_id(id: Any) -> bool:
    """Whether ``id`` can be an execution's id: 1 to 512 bytes of printable text."""
    return isinstance(id, str) and id != "" and id.isprintable() and len(id.encode(errors="replace")) <= MAX_ID_BYTES


class Timer(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """An armed timer, or a delayed send."""

    due_us: int
    name: str
    """Of a timer of a state: its name in the chart. Of a delayed send: its send id."""
    stay: int = 0
    """The stay that armed it; 0 for a delayed send, which outlives the state that sent it."""
    to: str = ""
    """Delayed send: the target, ``""`` for itself."""
    event_type: str = ""
    """Delayed send: the event; ``""`` marks a timer of a state."""
    data: Any = None


class Invoke(msgspec.Struct, omit_defaults=True, gc=False):
    """What a stay in a state waits for: one task, or children with a join."""

    stay: int
    task: bool = False
    each: bool = False
    """Whether the result is a list, one element per child."""
    total: int = 0
    machine: str = ""
    need: int = 0
    """The join decides when so many children are done."""
    done: int = 0
    seen: str = ""
    """Bitmap of the children that reported, as hexadecimal digits, the first child in the lowest bit."""
    results: dict[str, Any] = {}
    """Results by ordinal, while they fit ``MAX_INLINE_RESULTS_BYTES``."""
    bytes: int = 0
    """Size of ``results`` as JSON, ordinals included."""
    failed: list[int] = []
    """Ordinals of the first children that reported a failure."""
    inline: bool = True
    """False when the results outgrew the state; they are read from the children then."""


class Parent(msgspec.Struct, array_like=True, gc=False):
    """To whom an execution reports its end."""

    id: str
    invoke: str
    stay: int
    ordinal: int


class Kept(msgspec.Struct, omit_defaults=True, gc=False):
    """The event at which an execution failed."""

    kind: str
    """``start``; ``event`` that was sent; ``timer`` of a state; ``delayed`` send; ``result`` of a task; ``report`` of
    children."""
    type: str
    data: Any = None
    id: str = ""
    source: str = ""
    stay: int = 0
    invoke: str = ""
    is_taken_again: bool = True
    """Whether a redrive takes it again. Not the error of a task or of children that no transition took: these begin
    again instead."""


class Failure(msgspec.Struct, omit_defaults=True, gc=False):
    """Of a failed execution: at which event, why, and what it waited for, so that it can be driven again."""

    event: Kept
    error: dict[str, Any]
    """``message``, ``type``, ``where``."""
    stopped: list[str] = []
    """The invocations that it waited for. Its timers stay in the state: armed ones begin again, delayed sends go on."""
    letter: str = ""
    """Sort key of the dead letter that holds the event's payload, where that is too large for the state."""
    is_lost: bool = False
    """The payload was too large even for that."""


class Data(msgspec.Struct, omit_defaults=True, gc=False):
    """What the ``data`` attribute holds."""

    snap: Snapshot
    input: Any = None
    """Only while the execution is pending."""
    input_digest: str = ""
    parent: Parent | None = None
    invokes: dict[str, Invoke] = {}
    deferred: list[Kept] = []
    """Events that no transition took, and that the active states keep for a later one, in order."""
    sent: list[tuple[str, str]] = []
    """Keys (partition, sort) of the messages that the last commit sent; see ``change``."""
    failure: Failure | None = None
    redrives: int = 0
    cancel: str = ""
    """``asked``: an operator's cancel was taken by the chart, and repeats of it change nothing. ``taken``: the chart
    took an event of that name that somebody sent."""
    started_as: str = ""
    """The name of the machine that it was started with, where it was migrated to one of another name."""


_decode_data = msgspec.json.Decoder(Data).decode
_encode = msgspec.json.Encoder().encode
_decode_timers = msgspec.json.Decoder(list[Timer]).decode


class State(msgspec.Struct, kw_only=True, gc=False):
    """The state item as a value. ``data`` and ``timers`` are kept as they are stored, since conditions compare them."""

    id: str
    version: int
    status: str
    machine: str
    machine_hash: str
    data: str = ""
    parent_id: str = ""
    timers: str = ""
    """JSON list of :class:`Timer`, earliest first; empty when there are none."""
    recent_ids: bytes = b""
    spill: str = ""
    """Where the drain of spilled writes stands; empty when nothing is spilled."""
    trace_n: int = 0
    trace_low: int = 1
    """The first entry of the trace that is still there."""
    last_sent_us: int = 0
    created_at_us: int = 0
    updated_at_us: int = 0
    listed: bool = True
    """Whether it stands in the listing index; children do once they failed, or an operator moved them."""
    bucket: int = 0
    """In which bucket it stood there when it was read."""
    resume_status: str = ""
    """Of a suspended execution: the status to go back to. Of another one: it was resumed, and its messages and tasks
    are still to be put back into the index."""
    parked: str = ""
    """Why the worker that looked at it last could not go on. Never written with the state: every change clears it."""

    @property
    def key(self) -> Key:
        """Where it is stored."""
        return Key(EXECUTIONS, self.id, STATE)

    @property
    def ended(self) -> bool:
        """Whether it takes no more events."""
        return self.status in ENDED

    @property
    def is_resuming(self) -> bool:
        """Whether its messages and tasks are still to be put back into the index."""
        return bool(self.resume_status) and self.status not in ("suspended", "purging")

    def unchanged(self) -> Condition:
        """Holds while the stored state is the one that this value was read from.

        An id may have been purged and started again, and have come to the same version: hence the time of its birth.
        """
        timers = equals("timers", self.timers) if self.timers else absent("timers")
        return all_of(equals("version", self.version), timers, equals("created_at_us", self.created_at_us))

    def wakes_at(self) -> tuple[str, int] | None:
        """Class and time of the item's entry in the ``pending`` index; None: no entry."""
        if self.status in ("suspended", "purging"):
            return None
        if self.spill or self.status == "pending" or self.resume_status:
            return "work", self.updated_at_us
        if self.timers and not self.ended:
            return "timer", decode_timers(self.timers)[0].due_us
        return None

    def bucket_in(self, buckets: int) -> int:
        """The bucket in which it is listed when ``buckets`` are put into: never one before that in which it is.

        A process may know of fewer buckets than the one that wrote it last. Were it put back, a listing that goes
        through the buckets in order could miss it.
        """
        return max(self.bucket, bucket_of(self.id, buckets))

    def to_item(self, buckets: int) -> Item:
        """The item to store."""
        item: Item = {
            "id": self.id,
            "sort": STATE,
            "format": FORMAT,
            "version": self.version,
            "status": self.status,
            "machine": self.machine,
            "machine_hash": self.machine_hash,
            "data": self.data,
            "created_at_us": self.created_at_us,
            "updated_at_us": self.updated_at_us,
        }
        bucket = self.bucket_in(buckets)
        if self.listed:
            item["listing"] = f"{self.status}/{bucket}"
            item["listed"] = f"{self.machine}/{self.id}"
        if self.timers:
            item["timers"] = self.timers
        if self.recent_ids:
            item["recent_ids"] = self.recent_ids
        if self.last_sent_us:
            item["last_sent_us"] = self.last_sent_us
        if self.parent_id:
            item["parent_id"] = self.parent_id
        if self.spill:
            item["spill"] = self.spill
        if self.trace_n:
            item["trace_n"] = self.trace_n
            item["trace_low"] = self.trace_low
        if self.resume_status:
            item["resume_status"] = self.resume_status
        wake = self.wakes_at()
        if wake is not None:
            item["pending"] = f"{wake[0]}/{bucket}"
            item["rank_us"] = wake[1]
        return item


def state_of(item: Mapping[str, Any]) -> State:
    """The state in ``item``. Raises CorruptItem when it cannot be one, NewerFormat when newer code wrote it."""
    check_format(item, f"the state of execution {item.get('id')!r}")
    try:
        return State(
            id=item["id"],
            version=item["version"],
            status=item["status"],
            machine=item["machine"],
            machine_hash=item["machine_hash"],
            data=item["data"],
            parent_id=item.get("parent_id", ""),
            timers=item.get("timers", ""),
            recent_ids=item.get("recent_ids", b""),
            spill=item.get("spill", ""),
            trace_n=item.get("trace_n", 0),
            trace_low=item.get("trace_low", 1),
            last_sent_us=item.get("last_sent_us", 0),
            created_at_us=item.get("created_at_us", 0),
            updated_at_us=item.get("updated_at_us", 0),
            listed="listing" in item,
            bucket=int(item["listing"].rpartition("/")[2]) if "listing" in item else 0,
            resume_status=item.get("resume_status", ""),
            parked=item.get("parked", ""),
        )
    except KeyError as error:
        raise CorruptItem(f"the state of execution {item.get('id')!r} lacks {error}; see `casework show`") from None
    except (AttributeError, ValueError):
        what = f"{item.get('listing')!r:.80}"
        raise CorruptItem(
            f"the state of execution {item.get('id')!r} is listed in {what}, which is no bucket"
        ) from None


def decode_data(state: State, text: str) -> Data:
    """The decoded ``data``; CorruptItem when it is not what this code wrote."""
    try:
        return _decode_data(text)
    except msgspec.DecodeError as error:
        raise CorruptItem(f"the data of execution {state.id!r:.200} cannot be read: {error}") from None


def encode_data(data: Data) -> str:
    """The text to store."""
    return _encode(data).decode()


def decode_timers(text: str) -> list[Timer]:
    """The timers in a stored text; CorruptItem when it is not what this code wrote."""
    if not text:
        return []
    try:
        return _decode_timers(text)
    except msgspec.DecodeError as error:
        raise CorruptItem(f"timers cannot be read: {error}") from None


def encode_timers(timers: list[Timer]) -> str:
    """The text to store: earliest first, empty when there are none."""
    if not timers:
        return ""
    return _encode(sorted(timers, key=lambda timer: timer.due_us)).decode()
