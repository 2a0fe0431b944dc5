"""Faults that were shown in an earlier engine of this kind, one test for each; the first words name the fault."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from casework.backends.drive import run
from casework.errors import Contention, Misuse, NoSuchExecution, NotJson, Throttled, UnknownEvent
from casework.executions.advance import advance
from casework.executions.worker import Worker, sweep
from casework.kernel.effects import Get, GetMany, Query, Transact
from casework.kernel.schema import EXECUTIONS
from casework.statechart import Machine
from casework.testing import VirtualApp
from tests.executions.watching import (
    ByHand,
    app_on,
    items_of,
    machine,
    state_item,
    watched_app,
    work,
    work_once,
)

Maker = Callable[..., VirtualApp]

LOG = """
id: log
initial: a
context: {seen: []}
states:
  a:
    on:
      note: {actions: {type: assign, params: {seen: {expr: "context.seen + [event.n]"}}}}
      tell: {actions: {type: send, params: {event: note, to: {expr: event.to}, data: {n: {expr: event.n}}}}}
"""


def log() -> Machine:
    return machine(LOG)


def test_a_global_counter_for_every_sequence__order_comes_from_the_execution_itself() -> None:
    app, backend = watched_app(log())
    for id in ("s", "r"):
        app.start("log", id=id)
    backend.forget()
    for n in range(5):
        app.send("s", "tell", {"to": "r", "n": n})
        work(app, "s")
    written = {
        (write.key.table.name, write.key.partition)
        for each in backend.written
        for write in (each.writes if isinstance(each, Transact) else [each.write])
    }
    assert written == {("executions", "s"), ("executions", "r")}, "no item that others write too"
    work(app, "r")
    assert app.get("r").context["seen"] == list(range(5))


def test_whole_tables_scanned_by_every_worker__work_is_found_by_what_is_due() -> None:
    def cost(stored: int) -> tuple[int, int]:
        app, backend = watched_app(machine("id: m\ninitial: a\nstates: {a: {after: {30d: b}, on: {go: b}}, b: {}}"))
        for n in range(stored):
            app.start("m", id=f"m{n}")
        app.send("m0", "go")
        backend.forget()
        run(sweep(Worker(app.core.rt)), backend)
        assert app.get("m0").configuration == ["b"]
        return len(backend.reads), len(backend.written)

    assert cost(5) == cost(400)


def test_killed_between_commit_and_relay__there_is_no_relay() -> None:
    app, backend = watched_app(log())
    for id in ("s", "r"):
        app.start("log", id=id)
    app.send("s", "tell", {"to": "r", "n": 1})
    step = ByHand(advance(app.core.rt, "s"), backend).up_to()
    step.perform()
    step.program.close()
    assert len(items_of(backend, "r", "e/")) == 1 and items_of(backend, "s", "e/") == []
    work(app, "r")
    assert app.get("r").context["seen"] == [1]


def test_the_relay_starts_children_with_its_own_definition__a_start_names_machine_and_hash() -> None:
    parent = "id: p\ninitial: a\nstates: {a: {invoke: {id: kid, src: {machine: log}, each: {expr: '[1, 2, 3]'}}}}"
    app, backend = watched_app(machine(parent), log())
    other = app_on(backend, machine(parent), machine(LOG.replace("initial: a", "initial: a\nversion: other")))
    app.start("p", id="p")
    ids = [key[0] for key, item in backend.tables.stored(EXECUTIONS).items.items() if item.get("parent_id") == "p"]
    for id in ids:
        work(other, id)
    assert len(ids) == 3 and {app.get(id).machine_hash for id in ids} == {log().hash}


def test_reads_that_lag_and_an_unconditional_dedupe_mark__one_event_is_applied_once() -> None:
    app, backend = watched_app(log(), dedupe_window_s=60)
    other = app_on(backend, log(), dedupe_window_s=60)
    app.start("log", id="x")
    app.send("x", "note", {"n": 1}, event_id="e")
    first = ByHand(advance(app.core.rt, "x"), backend).up_to()
    second = ByHand(advance(other.core.rt, "x"), backend).up_to()
    first.finish()
    second.finish()
    other.send("x", "note", {"n": 1}, event_id="e")
    work(app, "x")
    assert app.get("x").context["seen"] == [1]


def test_cancel_and_rearm_in_one_step_are_two_actions_on_one_item__one_write_for_each_item(casework_app: Maker) -> None:
    app, backend = watched_app(
        machine("""
id: m
initial: a
states: {a: {after: {10s: b}, on: {again: {target: a, reenter: true}}}, b: {}}
""")
    )
    app.start("m", id="x")
    backend.forget()
    app.handle("x", "again")
    assert backend.calls() == ["Get", "Write"]


def test_a_fan_out_of_99_exceeds_the_transaction__it_is_spilled(casework_app: Maker) -> None:
    parent = """
id: p
initial: a
states:
  a: {invoke: {id: kid, src: {machine: kid}, each: {expr: input_of}, onDone: b}}
  b: {type: final}
""".replace("{expr: input_of}", "{expr: context.n}")
    app = casework_app(
        machine(parent), machine("id: kid\ninitial: a\ncontext: {n: {expr: input}}\nstates: {a: {type: final}}")
    )
    for count in (98, 99, 100, 101, 250):
        app.start("p", id=f"p{count}", input={"n": list(range(count))})
        app.settle()
        assert app.get(f"p{count}").status == "done"


@pytest.mark.parametrize("error", [Throttled("slow down"), Contention("busy")])
def test_every_cancelled_transaction_is_called_a_lost_race__outcomes_are_told_apart(error: Exception) -> None:
    app, backend = watched_app(log())
    app.start("log", id="x")
    app.send("x", "note", {"n": 1})
    step = ByHand(advance(app.core.rt, "x"), backend).up_to()
    if isinstance(error, Throttled):
        with pytest.raises(Throttled):
            step.lose_answer(error, applied=False)
    else:
        step.lose_answer(error, applied=False)
        step.finish()
    work(app, "x")
    assert app.get("x").context["seen"] == [1]


def test_dedupe_marks_for_ever__the_window_is_bounded_and_marks_have_a_ttl() -> None:
    app, backend = watched_app(log(), dedupe_window_s=60)
    app.start("log", id="x")
    backend.sleep(0.9)
    for n in range(100):
        app.handle("x", "note", {"n": n}, event_id=f"e{n}")
    marks = items_of(backend, "x", "s/")
    left_s = {mark["expires_at_s"] - backend.now().latest_us / 1e6 for mark in marks}
    assert len(marks) == 100 and all(60 <= each < 61.1 for each in left_s), "the whole window, and little more"
    assert len(state_item(backend, "x")["recent_ids"]) == 32 * 8
    plain, backend = watched_app(log())
    plain.start("log", id="x")
    for n in range(100):
        plain.handle("x", "note", {"n": n}, event_id=f"e{n}")
    assert len(items_of(backend, "x")) == 1


def test_a_query_for_each_traced_commit_and_pages_ignored__no_read_and_all_pages() -> None:
    app, backend = watched_app(machine(LOG.replace("context.seen + [event.n]", "[event.n]")), trace_max=3000)
    app.start("log", id="x")
    backend.forget()
    app.handle("x", "note", {"n": 0})
    app.handle("x", "note", {"n": 1})
    assert sum(isinstance(read, Get | GetMany | Query) for read in backend.reads) == 1, "that of the state"
    for item in items_of(backend, "x", "z/"):
        entry = str(item["entry"])
        backend.tables.stored(EXECUTIONS).store(
            EXECUTIONS.key_of(item), {**item, "entry": entry[:-1] + " " * 390_000 + "}"}
        )
    for n in range(8):
        app.handle("x", "note", {"n": n})
    assert [entry["index"] for entry in app.trace("x")] == list(range(1, 12)), "over more than a page of the store"


def test_a_timeout_fires_for_a_later_stay_and_late_under_load__a_stay_is_counted_and_timers_go_first() -> None:
    app, backend = watched_app(
        machine("""
id: m
initial: a
states: {a: {after: {10s: late}, on: {go: b}}, b: {on: {back: a}}, late: {}}
"""),
        log(),
    )
    app.start("m", id="x")
    backend.sleep(5)
    app.handle("x", "go")
    app.handle("x", "back")
    backend.sleep(6)
    work(app, "x")
    assert app.get("x").configuration == ["a"]
    for n in range(300):
        app.start("log", id=f"l{n}")
        app.send(f"l{n}", "note", {"n": n})
    backend.sleep(5)
    worker = Worker(app.core.rt)
    looked: list[str] = []
    original = backend.execute

    def execute(effect: Any) -> Any:
        if isinstance(effect, Query) and effect.index is None and effect.table is EXECUTIONS:
            looked.append(effect.partition)
        return original(effect)

    backend.execute = execute  # type: ignore[method-assign]
    run(sweep(worker), backend)
    assert looked[0] == "x" and app.get("x").configuration == ["late"]


def test_a_failed_region_leaves_its_parent_waiting__children_always_report(casework_app: Maker) -> None:
    parent = machine("""
id: p
initial: a
states:
  a: {invoke: {id: kid, src: {machine: kid}, each: {expr: '[0, 1]'}, onError: bad, onDone: good}}
  bad: {}
  good: {}
""")
    child = machine("""
id: kid
initial: a
context: {n: {expr: input}}
states:
  a: {always: [{guard: {expr: context.n == 1}, target: b}, {target: c}]}
  b: {always: c2}
  c2: {always: b}
  c: {type: final}
""")
    app = casework_app(parent, child)
    app.start("p", id="p")
    app.settle()
    assert app.get("p").configuration == ["bad"]


def test_one_unresolvable_child_makes_every_later_call_raise__poison_is_contained(casework_app: Maker) -> None:
    broken = machine("id: p\ninitial: a\nstates: {a: {invoke: {id: kid, src: {machine: kid}}, on: {go: b}}, b: {}}")
    app, backend = watched_app(broken, log())
    app.start("p", id="p")
    app.start("log", id="x")
    assert app.get("p").waiting_for == ["kid"], "the child waits for a process that has its machine"
    app.send("x", "note", {"n": 1})
    worker = Worker(app.core.rt)
    run(sweep(worker), backend)
    assert app.get("x").context["seen"] == [1] and worker.trouble_n == 0


def test_one_transient_error_ends_the_worker__it_goes_on() -> None:
    app, backend = watched_app(log())
    for n in range(5):
        app.start("log", id=f"x{n}")
        app.send(f"x{n}", "note", {"n": n})
    failing = [Throttled("slow down"), Contention("busy"), RuntimeError("a bug")]
    original = backend.execute

    def execute(effect: Any) -> Any:
        if isinstance(effect, Transact) and failing:
            raise failing.pop()
        return original(effect)

    backend.execute = execute  # type: ignore[method-assign]
    worker = Worker(app.core.rt)
    for _ in range(3):
        run(sweep(worker), backend)
    assert [app.get(f"x{n}").context["seen"] for n in range(5)] == [[n] for n in range(5)]


def test_a_circle_without_an_event_hangs__the_microsteps_are_bounded(casework_app: Maker) -> None:
    app = casework_app(machine("id: m\ninitial: a\nstates: {a: {on: {go: b}}, b: {always: c}, c: {always: b}}"))
    app.start("m", id="x")
    app.send("x", "go")
    app.settle()
    assert app.get("x").error["type"] == "StepLimit"  # type: ignore[index]


def test_a_renamed_state_is_a_bare_key_error_even_for_cancel__definitions_are_kept_and_migration_is_checked() -> None:
    app, backend = watched_app(log())
    app.start("log", id="x")
    newer = app_on(backend, machine(LOG.replace("initial: a", "initial: b").replace("  a:\n", "  b:\n")))
    assert newer.handle("x", "note", {"n": 1}).configuration == ["a"]
    with pytest.raises(Misuse, match="there is no state 'a'"):
        newer.migrate("x")
    assert newer.cancel("x").status == "cancelled"


@pytest.mark.parametrize("value", [math.inf, math.nan, {1, 2}, (1,), {1: 2}])
def test_inf_becomes_null_and_sets_become_lists__refused_with_the_path(value: Any) -> None:
    app, _ = watched_app(log())
    app.start("log", id="x")
    with pytest.raises(NotJson, match=r"^data\.n"):
        app.send("x", "note", {"n": value})


def test_unknown_ids_and_undeclared_events_are_accepted_in_silence__clear_errors() -> None:
    app, backend = watched_app(log())
    app.start("log", id="x")
    with pytest.raises(NoSuchExecution, match="'y'"):
        app.send("y", "note")
    with pytest.raises(UnknownEvent, match="note, tell"):
        app.send("x", "not")
    assert items_of(backend, "x", "e/") == [] == items_of(backend, "y")


def test_six_calls_and_four_write_units_for_an_event__two_calls_and_one_unit() -> None:
    app, backend = watched_app(log())
    app.start("log", id="x")
    backend.forget()
    app.handle("x", "note", {"n": 1}, event_id="e")
    assert backend.calls() == ["Get", "Write"] and (backend.units.base, backend.units.index) == (1, 0)
    backend.forget()
    app.send("x", "note", {"n": 2})
    assert len(backend.calls()) == 2
    work_once(app, "x")
    assert len(backend.calls()) == 4 and backend.units.total <= 8, "send and consume: 8 units, index included"
