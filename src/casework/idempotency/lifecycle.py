"""The life of a record: claim, complete, release, renew. Each is one conditional write.

**Who may take over.** A lease's end stands in the record by the upper bound of its holder's time, so it may be taken
over when the lower bound of the caller's time is past it. A caller whose clock is only known to a second or worse could
not keep leases below a second that way. So it may also be taken over when the caller saw the same token and the same
number of renewals unchanged for the whole length of the lease on its own steady clock: :class:`Sightings` remembers
since when. Both are safe under any skew; a renewal in between refuses the takeover, which names token and renewals.

**Answers that were lost.** A plain write is resolved by its nonce; where nothing in the store tells, the record is read
back and its token compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from casework.arguments import check_count, check_instance, check_text
from casework.errors import (
    ConditionFailed,
    Contention,
    CorruptItem,
    Misuse,
    NewerFormat,
    OutcomeUnknown,
    ResultLost,
    StoreError,
)
from casework.idempotency import record as records
from casework.idempotency.record import BUSY, CLAIMED, COMPLETED, DONE, NEW, RECLAIMED, RELEASED, ClaimResult, Record
from casework.kernel.conditions import Condition, absent, all_of, equals, present
from casework.kernel.effects import Flag, Instant
from casework.kernel.items import AnyWrite, Check, Item, Key, Put, Table, Update
from casework.kernel.programs import Program, get, get_many, lost_again, now, sleep, token, transact, write
from casework.kernel.retry import RetryPolicy
from casework.kernel.schema import IDEMPOTENCY

RACES = RetryPolicy(first_pause_s=0.005, max_pause_s=0.25, rounds_max=16)

UNKNOWN_MAX = 3
"""A write whose answer was lost, and that was not applied, is tried so often before that is reported."""

MAX_LEASE_S = 7 * 86_400.0
MAX_KEPT_S = 100 * 366 * 86_400.0

SIGHTINGS_MAX = 10_000
"""Keys whose last sighting is remembered; the oldest is forgotten first, which only makes a takeover later."""

STEADY_DRIFT = 1.001
"""Two steady clocks may differ by so much; a lease is taken over by sightings only after a little more than it."""


class Direct(Protocol):
    """Records that need no store: the same operations, done at once. Safe to use from several threads."""

    def claim(
        self, key: str, fingerprint: str, fingerprint_version: int, lease_us: int, same_payload: bool
    ) -> ClaimResult:
        """See :func:`claim`."""

    def completed(self, key: str) -> Record | None:
        """The record of a key, if it is completed and has not expired."""

    def complete(
        self, key: str, token: str, status: int, headers: tuple[tuple[str, str], ...], body: bytes, kept_us: int
    ) -> bool:
        """See :func:`complete`."""

    def release(self, key: str, token: str) -> bool:
        """See :func:`release`."""

    def renew(self, key: str, token: str, lease_us: int) -> bool:
        """See :func:`renew`."""

    def read(self, key: str) -> Record | None:
        """See :func:`read`."""

    def remove(self, key: str) -> bool:
        """Forget a key; False when there is none."""


class Poll:
    """The one poll of a key that all who wait for it in this process share."""

    __slots__ = ("changed", "followers", "is_over", "lead", "nudge", "record")

    def __init__(self) -> None:
        self.lead = [True]
        """Whoever pops it looks at the store; it is put back when that caller leaves. Popping is atomic."""
        self.nudge = Flag()
        self.changed = Flag()
        self.followers = 0
        self.is_over = False
        self.record: Record | None = None


class Shared:
    """What the programs of one store share in a process.

    Args:
        steady_us: this process's steady clock, in microseconds.
        table: the records' table.
        grace_s: claims and results outlive their end by so much before the store may forget them.
        direct: records that are in this process's memory and need no store.
    """

    __slots__ = ("_seen", "direct", "grace_s", "held", "polls", "steady_us", "table")

    def __init__(
        self, steady_us: Callable[[], int], table: Table = IDEMPOTENCY, grace_s: int = 60,
        direct: Direct | None = None,
    ) -> None:  # fmt: skip
        if type(grace_s) is not int or grace_s < 0:
            raise Misuse(f"lease_grace_seconds is {grace_s!r}; it must be a whole number of seconds, 0 or more")
        self.direct = direct
        self.steady_us = steady_us
        self.table = table
        self.grace_s = grace_s
        self.polls: dict[str, Poll] = {}
        self.held: dict[str, int] = {}
        """Renewals of the claims of this process, by token."""
        self._seen: dict[str, tuple[str, int, str, int]] = {}

    def place(self, key: str) -> Key:
        """Where the record of a key is."""
        return Key(self.table, key, records.RECORD)

    def note(self, record: Record, at_us: int) -> None:
        """Remember since when this very claim, or completion, was seen unchanged."""
        last = self._seen.get(record.key)
        if last is not None and last[:3] == (record.token, record.renewals, record.state):
            return
        self._seen.pop(record.key, None)
        while len(self._seen) >= SIGHTINGS_MAX:
            self._seen.pop(next(iter(self._seen), ""), None)
        self._seen[record.key] = (record.token, record.renewals, record.state, at_us)

    def note_own(self, key: str, state: str, token: str, renewals: int) -> None:
        """What this process wrote and saw acknowledged counts as a sighting, too."""
        self.note(Record(key=key, state=state, token=token, renewals=renewals), self.steady_us())

    def hold(self, token: str, renewals: int) -> None:
        """Remember how often a claim of this process was renewed."""
        self.held[token] = renewals
        while len(self.held) > SIGHTINGS_MAX:
            self.held.pop(next(iter(self.held), ""), None)

    def seen_for_us(self, record: Record, until_us: int) -> int:
        """How long this very claim, or completion, was seen unchanged; 0 when it was not."""
        last = self._seen.get(record.key)
        if last is None or last[:3] != (record.token, record.renewals, record.state):
            return 0
        return until_us - last[3]

    def nudge(self, key: str) -> None:
        """Have whoever waits for the key in this process look at once."""
        poll = self.polls.get(key)
        if poll is not None:
            poll.nudge.set()


def has_lapsed(shared: Shared, record: Record, moment: Instant, asked_us: int) -> bool:
    """Whether a claim's lease has ended, or a result's time is over, for certain.

    Args:
        shared: of the store.
        record: as it was read.
        moment: the time before it was read.
        asked_us: the steady time before it was read.
    """
    if record.state == CLAIMED:
        end_us, length_us = record.lease_until_us, record.lease_us
    elif record.state == COMPLETED and record.kept_us:
        end_us, length_us = record.expires_at_us, record.kept_us
    else:
        return record.state == RELEASED
    if moment.earliest_us >= end_us:
        return True
    return moment.latest_us > moment.earliest_us and shared.seen_for_us(record, asked_us) >= length_us * STEADY_DRIFT


def check_key(key: object) -> None:
    """Misuse when ``key`` cannot be an idempotency key."""
    if not isinstance(key, str) or not key:
        raise Misuse(f"{key!r:.80} is not an idempotency key; use a non-empty string of at most 2048 bytes")


def to_us(seconds: float, what: str, most_s: float) -> int:
    """A length in microseconds; Misuse when it is none."""
    given: Any = seconds
    if type(given) not in (int, float) or not 0 < given <= most_s:
        raise Misuse(f"{what} is {seconds!r}; it must be a number of seconds above 0, at most {most_s:,.0f}")
    return max(1, round(seconds * 1_000_000))


# --- claim ------------------------------------------------------------------------------------------------------------


def claim(
    shared: Shared,
    key: str,
    fingerprint: str,
    fingerprint_version: int,
    lease_ttl_seconds: float,
    *,
    same_payload: bool = False,
) -> Program[ClaimResult]:
    """Take the key if it is free, or its lease has lapsed, or its result has expired; else say who has it.

    Args:
        shared: of the store.
        key: what identifies the operation, 1 to 2048 bytes.
        fingerprint: of the payload.
        fingerprint_version: of the way in which the fingerprint was made.
        lease_ttl_seconds: the claim can be taken over so long after its last renewal.
        same_payload: take over a lapsed claim only when it has the same fingerprint.

    Raises:
        NewerFormat: the record was written by a newer casework; it is left as it is.
        ResultLost: the record is completed, but a part of its result is missing.
        Contention: too many races were lost in a row.
    """  # fmt: skip
    check_key(key)
    check_text("fingerprint", fingerprint, 1024, may_be_empty=True)
    check_count("fingerprint_version", fingerprint_version, 0, 2**31)
    lease_us = to_us(lease_ttl_seconds, "lease_ttl_seconds", MAX_LEASE_S)
    if shared.direct is not None:
        return shared.direct.claim(key, fingerprint, fingerprint_version, lease_us, same_payload)
    fresh = yield from token()
    attempt = _Attempt(key, fingerprint, fingerprint_version, fresh, lease_us)
    lost = 0
    while True:
        moment = yield from now()
        asked_us = shared.steady_us()
        won, found = yield from _put(shared, attempt, moment)
        if won:
            if moment.latest_us > moment.earliest_us:
                shared.note(attempt.record, shared.steady_us())
            shared.hold(fresh, 0)
            return ClaimResult(attempt.result, attempt.record, fresh, attempt.recovered)
        stands = attempt.consider(shared, found, moment, asked_us, same_payload)
        if stands is not None:
            if stands.state != COMPLETED:
                return ClaimResult(BUSY, stands, None)
            whole = yield from load_body(shared, stands)
            if whole is not None:
                return ClaimResult(DONE, whole, None)
        lost += 1
        if RACES.gives_up(lost):
            raise Contention(f"idempotency key {key!r:.80}: lost {lost} races in a row; try again")
        if lost > 1:
            yield from sleep(RACES.pause_s(lost, fresh + str(lost)))


class _Attempt(msgspec.Struct):
    """A claim under way: what the next put is to replace."""

    key: str
    fingerprint: str
    fingerprint_version: int
    token: str
    lease_us: int
    condition: Condition = absent()
    result: str = NEW
    epoch: int = 1
    recovered: bool = False
    record: Record = None  # type: ignore[assignment]

    def item(self, moment: Instant, grace_s: int) -> Item:
        """What to put."""
        self.record = Record(
            key=self.key, state=CLAIMED, fingerprint=self.fingerprint, fingerprint_version=self.fingerprint_version,
            token=self.token, epoch=self.epoch, lease_us=self.lease_us,
            lease_until_us=moment.latest_us + self.lease_us, created_at_us=moment.middle_us,
        )  # fmt: skip
        return records.claim_item(self.record, grace_s)

    def consider(
        self, shared: Shared, found: Item | None, moment: Instant, asked_us: int, same_payload: bool
    ) -> Record | None:
        """The record when it stands; None when it may be replaced, on the condition that is set here."""
        self.recovered = False
        self.result = NEW
        if found is None:
            self.condition = absent()
            return None
        try:
            record = records.record_of(found)
        except NewerFormat:
            raise
        except CorruptItem:
            self.recovered = True
            self.condition = records.same_item(found)
            return None
        if not has_lapsed(shared, record, moment, asked_us):
            shared.note(record, shared.steady_us())
            return record
        if record.state == CLAIMED:
            if same_payload and not matches(record, self.fingerprint, self.fingerprint_version):
                return record
            self.result = RECLAIMED
        self.epoch = record.epoch + 1
        self.condition = records.unchanged(record)
        return None


def matches(record: Record, fingerprint: str, fingerprint_version: int) -> bool:
    """Whether a record is of the same payload."""
    return record.fingerprint == fingerprint and record.fingerprint_version == fingerprint_version


def _put(shared: Shared, attempt: _Attempt, moment: Instant) -> Program[tuple[bool, Item | None]]:
    """Try to store the claim: whether it is ours, else the item that stands. A caller that ends releases it."""
    try:
        yield from write(Put(shared.table, attempt.item(moment, shared.grace_s), attempt.condition))
        return True, None
    except ConditionFailed as refused:
        refusal = refused.refusals[0]
        return False, dict(refusal.item) if refusal is not None and refusal.item is not None else None
    except OutcomeUnknown:
        found = yield from get(shared.place(attempt.key))
        return found is not None and found.get("token") == attempt.token, found
    except (Exception, GeneratorExit):
        raise
    except BaseException:  # the caller was cancelled or interrupted, and the claim may have landed
        yield from release(shared, attempt.key, attempt.token)
        raise


def load_body(shared: Shared, record: Record) -> Program[Record | None]:
    """The record with its whole body, read from its chunks; None when it is no longer what stands there.

    The record may be seen before its chunks, and both go when its time is over. A check tells a chunk that does not
    show yet, with whose transaction it conflicts, from one that is lost. Raises ResultLost.
    """
    if not record.chunks:
        return record
    keys = records.chunk_keys(shared.table, record)
    same = all_of(equals("token", record.token), equals("state", COMPLETED))
    lost = 0
    while True:
        chunks = yield from get_many(keys)
        body = records.joined(record, chunks)
        if body is not None:
            return msgspec.structs.replace(record, body=body, chunks=0)
        if None not in chunks:
            raise _result_lost(record)  # all are there, and they do not make up the result
        checks = [Check(shared.place(record.key), same), *(Check(key, present()) for key in keys)]
        reason: StoreError = Contention(f"idempotency key {record.key!r:.80}: its result does not show yet; try again")
        try:
            yield from transact(checks)
        except ConditionFailed as refused:
            if refused.refusals[0] is not None:
                return None
            raise _result_lost(record) from None
        except (Contention, OutcomeUnknown) as error:
            reason = error
        lost = yield from lost_again(lost, RACES, reason)


def _result_lost(record: Record) -> ResultLost:
    return ResultLost(
        f"idempotency record {record.key!r} is completed, but a part of its result of {record.size:,} bytes "
        "is missing; it is not run again. `casework idempotency purge` allows that"
    )


def read(shared: Shared, key: str) -> Program[Record | None]:
    """The record of a key as it is stored, without its chunks; None when there is none."""
    check_key(key)
    if shared.direct is not None:
        return shared.direct.read(key)
    item = yield from get(shared.place(key))
    return None if item is None else records.record_of(item)


# --- complete, release, renew ---------------------------------------------------------------------------------------


def completion_writes(
    shared: Shared, key: str, token: str, status: int, headers: records.Headers | None, body: bytes,
    expires_after_seconds: float | None, moment: Instant,
) -> list[AnyWrite]:  # fmt: skip
    """The writes of a completion: the record first, then its chunks."""
    pairs, kept_us = _checked(key, status, headers, body, expires_after_seconds)
    attributes = records.completion(status, pairs, body, moment.middle_us, moment.latest_us, kept_us, shared.grace_s)
    removed = () if kept_us else ("expires_at_s",)
    writes: list[AnyWrite] = [Update(shared.place(key), attributes, removed, records.held(token))]
    if "chunks" in attributes:
        expires_at_s = attributes.get("expires_at_s")
        writes += records.chunk_puts(shared.table, key, token, body, attributes["chunks"], expires_at_s)
    return writes


def _checked(
    key: str, status: int, headers: records.Headers | None, body: bytes, expires_after_seconds: float | None
) -> tuple[tuple[tuple[str, str], ...], int]:
    """The headers as pairs, and how long to keep the result; Misuse, ItemTooLarge when it cannot be stored."""
    check_key(key)
    check_count("status", status, 0, 2**31)
    if headers is not None:
        check_instance("headers", headers, (Mapping, list, tuple), "a mapping, or pairs, of text")
    kept_us = 0 if expires_after_seconds is None else to_us(expires_after_seconds, "expires_after_seconds", MAX_KEPT_S)
    pairs = records.header_pairs(headers)
    records.check_size(key, pairs, body)
    return pairs, kept_us


def complete(
    shared: Shared,
    key: str,
    token: str,
    status: int,
    headers: records.Headers | None,
    body: bytes,
    expires_after_seconds: float | None,
) -> Program[bool]:
    """Store the result and end the claim, if it is still that of ``token``; False when it is not.

    Args:
        shared: of the store.
        key: as it was claimed.
        token: of the claim.
        status: what kind of result it is; an HTTP status, or the caller's own number.
        headers: a mapping or pairs of text; handed out as pairs.
        body: the result, at most 3,500,000 bytes.
        expires_after_seconds: forget it after so long; None: never.

    Raises ItemTooLarge, Misuse before anything is written; OutcomeUnknown when nothing tells what became of it.
    """  # fmt: skip
    check_text("token", token)
    if shared.direct is not None:
        pairs, kept_us = _checked(key, status, headers, body, expires_after_seconds)
        done = shared.direct.complete(key, token, status, pairs, body, kept_us)
        shared.nudge(key)
        return done
    attempts = 0
    applied = None
    while applied is None:
        attempts += 1
        moment = yield from now()
        writes = completion_writes(shared, key, token, status, headers, body, expires_after_seconds, moment)
        applied = yield from _end(writes)
        if applied is None:
            found = yield from get(shared.place(key))
            if _is_completion_of(found, token, moment):
                applied = True
            elif _renewals_of(found, token) is None:
                applied = False
            elif attempts == UNKNOWN_MAX:  # the claim stands, so nothing was applied, so often
                raise OutcomeUnknown(f"complete {key!r:.80}: no answer; nothing was stored so far, try again")
    renewals = shared.held.pop(token, 0)
    shared.nudge(key)
    if applied and moment.latest_us > moment.earliest_us:
        shared.note_own(key, COMPLETED, token, renewals)
    return applied


def _end(writes: Sequence[AnyWrite]) -> Program[bool | None]:
    """Carry out a completion or release: whether it was applied; None when the answer was lost."""
    first = writes[0]
    try:
        if len(writes) == 1 and isinstance(first, Update):
            yield from write(first)
        else:
            yield from transact(writes)
        return True
    except ConditionFailed:
        return False
    except OutcomeUnknown:
        return None


def _is_completion_of(found: Mapping[str, Any] | None, token: str, moment: Instant) -> bool:
    return (
        found is not None
        and found.get("state") == COMPLETED
        and found.get("token") == token
        and found.get("completed_at_us") == moment.middle_us
    )


def release(shared: Shared, key: str, token: str) -> Program[bool]:
    """Give the claim up, so that the next caller begins at once; False when it was not, or no longer, ``token``'s."""
    check_key(key)
    check_text("token", token)
    if shared.direct is not None:
        released = shared.direct.release(key, token)
        shared.nudge(key)
        return released
    attempts = 0
    applied = None
    while applied is None:
        attempts += 1
        moment = yield from now()
        attributes: dict[str, Any] = {
            "state": RELEASED,
            "expires_at_s": moment.latest_us // 1_000_000 + 1 + shared.grace_s,
        }
        applied = yield from _end([Update(shared.place(key), attributes, (), records.held(token))])
        if applied is None:
            found = yield from get(shared.place(key))
            if found is not None and found.get("state") == RELEASED and found.get("token") == token:
                applied = True
            elif _renewals_of(found, token) is None:
                applied = False
            elif attempts == UNKNOWN_MAX:
                raise OutcomeUnknown(f"release {key!r:.80}: no answer; the claim stands so far, try again")
    shared.held.pop(token, None)
    shared.nudge(key)
    return applied


def renew(shared: Shared, key: str, token: str, lease_ttl_seconds: float) -> Program[bool]:
    """Extend the lease of ``token``'s claim to so long from now; False when it is not, or no longer, the holder's."""
    check_key(key)
    check_text("token", token)
    lease_us = to_us(lease_ttl_seconds, "lease_ttl_seconds", MAX_LEASE_S)
    if shared.direct is not None:
        return shared.direct.renew(key, token, lease_us)
    renewals = shared.held.get(token)
    if renewals is None:
        renewals = _renewals_of((yield from get(shared.place(key))), token)
    while renewals is not None:
        moment = yield from now()
        until_us = moment.latest_us + lease_us
        attributes = {
            "renewals": renewals + 1,
            "lease_us": lease_us,
            "lease_until_us": until_us,
            "expires_at_s": until_us // 1_000_000 + 1 + shared.grace_s,
        }
        try:
            yield from write(Update(shared.place(key), attributes, (), records.held_with(token, renewals)))
        except ConditionFailed as refused:
            refusal = refused.refusals[0]
            found = refusal.item if refusal is not None else None
            renewals = _renewals_of(found, token)  # the same claim, renewed from elsewhere: renew that
            continue
        except OutcomeUnknown:
            found = yield from get(shared.place(key))
            if _renewals_of(found, token) != renewals + 1:
                renewals = _renewals_of(found, token)
                continue
        shared.hold(token, renewals + 1)
        if moment.latest_us > moment.earliest_us:
            shared.note_own(key, CLAIMED, token, renewals + 1)
        return True
    shared.held.pop(token, None)
    return False


def _renewals_of(found: Mapping[str, Any] | None, token: str) -> int | None:
    """How often ``token``'s claim was renewed; None when it does not stand."""
    if found is None or found.get("token") != token or found.get("state") != CLAIMED:
        return None
    renewals = found.get("renewals")
    return renewals if type(renewals) is int else None
