"""What ``app.transaction()`` can hold: each intent plans its writes, and says what a refusal of them means.

An intent whose writes depend on something stored (a head, a state) reads it in ``look``, and is planned again when that
moved. Others join by being of this form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from casework.app.core import Core
from casework.arguments import check_count, check_instance, check_text
from casework.errors import LeaseLost, Misuse, OpIdReused, Refusal, StoreError, TransactionRefused
from casework.executions import deliver
from casework.executions.deliver import Execution
from casework.executions.mailbox import Mail, mail_sort, put_message
from casework.executions.runtime import store_definition
from casework.executions.spill import drain
from casework.executions.state import STATE, State
from casework.idempotency import lifecycle, record
from casework.idempotency.guarding import RESULT, Claim
from casework.kernel.conditions import Condition, present, spoken
from casework.kernel.effects import Instant
from casework.kernel.items import AnyWrite, Check, Put
from casework.kernel.programs import Program, get, get_many, token
from casework.kernel.schema import EXECUTIONS, STREAMS
from casework.statechart import check_json
from casework.streams.append import Pending, check_expected, checked, expected_place, learn
from casework.streams.append import look as look_at_head
from casework.streams.append import plan as plan_round
from casework.streams.log import Appended, Log, Op, Place, check_ops, check_stream


class Intent(Protocol):
    """One part of a transaction."""

    name: str
    """What it does, in words, for an error."""

    def look(self, core: Core) -> Program[None]:
        """Read what the plan depends on; called before the first plan, and again when it moved."""

    def plan(self, core: Core, moment: Instant, attempt: int) -> Program[list[AnyWrite]]:
        """The writes of the transaction's attempt of this number, 1 or more."""

    def refused(self, refusals: Sequence[Refusal | None]) -> None:
        """Return when a new look and a new plan may succeed, else raise what the refusal means."""

    def was_applied(self, core: Core) -> Program[int | None]:
        """The attempt that is in the store, after an answer was lost.

        0: none is, and another one is safe, since it and those before exclude each other. None: it cannot tell.
        """

    def settle(self, core: Core, attempt: int) -> Program[None]:
        """The transaction is committed, by the attempt of this number."""


class _Plain:
    """An intent that depends on nothing stored."""

    name = ""

    def look(self, core: Core) -> Program[None]:
        """Nothing to read."""
        yield from ()

    def refused(self, refusals: Sequence[Refusal | None]) -> None:
        """Its condition did not hold: final."""
        raise TransactionRefused(self.name, refusals)

    def was_applied(self, core: Core) -> Program[int | None]:
        """It cannot tell."""
        yield from ()
        return None

    def settle(self, core: Core, attempt: int) -> Program[None]:
        """Nothing to do."""
        yield from ()


class WriteIntent(_Plain):
    """One write of the user's own."""

    def __init__(self, write: AnyWrite) -> None:
        verb = type(write).__name__.lower()
        if write.when is not None and not isinstance(write.when, Condition):
            raise Misuse(f"{verb}: when is {write.when!r:.80}; give a condition, such as casework.absent()")
        try:
            self.name = f"{verb} {write.key}"
        except KeyError as error:
            raise Misuse(f"{verb} of an item without its key attribute {error}") from None
        self._write = write

    def refused(self, refusals: Sequence[Refusal | None]) -> None:
        """Its condition did not hold: final; says which, and what was there."""
        first = next((refusal for refusal in refusals if refusal is not None), None)
        if self._write.when is None or first is None or first.why != "condition":
            raise TransactionRefused(self.name, refusals)
        found = "there is no such item" if first.item is None else "an item is there (error.refusals has it)"
        raise TransactionRefused(self.name, refusals, f"when={spoken(self._write.when)} does not hold, {found}")

    def plan(self, core: Core, moment: Instant, attempt: int) -> Program[list[AnyWrite]]:
        """The write."""
        yield from ()
        return [self._write]


class SendIntent(_Plain):
    """A message to an execution, which is there already or is started by an intent beside this one."""

    def __init__(
        self,
        id: str,
        event: str,
        data: Any,
        event_id: str | None,
        priority: int,
        source: str,
        beside: Sequence[Intent] = (),
    ) -> None:
        deliver.check_id(id)
        deliver.check_sent(event, event_id, priority)
        check_json(data, "data")
        self.name = f"send {event!r:.80} to execution {id!r:.200}"
        self._id, self._priority, self._source, self._beside = id, priority, source, beside
        self._mail = Mail(event, data, event_id or "", "", kind="" if event_id is None else "given")

    def look(self, core: Core) -> Program[None]:
        """NoSuchExecution, UnknownEvent: as ``app.send`` says before it writes anything."""
        for intent in self._beside:
            if isinstance(intent, StartIntent) and intent.id == self._id:
                deliver.check_event(intent.machine, self._mail.type)
                return
        yield from deliver.check_target(core.rt, self._id, self._mail.type)

    def plan(self, core: Core, moment: Instant, attempt: int) -> Program[list[AnyWrite]]:
        """The message; those of one transaction keep their order."""
        sent_at_us = core.rt.send_time_us(moment.middle_us)
        sort = mail_sort(sent_at_us, self._source, 0)
        yield from ()
        put = put_message(
            self._id,
            sort,
            [self._mail],
            core.rt.options.buckets,
            sent_at_us=sent_at_us,
            now_us=moment.middle_us,
            priority=self._priority,
            rt=core.rt,
        )
        return [put]

    def settle(self, core: Core, attempt: int) -> Program[None]:
        """Ring for the execution."""
        core.bell.ring(self._id)
        yield from ()


class StartIntent:
    """The start of an execution. One that was started so before is left as it is, and is the result."""

    def __init__(self, core: Core, machine: str, id: str, input: Any) -> None:
        deliver.check_new_id(id)
        check_json(input, "input")
        self.name = f"start of execution {id!r:.200}"
        self.machine = core.rt.machine_named(machine)
        self.id, self._input = id, input
        self._plans: dict[int, State | Execution] = {}
        """By attempt: what it starts, each born at another time, so that what is there tells; or what was there."""
        self._found: Execution | None = None
        self._must_look = False

    def look(self, core: Core) -> Program[None]:
        """Keep the definition; after a refusal, look whether the execution is the same."""
        yield from store_definition(core.rt, self.machine)
        if self._must_look:
            self._found = yield from deliver.started_before(core.rt, self.id, self.machine.name, self._input)

    def plan(self, core: Core, moment: Instant, attempt: int) -> Program[list[AnyWrite]]:
        """The writes of the first step, or a check that the execution is there."""
        if self._found is not None:
            self._plans[attempt] = self._found
            return [Check(EXECUTIONS.key(self.id, STATE), present())]
        state, writes = yield from deliver.plan_start(core.rt, self.machine, self.id, self._input, moment)
        self._plans[attempt] = state
        return writes

    def refused(self, refusals: Sequence[Refusal | None]) -> None:
        """The id is taken: look whose it is."""
        self._must_look = self._found is None
        self._found = None

    def was_applied(self, core: Core) -> Program[int | None]:
        """By the time at which the execution was born; one that was there before tells nothing."""
        item = yield from get(EXECUTIONS.key(self.id, STATE))
        for attempt, plan in self._plans.items():
            if isinstance(plan, State) and item is not None and item["created_at_us"] == plan.created_at_us:
                return attempt
        return None if self._found is not None else 0

    def settle(self, core: Core, attempt: int) -> Program[None]:
        """Deliver what was spilled, and ring."""
        plan = self._plans[attempt]
        if isinstance(plan, State):
            self._found = deliver.view(core.rt, plan)
            if plan.spill:
                try:
                    self._found = deliver.view(core.rt, (yield from drain(core.rt, plan)))
                except StoreError:
                    pass  # the note in the state stands: a worker goes on
        else:
            self._found = plan
        core.bell.ring(self.id)

    @property
    def execution(self) -> Execution:
        """The execution after its first step. Misuse before the transaction is committed."""
        if self._found is None:
            raise Misuse(f"execution {self.id!r:.200} is started when the transaction commits, at the end of its block")
        return self._found


class FinishIntent(_Plain):
    """The end of an idempotency claim, with its result."""

    def __init__(
        self, shared: lifecycle.Shared, claim: Claim, status: int, headers: record.Headers | None, body: bytes
    ) -> None:
        if claim.shared is not shared:
            raise Misuse(f"{claim!r} is of another store; a transaction finishes claims of its own application")
        if claim.is_ended:
            raise Misuse(f"{claim!r} has ended already")
        self.name = f"finish of key {claim.key!r:.120}"
        self._shared, self.claim = shared, claim
        self._result = (status, headers, body)
        self._plans: dict[int, int] = {}
        """The attempt, by the time of completion that it stores."""

    def plan(self, core: Core, moment: Instant, attempt: int) -> Program[list[AnyWrite]]:
        """The completion."""
        status, headers, body = self._result
        self._plans[moment.middle_us] = attempt
        claim = self.claim
        yield from ()
        return lifecycle.completion_writes(
            self._shared, claim.key, claim.token, status, headers, body, claim.policy.keep_s, moment
        )

    def refused(self, refusals: Sequence[Refusal | None]) -> None:
        """Another caller took over."""
        self.claim.lose()
        raise LeaseLost(f"the claim of {self.claim.key!r:.120} was lost, so nothing of the transaction was written")

    def was_applied(self, core: Core) -> Program[int | None]:
        """By the record's token and its time of completion."""
        item = yield from get(self._shared.place(self.claim.key))
        if item is None or item.get("token") != self.claim.token:
            return 0
        return self._plans.get(int(item.get("completed_at_us", 0)), 0)

    def settle(self, core: Core, attempt: int) -> Program[None]:
        """The work is over, whatever its function does after it."""
        self.claim.is_ended = self.claim.is_finished = True
        self._shared.held.pop(self.claim.token, None)
        self._shared.nudge(self.claim.key)
        yield from ()


def result_of(
    claim: Claim, result: Any, status: int | None, headers: Mapping[str, str] | None, body: bytes | None
) -> tuple[int, dict[str, str] | None, bytes]:
    """What to store as a claim's result: of a function through its codec, of a request as its response."""
    if not claim.answers_http:
        if status is not None or headers is not None or body is not None:
            raise Misuse(
                "status, headers and body belong to a request under IdempotencyMiddleware; give the result alone"
            )
        return RESULT, None, claim.codec.encode(result)
    _check_response(result, status, headers, body)
    if body is not None:
        return (200 if status is None else status), dict(headers or {}), body
    check_json(result, "result")
    found = {"content-type": "application/json"} | {name.lower(): value for name, value in (headers or {}).items()}
    return (200 if status is None else status), found, msgspec.json.encode(result)


def _check_response(result: Any, status: Any, headers: Any, body: Any) -> None:
    if status is not None:
        check_count("status", status, 100, 599)
    if headers is not None:
        check_instance("headers", headers, Mapping, "a mapping of names to values")
        for name, value in headers.items():
            check_text("headers: a name", name)
            check_text(f"headers: the value of {name}", value, 100_000, may_be_empty=True)
    if body is not None:
        check_instance("body", body, bytes, "bytes")
        if result is not None:
            raise Misuse("body and result: give the body of the response, or what it is made of, not both")


class AppendIntent:
    """Operations at the end of a stream. ``results`` is there after the transaction.

    One that is in the stream already is answered with its own number, and the rest of the transaction is committed.
    """

    def __init__(self, log: Log, stream: str) -> None:
        check_stream(stream)
        self.stream = stream
        self.name = f"append to stream {stream!r}"
        self._log = log
        self.results: Sequence[Appended] = ()
        self._ops: list[Op] = []
        self._expected_seq: int | None = None
        self._pendings: list[Pending] = []
        self._batch: list[Pending] = []
        self._place: Place | None = None
        self._at_us = 0
        self._attempt = 0
        self._mark = ""
        """With the attempt's number it stands in the segment, and tells it from another's with the same operations."""
        self._plans: dict[int, tuple[Place, list[Pending]]] = {}
        """By attempt."""

    def add(self, ops: Sequence[Op], expected_seq: int | None = None) -> None:
        """Take operations, behind those that are there already."""
        ops = check_ops(ops)
        pendings = checked(self.stream, [*self._ops, *ops])
        if expected_seq is not None:
            check_expected(self.stream, pendings, expected_seq)
            if self._expected_seq is None and not self._ops:
                self._expected_seq = expected_seq
            elif expected_seq != self._expected_seq:
                raise Misuse(f"stream {self.stream!r}: say expected_seq with the first operations of the transaction")
        self._pendings = pendings
        self._ops += ops

    def look(self, core: Core) -> Program[None]:
        """Read the head, unless this process knows it."""
        if self._log.place(self.stream) is None:
            yield from look_at_head(self._log, self.stream)

    def plan(self, core: Core, moment: Instant, attempt: int) -> Program[list[AnyWrite]]:
        """The head, one segment, and the claims of what is not in the stream yet."""
        log, self._attempt = self._log, attempt
        unique: dict[str, Pending] = {}
        for pending in self._pendings:
            if not pending.is_settled:
                unique.setdefault(pending.op.id, pending)
        self._batch = list(unique.values())
        if not self._batch:
            return []
        if self._expected_seq is None:
            self._place = log.place(self.stream) or (yield from look_at_head(log, self.stream))
        else:
            self._place = yield from expected_place(log, self.stream, self._batch, self._expected_seq)
            if self._place is None:
                self._raise_refused()
                return (yield from self.plan(core, moment, attempt))
        self._at_us = moment.middle_us
        self._plans[attempt] = (self._place, self._batch)
        self._mark = self._mark or (yield from token())
        head, segment, *others = plan_round(log, self.stream, self._place, self._batch, self._at_us)
        assert isinstance(segment, Put)
        return [head, Put(STREAMS, {**segment.item, "by": f"{self._mark}.{attempt}"}, segment.when), *others]

    def refused(self, refusals: Sequence[Refusal | None]) -> None:
        """The head moved, or ids are in the stream: plan again. Raises OpIdReused, StreamDamaged."""
        assert self._place is not None
        learn(self._log, self.stream, self._place, self._batch, refusals, self._at_us)
        self._raise_refused()

    def _raise_refused(self) -> None:
        refused = self._pendings[0].call.refused
        if refused is not None:
            raise OpIdReused(refused.id, refused.seq)

    def was_applied(self, core: Core) -> Program[int | None]:
        """By the mark in the segment; another one's at the last attempt's place keeps that out, if it had a segment."""
        keys = {
            attempt: STREAMS.key(self.stream, place.top + len(batch)) for attempt, (place, batch) in self._plans.items()
        }
        items = yield from get_many(list(dict.fromkeys(keys.values())))
        found = {item["seq"]: item for item in items if item is not None}
        for attempt, key in keys.items():
            item = found.get(key.sort)  # type: ignore[arg-type]
            if item is not None and item.get("by") == f"{self._mark}.{attempt}":
                return attempt
        return 0 if self._attempt in keys and keys[self._attempt].sort in found else None

    def settle(self, core: Core, attempt: int) -> Program[None]:
        """Give the operations their numbers, and wake the readers of this process."""
        log = self._log
        if attempt in self._plans:
            place, batch = self._plans[attempt]
            for number, pending in enumerate(batch, place.top + 1):
                pending.outcome = Appended(pending.op.id, number)
            top = place.top + len(batch)
            log.remember(self.stream, Place(top, top, wins=place.wins + 1))
            log.counts.ops_n += len(batch)
            log.ring(self.stream)
        found = {pending.op.id: pending.outcome for pending in self._pendings if pending.outcome is not None}
        self.results = [found[pending.op.id] for pending in self._pendings]
        yield from ()
