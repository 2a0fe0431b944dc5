"""How tasks end when answers are lost, writes arrive late, and workers die or leave.

Found by the simulator's scenarios "outcomes"; each test is the smallest schedule of one failure.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from casework.backends.drive import run
from casework.errors import ConditionFailed, Contention, OutcomeUnknown, TaskNotClaimed, Throttled
from casework.executions import deliver
from casework.executions.buckets import WORKERS
from casework.executions.membership import Membership, beat, leave
from casework.executions.runtime import Options, Runtime
from casework.executions.task_items import Task, public_token
from casework.executions.tasks import (
    claim_task,
    complete_from_outside,
    fail_from_outside,
    finish_task,
    keep_for_outside,
    release_task,
    renew_task,
)
from casework.executions.worker import Worker, WorkerOptions, work
from casework.kernel.effects import Query, Transact
from casework.kernel.programs import sleep
from casework.kernel.schema import REGISTRY, TABLES
from casework.simulation.world import World
from tests.executions.test_tasks import claim, pay, with_task
from tests.executions.watching import ByHand, items_of
from tests.executions.watching import work as work_all

LOST = OutcomeUnknown("the answer was lost")


def kept() -> tuple[Any, Any, Task]:
    """A task that waits for an answer from outside."""
    app, backend, place = with_task()
    task = claim(app, place)
    assert run(keep_for_outside(task), backend)
    return app, backend, task


def workers(backend: Any) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = backend.execute(Query(REGISTRY, WORKERS)).items
    return items


# --- the last attempt -------------------------------------------------------------------------------------------------


def test_a_worker_that_dies_while_it_ends_a_task_is_no_attempt_and_hides_no_reason() -> None:
    app, backend, place = with_task()
    for _ in range(3):
        task = claim(app, place)
        assert run(keep_for_outside(task), backend)
        backend.sleep(31 * 86_400)
    ByHand(claim_task(app.core.rt, place), backend).up_to(lambda effect: isinstance(effect, Transact))
    backend.sleep(31)
    assert run(claim_task(app.core.rt, place), backend) is None
    work_all(app, "p")
    why = app.get("p").context["why"]
    assert why == {"message": "nobody completed the task in time", "type": "Timeout", "attempts": 3}


def test_a_renewal_while_the_last_attempt_is_ended_keeps_the_claim() -> None:
    app, backend, place = with_task()
    for _ in range(3):
        task = claim(app, place, lease_s=30)
        backend.sleep(31)
    ending = ByHand(claim_task(app.core.rt, place), backend).up_to()
    assert run(renew_task(task), backend)
    assert ending.finish() is None
    assert run(finish_task(app.core.rt, task, {"ref": 3}), backend)
    work_all(app, "p")
    assert app.get("p").context["out"] == {"ref": 3}


# --- answers from outside ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [LOST, Contention("met another"), Throttled("too much")])
def test_an_answer_from_outside_that_was_not_stored_is_stored_by_the_next_round(error: Exception) -> None:
    """It was refused as one that nobody waits for, while the task waited for just that."""
    app, backend, task = kept()
    answer = ByHand(complete_from_outside(app.core.rt, public_token(task), {"ref": 1}), backend).up_to()
    answer.lose_answer(error, applied=False)
    answer.finish()
    work_all(app, "p")
    assert app.get("p").context["out"] == {"ref": 1}


def test_an_answer_from_outside_whose_own_answer_is_lost_counts_once() -> None:
    app, backend, task = kept()
    answer = ByHand(complete_from_outside(app.core.rt, public_token(task), {"ref": 1}), backend).up_to()
    answer.lose_answer(LOST, applied=True)
    assert answer.finish() is None
    assert len(items_of(backend, "p", "e/")) == 1


def test_of_two_answers_the_one_that_may_not_count_is_told_so() -> None:
    """It was told that it counts, since the task was gone: another one had ended it."""
    app, backend, task = kept()
    first = ByHand(complete_from_outside(app.core.rt, public_token(task), {"ref": 1}), backend).up_to()
    run(fail_from_outside(app.core.rt, public_token(task), "declined"), backend)
    first.lose_answer(LOST, applied=False)
    with pytest.raises(OutcomeUnknown, match="by this answer or by another"):
        first.finish()
    work_all(app, "p")
    assert app.get("p").context["why"]["message"] == "declined"


def test_an_answer_whose_repeat_meets_another_attempt_is_refused() -> None:
    app, backend, task = kept()
    answer = ByHand(complete_from_outside(app.core.rt, public_token(task), {"ref": 1}), backend).up_to()
    backend.sleep(31 * 86_400)
    again = claim(app, task.place)
    answer.lose_answer(LOST, applied=False)
    with pytest.raises(TaskNotClaimed):
        answer.finish()
    assert run(finish_task(app.core.rt, again, {"ref": 2}), backend)


# --- what is kept for outside -----------------------------------------------------------------------------------------


def test_a_takeover_that_was_planned_before_a_task_was_kept_for_outside_leaves_it() -> None:
    app, backend, place = with_task()
    task = claim(app, place, lease_s=30)
    backend.sleep(31)
    takeover = ByHand(claim_task(app.core.rt, place), backend).up_to()
    assert run(keep_for_outside(task), backend)
    assert takeover.finish() is None
    run(complete_from_outside(app.core.rt, public_token(task), {"ref": 1}), backend)


def test_a_renewal_that_arrives_late_does_not_cut_short_what_is_kept_for_outside() -> None:
    app, backend, place = with_task()
    task = claim(app, place, lease_s=30)
    renewal = ByHand(renew_task(task), backend).up_to()
    late = renewal.waiting
    renewal.lose_answer(LOST, applied=False)
    assert renewal.finish()
    assert run(keep_for_outside(task), backend)
    with pytest.raises(ConditionFailed):
        backend.execute(late)
    backend.sleep(31)
    assert run(claim_task(app.core.rt, place), backend) is None
    run(complete_from_outside(app.core.rt, public_token(task), {"ref": 1}), backend)


def test_a_renewal_that_was_not_stored_extends_nothing() -> None:
    """The worker believed in the new lease all the same, and never told its function that the claim was lost."""
    app, backend, place = with_task()
    task = claim(app, place, lease_s=30)
    until_us = task.lease_until_us
    backend.sleep(10)
    renewal = ByHand(renew_task(task), backend).up_to()
    with pytest.raises(Throttled):
        renewal.lose_answer(Throttled("too much"), applied=False)
    assert task.lease_until_us == until_us
    renewal = ByHand(renew_task(task), backend).up_to()
    renewal.lose_answer(LOST, applied=False)
    assert renewal.finish() and task.lease_until_us == until_us
    assert run(renew_task(task), backend) and task.lease_until_us == until_us + 10_000_000


@pytest.mark.parametrize(("error", "applied"), [(LOST, True), (LOST, False), (Throttled("too much"), False)])
def test_what_is_kept_or_given_back_is_so_whatever_became_of_the_first_answer(error: Exception, applied: bool) -> None:
    """The function of one would be called again at the end of its lease; the other would cost an attempt."""
    app, backend, place = with_task()
    task = claim(app, place)
    keeping = ByHand(keep_for_outside(task), backend).up_to()
    keeping.lose_answer(error, applied=applied)
    assert keeping.finish()
    backend.sleep(86_400)
    assert run(claim_task(app.core.rt, place), backend) is None, "it waits for thirty days"
    backend.sleep(30 * 86_400)
    task = claim(app, place)
    releasing = ByHand(release_task(task), backend).up_to()
    releasing.lose_answer(error, applied=applied)
    assert releasing.finish()
    assert claim(app, place).attempt == task.attempt == 2


# --- workers that leave -----------------------------------------------------------------------------------------------


def test_a_heartbeat_that_arrives_late_does_not_call_a_worker_back_that_has_left() -> None:
    _, backend, _ = with_task()
    membership = Membership(Runtime())
    run(beat(membership, 5.0), backend)
    late = ByHand(beat(membership, 5.0), backend).up_to().waiting
    run(leave(membership), backend)
    with pytest.raises(ConditionFailed):
        backend.execute(late)
    assert [item["heard_us"] for item in workers(backend)] == [0]
    other = Membership(Runtime())
    run(beat(other, 5.0), backend)
    assert other.others == {} and membership.has_left


def test_a_worker_leaves_before_it_waits_for_its_tasks() -> None:
    """It looks at its buckets no more: until others take them, nobody would."""
    world = World(0, TABLES)
    rt = Runtime([pay()], Options(buckets=1))
    worker = Worker(rt, WorkerOptions(drain_s=30.0), perform=lambda runner: (yield from long()))
    seen: list[tuple[int, int]] = []

    def long() -> Generator[Any, Any, str]:
        worker.stop.set()
        yield from sleep(10.0)
        seen.append(
            (
                len(worker.running),
                world.store.tables.stored(REGISTRY).items[WORKERS, worker.membership.name]["heard_us"],
            )
        )
        return "done"

    def main(process: Any) -> Generator[Any, Any, None]:
        yield from deliver.start(rt, "pay", "p", None)
        yield from work(worker)
        seen.append((len(worker.running), -1))

    world.process("worker", main)
    assert world.run(lambda: len(seen) == 2, steps_max=5_000)
    assert seen == [(1, 0), (0, -1)]
