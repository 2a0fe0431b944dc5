"""What ``app.transaction()`` can hold: each intent plans its writes, and says what a refusal of them means.

An intent whose writes depend on something stored (a head, a state) reads it in ``look``, and is planned again when that
moved. Others join by being of this form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from casework.app.core import Core
from casework.errors import LeaseLost, Misuse, OpIdReused, Refusal, TransactionRefused
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
from casework.kernel.items import AnyWrite, Check
from casework.kernel.programs import Program, get
from casework.kernel.schema import EXECUTIONS
from casework.statechart import check_json
from casework.streams.append import Pending, checked, learn
from casework.streams.append import look as look_at_head
from casework.streams.append import plan as plan_round
from casework.streams.log import Appended, Log, Op, Place, check_ops, check_stream, claim_key


class Intent(Protocol):
    """One part of a transaction."""

    name: str
    """What it does, in words, for an error."""

    def look(self, core: Core) -> Program[None]:
        """Read what the plan depends on; called before the first plan, and again when it moved."""

    def plan(self, core: Core, moment: Instant) -> Program[list[AnyWrite]]:
        """The writes."""

    def refused(self, refusals: Sequence[Refusal | None]) -> None:
        """Return when a new look and a new plan may succeed, else raise what the refusal means."""

    def was_applied(self, core: Core) -> Program[bool | None]:
        """Whether the last plan is in the store, after its answer was lost; None when this intent cannot tell."""

    def settle(self, core: Core) -> Program[None]:
        """The transaction is committed."""


class _Plain:
    """An intent that depends on nothing stored."""

    name = ""

    def look(self, core: Core) -> Program[None]:
        """Nothing to read."""
        yield from ()

    def refused(self, refusals: Sequence[Refusal | None]) -> None:
        """Its condition did not hold: final."""
        raise TransactionRefused(self.name, refusals)

    def was_applied(self, core: Core) -> Program[bool | None]:
        """It cannot tell."""
        yield from ()
        return None

    def settle(self, core: Core) -> Program[None]:
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

    def plan(self, core: Core, moment: Instant) -> Program[list[AnyWrite]]:
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

    def plan(self, core: Core, moment: Instant) -> Program[list[AnyWrite]]:
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

    def settle(self, core: Core) -> Program[None]:
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
        self._state: State | None = None
        self._found: Execution | None = None
        self._must_look = False

    def look(self, core: Core) -> Program[None]:
        """Keep the definition; after a refusal, look whether the execution is the same."""
        yield from store_definition(core.rt, self.machine)
        if self._must_look:
            self._found = yield from deliver.started_before(core.rt, self.id, self.machine.name, self._input)

    def plan(self, core: Core, moment: Instant) -> Program[list[AnyWrite]]:
        """The writes of the first step, or a check that the execution is there."""
        if self._found is not None:
            return [Check(EXECUTIONS.key(self.id, STATE), present())]
        self._state, writes = yield from deliver.plan_start(core.rt, self.machine, self.id, self._input, moment)
        return writes

    def refused(self, refusals: Sequence[Refusal | None]) -> None:
        """The id is taken: look whose it is."""
        self._must_look = self._found is None
        self._found = None

    def was_applied(self, core: Core) -> Program[bool | None]:
        """Whether the execution is there as this transaction made it: same input, same time."""
        item = yield from get(EXECUTIONS.key(self.id, STATE))
        if self._state is None:
            return None
        return item is not None and item.get("created_at_us") == self._state.created_at_us

    def settle(self, core: Core) -> Program[None]:
        """Deliver what was spilled, and ring."""
        if self._state is not None and self._found is None:
            if self._state.spill:
                self._state = yield from drain(core.rt, self._state)
            self._found = deliver.view(core.rt, self._state)
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
        self._completed_at_us = 0

    def plan(self, core: Core, moment: Instant) -> Program[list[AnyWrite]]:
        """The completion."""
        status, headers, body = self._result
        self._completed_at_us = moment.middle_us
        claim = self.claim
        yield from ()
        return lifecycle.completion_writes(
            self._shared, claim.key, claim.token, status, headers, body, claim.policy.keep_s, moment
        )

    def refused(self, refusals: Sequence[Refusal | None]) -> None:
        """Another caller took over."""
        self.claim.lose()
        raise LeaseLost(f"the claim of {self.claim.key!r:.120} was lost, so nothing of the transaction was written")

    def was_applied(self, core: Core) -> Program[bool | None]:
        """Whether the record has this result."""
        item = yield from get(self._shared.place(self.claim.key))
        return (
            item is not None
            and item.get("token") == self.claim.token
            and item.get("completed_at_us") == self._completed_at_us
        )

    def settle(self, core: Core) -> Program[None]:
        """The work is over, whatever its function does after it."""
        self.claim.is_ended = self.claim.is_finished = True
        self._shared.held.pop(self.claim.token, None)
        self._shared.nudge(self.claim.key)
        yield from ()


def result_of(
    claim: Claim, result: Any, status: int | None, headers: Mapping[str, str] | None, body: bytes | None
) -> tuple[int, dict[str, str] | None, bytes]:
    """What to store as a claim's result: of a function through its codec, of a request as its response."""
    if body is not None:
        return (200 if status is None else status), dict(headers or {}), body
    if not claim.answers_http:
        if status is not None or headers is not None:
            raise Misuse("status and headers belong to a request under IdempotencyMiddleware; give the result alone")
        return RESULT, None, claim.codec.encode(result)
    check_json(result, "result")
    found = {"content-type": "application/json"} | {name.lower(): value for name, value in (headers or {}).items()}
    return (200 if status is None else status), found, msgspec.json.encode(result)


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
        self._pendings: list[Pending] = []
        self._batch: list[Pending] = []
        self._place: Place | None = None
        self._at_us = 0

    def add(self, ops: Sequence[Op]) -> None:
        """Take operations, behind those that are there already."""
        ops = check_ops(ops)
        self._pendings = checked(self.stream, [*self._ops, *ops])
        self._ops += ops

    def look(self, core: Core) -> Program[None]:
        """Read the head, unless this process knows it."""
        if self._log.place(self.stream) is None:
            yield from look_at_head(self._log, self.stream)

    def plan(self, core: Core, moment: Instant) -> Program[list[AnyWrite]]:
        """The head, one segment, and the claims of what is not in the stream yet."""
        log = self._log
        unique: dict[str, Pending] = {}
        for pending in self._pendings:
            if not pending.is_settled:
                unique.setdefault(pending.op.id, pending)
        self._batch = list(unique.values())
        if not self._batch:
            return []
        self._place = log.place(self.stream) or (yield from look_at_head(log, self.stream))
        self._at_us = moment.middle_us
        return plan_round(log, self.stream, self._place, self._batch, self._at_us)

    def refused(self, refusals: Sequence[Refusal | None]) -> None:
        """The head moved, or ids are in the stream: plan again. Raises OpIdReused, StreamDamaged."""
        assert self._place is not None
        learn(self._log, self.stream, self._place, self._batch, refusals, self._at_us)
        refused = self._pendings[0].call.refused
        if refused is not None:
            raise OpIdReused(refused.id, refused.seq)

    def was_applied(self, core: Core) -> Program[bool | None]:
        """Whether the claim of the first operation has the number planned for it; None when it is not there."""
        if not self._batch or self._place is None:
            return None
        item = yield from get(claim_key(self.stream, self._batch[0].op.id))
        return True if item is not None and item.get("seq") == self._place.top + 1 else None

    def settle(self, core: Core) -> Program[None]:
        """Give the operations their numbers, and wake the readers of this process."""
        log = self._log
        if self._batch and self._place is not None:
            for number, pending in enumerate(self._batch, self._place.top + 1):
                pending.outcome = Appended(pending.op.id, number)
            top = self._place.top + len(self._batch)
            log.remember(self.stream, Place(top, top, wins=self._place.wins + 1))
            log.counts.ops_n += len(self._batch)
            log.ring(self.stream)
        found = {pending.op.id: pending.outcome for pending in self._pendings if pending.outcome is not None}
        self.results = [found[pending.op.id] for pending in self._pendings]
        yield from ()
