"""Appending: rounds of one transaction each, until every operation is stored or answered.

A round stores the head from c to c+n on condition that it is c, one segment, and one claim for each operation, all
absent before. Whoever loses a round is handed the real head by the refusal; whose claim refuses is answered with its
own sequence number and leaves the batch, so no number is burned. A round whose answer was lost is simply sent again: if
it had been applied, its claims refuse the repeat and answer it. Later operations of the same caller wait meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from casework.arguments import check_count
from casework.errors import (
    AppendContention,
    AppendTimeout,
    AppendUnknown,
    CaseworkError,
    ConditionFailed,
    Contention,
    CorruptItem,
    Misuse,
    OpIdReused,
    OutcomeUnknown,
    Refusal,
    StreamDamaged,
    StreamFull,
    Throttled,
    UnexpectedSeq,
)
from casework.kernel.conditions import Condition, absent, equals, present
from casework.kernel.effects import Get, Query
from casework.kernel.items import AnyWrite, Check, Put, Update
from casework.kernel.limits import MAX_INT
from casework.kernel.programs import Program, all_reads, get_many, lost_again, now, sleep, token, transact
from casework.kernel.retry import Pauses, RetryPolicy, fraction
from casework.kernel.schema import FORMAT, REGISTRY, STREAM_CLAIMS, STREAMS
from casework.streams.log import (
    BATCH_BYTES_MAX,
    BATCH_OPS_MAX,
    STREAM_NAMES,
    Appended,
    Log,
    Op,
    Place,
    check_op,
    check_ops,
    check_stream,
    claim_key,
    digest,
    head_key,
    head_of,
    marker_item,
    segment_item,
)

YIELD_EVERY_WINS = 20
"""A writer pauses once in so many rounds won, so that one that never met another cannot starve it."""

LOOKS = RetryPolicy(first_pause_s=0.02, max_pause_s=0.4, rounds_max=12)
"""Looks at claims that others have in a transaction."""

SLOW_DOWN = Pauses(first_pause_s=0.05, max_pause_s=0.4)
"""Pauses after the store asked for a slower pace."""


class Call:
    """The operations of one caller: what stands behind one whose id is taken by other content is not stored."""

    __slots__ = ("refused", "refused_index")

    def __init__(self) -> None:
        self.refused: OpIdReused | None = None
        self.refused_index = 0


class Pending:
    """One operation on its way: what is to be stored, and in the end what became of it."""

    __slots__ = ("call", "digest", "index", "op", "outcome")

    def __init__(self, op: Op, call: Call, index: int) -> None:
        self.op = op
        self.call = call
        self.index = index
        self.digest = digest(op.data)
        self.outcome: Appended | None = None

    @property
    def is_settled(self) -> bool:
        """Whether nothing is to be done about it any more."""
        return self.outcome is not None or (self.call.refused is not None and self.index >= self.call.refused_index)

    def take_claim(self, stream: str, claim: Any) -> None:
        """Note what the claim that stands under its id says."""
        seq = None if claim is None else claim.get("seq")
        if type(seq) is not int:
            raise CorruptItem(f"the claim of {self.op.id!r} in stream {stream!r} cannot be read: {claim!r:.60}")
        if claim.get("digest") == self.digest:
            self.outcome = Appended(self.op.id, seq, is_duplicate=True)
        elif self.call.refused is None or self.index < self.call.refused_index:
            self.call.refused, self.call.refused_index = OpIdReused(self.op.id, seq), self.index


def append(log: Log, stream: str, ops: Sequence[Op], *, deadline_s: float | None = None) -> Program[list[Appended]]:
    """Store operations at the end of a stream, in their order; what became of each, in the same order.

    Args:
        log: what this process knows of its streams.
        stream: its id; it begins to exist with its first operation.
        ops: from none to thousands. More than a transaction holds are stored in several, one after the other.
        deadline_s: stop after so long, between rounds; what is stored stays stored.

    Raises:
        Misuse, ItemTooLarge: an id or an operation is wrong; nothing was written.
        OpIdReused: an operation's id is taken by other content; what was before it in the list is stored.
        AppendTimeout, AppendContention, AppendUnknown: stopped on the way; append the same again.
        StreamDamaged, StreamFull: the stream needs a person.
    """
    pendings = checked(stream, ops)
    work = Appending(log, stream, pendings)
    deadline_us = None
    if deadline_s is not None:
        moment = yield from now()
        deadline_us = moment.middle_us + round(deadline_s * 1e6)
    yield from work.run(deadline_us=deadline_us)
    return answers(pendings)


def checked(stream: str, ops: Sequence[Op]) -> list[Pending]:
    """The operations of one call, ready to be stored; raises before anything is written when one cannot be."""
    check_stream(stream)
    ops = check_ops(ops)
    seen: dict[str, bytes] = {}
    pendings = []
    call = Call()
    for position, op in enumerate(ops):
        check_op(op, position)
        pending = Pending(op, call, position)
        if seen.setdefault(op.id, pending.digest) != pending.digest:
            raise OpIdReused(op.id, 0)
        pendings.append(pending)
    return pendings


def answers(pendings: Sequence[Pending]) -> list[Appended]:
    """What became of the operations of one call; raises the refusal among them."""
    stored = [pending.outcome for pending in pendings if pending.outcome is not None]
    refused = pendings[0].call.refused if pendings else None
    if refused is not None:
        raise OpIdReused(refused.id, refused.seq, stored)
    return stored


class Appending:
    """One append under way. ``pendings`` shows at any moment how far it is, ``in_flight`` what was sent last.

    Args:
        log: what this process knows of its streams.
        stream: its id.
        pendings: the operations, in order; checked.
        more: called right before each round for operations that came meanwhile; it is told how many are left.
        expected_seq: where the stream must end; None: anywhere.
    """

    def __init__(
        self,
        log: Log,
        stream: str,
        pendings: Sequence[Pending],
        more: Callable[[int], list[Pending]] | None = None,
        *,
        expected_seq: int | None = None,
    ) -> None:
        self.log = log
        self._expected_seq = expected_seq
        self.stream = stream
        self.pendings = list(pendings)
        self._more = more
        self.in_flight: list[Pending] = []
        self._next = 0
        self._lost = 0
        self._throttled = 0
        self._at_once = False
        self._in_doubt: list[Pending] = []
        self._is_repeat = False
        """What was tried so far had been stored before, and nothing else was tried."""
        self._has_looked = False

    def run(self, *, deadline_us: int | None = None) -> Program[None]:
        """Go on until every operation is settled, but begin no round after ``deadline_us``.

        Errors as for :func:`append`, OpIdReused apart.
        """
        log, stream = self.log, self.stream
        started = yield from now()
        if not log.name:
            dice = yield from token()
            log.name = dice[:8]
        while batch := self._take_batch():
            moment = yield from now()
            if deadline_us is not None and moment.middle_us >= deadline_us:
                if not self._is_repeat:
                    yield from self._give_up(AppendTimeout, "the deadline passed")
                self._is_repeat = False  # one round more: each repeat goes further than the one before
            place = log.place(stream)
            rivals = log.rivals(stream, moment.middle_us)
            if place is not None and (place.wins >= YIELD_EVERY_WINS or (rivals and not self._at_once)):
                yield from self._pause(rivals)
                # What this process knew of the head is old now, if there is anybody else.
                place = None if rivals else msgspec.structs.replace(place, wins=0)
            if self._expected_seq is not None:
                place = yield from expected_place(log, stream, batch, self._expected_seq)
                if place is None:
                    continue
            elif place is None:
                place = yield from look(log, stream)
            self._at_once = False
            if self._more is not None and len(batch) < BATCH_OPS_MAX:
                self.pendings += self._more(len(batch))
                batch = self._take_batch()
            yield from self._round(place, batch)
        ended = yield from now()
        counts = log.counts
        counts.longest_wait_us = max(counts.longest_wait_us, ended.middle_us - started.middle_us)

    def _take_batch(self) -> list[Pending]:
        """The next operations that are not settled, as many as one transaction holds, each id once."""
        pendings, size = self.pendings, 0
        batch: list[Pending] = []
        ids: set[str] = set()
        while self._next < len(pendings) and pendings[self._next].is_settled:
            self._next += 1
        for position in range(self._next, len(pendings)):
            pending = pendings[position]
            if pending.is_settled:
                continue
            size += len(pending.op.data) + len(pending.op.id) + 10
            if len(batch) == BATCH_OPS_MAX or (batch and size > BATCH_BYTES_MAX) or pending.op.id in ids:
                break
            ids.add(pending.op.id)
            batch.append(pending)
        return batch

    def _round(self, place: Place, batch: list[Pending]) -> Program[None]:
        log, stream = self.log, self.stream
        begun = yield from now()
        writes = plan(log, stream, place, batch, begun.middle_us)
        self.in_flight = batch
        log.counts.rounds_n += 1
        try:
            yield from transact(writes)
        except ConditionFailed as failed:
            self.in_flight = []
            moment = yield from now()
            log.note_round_trip((moment.middle_us - begun.middle_us) / 1e6)
            yield from self._refused(place, batch, failed.refusals, moment.middle_us)
            return
        except OutcomeUnknown:
            # The batch stays in flight: its claims answer the repeat if it was applied, and refuse it if it comes late.
            self._in_doubt = batch
            log.remember(stream, None)
            yield from self._lost_round(AppendUnknown, "the answer was lost")
            return
        except Contention:
            self.in_flight = []
            yield from self._lost_round(AppendContention, "other writers held the items")
            return
        except Throttled:
            self.in_flight = []
            self._throttled += 1
            dice = yield from token()
            yield from sleep(SLOW_DOWN.pause_s(self._throttled, dice))
            yield from self._lost_round(AppendContention, "the store asked for a slower pace", pause=False)
            return
        moment = yield from now()
        log.note_round_trip((moment.middle_us - begun.middle_us) / 1e6)
        self._stored(place, batch)

    def _stored(self, place: Place, batch: list[Pending]) -> None:
        for number, pending in enumerate(batch, place.top + 1):
            pending.outcome = Appended(pending.op.id, number)
        top = place.top + len(batch)
        self.log.remember(self.stream, Place(top, top, wins=place.wins + 1))
        self.log.counts.ops_n += len(batch)
        self.in_flight, self._in_doubt = [], []
        self._lost = self._throttled = 0
        self._is_repeat = False
        self._has_looked = True  # what comes is new
        self.log.ring(self.stream)

    def _refused(
        self, place: Place, batch: list[Pending], refusals: Sequence[Refusal | None], now_us: int
    ) -> Program[None]:
        # The first round that is lost to others is tried again at once, with the head that was handed back.
        self._at_once = refusals[0] is not None and not self.log.rivals(self.stream, now_us)
        if learn(self.log, self.stream, place, batch, refusals, now_us):
            self._lost = 0
            if not self._has_looked and all(pending.is_settled for pending in batch):
                # A repeat: the claims of the rest are read at once, instead of a round for each 95 of them.
                self._has_looked = self._is_repeat = True
                yield from self._answer_repeats()
        else:
            # The pause comes before the next round: among rivals each round has one, whoever won or lost.
            yield from self._lost_round(AppendContention, "other writers were faster", pause=False)

    def _answer_repeats(self) -> Program[None]:
        rest = [pending for pending in self.pendings if pending.outcome is None]
        yield from resolve(self.log, self.stream, rest)
        self.log.counts.duplicates_n += sum(pending.outcome is not None for pending in rest)

    def _lost_round(self, error: type[CaseworkError], why: str, *, pause: bool = True) -> Program[None]:
        self._lost += 1
        self.log.counts.lost_rounds_n += 1
        if self._lost >= self.log.options.lost_rounds_max:
            yield from self._give_up(AppendUnknown if self._in_doubt else error, f"{why}, {self._lost} rounds in a row")
        if pause:
            yield from self._pause(1)

    def _pause(self, rivals: int) -> Program[None]:
        dice = yield from token()
        yield from sleep(self.log.pause_bound_s(max(rivals, 2)) * fraction(dice))

    def _give_up(self, error: type[Any], why: str) -> Program[None]:
        """Raise ``error`` with what is stored; what is in doubt is looked up by its claims first."""
        if self._in_doubt:
            yield from resolve(self.log, self.stream, self._in_doubt)
        doubtful = [pending.op.id for pending in self._in_doubt if pending.outcome is None]
        stored = [pending.outcome for pending in self.pendings if pending.outcome is not None]
        left = sum(pending.outcome is None for pending in self.pendings)
        raise error(
            f"stream {self.stream!r}: {why}; {len(stored)} operations are stored, {left} are not known to be. "
            "Append the same again: what is stored is answered with its own number",
            stored,
            doubtful,
        )


def learn(
    log: Log, stream: str, place: Place, batch: Sequence[Pending], refusals: Sequence[Refusal | None], now_us: int
) -> bool:
    """Take from the refusals of a round what they tell: taken ids, the real head, an occupied or a missing number.

    Whether operations of the batch were answered by it. Raises StreamDamaged, CorruptItem, NewerFormat.
    """
    head, segment, *others = refusals
    claims, extra = others[: len(batch)], others[len(batch) :]
    answered = 0
    for pending, refusal in zip(batch, claims, strict=True):
        if refusal is not None:
            pending.take_claim(stream, refusal.item)
            answered += 1
    log.counts.duplicates_n += answered
    if head is not None:
        last = head_of(stream, head.item, foreign=log.options.foreign_writers).last_seq
        log.note_rival(stream, (head.item or {}).get("by"), now_us)
        # A head that went back is a restored one: what stands above it must be looked at first.
        log.remember(stream, Place(last, last, wins=place.wins) if last > place.head else None)
    elif segment is not None or any(extra[1 if place.top else 0 :]):
        log.remember(stream, None)
    elif any(extra):
        log.remember(stream, _crossing(log, stream, place))
    return answered > 0


def _crossing(log: Log, stream: str, place: Place) -> Place:
    """What to do about the operation at ``top``: it is missing (mark it), or the marker found it there (check)."""
    if place.cross:
        return msgspec.structs.replace(place, cross=False)
    if not log.options.foreign_writers:
        raise StreamDamaged(
            f"stream {stream!r} has no segment that ends at its head {place.top}; "
            f"`casework streams repair {stream}` shows what is wrong"
        )
    return msgspec.structs.replace(place, cross=True)


def look(log: Log, stream: str) -> Program[Place]:
    """Where the next append goes, by the head and the highest item, read in one round trip."""
    page, item = yield from all_reads([Query(STREAMS, stream, limit=1, reverse=True), Get(head_key(stream))])
    moment = yield from now()
    log.note_rival(stream, (item or {}).get("by"), moment.middle_us)
    head = head_of(stream, item, foreign=log.options.foreign_writers).last_seq
    highest = int(page.items[0]["seq"]) if page.items else 0
    place = Place(head, max(head, highest))
    log.remember(stream, place)
    return place


def check_expected(stream: str, pendings: Sequence[Pending], expected_seq: Any) -> None:
    """Misuse where ``expected_seq`` is no number of an operation, or where one transaction does not hold them all."""
    check_count("expected_seq", expected_seq, 0)
    size = sum(len(pending.op.data) + len(pending.op.id) + 10 for pending in pendings)
    if len(pendings) > BATCH_OPS_MAX or (len(pendings) > 1 and size > BATCH_BYTES_MAX):
        raise Misuse(
            f"stream {stream!r}: with expected_seq all operations are stored in one transaction, which holds "
            f"{BATCH_OPS_MAX} of them and {BATCH_BYTES_MAX:,} bytes; these are {len(pendings)}, {size:,} bytes"
        )


def expected_place(log: Log, stream: str, batch: Sequence[Pending], expected_seq: int) -> Program[Place | None]:
    """Where the stream ends, if that is at ``expected_seq``; None when operations are there already, and are answered.

    An operation may have moved the head and not show its claim yet: a check of the claim conflicts with it. Raises
    UnexpectedSeq.
    """
    place = log.place(stream)
    if place is None or place.top != expected_seq:
        place = yield from look(log, stream)
    if place.top == expected_seq:
        return place
    lost = 0
    while True:
        try:
            yield from transact([Check(claim_key(stream, pending.op.id), absent()) for pending in batch])
        except ConditionFailed as failed:
            for pending, refusal in zip(batch, failed.refusals, strict=True):
                if refusal is not None:
                    pending.take_claim(stream, refusal.item)
                    log.counts.duplicates_n += 1
            return None
        except (Contention, Throttled, OutcomeUnknown) as error:
            lost = yield from lost_again(lost, LOOKS, error)
        else:
            raise UnexpectedSeq(stream, expected_seq, place.top)


def resolve(log: Log, stream: str, pendings: Sequence[Pending]) -> Program[None]:
    """Give those of ``pendings`` their outcome whose claims are there."""
    waiting = [pending for pending in pendings if pending.outcome is None]
    items = yield from get_many([claim_key(stream, pending.op.id) for pending in waiting])
    for pending, item in zip(waiting, items, strict=True):
        if item is not None:
            pending.take_claim(stream, item)


# --- the transaction --------------------------------------------------------------------------------------------------


def plan(log: Log, stream: str, place: Place, batch: Sequence[Pending], at_us: int) -> list[AnyWrite]:
    """The transaction of one round: head, segment, claims, and where they are needed the predecessor and the name.

    Raises StreamFull when the numbers are used up.
    """
    options = log.options
    last = place.top + len(batch)
    if last >= MAX_INT:
        raise StreamFull(f"stream {stream!r} is full: its head is {place.top}; begin another stream")
    writes: list[AnyWrite] = [
        Update(
            head_key(stream), {"last_seq": last, "format": FORMAT, "at_us": at_us, "by": log.name},
            when=head_is(place.head),
        ),
        Put(STREAMS, segment_item(stream, place.top + 1, [pending.op for pending in batch], at_us), when=absent()),
    ]  # fmt: skip
    for pending in batch:
        writes.append(claim_put(log, stream, pending, place.top + 1 + len(writes) - 2, at_us))
    if place.cross:
        writes.append(Put(STREAMS, marker_item(stream, place.top, place.top, at_us), when=absent()))
    elif place.top > 0 and (options.foreign_readers or options.foreign_writers):
        writes.append(Check(STREAMS.key(stream, place.top), present()))
    if options.foreign_writers and len(batch) > 1:
        # An older writer's operation at the first number would be overlapped: only the last one is absent by its put.
        writes.append(Check(STREAMS.key(stream, place.top + 1), absent()))
    if place.head == 0:
        writes.append(Put(REGISTRY, {"kind": STREAM_NAMES, "name": stream, "format": FORMAT, "begun_us": at_us}))
    return writes


def head_is(last_seq: int) -> Condition:
    """Holds while the head is at ``last_seq``."""
    return absent("last_seq") if last_seq == 0 else equals("last_seq", last_seq)


def claim_put(log: Log, stream: str, pending: Pending, seq: int, at_us: int) -> Put:
    """The claim of one operation."""
    key = claim_key(stream, pending.op.id)
    item: dict[str, Any] = {"claim": key.partition, "format": FORMAT, "seq": seq, "digest": pending.digest}
    if log.options.claims_expire_s is not None:
        item["expires_at_s"] = math.ceil(at_us / 1e6 + log.options.claims_expire_s)
    return Put(STREAM_CLAIMS, item, when=absent())
