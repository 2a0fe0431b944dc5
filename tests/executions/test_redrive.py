"""An execution that fails keeps the state before the step and the event; a redrive takes the event again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from casework.app.arguments import make_options
from casework.app.core import Core
from casework.app.sync import App, prepare
from casework.errors import Misuse, OutcomeUnknown
from casework.executions import control
from casework.executions.advance import advance
from casework.kernel.effects import Query
from casework.kernel.items import Key
from casework.kernel.schema import EXECUTIONS
from casework.statechart import Machine
from casework.testing import VirtualApp
from tests.executions.watching import ByHand, app_on, data_of, items_of, machine, state_item, watched_app, work

Maker = Callable[..., VirtualApp]

ORDER = """
id: order
initial: open
context: {n: 0, paid: null}
states:
  open:
    on:
      Add: {actions: {type: assign, params: {n: {expr: context.n + 1}}}}
      Pay: PLACE
    after: {1h: late}
    exit: on_exit
  charging:
    entry: [{type: send, params: {event: Charged, to: ledger, data: {ref: {expr: context.paid}}}}, on_entry]
    invoke:
      {id: charge, src: {task: charge}, input: {ref: {expr: context.paid}}, onDone: {target: shipped, actions: on_done}}
    always: {target: charging.never, guard: guard_always}
    initial: now
    states: {now: {}, never: {}}
  shipped: {}
  late: {entry: on_late}
"""

ASSIGN = "{type: assign, params: {paid: {expr: event.ref}}}"
PLACES = {
    "a guard": f"{{target: charging, guard: mended, actions: {ASSIGN}}}",
    "an action": f"{{target: charging, actions: [{ASSIGN}, mended_action]}}",
    "an assignment": "{target: charging, actions: "
    "{type: assign, params: {paid: {expr: 'event.ref if context.n < 2 else event.nothing'}}}}",
    "an expression of a guard": f"{{target: charging, guard: {{expr: 'context.n < 2 or event.nothing'}}, "
    f"actions: {ASSIGN}}}",
    "a raised error": f"{{target: charging, actions: [{ASSIGN}, "
    "{type: raise, params: {event: error.custom, data: {message: broken}}}]}",
}


class Code:
    """The functions of a machine, of which one is broken until it is repaired."""

    def __init__(self, broken: str) -> None:
        self.broken = broken
        self.calls: list[str] = []

    def __call__(self, name: str) -> Any:
        self.calls.append(name)
        if name == self.broken:
            raise ValueError(f"{name} is broken")
        return {}

    def bind(self, one: Machine) -> Machine:
        wanted = repr(one.missing_functions())
        for name in ("on_exit", "on_entry", "on_done", "on_late", "mended_action"):
            if name in wanted:
                one.action(name=name)(lambda context, event, name=name: self(name))
        if "guard 'mended'" in wanted or ("mended_action" not in wanted and "mended" in wanted):
            one.guard(name="mended")(lambda context, event: self("mended") is not None)
        one.guard(name="guard_always")(lambda context, event: bool(self("guard_always")))
        one.task(name="charge")(lambda task, **given: {"ok": given})
        return one


def order(code: Code, place: str = f"{{target: charging, actions: {ASSIGN}}}") -> Machine:
    return code.bind(machine(ORDER.replace("PLACE", place)))


LEDGER = """
id: ledger
initial: a
context: {refs: []}
states: {a: {on: {Charged: {actions: {type: assign, params: {refs: {expr: "context.refs + [event.ref]"}}}}}}}
"""

CODE_PLACES = ("mended", "mended_action", "on_exit", "on_entry", "guard_always")
"""Where the step of ``Pay`` calls code: each place is broken once."""


def place_of(broken: str) -> str:
    if broken == "mended":
        return PLACES["a guard"]
    return PLACES["an action"] if broken == "mended_action" else f"{{target: charging, actions: {ASSIGN}}}"


def failed_at_pay(broken: str, publish: Any = None, **options: Any) -> tuple[Any, Any, Code]:
    code = Code(broken)
    one = order(code, place_of(broken))
    if publish is not None:
        one = code.bind(Machine.from_dict({**one.definition, "publish": publish}))
    app, backend = watched_app(one, machine(LEDGER), **options)
    app.start("ledger", id="ledger")
    app.start("order", id="o")
    app.send("o", "Add")
    app.send("o", "Pay", {"ref": "p-1"}, event_id="p-1")
    app.send("o", "Add")
    work(app, "o")
    return app, backend, code


@pytest.mark.parametrize("broken", CODE_PLACES)
def test_nothing_of_a_step_that_fails_counts_and_the_event_is_taken_again_when_it_is_driven_on(broken: str) -> None:
    app, backend, code = failed_at_pay(broken, trace_max=20)
    failed = app.get("o")
    assert (failed.status, failed.configuration, failed.context) == ("failed", ["open"], {"n": 1, "paid": None})
    assert items_of(backend, "ledger", "e/") == [] and items_of(backend, "o", "w/") == []
    shown = app.inspect("o")
    assert shown.failure is not None and shown.failure.is_taken_again
    assert shown.failure.event == {"kind": "event", "type": "Pay", "data": {"ref": "p-1"}, "id": "p-1", "source": ""}
    assert "is broken" in shown.failure.error["message"] and shown.failure.error["where"]
    assert shown.timers == [] and "pending" not in state_item(backend, "o")
    # A repeat of the event is one, before and after.
    app.send("o", "Pay", {"ref": "p-1"}, event_id="p-1")
    work(app, "o")
    assert app.handle("o", "Pay", {"ref": "p-1"}, event_id="p-1").is_duplicate
    code.broken = ""
    again = app.redrive("o")
    assert (again.status, again.context) == ("running", {"n": 1, "paid": "p-1"}) and again.is_in("charging")
    assert app.handle("o", "Pay", {"ref": "p-1"}, event_id="p-1").is_duplicate
    work(app, "ledger")
    assert app.get("ledger").context == {"refs": ["p-1"]}
    assert [dead.events[0]["type"] for dead in app.dead_letters().items] == ["Add"], "it came after the end"
    assert app.inspect("o").failure is None


@pytest.mark.parametrize("place", [name for name in PLACES if name not in ("a guard", "an action")])
def test_whatever_of_the_chart_fails_the_state_before_it_stands(place: str) -> None:
    app, backend = watched_app(order(Code(""), PLACES[place]), machine(LEDGER))
    app.start("order", id="o")
    for _ in range(2):
        app.handle("o", "Add")
    failed = app.handle("o", "Pay", {"ref": "p-1"})
    assert (failed.status, failed.configuration, failed.context) == ("failed", ["open"], {"n": 2, "paid": None})
    assert app.redrive("o").status == "failed"
    app.core.rt.by_hash[failed.machine_hash] = order(Code(""))
    assert app.redrive("o").context == {"n": 2, "paid": "p-1"} and backend is app.backend


@pytest.mark.parametrize("broken", CODE_PLACES)
def test_a_second_failure_keeps_the_same_event_and_a_skip_goes_on_without_it(broken: str) -> None:
    app, backend, code = failed_at_pay(broken)
    before = data_of(app, "o")[1]
    for count in (1, 2):
        assert app.redrive("o").status == "failed"
        state, data = data_of(app, "o")
        assert data.redrives == count and data.failure == before.failure and data.snap == before.snap
        assert state.timers == data_of(app, "o")[0].timers != ""
    assert items_of(backend, "ledger", "e/") == [] and items_of(backend, "o", "w/") == []
    skipped = app.redrive("o", skip=True)
    assert (skipped.status, skipped.configuration, skipped.context["paid"]) == ("running", ["open"], None)
    assert app.handle("o", "Pay", {"ref": "p-1"}, event_id="p-1").is_duplicate, "it was taken, and dropped on purpose"
    assert len(app.inspect("o").timers) == 1
    code.broken = ""
    assert app.handle("o", "Pay", {"ref": "p-2"}).is_in("charging")


def test_with_a_codec_what_is_kept_goes_through_it() -> None:
    class Upside:
        def encode(self, text: str) -> str:
            return text[::-1]

        def decode(self, text: str) -> str:
            return text[::-1]

    code = Code("mended")
    _, backend = watched_app()
    core = Core([order(code, PLACES["a guard"])], make_options(), Upside())
    prepare(core, backend, create=True)
    app = App(core, backend, owns_backend=False)
    app.start("order", id="o")
    app.handle("o", "Pay", {"ref": "secret-payload"}, event_id="p")
    assert "secret-payload" not in str(items_of(backend, "o"))
    assert app.inspect("o").failure.event["data"] == {"ref": "secret-payload"}
    code.broken = ""
    assert app.redrive("o").context["paid"] == "secret-payload"


# --- every kind of event ----------------------------------------------------------------------------------------------


def test_a_timer_whose_step_failed_fires_again_and_others_begin_anew() -> None:
    code = Code("on_late")
    app, backend = watched_app(order(code))
    app.start("order", id="o")
    backend.sleep(3601)
    work(app, "o")
    assert app.get("o").status == "failed" and app.get("o").configuration == ["open"]
    assert app.inspect("o").failure.event["kind"] == "timer"
    assert app.redrive("o").status == "failed"
    code.broken = ""
    assert app.redrive("o").configuration == ["late"]


def test_a_timer_that_had_fired_before_does_not_fire_again() -> None:
    text = """
id: m
initial: a
context: {reminded: 0}
states:
  a:
    after:
      1s: {actions: {type: assign, params: {reminded: {expr: context.reminded + 1}}}}
      1h: b
    on: {Break: {actions: {type: raise, params: {event: error.custom}}}}
  b: {type: final}
"""
    app, backend = watched_app(machine(text))
    app.start("m", id="x")
    backend.sleep(2)
    work(app, "x")
    app.handle("x", "Break")
    app.redrive("x", skip=True)
    assert [timer.name for timer in app.inspect("x").timers] == ["after:1:a"]
    backend.sleep(3601)
    work(app, "x")
    assert app.get("x").context == {"reminded": 1} and app.get("x").status == "done"


def test_a_delayed_send_that_waits_while_its_execution_has_failed_keeps_its_time() -> None:
    text = """
id: m
initial: a
context: {got: 0}
states:
  a:
    entry: {type: send, params: {event: Later, delay: 1h}}
    on:
      Later: {actions: [{type: assign, params: {got: {expr: context.got + 1}}}, break]}
      Break: {actions: {type: raise, params: {event: error.custom}}}
"""
    one, broken = machine(text), [False]

    @one.action(name="break")
    def _break(context: Any, event: Any) -> Any:
        if broken[0]:
            raise ValueError("broken")
        return {}

    app, backend = watched_app(one)
    app.start("m", id="x")
    due_us = app.inspect("x").timers[0].due_at_us
    app.handle("x", "Break")
    assert app.inspect("x").timers == []
    backend.sleep(600)
    app.redrive("x", skip=True)
    assert [timer.due_at_us for timer in app.inspect("x").timers] == [due_us]
    broken[0] = True
    backend.sleep(3600)
    work(app, "x")
    assert app.get("x").status == "failed" and app.inspect("x").failure.event["kind"] == "delayed"
    broken[0] = False
    assert app.redrive("x").context == {"got": 1}
    assert app.inspect("x").timers == []


def test_a_task_whose_result_could_not_be_taken_is_not_run_a_second_time(casework_app: Maker) -> None:
    code = Code("on_done")
    app = casework_app(order(code), machine(LEDGER))
    app.start("ledger", id="ledger")
    app.start("order", id="o")
    app.send("o", "Pay", {"ref": "p-1"})
    app.settle()
    failed = app.get("o")
    assert failed.status == "failed" and failed.is_in("charging") and failed.context["paid"] == "p-1"
    kept = app.inspect("o").failure
    assert kept is not None and kept.event["kind"] == "result" and kept.event["data"] == {"ok": {"ref": "p-1"}}
    assert app.redrive("o").status == "failed"
    code.broken = ""
    assert app.redrive("o").configuration == ["shipped"]
    app.settle()
    assert app.get("o").configuration == ["shipped"] and app.inspect("o").tasks == []


def test_a_skipped_result_leaves_its_state_without_a_transition(casework_app: Maker) -> None:
    app = casework_app(order(Code("on_done")), machine(LEDGER))
    app.start("ledger", id="ledger")
    app.start("order", id="o")
    app.send("o", "Pay", {"ref": "p-1"})
    app.settle()
    again = app.redrive("o", skip=True)
    assert again.status == "running" and again.is_in("charging") and again.waiting_for == []


def test_a_task_that_failed_for_good_begins_again_under_a_new_key_and_no_other_does(casework_app: Maker) -> None:
    one = machine("""
id: m
initial: a
states:
  a:
    invoke:
      - {id: good, src: {task: good}}
      - {id: bad, src: {task: bad}, retry: {max_attempts: 2, initial: 10s}, onDone: b}
      - {id: slow, src: {task: slow}}
  b: {}
""")
    keys: list[tuple[str, str]] = []
    broken = [True]

    @one.task
    def good(task: Any) -> None:
        keys.append(("good", task.idempotency_key))

    @one.task
    def bad(task: Any) -> None:
        keys.append(("bad", task.idempotency_key))
        if broken[0]:
            raise ValueError("bad")

    @one.task
    def slow(task: Any) -> Any:
        import casework

        return casework.LATER

    app = casework_app(one)
    app.start("m", id="x")
    app.settle()
    app.advance("1m")
    failed = app.inspect("x")
    assert failed.execution.status == "failed" and failed.failure is not None and not failed.failure.is_taken_again
    assert failed.failure.event["type"] == "error.invoke.bad"
    before = list(keys)
    broken[0] = False
    assert app.redrive("x").waiting_for == ["bad", "slow"]
    app.settle()
    assert app.get("x").configuration == ["b"]
    assert [name for name, _ in before] == ["good", "bad", "bad"] or [name for name, _ in before][1:] == ["good", "bad"]
    assert [name for name, _ in keys[len(before) :]] == ["bad"] and keys[-1] not in before


PARENT = """
id: parent
initial: waiting
context: {got: null}
states:
  waiting:
    invoke:
      id: kid
      src: {machine: child}
      onDone: {target: good, actions: [{type: assign, params: {got: {expr: event.n}}}, take]}
  good: {type: final}
"""
CHILD = """
id: child
initial: a
context: {}
output: {n: 7}
states: {a: {on: {Go: {target: b, guard: may}}}, b: {type: final}}
"""


def family(broken: list[str]) -> list[Machine]:
    parent, child = machine(PARENT), machine(CHILD)

    def check(name: str) -> bool:
        if name in broken:
            raise ValueError(name)
        return True

    parent.action(name="take")(lambda context, event: check("take") and {})
    child.guard(name="may")(lambda context, event: check("may"))
    return [parent, child]


def kid_of(app: Any, id: str) -> str:
    (children,) = [each for each in app.inspect(id).children if each.is_open]
    return str(children.children[0]["id"])


def test_a_childs_report_whose_step_failed_is_taken_again_and_the_child_is_not_started_again(
    casework_app: Maker,
) -> None:
    broken = ["take"]
    app = casework_app(*family(broken))
    app.start("parent", id="p")
    app.settle()
    kid = kid_of(app, "p")
    app.send(kid, "Go")
    app.settle()
    failed = app.get("p")
    assert failed.status == "failed" and failed.context == {"got": None} and failed.configuration == ["waiting"]
    shown = app.inspect("p").failure
    assert shown is not None and shown.event["kind"] == "report" and shown.event["data"] == {"n": 7}
    broken.clear()
    done = app.redrive("p")
    assert done.status == "done" and done.context == {"got": 7}
    app.settle()
    assert app.get(kid).status == "done"


def test_a_child_that_failed_and_is_driven_again_reports_where_its_parent_still_waits(casework_app: Maker) -> None:
    broken = ["may"]
    app = casework_app(*family(broken))
    app.start("parent", id="p")
    app.settle()
    kid = kid_of(app, "p")
    app.send(kid, "Go")
    app.settle()
    assert app.get(kid).status == "failed" == app.get("p").status
    broken.clear()
    assert app.redrive(kid).status == "done"
    app.settle()
    assert app.get("p").status == "failed", "it was told of the first end, and ended"
    assert app.redrive("p").status == "running"
    app.settle()
    second = kid_of(app, "p")
    assert second != kid and app.get(second).status == "running"
    app.send(second, "Go")
    app.settle()
    assert app.get("p").context == {"got": 7} and app.dead_letters().items == []


def test_a_start_that_fails_is_entered_by_a_redrive_with_its_input() -> None:
    one = machine("""
id: m
initial: a
context: {n: {expr: input.n}}
states: {a: {entry: go, after: {1h: b}}, b: {}}
""")
    broken = [True]

    @one.action(name="go")
    def go(context: Any, event: Any) -> Any:
        if broken[0]:
            raise ValueError("broken")
        return {"m": context["n"] + 1}

    app, backend = watched_app(one)
    failed = app.start("m", id="x", input={"n": 4})
    assert (failed.status, failed.configuration) == ("failed", [])
    assert app.start("m", id="x", input={"n": 4}).version == failed.version, "a repeated start finds it"
    assert app.inspect("x").failure.event["kind"] == "start"
    with pytest.raises(Misuse, match="nothing to go on from"):
        app.redrive("x", skip=True)
    assert app.redrive("x").status == "failed"
    broken[0] = False
    again = app.redrive("x")
    assert (again.status, again.configuration, again.context) == ("running", ["a"], {"n": 4, "m": 5})
    assert len(app.inspect("x").timers) == 1 and backend is app.backend


def test_a_pending_child_whose_start_fails_keeps_its_input(casework_app: Maker) -> None:
    parent, child = machine(PARENT.replace(", take]", "]")), machine(CHILD.replace("{a: {", "{a: {entry: go, "))
    broken = [True]

    def go(context: Any, event: Any) -> Any:
        if broken[0]:
            raise ValueError("broken")
        return {}

    child.action(name="go")(go)
    child.guard(name="may")(lambda context, event: True)
    app = casework_app(parent, child)
    app.start("parent", id="p")
    app.settle()
    (children,) = app.inspect("p").children
    assert app.get("p").status == "failed" and children.children[0]["status"] == "failed"
    broken[0] = False
    assert app.redrive("p").status == "running"


# --- what is too large, races, publishing -----------------------------------------------------------------------------


def test_an_event_that_is_too_large_for_the_state_is_taken_again_from_its_dead_letter() -> None:
    app, backend, code = failed_at_pay("mended")
    code.broken = ""
    app.redrive("o", skip=True)
    code.broken = "mended"
    big = "x" * 100_000
    app.send("o", "Pay", {"ref": big}, event_id="big")
    work(app, "o")
    (letter,) = [each for each in app.dead_letters().items if each.events[0]["id"] == "big"]
    assert letter.events[0]["data"] == {"ref": big}
    assert "dead letter" in app.inspect("o").failure.note
    assert app.redrive("o").status == "failed"
    code.broken = ""
    assert app.redrive("o").context["paid"] == big
    assert [each for each in app.dead_letters().items if each.events[0]["id"] == "big"] == [], "it has been taken"
    assert backend is app.backend


def test_an_event_whose_dead_letter_is_gone_can_only_be_skipped() -> None:
    app, backend, code = failed_at_pay("mended")
    code.broken = ""
    app.redrive("o", skip=True)
    code.broken = "mended"
    app.send("o", "Pay", {"ref": "x" * 100_000}, event_id="big")
    work(app, "o")
    letter = data_of(app, "o")[1].failure.letter  # type: ignore[union-attr]
    backend.tables.stored(EXECUTIONS).store(Key(EXECUTIONS, "o", letter), None)
    code.broken = ""
    with pytest.raises(Misuse, match="which is gone; drive it on without it"):
        app.redrive("o")
    assert app.get("o").status == "failed"
    assert app.redrive("o", skip=True).status == "running"


def test_an_event_whose_outcome_cannot_be_stored_is_kept_with_its_id() -> None:
    one = machine("""
id: m
initial: a
context: {text: ""}
states: {a: {on: {Set: {actions: {type: assign, params: {text: {expr: "'x' * event.n"}}}}}}}
""")
    app, backend = watched_app(one)
    app.start("m", id="x")
    app.send("x", "Set", {"n": 90_000})
    app.send("x", "Set", {"n": 95_000}, event_id="s")
    work(app, "x")
    grow = machine("""
id: m
initial: a
context: {text: ""}
states: {a: {on: {Set: {actions: {type: assign, params: {text: {expr: "'x' * (event.n * 5)"}}}}}}}
""")
    app.core.rt.by_hash[app.get("x").machine_hash] = grow
    app.core.forget("x")
    app.send("x", "Set", {"n": 90_000}, event_id="t")
    work(app, "x")
    assert app.get("x").status == "failed" and app.inspect("x").failure.event["id"] == "t"
    app.send("x", "Set", {"n": 90_000}, event_id="t")
    work(app, "x")
    assert app.dead_letters().items == [], "a repeat is one"
    app.core.rt.by_hash[app.get("x").machine_hash] = one
    assert len(app.redrive("x").context["text"]) == 90_000 and backend is app.backend


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("broken", ["mended", ""])
def test_a_redrive_whose_answer_is_lost_takes_the_event_once(applied: bool, broken: str) -> None:
    app, backend, code = failed_at_pay("mended")
    code.broken = broken
    redrive = ByHand(control.redrive(app.core.rt, "o"), backend).up_to()
    redrive.lose_answer(OutcomeUnknown("lost"), applied=applied)
    done = redrive.finish()
    assert done.status == ("failed" if broken else "running")
    assert data_of(app, "o")[1].redrives == 1
    work(app, "ledger")
    assert app.get("ledger").context == {"refs": [] if broken else ["p-1"]}


def test_of_two_redrives_at_once_one_takes_the_event_and_the_other_changes_nothing() -> None:
    app, backend, code = failed_at_pay("mended")
    code.broken = ""
    slow = ByHand(control.redrive(app.core.rt, "o"), backend).up_to()
    app.redrive("o")
    version = app.get("o").version
    assert slow.finish().version == version == app.redrive("o").version
    work(app, "ledger")
    assert app.get("ledger").context == {"refs": ["p-1"]}


def test_a_worker_that_was_about_to_fail_it_loses_to_a_redrive_as_a_whole() -> None:
    app, backend, code = failed_at_pay("mended")
    code.broken = ""
    app.redrive("o", skip=True)
    code.broken = "mended"
    app.send("o", "Pay", {"ref": "p-2"}, event_id="p-2")
    failing = ByHand(advance(app.core.rt, "o"), backend).up_to()
    app.handle("o", "Add")
    failing.finish()
    work(app, "o")
    assert app.get("o").status == "failed" and app.get("o").context["n"] == 2


def test_a_step_that_fails_publishes_nothing_and_what_came_before_it_in_its_batch_does() -> None:
    app, _, code = failed_at_pay("on_entry", publish={"stream": "s"})
    published = Query(EXECUTIONS, "o", None, "o/", "o0", 100)
    before = str(app.backend.execute(published).items)
    assert "Add" in before and "Pay" not in before
    code.broken = ""
    app.redrive("o")
    assert "Pay" in str(app.backend.execute(published).items)


def test_what_one_process_lacks_is_not_the_executions_fault_and_nothing_is_written() -> None:
    app, backend, _ = failed_at_pay("mended")
    other = app_on(backend, machine(ORDER.replace("PLACE", PLACES["a guard"])))
    version = app.get("o").version
    with pytest.raises(Misuse, match="register it in this process"):
        other.redrive("o")
    assert app.get("o").version == version


def test_only_true_and_false_are_taken_for_skip() -> None:
    app, _, _ = failed_at_pay("mended")
    with pytest.raises(Misuse, match="skip is 'yes'"):
        app.redrive("o", skip="yes")


MISSPELT = """
id: order
initial: open
context: {paid: 0}
states:
  open:
    invoke: {id: remind, src: {task: remind}}
    after: {1h: late}
    on: {Pay: {target: paid, actions: {type: assign, params: {paid: {expr: event.amuont}}}}}
  paid: {}
  late: {}
"""


def test_one_that_failed_by_its_definition_is_migrated_to_a_mended_one_and_driven_on() -> None:
    app, backend = watched_app(machine(MISSPELT))
    app.start("order", id="o")
    assert app.handle("o", "Pay", {"amount": 12}, event_id="p").status == "failed"
    later = App(
        Core([machine(MISSPELT.replace("amuont", "amount"))], make_options(), None), backend, owns_backend=False
    )
    assert later.redrive("o").status == "failed", "it runs the definition that it was started with"
    moved = later.migrate("o")
    assert (moved.status, later.inspect("o").failure.event["id"]) == ("failed", "p")  # type: ignore[union-attr]
    driven = later.redrive("o")
    assert (driven.configuration, driven.context) == (["paid"], {"paid": 12})


@pytest.mark.parametrize(("old", "new", "why"), [
    ("  open:", "  begun:", "no state 'open'"), ("id: remind", "id: ring", "'remind', which is not invoked"),
    ("{1h: late}", "{2h: late}", ""), ("1h: late", "", "timer 'after:0:open' is not there"),
])  # fmt: skip
def test_one_that_failed_is_not_migrated_to_what_lacks_its_place(old: str, new: str, why: str) -> None:
    app, backend = watched_app(machine(MISSPELT))
    app.start("order", id="o")
    app.handle("o", "Pay", {"amount": 12})
    text = MISSPELT.replace(old, new).replace("initial: open", "initial: begun" if "begun" in new else "initial: open")
    later = App(Core([machine(text)], make_options(), None), backend, owns_backend=False)
    if not why:
        assert later.migrate("o").status == "failed"
        return
    with pytest.raises(Misuse, match=why):
        later.migrate("o")
    assert app.redrive("o", skip=True).status == "running"
