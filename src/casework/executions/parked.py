"""What is parked: put off, with a reason, since the process that looked at it lacked what it needs.

It stands in the ``pending`` index in partitions of its own (``parked/3``), at the time of its next look. So a worker
that has more finds it without looking at everything that is not due: when it starts it looks at all that is parked, and
then, every half a minute, sooner while it finds something, at what was parked lately. It takes what it can go on with,
whosever share that is in; all else waits for its time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from casework.errors import CorruptItem
from casework.executions.run_task import find_function
from casework.executions.runtime import Parked, Runtime, machine_of
from casework.executions.state import State, state_of
from casework.executions.task_items import task_of
from casework.kernel.conditions import equals
from casework.kernel.effects import Instant
from casework.kernel.items import Item, Update
from casework.kernel.programs import Program
from casework.kernel.schema import EXECUTIONS
from casework.statechart import Machine

LOOK_FIRST_US, LOOK_US = 2_000_000, 30_000_000
"""A worker that took something that was parked looks again after 2 s, then after twice that, up to half a minute."""

LATELY_US = 60_000_000
"""And then at what is due within this time, whoever's it is: all that was first parked since the last look."""


def can_go_on(rt: Runtime, item: Item, state_item: Item | None) -> Program[bool]:
    """Whether this process has what a parked item needs, as far as machines and functions go."""
    if state_item is None:
        return False
    try:
        state = state_of(state_item)
        if str(item["sort"]).startswith("w/"):
            return _has_task(rt, item, state)
        machine = yield from machine_of(rt, state)
    except (Parked, CorruptItem):
        return False
    return has_all_functions(machine)


def _has_task(rt: Runtime, item: Item, state: State) -> bool:
    task = task_of(item)
    machine = rt.machines.get(task.machine)
    try:
        find_function(rt, task)
    except Parked:
        return task.is_open and task.src in rt.machines
    # Where the function is there, what did not fit may have been its arguments: those of its own version do.
    return machine is not None and state.machine_hash == machine.hash


def has_all_functions(machine: Machine) -> bool:
    """Whether every action and guard that a definition names is registered."""
    return not (machine.names.actions - set(machine.actions) or machine.names.guards - set(machine.guards))


def due_now(item: Mapping[str, Any], moment: Instant) -> Update:
    """Makes a parked task due, for the worker that then claims it."""
    return Update(EXECUTIONS.key_of(item), {"rank_us": moment.middle_us}, when=equals("rank_us", item["rank_us"]))
