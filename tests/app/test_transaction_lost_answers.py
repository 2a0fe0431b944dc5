"""``app.transaction()`` whose answer is lost: it is resolved by what is certain, or the caller hears that nobody knows.

Found by the simulator's scenarios "transactions" and "transactions: finish"; each is a failure's smallest schedule.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

import casework
from casework import Op, once
from casework.backends.drive import perform, run
from casework.errors import OutcomeUnknown, Throttled, TransactionRefused
from casework.executions.advance import advance
from casework.kernel.effects import Get, Transact
from tests.executions.watching import ByHand, items_of

THINGS = casework.Table(name="things", partition="id")
MACHINE = casework.Machine.from_dict({
    "id": "order", "initial": "open", "states": {"open": {"on": {"Paid": {"target": "open"}}}},
})  # fmt: skip
JOB = casework.Machine.from_dict({"id": "job", "initial": "a", "states": {"a": {"invoke": {"src": "charge"}}}})
LOST = OutcomeUnknown("the answer was lost")


@pytest.fixture
def app() -> Iterator[casework.App]:
    with casework.open("memory:", machines=[MACHINE, JOB]) as app:
        app.backend.create_tables([THINGS])
        app.start("order", id="o-1")
        yield app


def by_hand(app: casework.App, tx: Any) -> ByHand:
    return ByHand(tx._program(), app.backend).up_to(lambda effect: isinstance(effect, Transact))


def to_the_next_attempt(driven: ByHand) -> None:
    driven.up_to(lambda effect: isinstance(effect, Transact))


def messages(app: casework.App) -> int:
    return len(items_of(app.backend, "o-1", "e/"))


def test_the_same_operation_of_another_caller_at_the_planned_place_tells_nothing(app: casework.App) -> None:
    tx = app.transaction()
    tx.append("s", [Op("common", b"")])
    tx.put(THINGS, {"id": "a"})
    driven = by_hand(app, tx)
    app.streams.append("s", [Op("common", b"")])
    driven.lose_answer(LOST, applied=False)
    driven.finish()
    assert app.backend.execute(Get(THINGS.key("a"))) is not None, "it was not there yet, though the operation was"


def test_an_operation_that_is_there_already_keeps_no_other_attempt_out(app: casework.App) -> None:
    """The segment in the way of the first attempt says nothing of the second, which appends nothing."""
    tx = app.transaction()
    tx.append("s", [Op("common", b"")])
    tx.send("o-1", "Paid")
    driven = by_hand(app, tx)
    app.streams.append("s", [Op("common", b"")])
    driven.perform()  # refused: it is there
    to_the_next_attempt(driven)
    driven.lose_answer(LOST, applied=True)
    with pytest.raises(OutcomeUnknown):
        driven.finish()
    assert messages(app) == 1, "not sent again"


def test_anothers_segment_at_the_planned_place_makes_another_attempt_safe(app: casework.App) -> None:
    tx = app.transaction()
    appended = tx.append("s", [Op("mine", b"")])
    tx.send("o-1", "Paid")
    driven = by_hand(app, tx)
    app.streams.append("s", [Op("other", b"")])
    driven.lose_answer(LOST, applied=False)
    driven.finish()
    assert messages(app) == 1 and [(one.id, one.seq) for one in appended.results] == [("mine", 2)]


def test_an_append_that_is_there_tells_that_all_of_it_is(app: casework.App) -> None:
    tx = app.transaction()
    appended = tx.append("s", [Op("mine", b"")])
    tx.send("o-1", "Paid")
    driven = by_hand(app, tx)
    driven.lose_answer(LOST, applied=True)
    driven.finish()
    assert messages(app) == 1 and appended.results[0].seq == 1


def test_an_execution_that_was_there_before_tells_nothing(app: casework.App) -> None:
    app.start("order", id="o-2")
    tx = app.transaction()
    tx.start("order", id="o-2")
    tx.send("o-1", "Paid")
    driven = by_hand(app, tx)
    driven.perform()  # refused: it is there
    to_the_next_attempt(driven)
    driven.lose_answer(LOST, applied=True)
    with pytest.raises(OutcomeUnknown):
        driven.finish()
    assert messages(app) == 1, "not sent again"


@pytest.mark.parametrize("late", ["before the next attempt", "before it looks"])
def test_a_start_that_was_on_its_way_is_not_followed_by_another(app: casework.App, late: str) -> None:
    tx = app.transaction()
    started = tx.start("order", id="o-2")
    tx.send("o-1", "Paid")
    driven = by_hand(app, tx)
    first = driven.waiting
    driven.lose_answer(LOST, applied=False)
    if late == "before it looks":
        perform(first, app.backend)
    else:
        to_the_next_attempt(driven)
        perform(first, app.backend)
    driven.finish()
    assert messages(app) == 1
    assert started.execution.created_at_us == app.get("o-2").created_at_us


def test_a_finish_that_was_on_its_way_does_not_count_as_a_lost_lease(app: casework.App) -> None:
    with once(app, "k"):
        tx = app.transaction()
        tx.finish("mine")
        tx.send("o-1", "Paid")
        driven = by_hand(app, tx)
        first = driven.waiting
        driven.lose_answer(LOST, applied=False)
        to_the_next_attempt(driven)
        perform(first, app.backend)
        driven.finish()
    assert messages(app) == 1


def test_what_is_in_the_way_may_be_the_transaction_itself_seen_in_part(app: casework.App) -> None:
    tx = app.transaction()
    tx.start("order", id="o-2")
    tx.put(THINGS, {"id": "a"}, when=casework.absent())
    driven = by_hand(app, tx)
    first = driven.waiting
    driven.lose_answer(LOST, applied=False)
    to_the_next_attempt(driven)
    app.backend.execute(Transact([write for write in first.writes if write.key.table is THINGS]))
    driven.perform()  # refused by the item, while the execution does not show yet
    to_the_next_attempt(driven)
    app.backend.execute(Transact([write for write in first.writes if write.key.table is not THINGS]))
    driven.finish()
    assert app.get("o-2").configuration == ["open"]


def test_an_error_after_a_lost_answer_does_not_say_that_nothing_was_written(app: casework.App) -> None:
    tx = app.transaction()
    tx.start("order", id="o-2")
    driven = by_hand(app, tx)
    driven.lose_answer(LOST, applied=False)
    to_the_next_attempt(driven)
    with pytest.raises(OutcomeUnknown, match="slow down") as raised:
        driven.lose_answer(Throttled("slow down"), applied=False)
    assert isinstance(raised.value.__cause__, Throttled)


def test_without_a_lost_answer_a_refusal_is_what_it_is(app: casework.App) -> None:
    tx = app.transaction()
    tx.start("order", id="o-2")
    tx.put(THINGS, {"id": "a"}, when=casework.present())
    driven = by_hand(app, tx)
    with pytest.raises(TransactionRefused):
        driven.finish()


def test_a_start_whose_rest_another_one_performs_is_done_all_the_same(app: casework.App) -> None:
    """The transaction is committed: what becomes of the rest is no reason to say that it failed."""
    app.core.rt.options = msgspec.structs.replace(app.core.rt.options, spill_above=0)
    tx = app.transaction()
    started = tx.start("job", id="j-1")
    driven = by_hand(app, tx)
    driven.perform()
    to_the_next_attempt(driven)
    run(advance(app.core.rt, "j-1"), app.backend)
    driven.finish()
    assert started.execution.id == "j-1" and len(items_of(app.backend, "j-1", "w/")) == 1
