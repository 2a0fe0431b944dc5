"""The item of a task, at ``w/<stay>/<name>`` in its execution's partition.

It stands in the ``pending`` index from the start, in a partition of its own kind: tasks need room in a worker, and
those that find none must not stand before what needs no room. At first it is due now, while it is claimed due when its
lease ends, after a failed attempt due when its pause is over. So a crashed worker's task is found again without any
sweep of its own.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import msgspec

from casework.errors import CorruptItem, Misuse
from casework.executions.runtime import Runtime
from casework.executions.state import State, short_birth
from casework.kernel.items import Item, Key, Put
from casework.kernel.retry import fraction
from casework.kernel.schema import EXECUTIONS, FORMAT, bucket_of, check_format
from casework.statechart import snapshot as chart

TASK_BEGIN, TASK_END = "w/", "w0"

DEFAULT_LEASE_S = 30.0
"""A worker renews its lease well within this; a crashed one's task is due again after it."""


class TaskRetry(msgspec.Struct, frozen=True):
    """When a failed attempt is repeated. Pauses grow by ``factor`` from ``initial_us`` to ``max_us``."""

    max_attempts: int = 3
    initial_us: int = 1_000_000
    factor: float = 2.0
    max_us: int = 0
    """The longest pause; 0: five minutes, or ``initial_us`` where that is longer."""
    jitter: bool | float = True
    """Whether a part of the pause is random, half of it; a number says which share."""

    def pause_us(self, attempt: int, dice: str) -> int:
        """Microseconds to wait after failed attempt number ``attempt``; ``dice`` is a fresh token."""
        most = self.max_us or max(300_000_000, self.initial_us)
        full = min(most, self.initial_us * self.factor ** min(attempt - 1, 60))
        share = self.jitter if type(self.jitter) is float else 0.5 * self.jitter
        return int(full * (1 - share * fraction(dice)))


class TaskOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the definition says about a task."""

    retry: TaskRetry = TaskRetry()
    timeout_us: int = 0
    """Bound on one attempt; 0: none."""
    heartbeat_us: int = 0
    """The function must call ``task.heartbeat()`` at least this often; 0: the worker's own renewal suffices."""


class Task(msgspec.Struct, kw_only=True):
    """A task as it is stored."""

    id: str
    sort: str
    machine: str
    """Name of the machine whose function it is."""
    src: str
    input: str
    options: TaskOptions
    key: str
    """The idempotency key that the function is given: the same for every attempt."""
    attempt: int = 0
    """Attempts so far, crashed ones included."""
    token: str = ""
    """The fencing token of the claim; empty while nobody holds it."""
    lease_until_us: int = 0
    lease_us: int = 0
    beats: int = 0
    """Renewals of this claim."""
    created_at_us: int = 0
    rank_us: int = 0
    """When it is due: at first at once, then after a pause, and while it is claimed when its lease ends."""
    last_error: str = ""
    details: str = ""
    """JSON that the function gave to ``heartbeat``; the next attempt finds it."""
    is_external: bool = False
    """Claimed, and to be completed from outside by its token."""
    is_open: bool = False
    """Its definition gives a name alone, which may be a machine's, and whoever began it knew neither."""

    @property
    def place(self) -> Key:
        """Where it is stored."""
        return Key(EXECUTIONS, self.id, self.sort)

    @property
    def stay(self) -> int:
        """The stay that started it."""
        return int(self.sort.split("/", 2)[1])

    @property
    def name(self) -> str:
        """The id of the invocation."""
        return self.sort.split("/", 2)[2]


def task_sort(stay: int, invoke_id: str) -> str:
    """The sort key of a task."""
    return f"w/{stay:08d}/{invoke_id}"


def task_key(state: State, stay: int, invoke_id: str, redrives: int) -> str:
    """The idempotency key of a task, by which its result is known again, too.

    It ends with the birth: an id that was purged and is started again must not meet the side effects of its first life.
    """
    suffix = f"/redrive-{redrives}" if redrives else ""
    return f"{state.id}/{stay}/{invoke_id}-{short_birth(state.created_at_us)}{suffix}"


def task_put(
    rt: Runtime, state: State, effect: chart.StartTask, now_us: int, redrives: int, *, is_open: bool = False
) -> Put:
    """The write that makes a task, due now."""
    item: Item = {
        "id": state.id,
        "sort": task_sort(effect.stay, effect.invoke_id),
        "format": FORMAT,
        "machine": state.machine,
        "src": effect.src,
        "input": rt.encode(msgspec.json.encode(effect.input).decode()),
        "key": task_key(state, effect.stay, effect.invoke_id, redrives),
        "created_at_us": now_us,
        "pending": f"task/{bucket_of(state.id, rt.options.buckets)}",
        "rank_us": now_us,
    }
    if is_open:
        item["is_open"] = True
    if effect.options:
        item["options"] = msgspec.json.encode(effect.options).decode()
    return Put(EXECUTIONS, item)


_decode_options = msgspec.json.Decoder(TaskOptions).decode


def task_of(item: Mapping[str, Any]) -> Task:
    """The task in ``item``; CorruptItem, NewerFormat when it cannot be read."""
    where = f"task {item['sort']!r} of execution {item['id']!r}"
    check_format(item, where)
    try:
        return Task(
            id=item["id"],
            sort=item["sort"],
            machine=item["machine"],
            src=item["src"],
            input=item["input"],
            options=_decode_options(item["options"]) if "options" in item else TaskOptions(),
            key=item["key"],
            attempt=item.get("attempt", 0),
            token=item.get("token", ""),
            lease_until_us=item.get("lease_until_us", 0),
            lease_us=item.get("lease_us", 0),
            beats=item.get("beats", 0),
            created_at_us=item.get("created_at_us", 0),
            rank_us=item["rank_us"],
            last_error=item.get("last_error", ""),
            details=item.get("details", ""),
            is_external=item.get("is_external", False),
            is_open=item.get("is_open", False),
        )
    except (KeyError, msgspec.DecodeError) as error:
        raise CorruptItem(f"{where} cannot be read: {error}") from None


def public_token(task: Task) -> str:
    """The token by which a task is completed from outside: says where it is, and proves the claim."""
    return base64.urlsafe_b64encode(msgspec.json.encode([task.id, task.sort, task.token])).decode().rstrip("=")


def read_public_token(token: str) -> tuple[Key, str]:
    """Where the task is and its claim's token; Misuse when this is no task token."""
    try:
        parts = msgspec.json.decode(
            base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)), type=tuple[str, str, str]
        )
    except (binascii.Error, ValueError, msgspec.DecodeError, TypeError):
        raise Misuse(f"{token!r:.60} is not a task's token; pass task.token unchanged") from None
    return Key(EXECUTIONS, parts[0], parts[1]), parts[2]
