"""Cancelling and migrating what is under way, while others move it.

Found by the simulator's scenarios "cancels" and "migrations"; each test is the smallest schedule of one failure.
"""

from __future__ import annotations

from typing import Any

import pytest

from casework.errors import ExecutionExists
from casework.executions import control
from casework.executions.deliver import handle
from casework.kernel.effects import Transact
from casework.kernel.schema import EXECUTIONS
from tests.executions.test_control import JOB, job
from tests.executions.watching import ByHand, app_on, items_of, machine, overwrite, watched_app, work

STEPS = """
id: steps
initial: open
context: {n: 0, ticks: 0}
states:
  open: {on: {lock: locked, cancel: tidying}}
  locked:
    on: {add: {actions: {type: assign, params: {n: {expr: context.n + 1}}}}, unlock: open}
    initial: early
    states:
      early: {after: {5s: {target: late, actions: {type: assign, params: {ticks: {expr: context.ticks + 1}}}}}}
      late: {}
  tidying: {}
"""


def locked() -> tuple[Any, Any]:
    """An execution in a state that does not take the cancel event, of a machine that knows it."""
    app, backend = watched_app(machine(STEPS))
    app.start("steps", id="s")
    app.handle("s", "lock")
    return app, backend


def test_a_cancel_that_loses_race_after_race_is_not_put_in_line_where_no_state_takes_it() -> None:
    """It was sent as a message after three lost rounds, and then taken by nobody: the execution went on for ever."""
    app, backend = locked()
    cancel = ByHand(control.cancel(app.core.rt, "s"), backend)
    for _ in range(4):
        cancel.up_to()
        app.handle("s", "add")
        cancel.perform()
    assert cancel.finish().status == "cancelled"
    work(app, "s")
    assert app.get("s").status == "cancelled" and app.get("s").context["n"] == 4 and items_of(backend, "s", "e/") == []


def test_a_cancel_of_what_ends_meanwhile_leaves_no_dead_letter() -> None:
    app, backend = watched_app(machine(STEPS))
    app.start("steps", id="s")
    cancel = ByHand(control.cancel(app.core.rt, "s"), backend).up_to()
    app.terminate("s")
    assert cancel.finish().status == "cancelled"
    work(app, "s")
    assert app.dead_letters().items == [] and items_of(backend, "s", "e/") == []


def test_a_timer_that_is_due_is_not_taken_for_the_cancel() -> None:
    """What the timer did was taken for the event's doing, and the execution went on."""
    app, backend = locked()
    backend.sleep(6)
    ended = app.cancel("s")
    assert ended.status == "cancelled" and ended.context["ticks"] == 1


def test_an_event_that_nothing_takes_says_so_though_a_timer_was_due() -> None:
    app, backend = watched_app(machine(STEPS))
    app.start("steps", id="s")
    app.handle("s", "lock")
    backend.sleep(6)
    execution, _ = ByHand(handle(app.core.rt, "s", "lock", {}), backend).finish()
    assert execution.is_in("locked.late") and not execution.is_taken
    execution, _ = ByHand(handle(app.core.rt, "s", "unlock", {}), backend).finish()
    assert execution.is_taken


def test_a_start_that_is_repeated_after_a_migration_to_another_name_knows_its_execution_again() -> None:
    """It was refused as the id of somebody else."""
    new = job(JOB.replace("id: job", "id: newjob"))
    newest = job(JOB.replace("id: job", "id: newestjob"))
    app, backend = watched_app(job(), new, newest)
    app.start("job", id="j", input={"n": 1})
    app.migrate("j", to="newjob")
    app.handle("j", "add")
    app.migrate("j", to="newestjob")
    assert app.start("job", id="j", input={"n": 1}).machine == "newestjob"
    assert app.start("newestjob", id="j", input={"n": 1}).context == {"n": 1}
    for name, given in (("job", 2), ("newjob", 1)):
        with pytest.raises(ExecutionExists, match="with other input" if name == "job" else "with machine 'newestjob'"):
            app.start(name, id="j", input={"n": given})
    assert len(items_of(backend, "j")) == 1


def test_a_migration_that_does_not_see_the_task_of_a_state_yet_looks_again() -> None:
    """The items of a transaction need not appear at one instant: the state was there, its task on its way."""
    new = job(JOB.replace("id: job", "id: newjob"))
    app, backend = watched_app(job())
    app.start("job", id="j")
    app.handle("j", "work")
    (task,) = items_of(backend, "j", "w/")
    backend.tables.stored(EXECUTIONS).store(EXECUTIONS.key_of(task), None)
    migration = ByHand(control.migrate(app_on(backend, new).core.rt, "j", new), backend)
    migration.up_to(lambda effect: isinstance(effect, Transact))
    overwrite(backend, task)
    assert migration.finish().machine == "newjob"
    assert [item["machine"] for item in items_of(backend, "j", "w/")] == ["newjob"]
