"""Control: cancel, terminate, suspend, resume, redrive, purge, migrate.

Each is safe to repeat, and each is conditional on the version: a worker that is in the middle of a step loses the race
or wins it, nothing in between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from casework.errors import ConditionFailed, Contention, CorruptItem, Misuse, NoSuchExecution, OutcomeUnknown
from casework.executions import deferring
from casework.executions.advance import commit
from casework.executions.branches import branches_of, chunks
from casework.executions.change import CANCEL_EVENT, Change
from casework.executions.deliver import Execution, known_machine, read_state, take_in_line, take_through, view
from casework.executions.event_ids import id_hash, is_recent
from casework.executions.mailbox import Mail
from casework.executions.publish import deliver
from casework.executions.redriving import begin_again, kept_event
from casework.executions.runtime import NO_MACHINE, RACES, Parked, Runtime, machine_of, store_definition
from casework.executions.sent_before import ANYTHING
from casework.executions.setting_aside import finish_resume, set_aside_all
from casework.executions.spill import drain
from casework.executions.state import BEHIND_STATE, STATE, Data, State, decode_data, decode_timers, encode_data
from casework.executions.task_items import Task, task_of, task_sort
from casework.kernel.conditions import absent, present
from casework.kernel.items import AnyWrite, Check, Delete, Key, Put, Update
from casework.kernel.programs import Program, get, get_many, lost_again, now, query, token, transact, write
from casework.kernel.schema import EXECUTIONS
from casework.statechart import Machine
from casework.statechart.nodes import Invoke as Invocation
from casework.statechart.snapshot import Snapshot
from casework.streams.log import Log


def _with_state(attempt: Callable[[State], Program[State | None]], id: str) -> Program[State]:
    """Let ``attempt`` write the state that was just read, again after lost races; it answers None for "look again"."""
    lost = 0
    while True:
        state = yield from read_state(id)
        try:
            done = yield from attempt(state)
            if done is not None:
                return done
        except (ConditionFailed, Contention, OutcomeUnknown):
            pass
        lost = yield from lost_again(lost, RACES, f"execution {id!r:.200}")


def terminate(rt: Runtime, id: str, *, reason: str = "terminated") -> Program[Execution]:
    """End an execution now, whatever its machine says: tasks and children are stopped, its parent is told.

    An execution that has ended stays as it is. Raises NoSuchExecution.
    """

    def attempt(state: State) -> Program[State | None]:
        if not (yield from _can_end(rt, state)):
            return state if state.ended else None
        machine = rt.by_hash.get(state.machine_hash) or rt.machines.get(state.machine) or NO_MACHINE
        change = yield from _change(rt, machine, state)
        return (yield from _end(rt, change, reason))

    return view(rt, (yield from _with_state(attempt, id)))


def _can_end(rt: Runtime, state: State) -> Program[bool]:
    """False when it has ended, or was in the way of its own spill and must be looked at again."""
    if state.status == "purging":
        raise Misuse(f"execution {state.id!r:.200} is being purged; purge it again to finish that")
    if not state.ended and state.spill:
        yield from drain(rt, state)
        return False
    return not state.ended


def _change(rt: Runtime, machine: Machine, state: State) -> Program[Change]:
    moment = yield from now()
    return Change(rt, machine, state, decode_data(state, rt.decode(state.data)), moment)


def _end(rt: Runtime, change: Change, reason: str) -> Program[State]:
    if rt.options.trace_max:
        change.events.append({"event": reason, "from": change.data.snap.configuration, "to": []})
    change.end("cancelled", {"message": reason, "type": "Cancelled", "where": ""})
    return (yield from commit(rt, change, change.state.unchanged()))


def cancel(rt: Runtime, id: str) -> Program[Execution]:
    """Ask an execution to end: by a ``cancel`` event where its machine knows one, else by terminating it.

    The event is never put in line: by its turn the state that takes it may have been left, and nobody would know. A
    suspended execution goes on, so that its clean-up runs. Once the machine has taken it, a repeat changes nothing: it
    would end the clean-up. Raises NoSuchExecution; Misuse where the machine knows the event, and is not here.
    """
    own_id = yield from token()
    mail = Mail(CANCEL_EVENT, {}, own_id, "", kind="given")

    def attempt(state: State) -> Program[State | None]:
        if is_recent(state.recent_ids, id_hash(own_id)):
            return state  # by an attempt whose answer was lost
        if not (yield from _can_end(rt, state)):
            return state if state.ended else None
        machine = yield from known_machine(rt, state)
        if machine is None or not machine.accepts(CANCEL_EVENT):
            change = yield from _change(rt, machine or NO_MACHINE, state)
            return (yield from _end(rt, change, "cancelled"))
        change = yield from _change(rt, machine, state)
        before = change.data.cancel
        if before == "asked":
            return state
        if state.status == "suspended":
            yield from resume(rt, id)
            return None
        try:
            yield from machine_of(rt, state)
            yield from take_in_line(change, mail)
        except Parked as reason:
            raise Misuse(
                f"execution {id!r:.200} cannot be asked to end here: {reason}; let a process ask that has it, "
                "or terminate it"
            ) from None
        change.marks.clear()  # nobody else knows the id
        if change.fate:  # a cancel is not put off, and is no fault of whoever asks
            change = yield from _change(rt, machine, state)
        elif change.taken:
            change.data.cancel = "asked"
            return (yield from commit(rt, change, state.unchanged()))
        if before:
            return state  # somebody sent the event, and it cleans up already
        return (yield from _end(rt, change, "cancelled"))

    return view(rt, (yield from _with_state(attempt, id)))


def suspend(rt: Runtime, id: str) -> Program[Execution]:
    """Stop an execution where it stands: events wait, timers do not fire, no task starts. Running tasks go on.

    Raises NoSuchExecution; Misuse when it has ended.
    """

    def attempt(state: State) -> Program[State | None]:
        if state.status == "suspended":
            return state
        if state.ended or state.status == "purging":
            raise Misuse(f"execution {id!r:.200} is {state.status} and cannot be suspended")
        if state.spill:
            yield from drain(rt, state)
            return None
        return (yield from _move_status(rt, state, "suspended", resume_status=state.status))

    state = yield from _with_state(attempt, id)
    while state.status == "suspended":
        try:
            data = decode_data(state, rt.decode(state.data))
            yield from set_aside_all(state, _task_places(state, data).values())
            break
        except ConditionFailed:
            state = yield from read_state(id)  # resumed, or migrated
    return view(rt, state)


def resume(rt: Runtime, id: str) -> Program[Execution]:
    """Let a suspended execution go on; timers that came due meanwhile fire now. Raises NoSuchExecution, Misuse.

    Once its state says so, workers finish what this call does not get to.
    """
    was_moved = False

    def attempt(state: State) -> Program[State | None]:
        nonlocal was_moved
        if state.status == "suspended" and not was_moved:
            status = state.resume_status or "running"
            state = yield from _move_status(rt, state, status, resume_status=status)
            was_moved = True
        if state.is_resuming:
            return (yield from finish_resume(rt, state))
        if not was_moved and (state.ended or state.status == "purging"):
            raise Misuse(f"execution {id!r:.200} is {state.status}; only a suspended one can be resumed")
        return state

    return view(rt, (yield from _with_state(attempt, id)))


def _move_status(rt: Runtime, state: State, status: str, *, resume_status: str) -> Program[State]:
    moment = yield from now()
    new = msgspec.structs.replace(
        state,
        version=state.version + 1,
        status=status,
        resume_status=resume_status,
        updated_at_us=moment.middle_us,
        parked="",
        listed=True,
    )
    yield from write(Put(EXECUTIONS, new.to_item(rt.options.buckets), state.unchanged()))
    return new


def redrive(rt: Runtime, id: str, *, skip: bool = False) -> Program[Execution]:
    """Let a failed execution go on: the event at which it failed is taken again, in the state before it.

    What that state waited for begins again, tasks under new idempotency keys. Where the event fails once more, it and
    the state are kept as before, with the new error. A repeat of a redrive changes nothing.

    Args:
        rt: machines and options.
        id: the execution.
        skip: go on without the event.

    Raises NoSuchExecution; Misuse when the execution has not failed, when this process lacks its machine or functions,
    and when the event cannot be taken again.
    """
    driven = 0

    def attempt(state: State) -> Program[State | None]:
        nonlocal driven
        data = decode_data(state, rt.decode(state.data)) if state.machine else Data(Snapshot([]))
        if state.status not in ("failed", "purging") and data.redrives:
            return state  # by an earlier call, or by an attempt whose answer was lost
        if state.status != "failed":
            raise Misuse(f"execution {id!r:.200} is {state.status}; only a failed one can be driven again")
        if driven and data.redrives >= driven:
            return state  # an attempt whose answer was lost failed once more
        if state.spill:
            yield from drain(rt, state)
            return None
        driven = data.redrives + 1
        machine = yield from _machine_for(rt, state)
        kept = yield from kept_event(rt, state, data, skip=skip)
        moment = yield from now()
        change = Change(rt, machine, state, data, moment)
        yield from take_through(change, begin_again, change, kept)
        return (yield from commit(rt, change, state.unchanged()))

    return view(rt, (yield from _with_state(attempt, id)))


def migrate(rt: Runtime, id: str, machine: Machine | None = None) -> Program[Execution]:
    """Let an execution go on with another definition of its machine: this process's, or the one given.

    Every active state must be in the new definition, with the same timers and invocations, of the same tasks and
    machines. What is deferred is offered to them by a worker. One that has failed stays so: a redrive then takes its
    event by the new definition. Raises Misuse with what does not fit; NoSuchExecution.
    """

    def attempt(state: State) -> Program[State | None]:
        new_machine = machine or rt.machines.get(state.machine)
        if new_machine is not None and new_machine.hash == state.machine_hash and state.status != "purging":
            return state
        if state.status in ("done", "cancelled", "purging"):
            raise Misuse(f"execution {id!r:.200} is {state.status}; only one that goes on can be migrated")
        new_machine = machine or rt.machine_named(state.machine)
        if state.spill:
            yield from drain(rt, state)
            return None
        data = decode_data(state, rt.decode(state.data))
        tasks = yield from _pending_tasks(state, data)
        problems = _misfits(new_machine, data, state, tasks)
        if problems:
            raise Misuse(f"execution {id!r:.200} does not fit {new_machine.name!r}: {'; '.join(problems)}")
        yield from store_definition(rt, new_machine)
        moment = yield from now()
        new = msgspec.structs.replace(
            state, version=state.version + 1, machine=new_machine.name, machine_hash=new_machine.hash,
            updated_at_us=moment.middle_us, parked="", listed=True,
        )  # fmt: skip
        if new.machine != state.machine:
            data.started_as = data.started_as or state.machine  # a repeated start knows it again
            new.data = rt.encode(encode_data(data))
        moved = _move_tasks(state, new, data, tasks)
        if data.deferred and state.status != "failed":  # one that has failed is offered them when it is driven on
            moved.append((yield from deferring.offer_later(rt, id, moment)))
        put = Put(EXECUTIONS, new.to_item(rt.options.buckets), state.unchanged())
        if moved:
            yield from transact([put, *moved])
        else:
            yield from write(put)
        return new

    return view(rt, (yield from _with_state(attempt, id)))


def _task_places(state: State, data: Data) -> dict[str, Key]:
    """Where the tasks stand that an execution waits for, by their invocation."""
    return {
        name: Key(EXECUTIONS, state.id, task_sort(waiting.stay, name))
        for name, waiting in data.invokes.items()
        if waiting.task
    }


def _move_tasks(state: State, new: State, data: Data, tasks: Mapping[str, Task]) -> list[AnyWrite]:
    """What goes with a migration: a task is run by the machine of its name.

    One that was not found must not be there: it ended, or it was not visible yet when the state that began it was.
    """
    moved: list[AnyWrite] = []
    for name, place in _task_places(state, data).items():
        if name not in tasks:
            moved.append(Check(place, absent()))
        elif new.machine != state.machine:
            moved.append(Update(place, {"machine": new.machine}, when=present()))
    return moved


def _pending_tasks(state: State, data: Data) -> Program[dict[str, Task]]:
    """The tasks that an execution waits for, by their invocation; one whose result is on its way has ended."""
    places = _task_places(state, data)
    if not places:
        return {}
    items = yield from get_many(list(places.values()))
    return {name: task_of(item) for name, item in zip(places, items, strict=True) if item is not None}


def _misfits(machine: Machine, data: Data, state: State, tasks: Mapping[str, Task]) -> list[str]:
    """Why an execution cannot go on with ``machine``."""
    problems = []
    timers: set[str] = set()
    invokes: dict[str, Invocation] = {}
    for path in data.snap.configuration:
        try:
            node = machine.state(path)
        except (KeyError, Misuse):
            problems.append(f"there is no state {path!r}")
            continue
        for active in (node, *node.ancestors):
            timers |= {timer.name for timer in active.timers}
            invokes |= {invoke.id: invoke for invoke in active.invokes}
    for name, waiting in data.invokes.items():
        before = (tasks[name].src if name in tasks else "") if waiting.task else waiting.machine
        problems += _misfit(name, "task" if waiting.task else "machine", before, invokes.get(name))
    for name in data.failure.stopped if data.failure is not None else ():
        problems += _misfit(name, "", "", invokes.get(name))  # a redrive begins it anew, whatever it is there
    problems += [
        f"its timer {timer.name!r} is not there"
        for timer in decode_timers(state.timers)
        if not timer.event_type and timer.name not in timers
    ]
    return problems


def _misfit(name: str, kind: str, before: str, invoke: Invocation | None) -> list[str]:
    """Why what an execution waits for, the ``kind`` named ``before``, is not what the new definition invokes."""
    if invoke is None:
        return [f"it waits for {name!r}, which is not invoked there"]
    if not before:
        return []
    if invoke.src != before:
        return [f"it waits for {name!r}, the {kind} {before!r}, which is {invoke.src!r} there"]
    if invoke.kind not in ("name", kind):
        return [f"it waits for {name!r}, the {kind} {before!r}, which is a {invoke.kind} there"]
    return []


def _machine_for(rt: Runtime, state: State) -> Program[Machine]:
    try:
        return (yield from machine_of(rt, state))
    except Parked as reason:
        raise Misuse(f"execution {state.id!r:.200}: {reason}; give casework.open its machine") from None


WITH_DESCENDANTS = "tree"
"""The ``resume_status`` of an execution that is being purged with its descendants, for whoever finishes that."""


def purge(rt: Runtime, id: str, *, force: bool = False, tree: bool = False, by_parent: bool = False) -> Program[int]:
    """Delete an ended execution with everything in its partition, the state last; the number of items deleted.

    A repeated or interrupted purge goes on where the first one stopped. Then the id is free.

    Args:
        rt: machines and options.
        id: the execution.
        force: purge one that has not ended, too; its children and its parent are not told.
        tree: purge its descendants first. They go whatever their status: the end of their parent has ended them.
        by_parent: it is one of these descendants.

    Raises NoSuchExecution; Misuse when it has not ended; Contention when what it published cannot be delivered now.
    """

    def attempt(state: State) -> Program[State | None]:
        if state.status == "purging":
            return state
        if not state.ended and not (force or by_parent):
            raise Misuse(
                f"execution {id!r:.200} is {state.status}; cancel it first, or use force (`casework purge --force`)"
            )
        if state.spill and state.ended:
            yield from drain(rt, state)  # its children and its parent are still to hear of its end
            return None
        return (yield from _move_status(rt, state, "purging", resume_status=WITH_DESCENDANTS if tree else ""))

    state = yield from _with_state(attempt, id)
    yield from _deliver_all(rt, id, force=force)
    deleted = 0
    try:
        yield from _see_all(rt, state)
        if tree or state.resume_status == WITH_DESCENDANTS:
            deleted += yield from _purge_children(rt, state)
        while True:
            page = yield from query(EXECUTIONS, id, low=BEHIND_STATE, limit=90)
            keys = [Key(EXECUTIONS, id, str(item["sort"])) for item in page.items]
            if not keys:
                break
            yield from _delete_part(state, keys)
            deleted += len(keys)
        yield from transact([Delete(state.key, state.unchanged())])
    except (ConditionFailed, OutcomeUnknown):
        if (yield from get(state.key)) is not None:
            raise Contention(f"execution {id!r:.200} was started again while it was purged") from None
    return deleted + 1


def _purge_children(rt: Runtime, state: State) -> Program[int]:
    """Purge the descendants of an execution that is being purged; the number of items deleted."""
    deleted = 0
    for branch in (yield from branches_of(rt, state)):
        for begin, end in chunks(0, branch.total, 100):
            ids = branch.children(begin, end)
            items = yield from get_many([EXECUTIONS.key(id, STATE) for id in ids])
            for id, item in zip(ids, items, strict=True):
                if item is not None:
                    try:
                        deleted += yield from purge(rt, id, tree=True, by_parent=True)
                    except NoSuchExecution:
                        pass  # by another purge
    return deleted


def _deliver_all(rt: Runtime, id: str, *, force: bool) -> Program[None]:
    """Bring what an execution published to its stream; Contention when that fails again and again, unless ``force``."""
    late = Contention(f"what execution {id!r:.200} published could not be delivered yet; purge it again later")
    lost = 0
    while True:
        if (yield from deliver(Log(), rt, [id])):
            continue
        left = yield from query(EXECUTIONS, id, low="o/", high="o0", limit=1)
        if force or not left.items:
            return
        lost = yield from lost_again(lost, RACES, late)


def _see_all(rt: Runtime, state: State) -> Program[None]:
    """Wait until all is visible that went with the last commit: what a query does not see yet would stay, be met by the
    id's next life, or call a child that is gone. A check waits for the transaction that has the item.
    """
    try:
        data = decode_data(state, rt.decode(state.data)) if state.machine else Data(Snapshot([]))
    except CorruptItem:
        return  # it can be purged all the same
    places = [Key(EXECUTIONS, partition, sort) for partition, sort in data.sent]
    places += _task_places(state, data).values()
    for begin in range(0, len(places), 90):
        checks = [Check(place, ANYTHING) for place in places[begin : begin + 90]]
        lost = 0
        while True:
            try:
                yield from transact([Check(state.key, state.unchanged()), *checks])
                break
            except (Contention, OutcomeUnknown) as error:
                lost = yield from lost_again(lost, RACES, error)


def _delete_part(state: State, keys: Sequence[Key]) -> Program[None]:
    """Delete a part of what is purged, while the state says so: another purge may be done with it, and the id's next
    life has its messages and tasks at the same places.
    """
    lost = 0
    while True:
        try:
            yield from transact([Check(state.key, state.unchanged()), *(Delete(key) for key in keys)])
            return
        except (Contention, OutcomeUnknown) as error:
            lost = yield from lost_again(lost, RACES, error)
