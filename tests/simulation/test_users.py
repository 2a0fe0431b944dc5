"""Users' charts in the simulator: bugs of theirs and of ours are found, sound charts survive, failures are replayed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

import casework
from casework.errors import Misuse
from casework.executions import worker as worker_shell
from casework.executions.worker import work
from casework.simulation.payloads import fill, known_events, read_events_file
from casework.simulation.scenarios import users
from casework.simulation.scenarios.watching import raised_errors
from casework.simulation.users import SimulationReport, simulate
from tests.simulation.mutations import FAULTS

LATE = """
id: order
context: {amount: {expr: input.amount}}
initial: charging
states:
  charging:
    invoke: {src: {task: charge}, input: {amount: {expr: context.amount}}, onDone: paid, onError: cancelling}
    after: {15m: LATE}
  cancelling:
    invoke: {src: {task: cancel_charge}, retry: {max_attempts: 100}, onDone: expired}
  paid: {type: final}
  expired: {type: final}
"""
COUNTER = """
id: account
context: {paid: 0}
initial: open
states:
  open:
    on:
      Paid: {actions: {type: assign, params: {paid: {expr: context.paid + event.amount}}}}
      Close: closed
  closed: {type: final}
"""
TASKS = """
id: job
initial: idle
context: {got: 0}
states:
  idle: {on: {Begin: working}}
  working:
    entry: {type: send, params: {event: Note, delay: 1s}}
    invoke: {src: {task: work}, retry: {max_attempts: 50}, onDone: {target: idle, actions: {type: assign, params: {got:
      {expr: context.got + 1}}}}}
    on: {Leave: idle, Note: {}}
    after: {1h: idle}
"""
FAMILY = """
id: parent
initial: idle
states:
  idle: {on: {Go: waiting}}
  waiting:
    invoke:
      {src: {machine: kid}, each: {expr: "[1, 2, 3, 4, 5]"}, input: {n: {expr: item}}, onDone: idle, onError: idle}
    on: {Leave: idle}
"""
KID = """
id: kid
context: {n: {expr: input.n}}
initial: busy
states:
  busy: {invoke: {src: {task: play}, onDone: done, onError: done}, after: {1h: done}}
  done: {type: final, output: {expr: context.n}}
"""


def machine(text: str) -> casework.Machine:
    return casework.Machine.from_yaml(text)


def whoever_pays_gets_the_order(execution: casework.Execution, history: Any) -> None:
    charged = any(not call.error for call in history.calls("charge"))
    if history.is_over and charged and not history.calls("cancel_charge"):
        assert execution.is_in("paid"), f"charged, and {execution.configuration}"


def test_a_timeout_that_races_a_payment_is_found_with_a_short_timeline_in_the_users_words() -> None:
    report = simulate(machine(LATE.replace("LATE", "expired")), invariants=[whoever_pays_gets_the_order])
    failure = report.failure
    assert failure is not None and not report.ok
    assert "whoever_pays_gets_the_order does not hold: charged, and ['expired']" in failure.problem
    assert "timer of charging: charging -> expired" in failure.timeline
    assert re.search(r"runs charge of order-\d+, attempt \d+ \(key order-\d+/\d+/charging-\w+\)", failure.timeline)
    assert len(failure.timeline.splitlines()) < 40
    assert "transact" not in failure.timeline and "query" not in failure.timeline


def test_the_chart_without_that_bug_survives() -> None:
    report = simulate(machine(LATE.replace("LATE", "cancelling")), runs=300, invariants=[whoever_pays_gets_the_order])
    assert report.ok, str(report)
    assert report.runs == 300 and report.seeds_per_s > 0 and report.steps_per_s > report.seeds_per_s


def paid_once(execution: casework.Execution, history: Any) -> bool:
    return execution.context["paid"] <= sum(sent.data.get("amount", 0) for sent in history.sent if not sent.is_again)


@pytest.mark.parametrize(("has_id", "holds"), [(True, True), (False, False)])
def test_a_webhook_without_an_event_id_counts_twice_and_one_with_an_id_does_not(has_id: bool, holds: bool) -> None:
    paid = {"type": "Paid", "data": {"amount": {"$int": [1, 9]}}, "id": has_id}
    report = simulate(machine(COUNTER), runs=300, events=[paid, "Close"], invariants=[paid_once])
    assert report.ok is holds, str(report)
    if not holds:
        assert report.failure is not None and "(no id)" in report.failure.timeline


def test_a_seed_replays_its_failure_to_the_letter() -> None:
    def run(**options: Any) -> SimulationReport:
        return simulate(machine(LATE.replace("LATE", "expired")), invariants=[whoever_pays_gets_the_order], **options)

    first = run(seed=7).failure
    assert first is not None
    again, once_more = run(seed=first.seed, runs=1).failure, run(seed=first.seed, runs=1).failure
    assert again == once_more == first


@pytest.mark.parametrize("texts", [(COUNTER,), (TASKS,), (FAMILY, KID)], ids=["events", "tasks", "children"])
@pytest.mark.parametrize("crashes", [False, True])
def test_sound_charts_survive(texts: tuple[str, ...], crashes: bool) -> None:
    report = simulate([machine(text) for text in texts], runs=120, crashes=crashes)
    assert report.ok, str(report)


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("state stored without asking for its version", (TASKS,)),
        ("event ids are not remembered", (COUNTER,)),
        ("messages sent after the state was stored", (FAMILY, KID)),
    ],
)
def test_a_fault_of_the_library_is_found_with_a_users_chart_and_no_invariant_of_theirs(
    name: str, texts: tuple[str, ...]
) -> None:
    (fault,) = [fault for fault in FAULTS if fault.name == name]
    with fault.plant():
        report = simulate([machine(text) for text in texts], runs=3000)
    assert report.failure is not None


def test_an_execution_that_fails_is_reported_unless_its_machine_or_its_user_means_it() -> None:
    text = """
id: x
context: {}
initial: a
states:
  a: {on: {Go: {actions: ACTION}}}
"""
    careless = machine(text.replace("ACTION", '{type: assign, params: {n: {expr: "context.nothing"}}}'))
    found = simulate(careless, runs=50).failure
    assert found is not None and "x-1 failed, and its machine did not mean to" in found.problem
    assert simulate(careless, runs=50, may_fail=True).ok
    on_purpose = machine(text.replace("ACTION", "{type: raise, params: {event: error.refused}}"))
    assert raised_errors(on_purpose) == {"error.refused"}
    assert simulate(on_purpose, runs=50).ok


def test_a_task_that_fails_for_good_without_anybody_to_handle_it_is_reported() -> None:
    text = "{id: x, initial: a, states: {a: {invoke: {src: {task: t}, onDone: b}}, b: {type: final}}}"
    declined = {"t": {"fails": 1.0, "error": "declined", "final": True}}
    found = simulate(machine(text), runs=20, tasks=declined).failure
    assert found is not None and "declined" in found.problem
    assert "failed: TaskFailed: declined" in found.timeline


def test_real_tasks_are_called_with_their_arguments_and_stand_ins_take_their_place() -> None:
    order = machine(LATE.replace("LATE", "cancelling"))
    seen: list[Any] = []

    @order.task
    async def charge(task: Any, *, amount: int) -> Any:
        seen.append((task.idempotency_key, amount))

    def prepare() -> None:
        seen.clear()

    with pytest.raises(Misuse, match="no function for task 'cancel_charge'"):
        simulate(order, real_tasks=True)
    report = simulate(
        order, runs=20, real_tasks=True, tasks={"cancel_charge": None}, input={"amount": 42}, prepare=prepare
    )
    assert report.ok, str(report)
    assert (
        seen
        and {amount for _, amount in seen} == {42}
        and {key.rpartition("-")[0] for key, _ in seen} <= {f"order-{n}/1/charging" for n in (1, 2)}
    )


def test_a_task_that_is_completed_from_outside_is_completed() -> None:
    text = "{id: x, initial: a, states: {a: {invoke: {src: {task: t}, onDone: b}}, b: {type: final}}}"
    report = simulate(machine(text), runs=60, tasks={"t": lambda task: casework.LATER}, may_fail=True)
    assert report.ok, str(report)


def test_a_script_is_sent_in_order_and_nothing_else_is() -> None:
    def in_order(execution: casework.Execution, history: Any) -> None:
        kinds = [sent.data for sent in history.sent if not sent.is_again]
        assert kinds == [{"amount": n} for n in range(1, len(kinds) + 1)]
        if history.is_over:
            assert execution.context["paid"] == 1 + 2 + 3

    script = [{"Paid": {"amount": n}} for n in (1, 2, 3)]
    report = simulate(machine(COUNTER), runs=100, script=script, invariants=[in_order])
    assert report.ok, str(report)


def test_an_invariant_of_a_machine_goes_with_it_and_one_that_raises_does_not_hold() -> None:
    account, other = machine(COUNTER), machine(COUNTER.replace("account", "other"))

    @casework.invariant(account)
    def asks_too_much(execution: casework.Execution, history: Any) -> None:
        raise KeyError("nothing")

    found = simulate([account, other], runs=5).failure
    assert found is not None
    assert "asks_too_much does not hold: it raised KeyError: there is no key 'nothing' (at version 1)" in found.problem
    assert simulate(other, runs=5).ok


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"events": ["Payd"]}, "known: Close, Paid"),
        ({"events": [{"type": "Paid", "dat": 1}]}, "is not an event"),
        ({"script": [{"type": "Paid", "after": "soon"}]}, "after"),
        ({"tasks": {"x": 1}}, "no machine here has a task 'x'"),
        ({"input": {"$int": [2, 1]}}, "cannot be drawn"),
        ({"runs": 0}, "runs is 0"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_what_cannot_be_simulated_is_refused_before_it_begins(options: dict[str, Any], message: str) -> None:
    with pytest.raises(Misuse, match=message):
        simulate(machine(COUNTER), **options)


def test_machines_that_lack_something_are_refused_with_its_name() -> None:
    with pytest.raises(Misuse, match="machine 'kid'"):
        simulate(machine(FAMILY))


def test_payloads_are_drawn_from_their_templates() -> None:
    template = {"a": {"$int": [3, 4]}, "b": [{"$choice": ["x", {"$text": 2}]}], "c": {"$id": "o"}, "d": {"$maybe": 1}}
    assert fill(template, lambda bound: 0) == {"a": 3, "b": ["x"], "c": "o-0", "d": 1}
    assert fill(template, lambda bound: bound - 1) == {"a": 4, "b": ["zz"], "c": "o-999", "d": None}


def test_events_of_a_machine_are_those_that_come_from_outside() -> None:
    text = "{id: x, initial: a, states: {a: {on: {'b.*': a, '*': a, Go: a}, after: {1s: a}}}}"
    assert known_events(machine(text)) == ["Go", "b.any"]


def test_a_file_of_events_is_read_or_refused_with_what_is_wrong() -> None:
    assert read_events_file("[Paid]", "f").events == ["Paid"]
    assert read_events_file("{events: [Paid], tasks: {a: 1}}", "f").tasks == {"a": 1}
    with pytest.raises(Misuse, match=r"f: .*tsks"):
        read_events_file("{tsks: {}}", "f")


def test_the_fixture_shows_the_timeline_of_a_failure(casework_simulation: Callable[..., Any]) -> None:
    assert casework_simulation(machine(COUNTER), runs=10).ok
    with pytest.raises(AssertionError, match="charging -> expired") as raised:
        casework_simulation(machine(LATE.replace("LATE", "expired")), invariants=[whoever_pays_gets_the_order])
    replay = "casework.simulate(order, crashes=True, duplicates=True, invariants=[whoever_pays_gets_the_order], seed="
    assert f"replay it: {replay}" in str(raised.value)


def test_what_the_simulated_store_does_is_not_logged_and_the_log_is_as_before(caplog: pytest.LogCaptureFixture) -> None:
    import logging

    log = logging.getLogger("casework")
    before = log.level
    assert simulate(machine(TASKS), runs=60).ok
    assert caplog.records == [] and log.level == before
    log.warning("heard again")
    assert [record.message for record in caplog.records] == ["heard again"]


def test_a_stand_in_that_raises_a_type_error_is_a_failed_attempt() -> None:
    attempts: list[int] = []

    def work(task: Any) -> None:
        attempts.append(task.attempt)
        if task.attempt < 3:
            raise TypeError("not now")

    report = simulate(machine(TASKS), runs=20, tasks={"work": work})
    assert report.ok, str(report)
    assert {1, 2, 3} <= set(attempts)


def test_some_runs_have_the_worker_shell_itself_and_a_fault_in_it_is_found() -> None:
    begun: list[Any] = []

    def working(worker: Any) -> Any:
        begun.append(worker)
        return work(worker)

    with mock.patch.object(users, "work", working):
        assert simulate(machine(TASKS), runs=40).ok
    assert len(begun) > 0 and {worker.advanced_n > 0 for worker in begun} == {True, False}
    assert any(worker.tasks_n for worker in begun)

    def forgets_to_leave(worker: Any) -> Any:
        yield from worker_shell.sweep(worker)
        raise LookupError("a fault of the shell")

    with mock.patch.object(users, "work", forgets_to_leave):
        report = simulate(machine(TASKS), runs=40)
    assert report.failure is not None and "a fault of the shell" in report.failure.problem


# --- the demo's charts ------------------------------------------------------------------------------------------------

ORDER = {
    "order": {"$id": "o"},
    "customer": "c",
    "items": {"$list": [{"$choice": ["lamp", "chair", "piano"]}, 3]},
    "amount_cents": {"$int": [1, 9000]},
    "confirm_within_ms": {"$choice": [200, 60_000]},
}
APPROVED = {"type": "PaymentApproved", "data": {}}


def approvals_count_once(execution: casework.Execution, history: Any) -> bool:
    if execution.machine != "order":
        return True
    ids = {sent.id for sent in history.sent if sent.type == "PaymentApproved"}
    return execution.context["approvals"] <= len(ids) and len({call.key for call in history.calls("charge_card")}) <= 1


def refunded_where_it_was_paid(execution: casework.Execution, history: Any) -> bool:
    return not execution.is_in("cancelled") or not execution.context["paid"] or execution.context["refunded"]


def orders(runs: int) -> SimulationReport:
    from casework.demo.machine import machines

    return simulate(
        machines(), runs=runs, input=ORDER, events=[APPROVED, "CancelRequested"],
        invariants=[approvals_count_once, refunded_where_it_was_paid],
        tasks={
            "charge_card": {"returns": {"receipt": {"$id": "r"}}, "fails": 0.3, "takes": ["5ms", "15s"]},
            "book_courier": {"returns": {"$id": "t"}, "takes": ["5ms", "100ms", "40s"]},
        },
    )  # fmt: skip


def test_the_demos_orders_survive_crashes_and_duplicates() -> None:
    report = orders(150)
    assert report.ok, str(report)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_the_demos_orders_survive_twenty_thousand_seeds() -> None:
    report = orders(20_000)
    assert report.ok, str(report)
    assert report.runs == 20_000
