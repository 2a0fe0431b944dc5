"""How many buckets a store has, and how their number is raised while everybody works on.

The settings in the registry hold two numbers. ``read_buckets`` says in how many buckets an item may stand: whoever
looks, looks in all of them. ``buckets`` says into how many new items are put. Neither ever falls, and an item stays
where it was put until it is written again, so:

1. ``read_buckets`` is raised. Workers read it at each heartbeat, and say in their own row what they know; listings read
   it with each page.
2. When every living worker knows it, ``buckets`` follows, moved by whoever sees that first. Only then does anything
   come to stand in the new buckets. A process that still puts into the old ones does no harm: all look there too.

So nothing is ever put where nobody looks, and no worker has to stop.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from casework.errors import ConditionFailed, Contention, Misuse, OutcomeUnknown, StoreError
from casework.kernel.conditions import absent, all_of, any_of, equals, less_than, present
from casework.kernel.items import Item, Put, Scalar, Update
from casework.kernel.programs import Program, get, lost_again, now, query_all, write
from casework.kernel.retry import RetryPolicy
from casework.kernel.schema import FORMAT, MAX_BUCKETS, REGISTRY, TABLES, check_format

SETTINGS = REGISTRY.key("settings", "store")
"""What a store decides for all its processes."""

COMPONENT, RUNTIME = "component", "runtime"
"""Whose executions stand in a store, by the settings' ``owner``: another engine's, or ours."""

WORKERS = "worker"
"""Partition of the registry in which workers stand."""

REFRESH_S = 60
"""So often a process that puts reads the numbers again."""

RACES = RetryPolicy(first_pause_s=0.01, max_pause_s=0.2, rounds_max=10)


class Buckets(Protocol):
    """What a process knows of the numbers; a :class:`~casework.executions.runtime.Runtime` does."""

    read_buckets: int
    settings_read_us: int

    @property
    def write_buckets(self) -> int:
        """Into so many buckets new items are put."""

    def put_into(self, buckets: int) -> None:
        """Put new items into so many buckets from now on."""


def read_number(item: Mapping[str, Any]) -> int:
    """In how many buckets items may stand, by the store's settings."""
    return max(int(item["buckets"]), int(item.get("read_buckets", 0)))


def note_settings(known: Buckets, item: Mapping[str, Any] | None) -> None:
    """Take over the numbers that the settings hold, as far as they are higher: neither falls."""
    if item is None:
        return
    check_format(item, "the store")
    buckets = int(item["buckets"])
    known.read_buckets = max(known.read_buckets, read_number(item))
    if buckets > known.write_buckets:
        known.put_into(buckets)


def refresh(known: Buckets) -> Program[Item | None]:
    """Read the numbers again; the settings as they are stored."""
    item = yield from get(SETTINGS)
    note_settings(known, item)
    return item


def refresh_sometimes(known: Buckets) -> Program[None]:
    """Read the numbers again when they were last read a minute ago: for processes that only put, and beat no heart.

    A help: what they put into the old buckets is found there. So a store that does not answer now is asked later.
    """
    moment = yield from now()
    if known.settings_read_us and moment.middle_us - known.settings_read_us >= REFRESH_S * 1_000_000:
        try:
            yield from refresh(known)
        except StoreError:
            pass
    elif known.settings_read_us:
        return
    known.settings_read_us = moment.middle_us


def raise_buckets(known: Buckets, number: int) -> Program[bool]:
    """Give the store more buckets; False while a living worker does not know them yet: it completes the raise itself.

    Raises Misuse for a number out of bounds, and for one that is below the store's. Safe to repeat.
    """
    if type(number) is not int or not 1 <= number <= MAX_BUCKETS:
        raise Misuse(f"buckets is {number!r:.80}; it must be a whole number from 1 to {MAX_BUCKETS}")
    lost = 0
    while True:
        item = yield from refresh(known)
        if item is None:
            yield from make_settings(known)
            continue
        stands_in = known.read_buckets
        if number < stands_in:
            raise Misuse(
                f"the store has {stands_in} buckets and cannot go back to {number}: what stands in buckets {number} to "
                f"{stands_in - 1} would be found no more; more than {stands_in} is possible"
            )
        if number == stands_in:
            return (yield from let_writers_follow(known, item))
        lower = any_of(absent("read_buckets"), less_than("read_buckets", number))
        try:
            yield from write(Update(SETTINGS, {"read_buckets": number}, when=all_of(present(), lower)))
        except (ConditionFailed, Contention, OutcomeUnknown) as error:
            lost = yield from lost_again(lost, RACES, error)


def make_settings(known: Buckets) -> Program[None]:
    """Give a store without settings the number that this process has: one that only components have used."""
    moment = yield from now()
    item: dict[str, Scalar] = {
        "kind": SETTINGS.partition, "name": str(SETTINGS.sort), "format": FORMAT, "buckets": known.write_buckets,
        "tables": len(TABLES), "created_at_us": moment.middle_us,
    }  # fmt: skip
    try:
        yield from write(Put(REGISTRY, item, absent()))
    except (ConditionFailed, OutcomeUnknown):
        pass  # somebody else may have made them meanwhile; they are read again


def let_writers_follow(known: Buckets, item: Mapping[str, Any] | None) -> Program[bool]:
    """Let new items be put into all buckets, if every living worker looks there; whether it is so now."""
    if item is None:
        return False
    wanted = read_number(item)
    if int(item["buckets"]) >= wanted:
        return True
    moment = yield from now()
    workers = yield from query_all(REGISTRY, WORKERS)
    if any(is_living(row, moment.middle_us) and int(row.get("buckets", 0)) < wanted for row in workers):
        return False
    try:
        yield from write(Update(SETTINGS, {"buckets": wanted}, when=equals("buckets", item["buckets"])))
    except (ConditionFailed, OutcomeUnknown):
        pass  # somebody else may have moved it meanwhile: what is read now tells
    yield from refresh(known)
    return known.write_buckets >= wanted


def is_living(row: Mapping[str, Any], now_us: int) -> bool:
    """Whether a worker's row says that it is there: it has promised its next heartbeat for later."""
    return int(row.get("until_us", 0)) >= now_us
