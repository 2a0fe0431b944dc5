"""Planted faults in idempotency: our own programs with one guard taken out, and the scenario that must notice it."""

from __future__ import annotations

from typing import Any

import msgspec

from casework.errors import ResultLost
from casework.idempotency import guarding, lifecycle, record
from casework.kernel.conditions import AllOf, Equals
from casework.kernel.items import Delete
from casework.kernel.programs import get_many, now, query, transact
from casework.simulation.scenarios import idempotency
from casework.simulation.scenarios.idempotency import (
    OneKey,
    OneKeyCancelled,
    OneKeyKept,
    OneKeyLate,
    OneKeyPaused,
    OneKeyReleased,
    OneKeySampled,
)
from tests.simulation.planting import ALWAYS, Fault, patched


def _by_the_upper_bound(shared: Any, rec: Any, moment: Any, asked_us: int) -> bool:
    if rec.state == record.CLAIMED:
        return bool(moment.latest_us >= rec.lease_until_us)
    return bool(rec.state == record.RELEASED)


def _by_the_middle(shared: Any, rec: Any, moment: Any, asked_us: int) -> bool:
    if rec.state == record.CLAIMED:
        return bool(moment.middle_us >= rec.lease_until_us)
    return bool(rec.state == record.RELEASED)


def _any_token(token: str) -> Any:
    return ALWAYS


def _any_token_while_claimed(token: str) -> Any:
    return Equals("state", "claimed")


def _whatever_its_renewals(rec: Any) -> Any:
    return AllOf((Equals("token", rec.token), Equals("state", rec.state)))


def _whatever_it_is(rec: Any) -> Any:
    return ALWAYS


def _any_payload(*_: Any) -> None:
    """A payload is not compared."""


def _leaves_it(shared: Any, key: str, token: str) -> Any:
    """Only who was not cancelled releases its claim."""
    return False
    yield


def _lost_at_once(shared: Any, rec: Any) -> Any:
    """A part of a result that does not show is lost."""
    chunks = yield from get_many(record.chunk_keys(shared.table, rec))
    body = record.joined(rec, chunks) if rec.chunks else rec.body
    if body is None:
        raise ResultLost("lost")
    return msgspec.structs.replace(rec, body=body, chunks=0)


def _all_chunks(shared: Any, items: Any) -> Any:
    """Whatever chunks stand there go with a record whose time is over."""
    moment = yield from now()
    for item in items:
        if "expires_at_s" not in item or item["expires_at_s"] * 1_000_000 > moment.earliest_us:
            continue
        yield from transact([Delete(shared.table.key_of(item), record.same_item(item))])
        rest = yield from query(shared.table, str(item["key"]), low="c/", high="c0", limit=90)
        if rest.items:
            yield from transact([Delete(shared.table.key_of(chunk)) for chunk in rest.items])


def _whatever_it_was(item: Any) -> Any:
    """A record that moved meanwhile is deleted as well."""
    return ALWAYS


FAULTS = (
    Fault("a part that does not show is lost", OneKeyKept, patched(lifecycle, "load_body", _lost_at_once)),
    Fault("an old record takes every chunk with it", OneKeyKept, patched(idempotency, "purge_expired", _all_chunks)),
    Fault("a record that moved is purged", OneKeyKept, patched(record, "same_item", _whatever_it_was)),
    Fault(
        "a lease is taken over by the upper bound of the clock",
        OneKey,
        patched(lifecycle, "has_lapsed", _by_the_upper_bound),
    ),
    Fault("a lease is taken over by the middle of the clock", OneKey, patched(lifecycle, "has_lapsed", _by_the_middle)),
    Fault("a lease seen for a part of its length is taken over", OneKey, patched(lifecycle, "STEADY_DRIFT", 0.3)),
    Fault("a completion is not fenced", OneKey, patched(record, "held", _any_token)),
    Fault("a completion looks at the state only", OneKeyPaused, patched(record, "held", _any_token_while_claimed)),
    Fault(
        "a takeover names the token, not the renewal",
        OneKeyLate,
        patched(record, "unchanged", _whatever_its_renewals),
    ),
    Fault("a takeover names nothing", OneKeyReleased, patched(record, "unchanged", _whatever_it_is)),
    Fault(
        "a host without a sample believes its own clock",
        OneKeySampled,
        patched(lifecycle, "has_lapsed", _by_the_middle),
    ),
    Fault("a cancelled caller leaves its claim", OneKeyCancelled, patched(lifecycle, "release", _leaves_it)),
    Fault("the payload is not compared", OneKey, patched(guarding, "_check_payload", _any_payload)),
)
