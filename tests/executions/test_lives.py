"""An id that is purged and started again: nothing of its first life has an effect on the second.

Found by the simulator's scenario "lives"; each test is the smallest schedule of one failure.
"""

from __future__ import annotations

from typing import Any

import pytest

from casework.backends.drive import run
from casework.errors import Contention, OutcomeUnknown
from casework.executions.control import purge
from casework.executions.tasks import attempt_failed, claim_task, finish_task
from casework.kernel.effects import Transact
from casework.kernel.items import Delete, Put
from tests.executions.test_tasks import claim, place_of, with_task
from tests.executions.watching import ByHand, items_of, overwrite, work


def begin_again(app: Any) -> None:
    app.terminate("p")
    app.purge("p")
    app.start("pay", id="p")


def test_a_claim_planned_in_the_first_life_does_not_take_the_seconds_task() -> None:
    app, backend, place = with_task()
    late = ByHand(claim_task(app.core.rt, place), backend).up_to()
    begin_again(app)
    assert place_of(backend, "p") == place, "the same place holds another task"
    assert late.finish() is None
    task = claim(app, place)
    assert run(finish_task(app.core.rt, task, {"ref": 2}), backend)
    work(app, "p")
    assert app.get("p").context["out"] == {"ref": 2}


def test_a_result_that_becomes_visible_after_the_purge_does_not_count() -> None:
    """The items of a transaction need not appear at one instant: the task was gone, its result still on its way."""
    app, backend, place = with_task()
    finishing = ByHand(finish_task(app.core.rt, claim(app, place), {"ref": "old"}), backend)
    finishing.up_to()
    transaction = finishing.waiting
    assert isinstance(transaction, Transact)
    (result,) = [write for write in transaction.writes if isinstance(write, Put)]
    begin_again(app)
    overwrite(backend, dict(result.item))
    work(app, "p")
    assert items_of(backend, "p", "e/") == [], "it was looked at, and dropped"
    assert app.get("p").waiting_for == ["charge"] and app.get("p").context["out"] is None


def test_a_claim_planned_before_an_attempt_failed_waits_out_the_pause() -> None:
    app, backend, place = with_task()
    late = ByHand(claim_task(app.core.rt, place), backend).up_to()
    first = claim(app, place)
    assert run(attempt_failed(app.core.rt, first, {"message": "no", "type": "Refused"}), backend)
    assert late.finish() is None
    assert run(claim_task(app.core.rt, place), backend) is None
    backend.sleep(11)
    assert claim(app, place).attempt == 2


def test_a_claim_planned_before_the_execution_was_suspended_does_not_start_its_task() -> None:
    app, backend, place = with_task()
    late = ByHand(claim_task(app.core.rt, place), backend).up_to()
    app.suspend("p")
    assert late.finish() is None
    app.resume("p")
    assert claim(app, place).attempt == 1


def test_a_purge_that_is_late_removes_nothing_of_the_second_life() -> None:
    app, backend, place = with_task()
    late = ByHand(purge(app.core.rt, "p", force=True), backend)
    late.up_to(lambda effect: isinstance(effect, Transact) and Delete(place) in effect.writes)
    app.purge("p", force=True)
    app.start("pay", id="p")
    with pytest.raises(Contention, match="started again"):
        late.finish()
    assert place_of(backend, "p") == place
    late = ByHand(purge(app.core.rt, "p", force=True), backend)
    late.up_to(lambda effect: isinstance(effect, Transact) and Delete(place) in effect.writes)
    assert app.purge("p", force=True) == 2
    assert late.finish() == 1, "the other one did it all but for the mark"


def test_a_purge_whose_answer_is_lost_gets_done() -> None:
    app, backend, place = with_task()
    first = ByHand(purge(app.core.rt, "p", force=True), backend)
    first.up_to(lambda effect: isinstance(effect, Transact) and Delete(place) in effect.writes)
    first.lose_answer(OutcomeUnknown("lost"), applied=True)
    assert first.finish() == 2 and items_of(backend, "p") == []
