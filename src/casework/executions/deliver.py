"""Starting an execution, sending to it, handling an event in line, and looking at it."""

from __future__ import annotations

from typing import Any

import msgspec

from casework.errors import (
    ConditionFailed,
    Contention,
    ExecutionExists,
    InvalidMachine,
    ItemTooLarge,
    Misuse,
    NoSuchExecution,
    OutcomeUnknown,
    UnknownEvent,
)
from casework.executions.advance import Marked, commit, look_at_marks, plan_writes
from casework.executions.change import Change
from casework.executions.event_ids import id_hash, is_recent
from casework.executions.joins import input_digest
from casework.executions.mailbox import MAX_PRIORITY, Mail, mail_sort, put_message
from casework.executions.runtime import (
    RACES,
    Parked,
    Runtime,
    has_functions,
    machine_of,
    store_definition,
    stored_definition,
)
from casework.executions.spill import drain
from casework.executions.state import MAX_ID_BYTES, STATE, Data, State, decode_data, is_id, state_of
from casework.kernel.conditions import absent
from casework.kernel.effects import Instant
from casework.kernel.items import AnyWrite
from casework.kernel.programs import Program, call, get, lost_again, now, sleep, token, transact
from casework.kernel.schema import EXECUTIONS
from casework.statechart import Machine, UnboundFunction, check_json
from casework.statechart import snapshot as chart

MAX_TEXT_BYTES = 1024
"""Event types and ids of events are no longer than this."""


class Execution(msgspec.Struct, kw_only=True):
    """An execution as it was at one moment."""

    id: str
    machine: str
    machine_hash: str
    status: str
    """``pending``, ``running``, ``suspended``, ``done``, ``failed``, ``cancelled`` or ``purging``."""
    version: int
    configuration: list[str]
    """Paths of the active atomic states."""
    context: Any
    output: Any = None
    error: dict[str, Any] | None = None
    waiting_for: list[str] = []
    """Ids of the invocations under way."""
    parent_id: str = ""
    parked: str = ""
    """Why the worker that looked at it last could not go on, until one does."""
    created_at_us: int = 0
    updated_at_us: int = 0
    is_duplicate: bool = False
    """Of ``handle``: the event id had been taken before; nothing was changed."""
    is_taken: bool = True
    """Of ``handle``: whether the event changed anything; False for one that no transition matched."""

    is_deferred: bool = False
    """Of ``handle``: no state takes the event yet, and it is kept until one does."""

    @property
    def has_ended(self) -> bool:
        """Whether it is done, failed or cancelled."""
        return self.status in ("done", "failed", "cancelled")

    def is_in(self, state: str) -> bool:
        """Whether the state at that path, or one inside it, is active."""
        return any(path == state or path.startswith(state + ".") for path in self.configuration)


def view(rt: Runtime, state: State) -> Execution:
    """What a caller sees of a state."""
    data = decode_data(state, rt.decode(state.data)) if state.machine else Data(chart.Snapshot([]))
    snap = data.snap
    return Execution(
        id=state.id,
        machine=state.machine,
        machine_hash=state.machine_hash,
        status=state.status,
        version=state.version,
        configuration=snap.configuration,
        context=snap.context,
        output=snap.output,
        error=snap.error,
        waiting_for=sorted(data.invokes),
        parent_id=state.parent_id,
        parked=state.parked,
        created_at_us=state.created_at_us,
        updated_at_us=state.updated_at_us,
    )


def check_id(id: Any) -> None:
    """Misuse unless ``id`` can be an execution's id: 1 to 512 bytes of printable text."""
    if not is_id(id):
        raise Misuse(f"{id!r:.80} is not an execution id; use 1 to {MAX_ID_BYTES} bytes of printable text")


def check_new_id(id: Any) -> None:
    """Misuse unless an execution may be started under ``id``: an id without white space at its ends, where nobody
    would see it.
    """
    check_id(id)
    if id != id.strip():
        raise Misuse(f"the id {id!r:.80} begins or ends with white space, which nobody sees in a list; leave it out")


def check_sent(event_type: Any, event_id: Any, priority: Any) -> None:
    """Misuse unless these can be an event's type, its sender's id of it, and its priority."""
    if not _is_text(event_type):
        raise Misuse(f"{event_type!r:.80} is not an event type; use 1 to {MAX_TEXT_BYTES} bytes of text")
    if event_id is not None and not _is_text(event_id):
        raise Misuse(f"event_id is {event_id!r:.80}; use 1 to {MAX_TEXT_BYTES} bytes of text, or None")
    if type(priority) is not int or not 0 <= priority <= MAX_PRIORITY:
        raise Misuse(f"priority is {priority!r:.80}; it must be 0 to {MAX_PRIORITY}")


def _is_text(text: Any) -> bool:
    if not isinstance(text, str) or not text:
        return False
    try:
        return len(text.encode()) <= MAX_TEXT_BYTES and "\0" not in text
    except UnicodeEncodeError:
        return False


def check_event(machine: Machine, event_type: Any) -> None:
    """UnknownEvent unless some state of the machine can take an event of this type."""
    if not machine.accepts(event_type):
        known = ", ".join(sorted(machine.event_types)) or "none"
        raise UnknownEvent(
            f"machine {machine.name!r} has no transition for event {event_type!r:.80}; it knows: {known}"
        )


def load(rt: Runtime, id: str) -> Program[Execution]:
    """The execution as it is now; NoSuchExecution when there is none."""
    state = yield from read_state(id)
    return view(rt, state)


def read_state(id: str) -> Program[State]:
    """The state as it is stored; NoSuchExecution when there is none, Misuse when ``id`` cannot be an id."""
    check_id(id)
    item = yield from get(EXECUTIONS.key(id, STATE))
    if item is None:
        raise NoSuchExecution(f"there is no execution {id!r:.200}; `casework list` shows those that there are")
    return state_of(item)


def start(rt: Runtime, name: str, id: str | None, input: Any) -> Program[Execution]:
    """Start an execution, or return the one that was started with the same id, machine and input.

    Raises UnknownMachine, NotJson, Misuse before anything is written; ExecutionExists when the id is taken by another.
    """
    machine = rt.machine_named(name)
    if id is None:
        id = yield from token()
    check_new_id(id)
    check_json(input, "input")
    yield from store_definition(rt, machine)
    digest = input_digest(input)
    lost = 0
    while True:
        moment = yield from now()
        change = _first_change(rt, machine, id, digest, moment)
        yield from take_through(change, change.begin, input)
        try:
            return view(rt, (yield from commit(rt, change, absent())))
        except ItemTooLarge as error:
            raise ItemTooLarge(
                f"execution {id!r:.200} cannot be started, since its input is too large, or what its first step keeps "
                f"in the context or gives to a task ({error}); pass a reference to large values instead"
            ) from error
        except (ConditionFailed, Contention, OutcomeUnknown) as error:
            existing = yield from _existing(rt, id, name, digest)
            if existing is not None:
                return existing
            # Nothing is there: it was not applied, or what was in its way is gone.
            lost = yield from lost_again(lost, RACES, error)


def plan_start(
    rt: Runtime, machine: Machine, id: str, input: Any, moment: Instant
) -> Program[tuple[State, list[AnyWrite]]]:
    """The state after an execution's first step, and the writes that start it, for a transaction of the caller's.

    The first write is the state's, on condition that the id is free. After the transaction ``drain`` what was spilled.
    """
    change = _first_change(rt, machine, id, input_digest(input), moment)
    yield from take_through(change, change.begin, input)
    return (yield from plan_writes(rt, change, absent()))


def started_before(rt: Runtime, id: str, name: str, input: Any) -> Program[Execution | None]:
    """The execution that has the id, started with that machine and input; None: there is none. Or ExecutionExists."""
    return (yield from _existing(rt, id, name, input_digest(input)))


def _first_change(rt: Runtime, machine: Machine, id: str, digest: str, moment: Instant) -> Change:
    born_us = rt.birth_us(moment.middle_us)
    state = State(
        id=id, version=0, status="running", machine=machine.name, machine_hash=machine.hash,
        created_at_us=born_us, updated_at_us=born_us,
    )  # fmt: skip
    return Change(rt, machine, state, Data(chart.Snapshot([]), input_digest=digest), moment, held=True)


def take_through(change: Change, take: Any, *args: Any) -> Program[Any]:
    """Take something through the chart for a caller who hears of it when it cannot be done.

    Raises Misuse where this process lacks a function of its own definition, Parked for one of another definition.
    """
    try:
        if has_functions(change.machine):
            return (yield from call(take, *args))
        return take(*args)
    except UnboundFunction as error:
        if change.machine is not change.rt.machines.get(change.machine.name):
            raise Parked(str(error)) from None  # another version's: whoever runs that has it
        raise Misuse(f"{error}; register it in this process, or send the event and let a worker take it") from None


def _existing(rt: Runtime, id: str, name: str, digest: str) -> Program[Execution | None]:
    item = yield from get(EXECUTIONS.key(id, STATE))
    if item is None:
        return None
    state = state_of(item)
    if state.status == "purging":
        raise ExecutionExists(f"execution {id!r:.200} is being purged; purge it again to finish that, then start it")
    data = decode_data(state, rt.decode(state.data))
    if name in (state.machine, data.started_as) and data.input_digest == digest:
        return view(rt, state)
    what = f"with machine {state.machine!r}" if name not in (state.machine, data.started_as) else "with other input"
    raise ExecutionExists(f"execution {id!r:.200} exists already, {what}; choose another id, or purge it")


def send(
    rt: Runtime, id: str, event_type: str, data: Any, *, event_id: str | None = None, priority: int = 0
) -> Program[None]:
    """Put an event into an execution's mailbox; returns once it is stored.

    Args:
        rt: machines and options.
        id: the execution.
        event_type: must be known to its machine.
        data: the payload, JSON.
        event_id: the sender's own id of this event; it takes effect once within the dedupe window.
        priority: 0 to 4; a higher one is looked at before messages of other executions.

    Raises NoSuchExecution, UnknownEvent, NotJson, Misuse before anything is written.
    """
    check_json(data, "data")
    check_id(id)
    check_sent(event_type, event_id, priority)
    yield from check_target(rt, id, event_type)
    moment = yield from now()
    yield from put_mail(rt, id, event_type, data, event_id, moment, priority)


def check_target(rt: Runtime, id: str, event_type: str) -> Program[None]:
    """NoSuchExecution when there is none; UnknownEvent when its machine has no transition for the event."""
    state = yield from read_state(id)
    machine = yield from known_machine(rt, state)
    if machine is not None:
        check_event(machine, event_type)


def put_mail(
    rt: Runtime, id: str, event_type: str, data: Any, event_id: str | None, moment: Instant, priority: int
) -> Program[None]:
    """Store one event as a message, as a transaction with a token even though it is alone: others delete it."""
    source = yield from token()
    kind = "" if event_id is None else "given"
    mail = Mail(event_type, data, event_id or "", "", kind=kind)
    sent_at_us = rt.send_time_us(moment.middle_us)
    sort = mail_sort(sent_at_us, source, 0)
    put = put_message(
        id, sort, [mail], rt.options.buckets, sent_at_us=sent_at_us, now_us=moment.middle_us, priority=priority, rt=rt
    )
    yield from transact([put])


def known_machine(rt: Runtime, state: State) -> Program[Machine | None]:
    """The machine of an execution for looking up its events, from this process or from its stored definition."""
    try:
        return (yield from machine_of(rt, state))
    except Parked:
        definition = yield from stored_definition(state.machine_hash)
    try:
        return Machine.from_dict(definition) if definition is not None else None
    except InvalidMachine:
        return None  # of a newer casework: whoever runs it looks at the event


def handle(
    rt: Runtime,
    id: str,
    event_type: str,
    data: Any,
    *,
    event_id: str | None = None,
    priority: int = 0,
    held: State | None = None,
) -> Program[tuple[Execution, State | None]]:
    """Process an event in line, due timers before it; the execution afterwards, and its state to hold.

    It may overtake queued messages. A duplicate is answered with the current state. After three lost rounds the event
    is sent instead, and the state is the one before it. Only a state that was written here is one to hold. Arguments
    and errors are those of :func:`send`.

    Args:
        rt: machines and options.
        id: the execution.
        event_type: must be known to its machine.
        data: the payload, JSON.
        event_id: the sender's own id of this event.
        priority: as for ``send``, where it comes to that.
        held: the state that this process wrote last, if it saw that acknowledged; saves the read.
    """
    check_json(data, "data")
    check_id(id)
    check_sent(event_type, event_id, priority)
    own_id = event_id
    if own_id is None:
        own_id = yield from token()
    mail = Mail(event_type, data, own_id, "", kind="given")
    marked = Marked()
    lost = 0
    if held is not None and not _takes_events(held):
        held = None  # somebody may have resumed it or driven it again
    while lost < 3:
        state = held if held is not None else (yield from read_state(id))
        try:
            if state.spill:
                state = yield from drain(rt, state)
            is_held, is_own = held is not None, event_id is None
            return (yield from _in_line(rt, state, mail, marked, priority, is_held=is_held, is_own=is_own))
        except ConditionFailed as refused:
            marked = look_at_marks(refused, marked, (yield from now()))
        except (Contention, OutcomeUnknown):
            pass
        except Parked:
            yield from check_target(rt, id, event_type)
            break
        if held is None:
            lost += 1
            yield from sleep(RACES.pause_s(lost, own_id + str(lost)))
        held = None
    moment = yield from now()
    yield from put_mail(rt, id, event_type, data, own_id, moment, priority)
    state = yield from read_state(id)
    return _answer(rt, state), None


def _takes_events(state: State) -> bool:
    return not state.ended and state.status not in ("suspended", "purging")


def _in_line(
    rt: Runtime, state: State, mail: Mail, marked: Marked, priority: int, *, is_held: bool, is_own: bool
) -> Program[tuple[Execution, State | None]]:
    """One attempt at processing an event in line; the store's refusals are for the caller.

    ``is_own`` says that the event's id was made up here: it needs no mark, and can only have been taken by an earlier
    attempt whose answer was lost.
    """
    machine = yield from _machine_here(rt, state)
    check_event(machine, mail.type)
    moment = yield from now()
    if not _takes_events(state):
        if is_recent(state.recent_ids, id_hash(mail.id)):  # perhaps the very event that ended it
            return _answer(rt, state, is_duplicate=not is_own, is_taken=is_own), None
        yield from put_mail(rt, state.id, mail.type, mail.data, mail.id, moment, priority)
        return _answer(rt, state, is_taken=False), None
    change = Change(rt, machine, state, decode_data(state, rt.decode(state.data)), moment, held=is_held)
    change.marks_stale = marked.stale
    is_new = yield from take_in_line(change, mail, marked.known)
    if not is_new:
        state = (yield from read_state(state.id)) if is_held else state
        return _answer(rt, state, is_duplicate=not is_own, is_taken=is_own), None
    if is_own:
        change.marks.clear()
    new = yield from commit(rt, change, state.unchanged())
    if change.ended and not change.given:  # a due timer ended it before the event's turn came
        yield from put_mail(rt, state.id, mail.type, mail.data, mail.id, moment, priority)
        return _answer(rt, new, is_taken=False), new
    answer = _answer(rt, new, is_taken=change.taken)
    answer.is_deferred = change.fate == "defer"
    return answer, new


def take_in_line(change: Change, mail: Mail, marks: frozenset[str] = frozenset()) -> Program[bool]:
    """Take what is due through the chart, then the mail; False when that is a duplicate.

    Raises Misuse: a function is missing; Parked: one that another version of the machine needs is missing.
    Whether the chart took it is in ``change.taken``.
    """
    is_new: bool = yield from take_through(change, _take_in_line, change, mail, marks)
    return is_new


def _take_in_line(change: Change, mail: Mail, marks: frozenset[str]) -> bool:
    """Begin what is pending, fire what is due, take the event unless that ended it; False when it is a duplicate."""
    if change.state.status == "pending":
        change.begin(change.data.input)
    for _ in range(change.rt.options.batch_max):
        timer = change.next_due()
        if timer is None or change.ended:
            break
        change.fire(timer)
    if change.ended:
        return True
    change.taken = False  # what was due is not the event's doing
    return change.take(mail, known=marks)


def _machine_here(rt: Runtime, state: State) -> Program[Machine]:
    """The machine of an execution. Misuse: this process has none of that name; Parked: it lacks the definition."""
    try:
        return (yield from machine_of(rt, state))
    except Parked as reason:
        if state.machine in rt.machines:
            raise
        raise Misuse(
            f"execution {state.id!r:.200} cannot be advanced here: {reason}; give casework.open its machine, or send "
            "the event and let a worker take it"
        ) from None


def _answer(rt: Runtime, state: State, *, is_duplicate: bool = False, is_taken: bool = True) -> Execution:
    execution = view(rt, state)
    execution.is_duplicate = is_duplicate
    execution.is_taken = is_taken
    return execution
