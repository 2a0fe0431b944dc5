"""``retry``: what was put off is due now; what runs is left alone; a repeat is harmless."""

from __future__ import annotations

from typing import Any

import pytest

from casework.backends.drive import run
from casework.errors import Misuse, NoSuchExecution, OutcomeUnknown
from casework.executions import control, retrying
from casework.executions.membership import Membership, beat, leave
from casework.executions.tasks import attempt_failed, claim_task, finish_task, keep_for_outside, renew_task
from casework.executions.worker import Worker
from casework.kernel.effects import Write
from casework.kernel.items import Key, Update
from tests.executions.test_parked import Two, at_once, parked
from tests.executions.test_tasks import claim, with_task
from tests.executions.watching import ByHand


def is_due(backend: Any, place: Key) -> bool:
    item = backend.tables.get(place)
    backend.clock.advance(0.05)  # by more than the clock's error
    return int(item["rank_us"]) <= backend.now().earliest_us


def worker_row(app: Any, backend: Any) -> Membership:
    membership = Membership(app.core.rt)
    run(beat(membership, 5.0), backend)
    return membership


def held_by(app: Any, backend: Any, place: Key, owner: str, lease_s: float = 300.0) -> Any:
    return run(claim_task(app.core.rt, place, lease_s=lease_s, owner=owner), backend)


def test_a_task_in_its_pause_is_due_now_and_its_attempts_stay_counted() -> None:
    app, backend, place = with_task()
    task = claim(app, place)
    run(attempt_failed(app.core.rt, task, {"message": "down"}), backend)
    assert run(claim_task(app.core.rt, place), backend) is None
    for _ in range(2):
        assert app.retry("p").status == "running"
    assert is_due(backend, place)
    again = claim(app, place)
    assert again.attempt == 2 and again.key == task.key and again.last_error == "down"


def test_a_repeat_changes_nothing() -> None:
    app, backend, place = with_task()
    run(attempt_failed(app.core.rt, claim(app, place), {"message": "down"}), backend)
    app.retry("p")
    before = backend.tables.get(place)
    backend.clock.advance(1)
    backend.forget()
    app.retry("p")
    assert backend.written == [] and backend.tables.get(place) == before


def test_a_task_of_a_dead_worker_is_due_now_and_its_late_result_is_fenced() -> None:
    app, backend, place = with_task()
    task = held_by(app, backend, place, worker_row(app, backend).name)
    backend.clock.advance(16)
    app.retry("p")
    assert is_due(backend, place)
    again = claim(app, place)
    assert again.attempt == 2 and again.token != task.token
    assert not run(finish_task(app.core.rt, task, 1), backend)
    assert run(finish_task(app.core.rt, again, 2), backend)


@pytest.mark.parametrize("how", ["alive", "renewed", "leaving", "no row", "no name", "external"])
def test_a_task_that_may_run_is_left_alone(how: str) -> None:
    app, backend, place = with_task()
    membership = worker_row(app, backend)
    owner = {"no row": "nobody", "no name": ""}.get(how, membership.name)
    task = held_by(app, backend, place, owner)
    if how == "alive":
        backend.clock.advance(10)
    else:
        backend.clock.advance(16)
    if how == "renewed":
        assert run(renew_task(task), backend)
    elif how == "leaving":
        run(leave(membership), backend)
    elif how == "external":
        assert run(keep_for_outside(task), backend)
    before = backend.tables.get(place)
    app.retry("p")
    assert backend.tables.get(place) == before


def test_a_renewal_that_comes_between_the_look_and_the_write_keeps_the_claim() -> None:
    app, backend, place = with_task()
    task = held_by(app, backend, place, worker_row(app, backend).name)
    backend.clock.advance(16)
    hand = ByHand(retrying.retry(app.core.rt, "p"), backend)
    hand.up_to()
    assert run(renew_task(task), backend)
    before = backend.tables.get(place)
    hand.finish()
    assert backend.tables.get(place) == before


def test_a_worker_names_itself_in_its_claims() -> None:
    app, backend, _place = with_task()
    app.core.rt.machines["pay"].task(name="charge_card")(lambda task, amount: amount)
    worker = Worker(app.core.rt)
    run(beat(worker.membership, 5.0), backend)
    at_once(worker, backend)
    owners = [
        effect.write.set["owner"]
        for effect in backend.written
        if isinstance(effect, Write) and isinstance(effect.write, Update) and "owner" in effect.write.set
    ]
    assert owners == [worker.membership.name] and owners[0]


def test_what_is_parked_is_looked_at_now_whoever_parked_it() -> None:
    two = Two()
    kids = [str(item["id"]) for item in parked(two.backend)]
    newer = two.newer()
    newer.parked_look_us = two.backend.now().latest_us + 10**9  # it has looked, and does not look there again for long
    for kid in kids:
        for _ in range(2):
            assert two.old.retry(kid).status == "pending"
    assert parked(two.backend) == []
    at_once(newer, two.backend)
    assert two.old.get("p").status == "done"


def test_what_is_set_aside_ended_or_gone_is_refused_and_says_the_way_out() -> None:
    app, backend, place = with_task()
    run(attempt_failed(app.core.rt, claim(app, place), {"message": "down"}), backend)
    app.suspend("p")
    before = backend.tables.get(place)
    with pytest.raises(Misuse, match="resume it first"):
        app.retry("p")
    assert backend.tables.get(place) == before
    app.terminate("p")
    with pytest.raises(Misuse, match="it has ended"):
        app.retry("p")
    app.purge("p")
    with pytest.raises(NoSuchExecution):
        app.retry("p")


def test_an_execution_that_is_suspended_on_the_way_stays_so() -> None:
    app, backend, place = with_task()
    run(attempt_failed(app.core.rt, claim(app, place), {"message": "down"}), backend)
    hand = ByHand(retrying.retry(app.core.rt, "p"), backend)
    hand.up_to()
    run(control.suspend(app.core.rt, "p"), backend)
    hand.finish()
    assert "pending" not in backend.tables.get(place)


@pytest.mark.parametrize("applied", [True, False])
def test_a_lost_answer_is_repeated(applied: bool) -> None:
    app, backend, place = with_task()
    run(attempt_failed(app.core.rt, claim(app, place), {"message": "down"}), backend)
    hand = ByHand(retrying.retry(app.core.rt, "p"), backend)
    hand.up_to().lose_answer(OutcomeUnknown("lost"), applied=applied)
    hand.finish()
    assert is_due(backend, place)
