"""Children of a machine that the parent's process does not know: they wait for a process that has it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from casework.app.sync import App
from casework.backends.drive import run
from casework.backends.drive_async import run_async
from casework.backends.memory import MemoryBackend
from casework.backends.surroundings import VirtualClock
from casework.backends.threaded import ThreadedBackend
from casework.errors import Misuse, UnknownEvent
from casework.executions.joins import child_id
from casework.executions.run_task import TaskRunner, run_task
from casework.executions.tasks import claim_task
from casework.kernel.items import Key
from casework.kernel.schema import EXECUTIONS, MACHINES
from casework.statechart import Machine
from tests.executions.test_children import CHILD, JOIN, PARENT, QUICK
from tests.executions.watching import app_on, data_of, items_of, machine, state_item, work

BY_NAME = PARENT.replace("src: {machine: child}", "src: child")


class Processes:
    """Several processes on one store, each with machines of its own."""

    def __init__(self) -> None:
        self.backend = MemoryBackend(seed=1, clock=VirtualClock())

    def with_(self, *texts: str, **options: Any) -> App:
        return app_on(self.backend, *(machine(text) for text in texts), **options)


def kid_of(app: App, n: int = 0, stay: int = 1) -> str:
    return child_id("p", "kid", stay, n, app.get("p").created_at_us)


def all_kids(app: App) -> list[str]:
    items = app.backend.tables.stored(EXECUTIONS).items  # type: ignore[attr-defined]
    return sorted(key[0] for key, item in items.items() if key[1] == "0" and item.get("parent_id") == "p")


def waits(app: App) -> str:
    app.start("parent", id="p")
    app.handle("p", "go")
    return kid_of(app, 0, data_of(app, "p")[1].invokes["kid"].stay)


@pytest.mark.parametrize("at_start", [False, True])
def test_a_process_without_the_childs_machine_goes_on_and_the_child_waits(at_start: bool) -> None:
    both = Processes()
    parent = PARENT.replace("initial: idle", "initial: waiting") if at_start else PARENT
    web, knower = both.with_(parent), both.with_(parent, QUICK)
    web.start("parent", id="p")
    if not at_start:
        web.handle("p", "go")
    (kid,) = all_kids(web)
    assert web.get("p").waiting_for == ["kid"] and web.get("p").configuration == ["waiting"]
    assert (web.get(kid).status, web.get(kid).machine, web.get(kid).machine_hash) == ("pending", "child", "")
    assert "no machine 'child'" in work(web, kid).parked
    assert web.get(kid).status == "pending" and web.get("p").configuration == ["waiting"], "nothing is decided"
    work(knower, kid)
    work(web, "p")
    assert web.get("p").status == "done" and web.get("p").context["out"] == {"n": 10}


def test_the_definition_is_bound_and_stored_by_who_begins_the_child_and_kept_from_then_on() -> None:
    both = Processes()
    web, first, later = both.with_(PARENT), both.with_(CHILD), both.with_(QUICK)
    kid = waits(web)
    work(first, kid)
    mine = first.core.rt.machines["child"].hash
    assert first.get(kid).machine_hash == mine and mine != later.core.rt.machines["child"].hash
    assert both.backend.tables.stored(MACHINES).items, "a process that has it not must find it"
    work(later, kid)
    later.handle(kid, "end")
    assert later.get(kid).machine_hash == mine and later.get(kid).output == {"n": 1}


def test_an_event_handled_in_line_begins_the_child_and_binds_it() -> None:
    both = Processes()
    web, knower = both.with_(PARENT), both.with_(CHILD)
    kid = waits(web)
    assert knower.handle(kid, "poke", {"n": 3}).context["pokes"] == [3]
    assert knower.get(kid).machine_hash == knower.core.rt.machines["child"].hash


def test_events_sent_to_a_waiting_child_are_taken_once_it_begins() -> None:
    both = Processes()
    web, knower = both.with_(PARENT), both.with_(CHILD)
    kid = waits(web)
    web.send(kid, "poke", {"n": 1})
    web.handle("p", "tell")
    assert "no machine" in work(web, kid).parked
    work(knower, kid)
    assert sorted(knower.get(kid).context["pokes"]) == [1, 5]
    with pytest.raises(Misuse, match="has no machine 'child'"):
        web.handle(kid, "poke", {"n": 2})
    with pytest.raises(UnknownEvent):
        knower.send(kid, "nonsense")


@pytest.mark.parametrize("spill_above", [60, 2])
def test_a_join_of_unknown_children_waits_and_then_decides(spill_above: int) -> None:
    both = Processes()
    web, knower = both.with_(JOIN, spill_above=spill_above), both.with_(JOIN, QUICK)
    web.start("parent", id="p", input={"inputs": [1, 2, 3, 4]})
    web.handle("p", "go")
    kids = all_kids(web)
    assert len(kids) == 4
    for kid in kids:
        assert work(web, kid).parked
    for kid in kids:
        work(knower, kid)
    work(web, "p")
    assert web.get("p").context["out"] == [{"n": n} for n in (10, 20, 30, 40)]


@pytest.mark.parametrize("spill_above", [60, 2])
def test_leaving_the_state_ends_children_that_nobody_ever_knew(spill_above: int) -> None:
    both = Processes()
    web = both.with_(JOIN, spill_above=spill_above)
    web.start("parent", id="p", input={"inputs": [1, 2, 3]})
    web.handle("p", "go")
    kids = all_kids(web)
    for kid in kids:
        assert work(web, kid).parked
    web.handle("p", "leave")
    for kid in kids:
        work(web, kid)
        assert web.get(kid).status == "cancelled"
        assert not items_of(web.backend, kid, "e/"), "nothing is left to look at"
    assert web.get("p").configuration == ["idle"]


def test_a_child_that_was_begun_elsewhere_is_ended_with_its_parent_where_nobody_knows_it() -> None:
    both = Processes()
    web, knower = both.with_(PARENT), both.with_(CHILD)
    kid = waits(web)
    work(knower, kid)
    web.send(kid, "poke", {"n": 1})
    web.handle("p", "leave")
    while not web.get(kid).has_ended:
        work(web, kid)
    assert web.get(kid).status == "cancelled"


@pytest.mark.parametrize("how", ["terminate", "cancel"])
def test_an_operator_may_end_a_child_that_nobody_knows_and_its_parent_hears_of_it(how: str) -> None:
    web = Processes().with_(PARENT)
    kid = waits(web)
    getattr(web, how)(kid)
    work(web, "p")
    assert web.get("p").context["why"]["type"] == "Cancelled" and web.get(kid).machine_hash == ""


def test_suspended_and_resumed_it_still_waits() -> None:
    both = Processes()
    web, knower = both.with_(PARENT), both.with_(PARENT, QUICK)
    kid = waits(web)
    web.suspend(kid)
    work(knower, kid)
    assert web.get(kid).status == "suspended"
    web.resume(kid)
    work(knower, kid)
    assert knower.get(kid).status == "done"


def test_a_name_that_nobody_has_is_mended_by_migrating_the_child() -> None:
    both = Processes()
    web, other = both.with_(PARENT), both.with_(PARENT, QUICK.replace("id: child", "id: renamed"))
    kid = waits(web)
    other.migrate(kid, to="renamed")
    work(other, kid)
    work(web, "p")
    assert web.get("p").context["out"] == {"n": 10}


def test_a_waiting_child_is_purged_and_its_id_is_free() -> None:
    web = Processes().with_(PARENT)
    kid = waits(web)
    web.terminate(kid)
    assert web.purge(kid) and not items_of(web.backend, kid)


def test_it_is_shown_with_the_reason_where_it_waits() -> None:
    web = Processes().with_(PARENT)
    kid = waits(web)
    work(web, kid)
    assert web.inspect(kid).parked == ["this process has no machine 'child'"]
    assert "no machine 'child'" in web.get(kid).parked
    (children,) = web.inspect("p").children
    assert children.children == [{"id": kid, "status": "pending", "parked": "this process has no machine 'child'"}]


# --- names that may be a task's or a machine's ------------------------------------------------------------------------


def run_task_of(app: App, id: str) -> None:
    """What a worker does with the task that it finds there."""
    (item,) = items_of(app.backend, id, "w/")
    task = run(claim_task(app.core.rt, Key(EXECUTIONS, id, str(item["sort"]))), app.backend)
    assert task is not None
    runner = TaskRunner(app.core.rt, task, lambda id: None)
    asyncio.run(run_async(run_task(runner), ThreadedBackend(app.backend)))


def test_a_name_alone_that_only_the_worker_knows_for_a_machine_starts_a_child() -> None:
    both = Processes()
    web, knower = both.with_(BY_NAME), both.with_(BY_NAME, QUICK)
    web.start("parent", id="p")
    web.handle("p", "go")
    run_task_of(knower, "p")
    work(web, "p")
    (kid,) = all_kids(web)
    work(knower, kid)
    work(web, "p")
    assert web.get("p").context["out"] == {"n": 10} and web.get("p").status == "done"


def test_a_name_alone_that_nobody_knows_waits_as_a_task() -> None:
    both = Processes()
    web = both.with_(BY_NAME)
    web.start("parent", id="p")
    web.handle("p", "go")
    run_task_of(web, "p")
    (item,) = items_of(web.backend, "p", "w/")
    assert "no task 'child'" in str(item["parked"]) and item["attempt"] == 0


def test_a_name_said_to_be_a_tasks_never_becomes_a_child() -> None:
    both = Processes()
    text = PARENT.replace("src: {machine: child}", "src: {task: child}")
    web, other = both.with_(text), both.with_(text, QUICK)
    web.start("parent", id="p")
    web.handle("p", "go")
    run_task_of(other, "p")
    assert "parked" in items_of(web.backend, "p", "w/")[0] and not all_kids(web)


def test_a_state_that_was_left_starts_no_child_of_such_a_name() -> None:
    both = Processes()
    web, knower = both.with_(BY_NAME), both.with_(BY_NAME, QUICK)
    web.start("parent", id="p")
    web.handle("p", "go")
    run_task_of(knower, "p")
    web.handle("p", "leave")
    work(web, "p")
    assert not all_kids(web) and web.get("p").configuration == ["idle"]


# --- functions of another version -------------------------------------------------------------------------------------

VERSION_1 = """
id: order
initial: open
context: {n: 0}
states:
  open: {on: {Add: {actions: [add]}, Pay: paying}}
  paying: {invoke: {id: pay, src: pay, input: {amount: 1}, onDone: paid, onError: unpaid}}
  paid: {type: final}
  unpaid: {type: final}
"""

VERSION_2 = """
id: order
initial: open
context: {n: 0}
states:
  open: {on: {Add: {actions: [add2]}, Pay: paying}}
  paying: {invoke: {id: pay, src: pay, input: {amount: 1, currency: EUR}, onDone: paid, onError: unpaid}}
  paid: {type: final}
  unpaid: {type: final}
"""


def order(text: str, pay: Callable[..., Any] | None = None) -> Machine:
    made = machine(text)
    name = "add2" if "add2" in text else "add"
    made.action(name=name)(lambda context, event: {"n": context["n"] + 1})
    made.task(name="pay")(pay or (lambda task, amount: {}))
    return made


def test_handle_sends_an_event_that_needs_a_function_of_another_version() -> None:
    backend = MemoryBackend(seed=1, clock=VirtualClock())
    old, new = app_on(backend, order(VERSION_1)), app_on(backend, order(VERSION_2))
    new.start("order", id="o")
    answer = old.handle("o", "Add", event_id="a")
    assert answer.context["n"] == 0, "it waits for a process that has the function"
    assert "'add2' is not registered" in work(old, "o").parked
    work(new, "o")
    assert new.get("o").context["n"] == 1
    with pytest.raises(UnknownEvent):
        old.handle("o", "Nonsense")


def test_a_function_missing_in_ones_own_version_is_said_at_once() -> None:
    app = app_on(MemoryBackend(seed=1, clock=VirtualClock()), machine(VERSION_1))
    app.start("order", id="o")
    with pytest.raises(Misuse, match="'add' is not registered"):
        app.handle("o", "Add")
    assert not items_of(app.backend, "o", "e/")


def test_a_task_that_another_versions_function_cannot_take_is_parked_and_not_failed() -> None:
    backend = MemoryBackend(seed=1, clock=VirtualClock())
    old = app_on(backend, order(VERSION_1))
    new = app_on(backend, order(VERSION_2, lambda task, amount, currency: {"paid": currency}))
    for starts, other in ((new, old), (old, new)):
        id = "new" if starts is new else "old"
        starts.start("order", id=id)
        starts.handle(id, "Pay")
        run_task_of(other, id)
        (item,) = items_of(backend, id, "w/")
        assert "another version of the machine" in str(item["parked"]) and item["attempt"] == 0
        backend.clock.advance(61)  # type: ignore[attr-defined]
        run_task_of(starts, id)
        work(other, id)
        assert other.get(id).configuration == ["paid"]


def test_a_task_that_its_own_versions_function_cannot_take_fails_for_good() -> None:
    app = app_on(MemoryBackend(seed=1, clock=VirtualClock()), order(VERSION_1, lambda task: {}))
    app.start("order", id="o")
    app.handle("o", "Pay")
    run_task_of(app, "o")
    work(app, "o")
    assert app.get("o").configuration == ["unpaid"]
    assert state_item(app.backend, "o")["status"] == "done"
