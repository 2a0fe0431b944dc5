"""Planted faults in how tasks end, in workers that leave, and in cancelling and migrating."""

from __future__ import annotations

from typing import Any

import msgspec

from casework.errors import ConditionFailed, OutcomeUnknown
from casework.executions import control, membership, run_task, tasks
from casework.executions.deliver import handle, read_state, view
from casework.executions.runtime import machine_of
from casework.executions.state import encode_data
from casework.executions.task_items import Task
from casework.kernel.conditions import equals
from casework.kernel.items import Update
from casework.kernel.programs import get, now, transact, write
from casework.simulation.scenarios import operators, outcomes
from tests.simulation.planting import ALWAYS, Fault, patched

# --- how tasks end ----------------------------------------------------------------------------------------------------

_fail_task = tasks.fail_task


def _claimed_first(rt: Any, task: Task) -> Any:
    """What ends a task after its last attempt claims it first, as one more attempt."""
    moment = yield from now()
    claimed = msgspec.structs.replace(
        task, attempt=task.attempt + 1, token=f"{task.token}+", lease_until_us=moment.latest_us + 1_000_000, beats=0
    )
    attributes = tasks._claim_attributes(claimed)
    try:
        yield from write(Update(task.place, attributes, ("is_external",), tasks._unclaimed(task)))
    except (ConditionFailed, OutcomeUnknown):
        return
    claimed.attempt -= 1
    kind = "Timeout" if task.is_external else "Crashed"
    yield from _fail_task(rt, claimed, {"message": "nobody completed the task in time", "type": kind})


def _once(writes: Any, place: Any) -> Any:
    """A task's end is sent once; whether its task is gone tells whether it counts."""
    try:
        yield from transact(writes)
        return True
    except ConditionFailed:
        return False
    except OutcomeUnknown:
        found = yield from get(place)
        return found is None


def _end_once(rt: Any, task: Task, event: Any, when: Any = None) -> Any:
    """The program of a task's end stops at its first write, which is the last one."""
    program = _end_task(rt, task, event, when)
    answer = None
    while True:
        effect = program.send(answer)
        if hasattr(effect, "writes"):
            return (yield from _once(effect.writes, task.place))
        answer = yield effect


_end_task = tasks._end_task


def _any_lease(task: Task, attributes: dict[str, Any]) -> Any:
    """A claim's end is moved by whatever arrives, in any order."""
    task.beats += 1
    same = equals("token", task.token)
    yield from write(Update(task.place, {**attributes, "beats": task.beats}, when=same))


def _unmarked(task: Task, attributes: dict[str, Any]) -> Any:
    """What is kept for outside looks as it did before, to one who is about to take it over."""
    if not attributes.get("is_external"):
        return (yield from _move_lease(task, attributes))
    yield from write(Update(task.place, attributes, when=equals("token", task.token)))


_move_lease = tasks._move_lease


def _counted(task: Task) -> Any:
    """What a worker gives back when it leaves has cost an attempt."""
    moment = yield from now()
    return (yield from tasks._give_back(task, {"rank_us": moment.middle_us}))


_give_back = tasks._give_back


def _parked_and_counted(task: Task, attributes: dict[str, Any]) -> Any:
    """A task that a worker cannot run has cost an attempt all the same."""
    if "parked" in attributes:
        attributes = {**attributes, "attempt": task.attempt}
    return (yield from _give_back(task, attributes))


def _never(rt: Any, task: Task, error: Any, *, details: Any = None) -> Any:
    """An attempt that failed is repeated, whatever its number."""
    retry = msgspec.structs.replace(task.options.retry, max_attempts=task.attempt + 1)
    options = msgspec.structs.replace(task.options, retry=retry)
    return (yield from _attempt_failed(rt, msgspec.structs.replace(task, options=options), error, details=details))


_attempt_failed = tasks.attempt_failed


def _without_limit(rt: Any, task: Task) -> Any:
    """A task whose last attempt did not come back stays where it is."""
    return None
    yield


# --- operators --------------------------------------------------------------------------------------------------------


def _in_line_or_sent(rt: Any, id: str) -> Any:
    """A cancel is an event like any other: after a few lost rounds it is put in line."""
    state = yield from read_state(id)
    if state.ended:
        return view(rt, state)
    machine = yield from machine_of(rt, state)
    if machine.accepts("cancel"):
        execution, _ = yield from handle(rt, id, "cancel", {})
        if execution.is_taken:
            return execution
    return (yield from control.terminate(rt, id))


def _only_those_seen(state: Any, new: Any, data: Any, found: Any) -> Any:
    """A migration takes tasks that it does not see for ended."""
    return [write for write in _move_tasks(state, new, data, found) if isinstance(write, Update)]


_move_tasks = control._move_tasks


def _without_tasks(state: Any, new: Any, data: Any, found: Any) -> Any:
    """A migration leaves tasks to the machine of the older name."""
    return []


def _nameless(data: Any) -> str:
    """A migration to another name forgets which one it was started with."""
    return encode_data(msgspec.structs.replace(data, started_as=""))


FAULTS = (
    Fault(
        "what ends a task after its last attempt claims it first",
        outcomes.Outcomes,
        patched(tasks, "_end_crashed", _claimed_first),
    ),
    Fault("a task's end is sent once, and its task tells", outcomes.Outcomes, patched(tasks, "_end_task", _end_once)),
    Fault("an attempt that failed is always repeated", outcomes.Outcomes, patched(run_task, "attempt_failed", _never)),
    Fault("the last attempt is waited for", outcomes.Outcomes, patched(tasks, "_end_crashed", _without_limit)),
    Fault(
        "what a leaving worker gives back has cost an attempt",
        outcomes.Outcomes,
        patched(run_task, "release_task", _counted),
    ),
    Fault("a lease is moved by whatever arrives", outcomes.Asked, patched(tasks, "_move_lease", _any_lease)),
    Fault("what is kept for outside can be taken over", outcomes.Asked, patched(tasks, "_move_lease", _unmarked)),
    Fault("a worker that left is called back", outcomes.Outcomes, patched(membership, "any_of", lambda *_: ALWAYS)),
    Fault("a parked task has cost an attempt", outcomes.Parked, patched(tasks, "_give_back", _parked_and_counted)),
    Fault("a cancel is put in line", operators.Cancels, patched(control, "cancel", _in_line_or_sent)),
    Fault(
        "a migration takes unseen tasks for ended",
        operators.Migrations,
        patched(control, "_move_tasks", _only_those_seen),
    ),
    Fault(
        "a migration forgets the name of the start", operators.Migrations, patched(control, "encode_data", _nameless)
    ),
    Fault("a migration leaves its tasks behind", operators.Migrations, patched(control, "_move_tasks", _without_tasks)),
)
