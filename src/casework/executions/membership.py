"""Which worker looks at which bucket: rendezvous hashing over the workers that were heard of lately.

Workers tell each other that they are there through the registry. When their number changes they disagree for a
moment, and a bucket is looked at twice or not at all until the next heartbeat; both are harmless, since a look is safe
to repeat and a bucket's work waits in the store.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence

from casework.errors import ConditionFailed, StoreError
from casework.kernel.conditions import absent, any_of, greater_than
from casework.kernel.effects import Flag
from casework.kernel.items import Put, Update
from casework.kernel.programs import Program, now, query_all, sleep, token, write
from casework.kernel.schema import FORMAT, REGISTRY

log = logging.getLogger("casework.worker")

WORKERS = "worker"
"""Partition of the registry in which workers stand."""

MISSED_BEATS = 3
"""A worker that missed so many heartbeats is taken for dead."""


class Membership:
    """What one worker knows of the others."""

    def __init__(self) -> None:
        self.name = ""
        self.others: list[str] = []
        self.is_leaving = False
        """It says no more that it is there."""
        self.has_left = False
        """And the registry knows."""
        self._own: tuple[object, Sequence[int]] = (None, ())

    def own_buckets(self, buckets: int) -> Sequence[int]:
        """The buckets for which this worker scores highest; all while it has heard of nobody."""
        known = (buckets, self.name, *self.others)
        if self._own[0] != known:
            self._own = (known, _own_buckets(buckets, self.name, self.others))
        return self._own[1]


def _own_buckets(buckets: int, name: str, others: Sequence[str]) -> Sequence[int]:
    if not others:
        return range(buckets)
    names = [name, *others]
    return [bucket for bucket in range(buckets) if max(names, key=lambda n: _score(n, bucket)) == name]


def _score(name: str, bucket: int) -> bytes:
    return hashlib.blake2b(f"{bucket}/{name}".encode(), digest_size=8).digest()


def beat(membership: Membership, heartbeat_s: float) -> Program[None]:
    """Say that this worker is there, and look who else is.

    Raises ConditionFailed once it has left: a beat that was on its way for long must not call it back.
    """
    if not membership.name:
        membership.name = yield from token()
    moment = yield from now()
    heard_us = moment.middle_us
    yield from write(
        Put(
            REGISTRY,
            {
                "kind": WORKERS,
                "name": membership.name,
                "format": FORMAT,
                "heard_us": heard_us,
                "expires_at_s": heard_us // 1_000_000 + 86_400,
            },
            any_of(absent(), greater_than("heard_us", 0)),
        )
    )
    oldest_us = heard_us - int(MISSED_BEATS * heartbeat_s * 1e6)
    beats = yield from query_all(REGISTRY, WORKERS)
    membership.others = [
        str(item["name"])
        for item in beats
        if item["name"] != membership.name and int(item.get("heard_us", 0)) >= oldest_us
    ]


def keep_membership(membership: Membership, heartbeat_s: float, answered: Flag | None = None) -> Program[None]:
    """Beat until it leaves; a store that does not answer is asked again at the next beat.

    ``answered`` is set whenever the store took a beat.
    """
    while not membership.is_leaving:
        try:
            yield from beat(membership, heartbeat_s)
            if answered is not None:
                answered.set()
        except ConditionFailed:
            return
        except Exception as error:  # noqa: BLE001 - a worker that is silent is taken for dead while it works
            log.warning("heartbeat: %s: %s", type(error).__name__, error)
        yield from sleep(heartbeat_s)


def leave(membership: Membership) -> Program[None]:
    """Say that this worker looks at its buckets no more, so that others take them at once. Safe to repeat."""
    membership.is_leaving = True
    if not membership.name or membership.has_left:
        return
    key = REGISTRY.key(WORKERS, membership.name)
    moment = yield from now()
    gone = {"heard_us": 0, "format": FORMAT, "expires_at_s": moment.middle_us // 1_000_000 + 86_400}
    try:
        yield from write(Update(key, gone))
        membership.has_left = True
    except StoreError as error:
        log.warning("leaving: %s: %s", type(error).__name__, error)
