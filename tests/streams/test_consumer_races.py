"""Consumers whose handlers fail or take long, beside operators: the smallest schedule of each failure.

Found by the simulator's scenarios "failures", "slow handlers" and "overrun handlers", and while they were written.
"""

from __future__ import annotations

from typing import Any

import pytest

from casework.backends.drive import run
from casework.errors import OutcomeUnknown
from casework.kernel.conditions import absent
from casework.kernel.effects import Call, Flag, Transact, Write
from casework.kernel.items import Delete, Put
from casework.kernel.schema import STREAMS
from casework.streams import cursors
from casework.streams.consumer import HandlerWrites
from casework.streams.log import Op
from casework.streams.retention import repair, truncate
from tests.executions.watching import ByHand
from tests.streams.stores import log, put
from tests.streams.test_consumer import SEEN, backend_with, follower, record, recorded, until_done


def no(op: Op, writes: HandlerWrites) -> None:
    raise ValueError("no")


def cursor_in(backend: Any) -> cursors.Cursor:
    return run(cursors.read_cursor("g", "s"), backend)


def stopped(*names: str) -> Any:
    """A store with a group that stopped at the first of these operations."""
    backend = backend_with(*names)
    _, program = follower(backend, no, attempts_max=1, on_poison="stop")
    run(program, backend)
    assert cursor_in(backend).is_stopped
    return backend


def takes(own: str, backend: Any) -> Any:
    return run(cursors.take("g", "s", own, 30), backend)


# --- resuming ---------------------------------------------------------------------------------------------------------


def test_what_is_skipped_is_the_operation_that_failed_also_behind_numbers_that_hold_nothing() -> None:
    backend = backend_with("a")
    for name in ("b", "c", "bad", "d"):
        put(backend, name)
    run(_transact(Delete(STREAMS.key("s", 2)), Delete(STREAMS.key("s", 3))), backend)
    run(repair(log(), "s", apply=True), backend)

    def handle(op: Op, writes: HandlerWrites) -> None:
        (no if op.id == "bad" else record)(op, writes)

    run(follower(backend, handle, attempts_max=2, on_poison="stop")[1], backend)
    assert cursor_in(backend).after == 3
    assert run(cursors.resume("g", "s", skip=True), backend).after == 4
    leave = Flag()
    run(follower(backend, until_done(leave, "d", handle), leave)[1], backend)
    assert recorded(backend, 5) == ["a", "d"]


def _transact(*writes: Any) -> Any:
    yield Transact(writes)


def test_a_group_that_is_not_stopped_keeps_its_lease_and_its_place_when_somebody_resumes_it() -> None:
    backend = backend_with("a")
    before = takes("me", backend)
    assert run(cursors.resume("g", "s", skip=True), backend) == before == cursor_in(backend)
    assert takes("another", backend) is None


def test_of_two_operators_who_skip_one_stop_one_does_and_the_other_is_told_where_the_group_is() -> None:
    backend = stopped("a", "b")
    late = ByHand(cursors.resume("g", "s", skip=True), backend).up_to()
    assert run(cursors.resume("g", "s", skip=True), backend).after == 1
    assert late.finish().after == 1


def test_a_skip_whose_answer_was_lost_skips_once() -> None:
    backend = stopped("a", "b")
    skipping = ByHand(cursors.resume("g", "s", skip=True), backend).up_to()
    skipping.lose_answer(OutcomeUnknown("lost"), applied=True)
    run(follower(backend, no, attempts_max=1, on_poison="stop")[1], backend)
    assert cursor_in(backend).is_stopped
    assert skipping.finish().after == 1, "it does not skip what failed meanwhile"


def test_a_resume_that_is_late_skips_nothing_of_a_group_that_goes_on() -> None:
    backend = stopped("a", "b")
    late = ByHand(cursors.resume("g", "s", skip=True), backend).up_to()
    run(cursors.resume("g", "s"), backend)
    held = takes("me", backend)
    assert late.finish().after == 0 and cursor_in(backend) == held


def test_a_stop_that_is_repeated_after_somebody_resumed_does_not_stop_the_group_again() -> None:
    backend = backend_with("a")
    _, program = follower(backend, no, attempts_max=1, on_poison="stop")
    stopping = ByHand(program, backend).up_to()
    stopping.lose_answer(OutcomeUnknown("lost"), applied=True)
    run(cursors.resume("g", "s"), backend)
    stopping.finish()
    assert not cursor_in(backend).is_stopped
    assert takes("another", backend) is not None


def test_a_take_planned_before_the_stop_does_not_take_what_is_stopped() -> None:
    backend = backend_with("a")
    _, program = follower(backend, no, attempts_max=1, on_poison="stop")
    stopping = ByHand(program, backend).up_to()
    backend.clock.advance(60)
    late = ByHand(cursors.take("g", "s", "another", 30), backend).up_to()
    stopping.finish()
    assert late.finish() is None
    assert cursor_in(backend).is_stopped and cursor_in(backend).token == "me"


def test_a_take_planned_before_the_first_operation_does_not_move_the_cursor_back() -> None:
    backend = backend_with("a", "b")
    late = ByHand(cursors.take("g", "s", "another", 30), backend).up_to()

    def handle(op: Op, writes: HandlerWrites) -> None:
        (no if op.id == "b" else record)(op, writes)

    run(follower(backend, handle, attempts_max=1, on_poison="stop")[1], backend)
    run(cursors.resume("g", "s"), backend)
    assert late.finish() is None
    assert cursor_in(backend).after == 1


# --- leases -----------------------------------------------------------------------------------------------------------


def test_a_failed_attempt_does_not_end_the_lease_that_was_renewed_while_the_handler_ran() -> None:
    backend = backend_with("a")
    _, program = follower(backend, no, attempts_max=9)
    failing = ByHand(program, backend).up_to(lambda effect: isinstance(effect, Call))
    backend.clock.advance(25)
    run(cursors.extend("g", "s", "me", 30), backend)
    backend.clock.advance(25)
    failing.up_to().perform()
    assert cursor_in(backend).attempts == 1
    assert takes("another", backend) is None


def test_a_holder_whose_handler_fails_again_and_again_holds_on() -> None:
    backend = backend_with("a")
    _, program = follower(backend, no, attempts_max=9)
    failing = ByHand(program, backend)
    for _ in range(8):
        failing.up_to().perform()
        backend.clock.advance(10)
        assert takes("another", backend) is None


def test_a_handler_begins_only_so_late_after_the_last_renewal_that_its_own_comes_in_time() -> None:
    """The lease's keeper looks every third of it: a page that came after a long wait is not handled to its end."""
    backend = backend_with("a", "b", "c")
    begun: list[int] = []

    def handle(op: Op, writes: HandlerWrites) -> None:
        begun.append(cursor_in(backend).lease_end_us - backend.clock.now().latest_us)
        backend.clock.advance(4)

    leave = Flag()
    _, program = follower(backend, until_done(leave, "c", handle), leave, lease_s=30.0)
    following = ByHand(program, backend)
    backend.clock.advance(9)
    following.finish()
    assert len(begun) == 3 and min(begun) >= 19_000_000


def test_a_renewal_that_arrives_late_does_not_end_what_was_renewed_or_given_back_meanwhile() -> None:
    backend = backend_with("a")
    held = takes("me", backend)
    late, later = (ByHand(cursors.extend("g", "s", "me", 30), backend).up_to() for _ in range(2))
    backend.clock.advance(20)
    renewed = run(cursors.renew(held, 30), backend)
    late.finish()
    assert cursor_in(backend) == renewed
    run(cursors.release(renewed), backend)
    later.finish()
    assert takes("another", backend) is not None


def test_a_holder_that_was_in_trouble_learns_that_its_move_was_applied_before_it_calls_the_handler_again() -> None:
    backend = backend_with("a")
    calls: list[str] = []

    def handle(op: Op, writes: HandlerWrites) -> None:
        calls.append(op.id)
        record(op, writes)

    _, program = follower(backend, handle)
    moving = ByHand(program, backend).up_to()
    moving.lose_answer(OutcomeUnknown("lost"), applied=True)
    for _ in range(11):
        moving.up_to().lose_answer(OutcomeUnknown("lost"), applied=False)
    moving.finish()
    assert calls == ["a"] and recorded(backend, 1) == ["a"]


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to_blame", ["a", "b"])
def test_writes_that_are_refused_are_found_also_where_the_next_operation_writes_the_same_item(to_blame: str) -> None:
    backend = backend_with("a", "b", "c")
    run(_transact(Put(SEEN, {"place": "taken"})), backend)

    def handle(op: Op, writes: HandlerWrites) -> None:
        record(op, writes)
        writes.update(SEEN.key("last"), {"id": op.id})
        if op.id == to_blame:
            writes.put(SEEN, {"place": "taken"}, absent())

    consumer, program = follower(backend, handle, attempts_max=2)
    following = ByHand(program, backend)
    for _ in range(200):
        if "c" in recorded(backend, 3):
            break
        following.perform()
    assert consumer.parked_n == 1, "it is not tried for ever"
    assert recorded(backend, 3) == [id for id in "abc" if id != to_blame]


def test_a_holder_below_the_floor_that_was_taken_over_just_leaves() -> None:
    backend = backend_with("a")
    put(backend, "b")
    _, program = follower(backend)
    run(truncate(log(), "s", 1, repush_window_s=-10), backend)
    following = ByHand(program, backend).up_to(lambda effect: isinstance(effect, Transact | Write))
    backend.clock.advance(60)
    assert takes("another", backend) is not None
    following.finish()
    assert cursor_in(backend).token == "another" and not cursor_in(backend).is_stopped
