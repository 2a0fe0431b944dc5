"""Tasks: every claim is an attempt, the result is taken once, the key is the same for every attempt."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

import casework
from casework.backends.drive import run
from casework.errors import CorruptItem, ItemTooLarge, Misuse, NotJson, OutcomeUnknown, TaskFailed, TaskNotClaimed
from casework.executions.run_task import TaskRunner, run_task, settle_outcome
from casework.executions.task_items import Task, public_token, task_of
from casework.executions.tasks import (
    attempt_failed,
    claim_task,
    fail_task,
    finish_task,
    keep_for_outside,
    release_task,
    renew_task,
)
from casework.kernel.effects import Outcome
from casework.kernel.items import Key
from casework.kernel.schema import EXECUTIONS
from casework.statechart import Machine
from casework.testing import VirtualApp
from tests.executions.watching import (
    ByHand,
    app_on,
    items_of,
    machine,
    overwrite,
    state_item,
    watched_app,
    work,
)

Maker = Callable[..., VirtualApp]

PAY = """
id: pay
initial: charging
context: {out: null, why: null}
states:
  charging:
    invoke:
      id: charge
      src: {task: charge_card}
      input: {amount: 42}
      retry: {max_attempts: 3, initial: 10s, factor: 2, max: 1m, jitter: false}
      onDone: {target: paid, actions: {type: assign, params: {out: {expr: event.output}}}}
      onError: {target: refused, actions: {type: assign, params: {why: {expr: event.error}}}}
    on: {again: {target: charging, reenter: true}, leave: left}
  left: {on: {back: charging}}
  paid: {}
  refused: {}
"""


WITHOUT_ON_ERROR = "".join(line for line in PAY.splitlines(keepends=True) if "onError" not in line)


def pay(text: str = PAY) -> Machine:
    return machine(text)


def with_task() -> tuple[Any, Any, Key]:
    """An application with one execution that waits for its task, and the task's place."""
    app, backend = watched_app(pay())
    app.start("pay", id="p")
    return app, backend, place_of(backend, "p")


def place_of(backend: Any, id: str) -> Key:
    (item,) = items_of(backend, id, "w/")
    return EXECUTIONS.key_of(item)


def claim(app: Any, place: Key, **options: Any) -> Task:
    task = run(claim_task(app.core.rt, place, **options), app.backend)
    assert task is not None
    return task


# --- the ordinary life of a task --------------------------------------------------------------------------------------


def test_a_task_gets_its_input_and_its_result_is_an_event(casework_app: Maker) -> None:
    app = casework_app(pay())
    app.fake("charge_card", {"ref": "r-1"})
    app.start("pay", id="p")
    app.settle()
    (call,) = app.calls("charge_card")
    assert call.kwargs == {"amount": 42} and call.attempt == 1 and call.idempotency_key.startswith("p/1/charge-")
    assert app.get("p").context["out"] == {"ref": "r-1"} and app.get("p").waiting_for == []
    assert items_of(app.backend, "p", "w/") == [] == items_of(app.backend, "p", "e/")


def test_a_task_is_tried_again_after_growing_pauses_with_one_key(casework_app: Maker) -> None:
    app = casework_app(pay())
    app.fake("charge_card", ValueError("one"), ValueError("two"), {"ref": 1})
    app.start("pay", id="p")
    app.settle()
    for pause, calls in (("9s", 1), ("1s", 2), ("19s", 2), ("1s", 3)):
        app.advance(pause)
        assert len(app.calls("charge_card")) == calls
    assert len({call.idempotency_key for call in app.calls("charge_card")}) == 1
    assert [call.attempt for call in app.calls("charge_card")] == [1, 2, 3]
    assert app.get("p").configuration == ["paid"]


def test_after_the_last_attempt_its_error_is_the_event(casework_app: Maker) -> None:
    app = casework_app(pay())
    app.fake("charge_card", ValueError("no"))
    app.start("pay", id="p")
    app.advance("1h")
    assert len(app.calls("charge_card")) == 3
    assert app.get("p").context["why"] == {"message": "no", "type": "ValueError", "attempts": 3}


def test_task_failed_ends_it_at_once_unless_it_asks_for_a_retry(casework_app: Maker) -> None:
    for error, calls in ((TaskFailed("card refused"), 1), (TaskFailed("later", retry=True), 3)):
        app = casework_app(pay())
        app.fake("charge_card", error)
        app.start("pay", id="p")
        app.advance("1h")
        assert len(app.calls("charge_card")) == calls
        assert app.get("p").context["why"]["type"] == "TaskFailed"


def test_an_error_without_a_handler_fails_the_execution(casework_app: Maker) -> None:
    app = casework_app(pay(WITHOUT_ON_ERROR))
    app.fake("charge_card", TaskFailed("no"))
    app.start("pay", id="p")
    app.settle()
    failed = app.get("p")
    assert failed.status == "failed" and failed.error is not None and failed.error["message"] == "no"


@pytest.mark.parametrize("result", [math.nan, {1, 2}, (1,), {1: 2}, b"x", 2**64, object(), "\ud800"])
def test_a_result_that_is_not_json_is_a_final_error(casework_app: Maker, result: Any) -> None:
    app = casework_app(pay())
    app.fake("charge_card", lambda task, amount: {"deep": [result]})
    app.start("pay", id="p")
    app.advance("1h")
    assert len(app.calls("charge_card")) == 1
    why = app.get("p").context["why"]
    assert why["type"] == "NotJson" and "result.deep[0]" in why["message"] and why["attempts"] == 1


def test_a_result_that_is_too_large_is_a_final_error_and_the_largest_one_arrives(casework_app: Maker) -> None:
    for size, state in ((349_998, "paid"), (350_000, "refused"), (500_000, "refused")):
        app = casework_app(pay())
        app.fake("charge_card", "x" * size)
        app.start("pay", id="p")
        app.advance("1h")
        assert len(app.calls("charge_card")) == 1 and app.get("p").configuration == [state]
        if state == "refused":
            assert app.get("p").context["why"]["type"] == "ItemTooLarge"


@pytest.mark.parametrize("message", ["\ud800", "a\0b", "x" * 500_000, ""])
def test_an_error_with_any_message_is_kept(casework_app: Maker, message: str) -> None:
    app = casework_app(pay())
    app.fake("charge_card", ValueError(message))
    app.start("pay", id="p")
    app.advance("1h")
    assert len(app.calls("charge_card")) == 3 and app.get("p").context["why"]["type"] == "ValueError"


def test_a_function_that_cannot_take_the_input_is_not_tried_again() -> None:
    m = pay()

    @m.task
    def charge_card(task: Any, *, total: int) -> None: ...

    app, backend = watched_app(m)
    app.start("pay", id="p")
    task = claim(app, place_of(backend, "p"))
    runner = TaskRunner(app.core.rt, task, lambda id: None)
    run(settle_outcome(runner, Outcome(error=TypeError("charge_card() got an unexpected keyword argument"))), backend)
    work(app, "p")
    assert "cannot take its input" in app.get("p").context["why"]["message"]


def test_an_input_that_is_no_mapping_is_given_as_input(casework_app: Maker) -> None:
    app = casework_app(pay(PAY.replace("{amount: 42}", "[1, 2]")))
    app.fake("charge_card", 1)
    app.start("pay", id="p")
    app.settle()
    assert app.calls("charge_card")[0].kwargs == {"input": [1, 2]}


# --- claims, leases, fencing ------------------------------------------------------------------------------------------


def test_a_claimed_task_is_nobody_elses_until_its_lease_ends() -> None:
    app, backend, place = with_task()
    first = claim(app, place, lease_s=30)
    assert run(claim_task(app.core.rt, place), backend) is None
    backend.sleep(29)
    assert run(claim_task(app.core.rt, place), backend) is None
    backend.sleep(2)
    second = claim(app, place)
    assert (first.attempt, second.attempt) == (1, 2) and first.token != second.token and first.key == second.key


def test_a_late_result_of_a_lost_claim_is_dropped() -> None:
    app, backend, place = with_task()
    first = claim(app, place, lease_s=30)
    backend.sleep(31)
    second = claim(app, place)
    assert run(finish_task(app.core.rt, first, {"ref": "late"}), backend) is False
    assert run(fail_task(app.core.rt, first, {"message": "late"}), backend) is False
    assert run(attempt_failed(app.core.rt, first, {"message": "late"}), backend) is None
    assert run(renew_task(first), backend) is False and run(release_task(first), backend) is False
    assert run(keep_for_outside(first), backend) is False
    assert run(finish_task(app.core.rt, second, {"ref": "good"}), backend) is True
    work(app, "p")
    assert app.get("p").context["out"] == {"ref": "good"}


def test_a_holder_whose_lease_ended_may_still_finish_while_nobody_took_over() -> None:
    app, backend, place = with_task()
    task = claim(app, place, lease_s=30)
    backend.sleep(3600)
    assert run(finish_task(app.core.rt, task, {"ref": 1}), backend)
    assert not run(finish_task(app.core.rt, task, {"ref": 2}), backend), "once"
    work(app, "p")
    assert app.get("p").context["out"] == {"ref": 1}


def test_a_heartbeat_extends_the_lease_and_its_details_survive_a_crash() -> None:
    app, backend, place = with_task()
    task = claim(app, place, lease_s=30)
    for _ in range(5):
        backend.sleep(20)
        assert run(renew_task(task, details={"page": 7}), backend)
        assert run(claim_task(app.core.rt, place), backend) is None
    backend.sleep(31)
    second = claim(app, place)
    assert TaskRunner(app.core.rt, second, lambda id: None).context.details == {"page": 7}


def test_details_survive_an_attempt_that_raises(casework_app: Maker) -> None:
    found: list[Any] = []

    def copy(task: Any, amount: int) -> Any:
        found.append(task.details)
        task.heartbeat({"page": len(found)})
        raise ValueError("again")

    app = casework_app(pay())
    app.fake("charge_card", copy)
    app.start("pay", id="p")
    app.advance("1h")
    assert found == [None, {"page": 1}, {"page": 2}]


@pytest.mark.parametrize(("details", "error"), [({1: 2}, NotJson), (math.nan, NotJson), ("x" * 200_000, ItemTooLarge)])
def test_details_that_cannot_be_kept_are_refused_where_they_are_given(
    casework_app: Maker, details: Any, error: type[Exception]
) -> None:
    def function(task: Any, amount: int) -> Any:
        with pytest.raises(error):
            task.heartbeat(details)
        return "went on"

    app = casework_app(pay())
    app.fake("charge_card", function)
    app.start("pay", id="p")
    app.settle()
    assert app.get("p").context["out"] == "went on"


def test_a_renewal_between_the_look_and_the_takeover_keeps_the_claim() -> None:
    app, backend, place = with_task()
    first = claim(app, place, lease_s=30)
    backend.sleep(31)
    takeover = ByHand(claim_task(app.core.rt, place), backend).up_to()
    assert run(renew_task(first), backend)
    assert takeover.finish() is None
    assert run(finish_task(app.core.rt, first, {"ref": 1}), backend)


def test_of_two_claims_at_once_one_wins() -> None:
    app, backend, place = with_task()
    claims = [ByHand(claim_task(app.core.rt, place), backend).up_to() for _ in range(5)]
    won = [task for each in claims if (task := each.finish()) is not None]
    assert len(won) == 1 and won[0].attempt == 1


@pytest.mark.parametrize("applied", [True, False])
def test_a_claim_whose_answer_is_lost_is_resolved_by_its_token(applied: bool) -> None:
    app, backend, place = with_task()
    attempt = ByHand(claim_task(app.core.rt, place), backend).up_to()
    attempt.lose_answer(OutcomeUnknown("lost"), applied=applied)
    task = attempt.finish()
    assert (task is not None) == applied
    if task is not None:
        assert run(finish_task(app.core.rt, task, {}), backend)


@pytest.mark.parametrize("applied", [True, False])
def test_a_finish_whose_answer_is_lost_is_looked_for_and_tried_again_where_it_was_not_stored(applied: bool) -> None:
    app, backend, place = with_task()
    task = claim(app, place)
    finish = ByHand(finish_task(app.core.rt, task, {"ref": 1}), backend).up_to()
    finish.lose_answer(OutcomeUnknown("lost"), applied=applied)
    assert finish.finish()
    assert len(items_of(backend, "p", "e/")) == 1 and items_of(backend, "p", "w/") == []
    work(app, "p")
    assert app.get("p").context["out"] == {"ref": 1}


def test_a_crash_counts_as_an_attempt_and_after_the_last_one_the_task_fails() -> None:
    app, backend, place = with_task()
    for attempt in (1, 2, 3):
        assert claim(app, place, lease_s=30).attempt == attempt
        backend.sleep(31)
    assert run(claim_task(app.core.rt, place), backend) is None
    work(app, "p")
    why = app.get("p").context["why"]
    assert why["type"] == "Crashed" and why["attempts"] == 3
    assert items_of(backend, "p", "w/") == []


def test_a_task_given_back_by_a_leaving_worker_is_due_at_once_and_uncounted() -> None:
    app, backend, place = with_task()
    assert run(release_task(claim(app, place)), backend)
    again = claim(app, place)
    assert again.attempt == 1


# --- stays ------------------------------------------------------------------------------------------------------------


def test_leaving_the_state_stops_its_task_and_a_result_on_its_way_is_dropped() -> None:
    app, backend, place = with_task()
    task = claim(app, place)
    app.handle("p", "leave")
    assert items_of(backend, "p", "w/") == []
    assert run(renew_task(task), backend) is False
    assert run(finish_task(app.core.rt, task, {"ref": 1}), backend) is False
    assert app.get("p").waiting_for == []


def test_a_result_of_an_earlier_stay_is_not_taken_for_a_later_one() -> None:
    app, backend, place = with_task()
    assert run(finish_task(app.core.rt, claim(app, place), {"ref": "old"}), backend)
    app.handle("p", "leave")
    app.handle("p", "back")
    work(app, "p")
    assert app.get("p").configuration == ["charging"] and app.get("p").waiting_for == ["charge"]
    later = claim(app, place_of(backend, "p"))
    assert later.key.startswith("p/2/charge-")
    assert run(finish_task(app.core.rt, later, {"ref": "new"}), backend)
    work(app, "p")
    assert app.get("p").context["out"] == {"ref": "new"}


def test_a_state_entered_again_in_one_step_has_a_new_task_and_no_old_one() -> None:
    app, backend, place = with_task()
    app.handle("p", "again")
    assert place_of(backend, "p") != place


def test_nobody_can_forge_a_result_from_outside() -> None:
    app, _, _ = with_task()
    for event in ("done.invoke.charge", "error.invoke.charge"):
        with pytest.raises(Misuse):
            app.handle("p", event, {"ref": "forged"})


def test_a_task_driven_again_gets_a_new_key(casework_app: Maker) -> None:
    app = casework_app(pay(WITHOUT_ON_ERROR))
    app.fake("charge_card", TaskFailed("no"), {"ref": 1})
    app.start("pay", id="p")
    app.settle()
    assert app.get("p").status == "failed"
    assert app.redrive("p").status == "running"
    app.settle()
    assert app.get("p").context["out"] == {"ref": 1}
    keys = [call.idempotency_key for call in app.calls("charge_card")]
    assert len(set(keys)) == 2 and keys[1].endswith("/redrive-1")


def test_an_id_that_is_started_again_after_a_purge_has_other_keys(casework_app: Maker) -> None:
    app = casework_app(pay())
    app.fake("charge_card", {"ref": 1}, {"ref": 2})
    for _ in range(2):
        app.start("pay", id="p")
        app.settle()
        app.terminate("p")
        app.purge("p")
    first, second = (call.idempotency_key for call in app.calls("charge_card"))
    assert first != second and first.startswith("p/1/charge-") and second.startswith("p/1/charge-")


# --- completed from outside -------------------------------------------------------------------------------------------


def later_app(casework_app: Maker, text: str = PAY) -> tuple[VirtualApp, str]:
    app = casework_app(pay(text))
    app.fake("charge_card", casework.LATER)
    app.start("pay", id="p")
    app.settle()
    return app, app.calls("charge_card")[0].token


def test_a_task_is_completed_by_its_token_once(casework_app: Maker) -> None:
    app, token = later_app(casework_app)
    app.advance("20d")
    assert len(app.calls("charge_card")) == 1
    app.complete_task(token, {"ref": "w-1"})
    for again in (lambda: app.complete_task(token, {"ref": "w-2"}), lambda: app.fail_task(token, "no")):
        with pytest.raises(TaskNotClaimed):
            again()
    app.settle()
    assert app.get("p").context["out"] == {"ref": "w-1"}


def test_a_task_is_failed_by_its_token(casework_app: Maker) -> None:
    app, token = later_app(casework_app)
    app.fail_task(token, "declined")
    app.settle()
    assert app.get("p").context["why"] == {"message": "declined", "type": "TaskFailed", "attempts": 1}


def test_a_token_of_a_left_state_or_a_purged_execution_is_refused(casework_app: Maker) -> None:
    for leave in (lambda app: app.handle("p", "leave"), lambda app: app.purge("p", force=True)):
        app, token = later_app(casework_app)
        leave(app)
        with pytest.raises(TaskNotClaimed):
            app.complete_task(token, 1)


@pytest.mark.parametrize("token", ["", "x", "é", 5, None, "WyJwIiwiMCIsIngiXQ", "bnVsbA", "W10"])
def test_what_is_no_token_is_refused(casework_app: Maker, token: Any) -> None:
    app, _ = later_app(casework_app)
    with pytest.raises(Misuse):
        app.complete_task(token, 1)
    with pytest.raises(Misuse):
        app.fail_task(token, "no")
    assert app.get("p").configuration == ["charging"]


def test_a_result_from_outside_is_checked_before_anything_is_written(casework_app: Maker) -> None:
    app, token = later_app(casework_app)
    with pytest.raises(NotJson, match=r"result\.x"):
        app.complete_task(token, {"x": {1, 2}})
    with pytest.raises(ItemTooLarge):
        app.complete_task(token, "x" * 400_000)
    with pytest.raises(Misuse):
        app.fail_task(token, 5)  # type: ignore[arg-type]
    app.complete_task(token, {"x": 1})
    app.settle()
    assert app.get("p").context["out"] == {"x": 1}


def test_what_nobody_completes_within_its_timeout_is_tried_again_then_fails(casework_app: Maker) -> None:
    app, token = later_app(casework_app, PAY.replace("      retry:", "      timeout: 1h\n      retry:"))
    app.advance("59m")
    assert len(app.calls("charge_card")) == 1
    app.advance("2m")
    assert len(app.calls("charge_card")) == 2
    with pytest.raises(TaskNotClaimed):
        app.complete_task(token, {})
    app.advance("1d")
    assert len(app.calls("charge_card")) == 3
    assert app.get("p").context["why"] == {
        "message": "nobody completed the task in time", "type": "Timeout", "attempts": 3,
    }  # fmt: skip


def test_a_task_completed_before_its_function_has_returned_counts() -> None:
    app, backend, place = with_task()
    task = claim(app, place)
    app.complete_task(public_token(task), {"ref": "quick"})
    runner = TaskRunner(app.core.rt, task, lambda id: None)
    run(settle_outcome(runner, Outcome(casework.LATER)), backend)
    work(app, "p")
    assert app.get("p").context["out"] == {"ref": "quick"}


# --- what this process does not know ----------------------------------------------------------------------------------


def test_a_task_that_this_process_has_no_function_for_is_left_for_one_that_has() -> None:
    app, backend, place = with_task()
    other = app_on(backend, machine("id: other\ninitial: a\nstates: {a: {}}"))
    task = claim(other, place)
    run(run_task(TaskRunner(other.core.rt, task, lambda id: None)), backend)
    (item,) = items_of(backend, "p", "w/")
    assert "no task 'charge_card'" in str(item["parked"]) and item["attempt"] == 0 and "token" not in item
    assert item["rank_us"] >= backend.now().middle_us + 59_000_000
    backend.sleep(61)
    assert claim(app, place).attempt == 1
    assert "parked" not in items_of(backend, "p", "w/")[0], "it is being done now"


def test_a_task_that_cannot_be_read_is_put_off_and_left_as_it_is() -> None:
    app, backend, place = with_task()
    (item,) = items_of(backend, "p", "w/")
    overwrite(backend, {**item, "options": "{"})
    assert run(claim_task(app.core.rt, place), backend) is None
    (left,) = items_of(backend, "p", "w/")
    assert "cannot be read" in str(left["parked"]) and left["options"] == "{" and "token" not in left
    assert left["rank_us"] == backend.now().middle_us + 60_000_000
    with pytest.raises(CorruptItem, match="format 99"):
        task_of({**item, "format": 99})
    app.start("pay", id="q")
    assert claim(app, place_of(backend, "q")).attempt == 1


def test_no_task_starts_in_a_suspended_execution_and_a_running_one_keeps_its_lease() -> None:
    app, backend, place = with_task()
    app.suspend("p")
    assert run(claim_task(app.core.rt, place), backend) is None
    app.resume("p")
    task = claim(app, place, lease_s=30)
    app.suspend("p")
    assert run(renew_task(task), backend)
    app.resume("p")
    assert run(claim_task(app.core.rt, place), backend) is None, "its lease runs: nobody takes it over"
    assert run(finish_task(app.core.rt, task, {"ref": 1}), backend)
    work(app, "p")
    assert app.get("p").context["out"] == {"ref": 1}


def test_a_result_for_a_suspended_execution_waits() -> None:
    app, backend, place = with_task()
    task = claim(app, place)
    app.suspend("p")
    assert run(finish_task(app.core.rt, task, {"ref": 1}), backend)
    work(app, "p")
    assert app.get("p").configuration == ["charging"]
    app.resume("p")
    work(app, "p")
    assert app.get("p").context["out"] == {"ref": 1}


@pytest.mark.parametrize("end", ["leave", "terminate", "cancel"])
@pytest.mark.parametrize("count", [12, 13, 61, 99, 150])
def test_any_number_of_tasks_is_stopped_with_their_state(end: str, count: int) -> None:
    regions = "\n".join(
        f"      r{n}: {{initial: w, states: {{w: {{invoke: {{id: t{n}, src: {{task: t}}}}}}}}}}" for n in range(count)
    )
    app, backend = watched_app(
        machine(f"""
id: m
initial: idle
states:
  idle: {{on: {{go: all}}}}
  all:
    type: parallel
    on: {{leave: idle}}
    states:
{regions}
""")
    )
    app.start("m", id="x")
    app.send("x", "go")
    work(app, "x")
    assert len(items_of(backend, "x", "w/")) == count
    if end == "leave":
        app.send("x", "leave")
        work(app, "x")
        assert app.get("x").configuration == ["idle"]
    else:
        assert getattr(app, end)("x").status == "cancelled"
    assert items_of(backend, "x") == [state_item(backend, "x")]
