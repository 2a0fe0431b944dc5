"""Which workers there are, as each of them knows it.

Workers tell each other that they are there through the registry, each in a row of its own: when they were heard of,
until when they are to be taken for living, and how many buckets they know. From the names each computes the shares of
all, see :mod:`casework.executions.shares`. When their number changes they disagree for a moment, and a bucket is looked
at twice or not at all until the next heartbeat; both are harmless, since a look is safe to repeat and a bucket's work
waits in the store. The buckets of a worker that was killed rest for three of its heartbeats.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from casework.errors import ConditionFailed, StoreError
from casework.executions.buckets import WORKERS, is_living, let_writers_follow, refresh
from casework.executions.runtime import Runtime
from casework.executions.shares import Share, share_out
from casework.kernel.conditions import absent, any_of, greater_than
from casework.kernel.effects import Flag
from casework.kernel.items import Put, Scalar, Update
from casework.kernel.programs import Program, now, query_all, sleep, token, write
from casework.kernel.schema import FORMAT, REGISTRY

log = logging.getLogger("casework.worker")

MISSED_BEATS = 3
"""A worker that missed so many heartbeats is taken for dead."""


class Membership:
    """What one worker knows of the others.

    Args:
        rt: of its process; it learns of more buckets at each heartbeat.
    """

    def __init__(self, rt: Runtime) -> None:
        self.rt = rt
        self.name = ""
        self.others: Mapping[str, int] = {}
        """The other living workers by name, each with the number of buckets that it knows."""
        self.is_leaving = False
        """It says no more that it is there."""
        self.has_left = False
        """And the registry knows."""
        self._own: tuple[object, Share] = (None, Share(()))

    def share(self) -> Share:
        """What this worker looks at; everything while it has heard of nobody."""
        known = (self.rt.read_buckets, self.name, *self.others.items())
        if self._own[0] != known:
            self._own = (known, _share(self.rt.read_buckets, self.name, self.others))
        return self._own[1]


def _share(buckets: int, name: str, others: Mapping[str, int]) -> Share:
    """Shared out are the buckets that all know: each must compute the same. Of more, whoever knows them takes all."""
    agreed = max(1, min([buckets, *others.values()]))
    share = share_out(agreed, [name, *others])[name]
    return Share([*share.units, *range(agreed * share.parts, buckets * share.parts)], share.parts)


def beat(membership: Membership, heartbeat_s: float) -> Program[None]:
    """Say that this worker is there, and look who else is and how many buckets there are.

    Raises ConditionFailed once it has left: a beat that was on its way for long must not call it back.
    """
    if not membership.name:
        membership.name = yield from token()
    rt = membership.rt
    settings = yield from refresh(rt)
    moment = yield from now()
    heard_us = moment.middle_us
    row: dict[str, Scalar] = {
        "kind": WORKERS,
        "name": membership.name,
        "format": FORMAT,
        "heard_us": heard_us,
        "until_us": heard_us + int(MISSED_BEATS * heartbeat_s * 1e6),
        "buckets": rt.read_buckets,
        "expires_at_s": heard_us // 1_000_000 + 86_400,
    }
    yield from write(Put(REGISTRY, row, any_of(absent(), greater_than("heard_us", 0))))
    rows = yield from query_all(REGISTRY, WORKERS)
    membership.others = {
        str(other["name"]): int(other.get("buckets", 0))
        for other in rows
        if other["name"] != membership.name and is_living(other, heard_us)
    }
    yield from let_writers_follow(rt, settings)


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
    gone = {"heard_us": 0, "until_us": 0, "format": FORMAT, "expires_at_s": moment.middle_us // 1_000_000 + 86_400}
    try:
        yield from write(Update(key, gone))
        membership.has_left = True
    except StoreError as error:
        log.warning("leaving: %s: %s", type(error).__name__, error)
