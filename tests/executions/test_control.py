"""Control: cancel, terminate, suspend, resume, redrive, migrate, purge, list; and definitions that outlive a deploy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from casework.backends.drive import run
from casework.errors import ExecutionExists, Misuse, NoSuchExecution, OutcomeUnknown
from casework.executions import control
from casework.executions.advance import advance
from casework.executions.deliver import handle
from casework.executions.run_task import find_function
from casework.executions.tasks import claim_task
from casework.executions.worker import Worker, sweep
from casework.kernel.effects import Query, Transact
from casework.kernel.schema import EXECUTIONS
from casework.statechart import Machine
from casework.testing import VirtualApp
from tests.executions.watching import (
    ByHand,
    app_on,
    data_of,
    items_of,
    machine,
    state_item,
    watched_app,
    work,
    work_once,
)

Maker = Callable[..., VirtualApp]

JOB = """
id: job
initial: open
context: {n: 0}
states:
  open:
    after: {1h: late}
    on:
      add: {actions: {type: assign, params: {n: {expr: context.n + 1}}}}
      work: working
      fail: {actions: {type: raise, params: {event: error.custom, data: {message: broken}}}}
      spin: circle
  working: {invoke: {id: do, src: {task: do_it}, onDone: open}, after: {10s: late}}
  circle: {always: circle2}
  circle2: {always: circle}
  late: {type: final}
"""


def job(text: str = JOB) -> Machine:
    return machine(text)


# --- cancel, terminate ------------------------------------------------------------------------------------------------


def test_cancel_asks_a_machine_that_knows_the_event_and_lets_it_end_by_itself() -> None:
    app, _ = watched_app(job(JOB.replace("      work: working", "      work: working\n      cancel: tidying") +
                             "  tidying: {after: {5s: late}}\n"))  # fmt: skip
    app.start("job", id="j")
    assert app.cancel("j").configuration == ["tidying"] and app.get("j").status == "running"
    version = app.get("j").version
    assert app.cancel("j").version == version, "a repeat does not end its clean-up"
    assert app.terminate("j").status == "cancelled"


def test_a_cancel_that_no_active_state_takes_is_the_end() -> None:
    app, _ = watched_app(job(JOB.replace("      work: working", "      work: working\n      cancel: late")))
    app.start("job", id="j")
    app.handle("j", "work")
    assert app.cancel("j").status == "cancelled"


def test_a_cancel_whose_answer_is_lost_does_not_terminate_a_machine_that_took_it() -> None:
    app, backend = watched_app(job(JOB.replace("      work: working", "      work: working\n      cancel: tidying") +
                                   "  tidying: {after: {5s: late}}\n"))  # fmt: skip
    app.start("job", id="j")
    cancel = ByHand(control.cancel(app.core.rt, "j"), backend).up_to()
    cancel.lose_answer(OutcomeUnknown("lost"), applied=True)
    assert cancel.finish().configuration == ["tidying"] and app.get("j").status == "running"


def test_cancel_of_a_machine_that_does_not_know_it_is_the_end() -> None:
    app, backend = watched_app(job())
    app.start("job", id="j")
    app.handle("j", "work")
    ended = app.cancel("j")
    assert ended.status == "cancelled" and ended.error == {"message": "cancelled", "type": "Cancelled", "where": ""}
    assert items_of(backend, "j") == [state_item(backend, "j")] and "pending" not in state_item(backend, "j")
    assert app.cancel("j").version == ended.version == app.terminate("j").version


def test_an_execution_of_an_unknown_machine_can_be_ended() -> None:
    app, backend = watched_app(job())
    app.start("job", id="j")
    other = app_on(backend)
    assert other.cancel("j").status == "cancelled"


def test_terminate_while_a_worker_steps_wins_or_loses_as_a_whole() -> None:
    app, backend = watched_app(job())
    app.start("job", id="j")
    app.send("j", "add")
    stepping = ByHand(advance(app.core.rt, "j"), backend).up_to()
    app.terminate("j")
    stepping.finish()
    ended = app.get("j")
    assert ended.status == "cancelled" and ended.context == {"n": 0}
    work(app, "j")
    assert len(app.dead_letters().items) == 1


# --- suspend, resume --------------------------------------------------------------------------------------------------


def entries(backend: Any, id: str) -> list[str]:
    return [str(item["sort"])[:2] for item in items_of(backend, id) if "pending" in item]


def test_suspending_takes_everything_out_of_the_index_and_resuming_puts_it_back() -> None:
    app, backend = watched_app(job())
    app.start("job", id="j")
    app.handle("j", "work")
    app.send("j", "add")
    app.send("j", "add")
    before = {item["sort"]: (item["pending"], item["rank_us"]) for item in items_of(backend, "j")}
    assert sorted(entries(backend, "j")) == ["0", "e/", "e/", "w/"]
    assert app.suspend("j").status == "suspended" == app.suspend("j").status
    assert entries(backend, "j") == []
    app.send("j", "add")
    work(app, "j")
    assert entries(backend, "j") == [] and len(items_of(backend, "j", "e/")) == 3
    assert app.resume("j").status == "running" == app.resume("j").status
    after = {item["sort"]: (item["pending"], item["rank_us"]) for item in items_of(backend, "j")}
    assert before.items() <= after.items() and len(after) == 5


def test_a_suspended_execution_at_the_head_of_the_index_blocks_nobody(casework_app: Maker) -> None:
    app, backend = watched_app(job(), buckets=1)
    for id in ("a", "b"):
        app.start("job", id=id)
        app.send(id, "add")
    app.suspend("a")
    backend.sleep(7200)
    app.send("a", "add")
    app.send("b", "add")
    for _ in range(3):
        run(sweep(Worker(app.core.rt)), backend)
    assert app.get("b").configuration == ["late"] and app.get("a").context == {"n": 0}
    assert backend.execute(Query(EXECUTIONS, "work/0", "pending")).items == []
    assert backend.execute(Query(EXECUTIONS, "timer/0", "pending")).items == []


def test_a_message_behind_many_that_were_set_aside_leaves_the_index_too() -> None:
    app, backend = watched_app(job(), buckets=1, batch_max=1)
    app.start("job", id="a")
    for _ in range(3):
        app.send("a", "add")
    app.suspend("a")
    app.send("a", "add")
    assert len(backend.execute(Query(EXECUTIONS, "work/0", "pending")).items) == 1
    run(sweep(Worker(app.core.rt)), backend)
    assert backend.execute(Query(EXECUTIONS, "work/0", "pending")).items == []
    app.resume("a")
    work(app, "a")
    assert app.get("a").context == {"n": 4}


def test_timers_that_came_due_meanwhile_fire_when_it_goes_on(casework_app: Maker) -> None:
    app = casework_app(job())
    app.start("job", id="j")
    app.suspend("j")
    app.advance("2h")
    assert app.get("j").configuration == ["open"]
    app.resume("j")
    app.settle()
    assert app.get("j").status == "done"


def test_a_worker_that_saw_it_suspended_does_not_hide_its_messages_after_it_was_resumed() -> None:
    app, backend = watched_app(job())
    app.start("job", id="j")
    app.suspend("j")
    app.send("j", "add")
    looking = ByHand(advance(app.core.rt, "j"), backend).up_to()
    app.resume("j")
    looking.finish()
    assert app.get("j").context == {"n": 1} or entries(backend, "j").count("e/") == 1
    work(app, "j")
    assert app.get("j").context == {"n": 1}


def test_a_slow_suspend_does_not_hide_the_messages_of_what_was_resumed() -> None:
    app, backend = watched_app(job())
    app.start("job", id="j")
    app.send("j", "add")
    slow = ByHand(control.suspend(app.core.rt, "j"), backend)
    slow.up_to().perform()
    slow.up_to(lambda effect: isinstance(effect, Transact))
    app.resume("j")
    slow.finish()
    assert entries(backend, "j").count("e/") == 1


def test_a_worker_that_takes_a_part_of_the_messages_while_they_are_put_back_hides_none() -> None:
    """The simulator's scenario "control", seed 417236587901: the rest waited until somebody sent another event."""
    app, backend = watched_app(job())
    app.start("job", id="j")
    sent = app.core.rt.options.batch_max + 1
    for _ in range(sent):
        app.send("j", "add")
    app.suspend("j")
    resuming = ByHand(control.resume(app.core.rt, "j"), backend)
    resuming.up_to().perform()
    resuming.up_to()
    work_once(app, "j")
    resuming.finish()
    hidden = [item for item in items_of(backend, "j", "e/") if "pending" not in item]
    assert hidden == []
    work(app, "j")
    assert app.get("j").context == {"n": sent}


def test_workers_finish_a_resume_whose_caller_died() -> None:
    app, backend = watched_app(job())
    app.start("job", id="j")
    app.send("j", "add")
    app.suspend("j")
    dying = ByHand(control.resume(app.core.rt, "j"), backend)
    dying.up_to().perform()
    dying.program.close()
    assert str(state_item(backend, "j")["pending"]).startswith("work/"), "the state itself calls a worker"
    work(app, "j")
    assert app.get("j").context == {"n": 1}
    assert "resume_status" not in state_item(backend, "j")


def test_the_messages_of_a_suspended_execution_that_is_terminated_become_dead_letters() -> None:
    app, _ = watched_app(job())
    app.start("job", id="j")
    app.send("j", "add")
    app.suspend("j")
    app.terminate("j")
    work(app, "j")
    assert [letter.reason for letter in app.dead_letters().items] == ["the execution had ended: cancelled"]


def test_only_what_goes_on_can_be_suspended_and_only_what_is_suspended_resumed() -> None:
    app, _ = watched_app(job())
    app.start("job", id="j")
    assert app.resume("j").version == 1
    app.terminate("j")
    assert app.migrate("j").status == "cancelled", "it runs that definition already"
    for call in (app.suspend, app.resume, app.redrive):
        with pytest.raises(Misuse, match="is cancelled"):
            call("j")
    app.start("job", id="k")
    with pytest.raises(Misuse, match="only a failed one"):
        app.redrive("k")


# --- redrive ----------------------------------------------------------------------------------------------------------


def test_a_failed_execution_goes_on_where_it_stood_with_new_timers() -> None:
    app, backend = watched_app(job())
    app.start("job", id="j")
    app.handle("j", "add")
    app.handle("j", "fail")
    assert app.get("j").status == "failed" and "pending" not in state_item(backend, "j")
    backend.sleep(3000)
    again = app.redrive("j", skip=True)
    assert (again.status, again.configuration, again.context, again.error) == ("running", ["open"], {"n": 1}, None)
    backend.sleep(3599)
    work(app, "j")
    assert app.handle("j", "add").context == {"n": 2}
    backend.sleep(2)
    work(app, "j")
    assert app.get("j").status == "done"


def test_the_event_that_failed_it_is_taken_again_once_the_definition_is_mended() -> None:
    app, backend = watched_app(job())
    app.start("job", id="j")
    app.send("j", "spin", {"why": 1}, event_id="s")
    work(app, "j")
    assert app.get("j").status == "failed"
    assert app.redrive("j").status == "failed", "the event is taken again, and fails again"
    mended = machine(JOB.replace("circle: {always: circle2}", "circle: {always: late}"))
    app.core.rt.by_hash[app.get("j").machine_hash] = mended
    assert app.redrive("j").status == "done"
    assert backend is app.backend


def test_a_message_that_was_about_to_be_given_up_is_taken_when_it_goes_on_first() -> None:
    """The simulator's scenario "lives" met it as a query that saw the old state and behind it a new message."""
    app, backend = watched_app(job())
    app.start("job", id="j")
    app.handle("j", "fail")
    app.send("j", "add")
    burying = ByHand(advance(app.core.rt, "j"), backend).up_to()
    app.redrive("j", skip=True)
    burying.finish()
    work(app, "j")
    assert app.get("j").context == {"n": 1}
    assert app.dead_letters().items == []


def test_a_redrive_drains_what_the_failed_step_left_to_deliver() -> None:
    """Else the children that it cancelled would go on for ever."""
    parent = machine(
        """
id: parent
initial: waiting
states:
  waiting:
    invoke: {id: kid, src: {machine: job}, each: {expr: event.inputs}}
    on: {fail: {actions: {type: raise, params: {event: error.custom, data: {message: broken}}}}}
  idle: {on: {go: waiting}}
""".replace("initial: waiting", "initial: idle")
    )
    app, backend = watched_app(parent, job())
    app.start("parent", id="p")
    app.handle("p", "go", {"inputs": list(range(150))})
    failing = ByHand(handle(app.core.rt, "p", "fail", {}), backend).up_to()
    failing.perform()
    failing.program.close()
    assert state_item(backend, "p")["spill"] and app.get("p").status == "failed"
    app.redrive("p", skip=True)
    assert "spill" not in state_item(backend, "p")
    stored = backend.tables.stored(EXECUTIONS).items
    kids = [key[0] for key, item in stored.items() if key[1] == "0" and item.get("parent_id") == "p"]
    for kid in kids:
        work(app, kid)
    assert len(kids) == 150 and {app.get(kid).status for kid in kids} == {"cancelled"}


# --- migrate ----------------------------------------------------------------------------------------------------------


def test_an_execution_keeps_its_definition_until_it_is_migrated() -> None:
    app, backend = watched_app(job())
    app.start("job", id="j")
    newer_text = JOB.replace("expr: context.n + 1", "expr: context.n + 100")
    newer = app_on(backend, job(newer_text))
    assert newer.handle("j", "add").context == {"n": 1}
    newer.send("j", "add")
    work(newer, "j")
    assert newer.get("j").context == {"n": 2}
    migrated = newer.migrate("j")
    assert migrated.machine_hash != app.get("j").machine_hash or migrated.version == app.get("j").version
    assert newer.handle("j", "add").context == {"n": 102}
    assert newer.migrate("j").version == newer.get("j").version, "nothing to do"
    assert app.handle("j", "add").context == {"n": 202}, "the older process runs the stored definition"


def test_what_does_not_fit_is_named_and_nothing_is_written() -> None:
    app, backend = watched_app(job())
    app.start("job", id="j")
    app.handle("j", "work")
    version = app.get("j").version
    for text, said in (
        (JOB.replace("working", "busy"), "there is no state 'working'"),
        (JOB.replace("id: do,", "id: other,"), "'do', which is not invoked"),
        (JOB.replace(", after: {10s: late}}", "}"), "its timer"),
        (JOB.replace("task: do_it", "task: do_other"), "'do', the task 'do_it', which is 'do_other' there"),
        (JOB.replace("task: do_it", "machine: do_it"), "'do', the task 'do_it', which is a machine there"),
    ):
        newer = app_on(backend, job(text))
        with pytest.raises(Misuse, match=said):
            newer.migrate("j")
    assert app.get("j").version == version


def test_an_execution_can_be_migrated_to_a_machine_of_another_name() -> None:
    app, backend = watched_app(job(), job(JOB.replace("id: job", "id: newjob")))
    app.start("job", id="j")
    app.handle("j", "add")
    assert app.migrate("j", to="newjob").machine == "newjob"
    assert [each.id for each in app.list(machine="newjob").items] == ["j"] and app.list(machine="job").items == []
    assert app.handle("j", "add").context == {"n": 2} and backend is app.backend
    with pytest.raises(Misuse, match="known: job, newjob"):
        app.migrate("j", to="nonsense")


def test_a_child_that_is_another_machine_in_the_new_definition_does_not_fit() -> None:
    parent = "{id: p, initial: a, states: {a: {invoke: {id: kid, src: {machine: MACHINE}}}}}"
    kids = [machine(f"{{id: {name}, initial: a, states: {{a: {{}}}}}}") for name in ("kid", "other")]
    app, backend = watched_app(machine(parent.replace("MACHINE", "kid")), *kids)
    app.start("p", id="x")
    newer = app_on(backend, machine(parent.replace("MACHINE", "other")), *kids)
    with pytest.raises(Misuse, match="it waits for 'kid', the machine 'kid', which is 'other' there"):
        newer.migrate("x")


def test_a_task_that_waits_is_run_by_the_machine_of_the_new_name() -> None:
    new = job(JOB.replace("id: job", "id: newjob"))
    app, backend = watched_app(job())
    app.start("job", id="j")
    app.handle("j", "work")
    newer = app_on(backend, new)
    new.task(name="do_it")(lambda task: "done")
    newer.migrate("j", to="newjob")
    assert [item["machine"] for item in items_of(backend, "j") if "src" in item] == ["newjob"]
    place = next(EXECUTIONS.key_of(item) for item in items_of(backend, "j") if "src" in item)
    task = run(claim_task(newer.core.rt, place), backend)
    assert task is not None and find_function(newer.core.rt, task)(None) == "done"


# --- purge ------------------------------------------------------------------------------------------------------------


def test_purge_deletes_everything_and_the_id_is_free() -> None:
    app, backend = watched_app(job(), trace_max=50, dedupe_window_s=60)
    app.start("job", id="j")
    for n in range(120):
        app.handle("j", "add", event_id=f"e{n}")
    app.handle("j", "work")
    app.terminate("j")
    app.send("j", "add")
    work(app, "j")
    app.send("j", "add")
    count = len(items_of(backend, "j"))
    assert count > 170 and app.purge("j") == count
    assert items_of(backend, "j") == [] and app.dead_letters().items == [] and app.list().items == []
    with pytest.raises(NoSuchExecution):
        app.purge("j")
    assert app.start("job", id="j", input={"other": 1}).version == 1


def test_what_has_not_ended_is_purged_only_by_force() -> None:
    app, _ = watched_app(job())
    app.start("job", id="j")
    with pytest.raises(Misuse, match="cancel it first"):
        app.purge("j")
    app.suspend("j")
    with pytest.raises(Misuse, match="cancel it first"):
        app.purge("j")
    assert app.purge("j", force=True) == 1


def test_an_interrupted_purge_is_finished_by_the_next_and_nothing_comes_between() -> None:
    app, backend = watched_app(job(), trace_max=200)
    app.start("job", id="j")
    for _ in range(150):
        app.handle("j", "add")
    purge = ByHand(control.purge(app.core.rt, "j", force=True), backend)
    for _ in range(2):
        purge.up_to().perform()
    purge.program.close()
    assert app.get("j").status == "purging" and 50 < len(items_of(backend, "j")) < 100
    with pytest.raises(ExecutionExists, match="being purged"):
        app.start("job", id="j")
    for call in (app.terminate, app.suspend, app.resume, app.retry, app.redrive, app.migrate):
        with pytest.raises(Misuse, match="purg"):
            call("j")
    app.handle("j", "add")
    app.core.forget("j")
    work(app, "j")
    assert app.get("j").status == "purging"
    app.purge("j")
    assert items_of(backend, "j") == []


def test_a_worker_in_the_middle_of_a_step_cannot_bring_a_purged_execution_back() -> None:
    app, backend = watched_app(job())
    app.start("job", id="j")
    app.send("j", "add")
    stepping = ByHand(advance(app.core.rt, "j"), backend).up_to()
    app.purge("j", force=True)
    stepping.finish()
    assert items_of(backend, "j") == []


def test_a_purge_first_delivers_what_the_end_left_to_deliver() -> None:
    parent = machine("""
id: parent
initial: idle
states:
  idle: {on: {go: waiting}}
  waiting: {invoke: {id: kid, src: {machine: job}, each: {expr: event.inputs}}}
""")
    app, backend = watched_app(parent, job())
    app.start("parent", id="p")
    app.handle("p", "go", {"inputs": list(range(150))})
    ending = ByHand(control.terminate(app.core.rt, "p"), backend).up_to()
    ending.perform()
    ending.program.close()
    assert state_item(backend, "p")["spill"]
    app.purge("p")
    stored = backend.tables.stored(EXECUTIONS).items
    kids = [key[0] for key, item in stored.items() if key[1] == "0" and item.get("parent_id") == "p"]
    for kid in kids:
        work(app, kid)
    assert len(kids) == 150 and {app.get(kid).status for kid in kids} == {"cancelled"}


# --- listing, dead letters, trace -------------------------------------------------------------------------------------


def pages(call: Callable[..., Any], **filters: Any) -> list[Any]:
    found, cursor = [], None
    for _ in range(500):
        page = call(cursor=cursor, **filters)
        assert len(page.items) <= filters.get("limit", 100)
        found += page.items
        cursor = page.next
        if cursor is None:
            return found
    raise AssertionError("the listing does not end")


def listing_app() -> Any:
    app, _ = watched_app(job(), job(JOB.replace("id: job", "id: job2")))
    for n in range(60):
        app.start("job2" if n % 3 == 0 else "job", id=f"j{n}")
        if n % 4 == 0:
            app.terminate(f"j{n}")
        if n % 10 == 1:
            app.suspend(f"j{n}")
    return app


@pytest.mark.parametrize("limit", [1, 3, 7, 60, 1000])
def test_a_listing_gives_every_execution_once_in_pages_within_the_limit(limit: int) -> None:
    app = listing_app()
    for filters, wanted in (
        ({}, set(range(60))),
        ({"machine": "job2"}, {n for n in range(60) if n % 3 == 0}),
        ({"status": "cancelled"}, {n for n in range(60) if n % 4 == 0}),
        ({"status": "suspended", "machine": "job"}, {n for n in range(60) if n % 10 == 1 and n % 3}),
        ({"status": "failed"}, set()),
    ):
        found = [each.id for each in pages(app.list, limit=limit, **filters)]
        assert len(found) == len(wanted) and set(found) == {f"j{n}" for n in wanted}


def test_a_cursor_belongs_to_its_filters() -> None:
    app = listing_app()
    cursor = app.list(limit=2, machine="job").next
    for other in ({}, {"machine": "job2"}, {"machine": "job", "status": "running"}, {"machine": "job", "parent": "x"}):
        with pytest.raises(Misuse, match="another listing"):
            app.list(limit=2, cursor=cursor, **other)
    with pytest.raises(Misuse, match="another listing"):
        app.dead_letters(cursor=cursor)
    for wrong in ("", "x", "é", 5, "e30"):
        with pytest.raises(Misuse):
            app.list(machine="job", cursor=wrong)


@pytest.mark.parametrize("limit", [0, -1, 1001, 1.5, "10", None, True])
def test_a_limit_is_from_1_to_1000(limit: Any) -> None:
    app = listing_app()
    for call in (app.list, app.dead_letters):
        with pytest.raises(Misuse, match="limit"):
            call(limit=limit)
    with pytest.raises(Misuse, match="status is 'nonsense'"):
        app.list(status="nonsense")


def test_an_ended_child_that_was_started_by_hand_is_listed_by_its_parent() -> None:
    app = listing_app()
    assert app.list(parent="j1").items == []


def test_dead_letters_are_listed_page_by_page() -> None:
    app, _ = watched_app(job())
    for n in range(30):
        app.start("job", id=f"j{n}")
        app.terminate(f"j{n}")
        app.send(f"j{n}", "add", {"n": n})
        work(app, f"j{n}")
    for limit in (1, 4, 100):
        found = pages(app.dead_letters, limit=limit)
        assert sorted(each.events[0]["data"]["n"] for each in found) == list(range(30))


def test_a_message_to_nobody_becomes_a_dead_letter_after_an_hour(casework_app: Maker) -> None:
    text = JOB.replace("      spin: circle", "      spin: circle\n      tell: {actions: {type: send, params: "
                       "{event: add, to: nobody, data: {n: 7}}}}")  # fmt: skip
    app, backend = watched_app(job(text))
    app.start("job", id="j")
    app.handle("j", "tell")
    assert "no such execution yet" in work_once(app, "nobody").parked
    backend.sleep(3500)
    assert app.dead_letters().items == []
    backend.sleep(200)
    work(app, "nobody")
    (dead,) = app.dead_letters().items
    assert dead.execution_id == "nobody" and dead.events[0]["data"] == {"n": 7} and "within an hour" in dead.reason
    app.start("job", id="k")
    app.handle("k", "tell")
    app.start("job", id="nobody")
    work(app, "nobody")
    assert app.get("nobody").context == {"n": 1}, "one that appears in time takes its messages"


def test_the_trace_is_a_ring_of_the_last_entries_without_a_read() -> None:
    app, backend = watched_app(job(), trace_max=10)
    app.start("job", id="j")
    for _ in range(25):
        app.handle("j", "add")
    trace = app.trace("j")
    assert [entry["index"] for entry in trace] == list(range(17, 27)) and len(items_of(backend, "j", "z/")) == 10
    assert trace[-1]["version"] == 26 and trace[-1]["events"][0]["event"] == "add"
    backend.forget()
    app.handle("j", "add")
    assert backend.calls() == ["Transact"]


def test_lowering_the_length_of_the_trace_shrinks_it_commit_by_commit() -> None:
    app, backend = watched_app(job(), trace_max=40)
    app.start("job", id="j")
    for _ in range(60):
        app.handle("j", "add")
    assert len(app.trace("j")) == 40
    lower = app_on(backend, job(), trace_max=5)
    for _ in range(10):
        lower.handle("j", "add")
    assert [entry["index"] for entry in lower.trace("j")] == list(range(67, 72))
    assert len(items_of(backend, "j", "z/")) == 5


def test_without_a_trace_nothing_is_kept() -> None:
    app, backend = watched_app(job())
    app.start("job", id="j")
    app.handle("j", "add")
    assert app.trace("j") == [] and len(items_of(backend, "j")) == 1


# --- definitions ------------------------------------------------------------------------------------------------------


def test_a_running_execution_runs_the_stored_definition_after_a_deploy(casework_app: Maker) -> None:
    app, backend = watched_app(job())
    app.start("job", id="old")
    renamed = machine(JOB.replace("open", "opened").replace("n + 1", "n + 100"))
    newer = app_on(backend, renamed)
    newer.start("job", id="new")
    for id in ("old", "new"):
        newer.send(id, "add")
        work(newer, id)
    assert newer.get("old").context == {"n": 1} and newer.get("new").context == {"n": 100}
    backend.sleep(3601)
    for id in ("old", "new"):
        work(newer, id)
        assert newer.get(id).status == "done"
    _, data = data_of(app, "old")
    assert data.snap.configuration == ["late"]


def test_an_event_that_only_the_older_definition_knows_is_accepted_for_its_executions() -> None:
    app, backend = watched_app(job())
    app.start("job", id="j")
    newer = app_on(backend, job(JOB.replace("add:", "plus:")))
    newer.send("j", "add")
    work(newer, "j")
    assert newer.get("j").context == {"n": 1}
    with pytest.raises(Misuse, match="plus"):
        newer.send("j", "plus")
