"""The named races of streams, each decided by hand: who goes first, and who is in between. On every store."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from casework.backends.drive import run
from casework.backends.surroundings import VirtualClock
from casework.errors import (
    AppendContention,
    AppendTimeout,
    AppendUnknown,
    Contention,
    OpIdReused,
    OutcomeUnknown,
    StreamDamaged,
)
from casework.kernel.effects import GetMany, Transact
from casework.kernel.items import Delete, Put
from casework.kernel.programs import query_all
from casework.kernel.schema import STREAM_CLAIMS, STREAMS
from casework.streams.append import append
from casework.streams.log import Op, StreamOptions, claim_key, segment_item
from casework.streams.writer import Writer
from tests.executions.stepping import LosesAnswers, Stepped, Torn, fresh_backend
from tests.streams.stores import (
    Counted,
    add_one,
    appending,
    head,
    ids,
    log,
    naive_append,
    naive_read,
    ops,
    put,
    put_at,
    segments,
)

# --- a reader and an append in flight -----------------------------------------------------------------------


def test_a_reader_is_never_handed_a_sequence_above_an_append_in_flight(store: Any) -> None:
    put(store, "a")
    slow = appending(store, "b").until(Transact)
    put(store, "c")
    assert ids(store, after=1) == ["c"]
    slow.finish()
    assert ids(store) == ["a", "c", "b"]
    assert segments(store) == [(1, 1, False), (2, 2, False), (3, 3, False)]


def test_the_design_that_takes_numbers_first_fails_that(store: Any) -> None:
    run(naive_append("a"), store)
    slow = Stepped(naive_append("b"), store)
    while run(query_all(STREAMS, "s", low=0, high=0), store)[0]["last_seq"] == 1:
        slow.step()
    run(naive_append("c"), store)
    seen = run(naive_read(1), store)
    slow.finish()
    later = run(naive_read(max(seen)), store)
    assert seen == [3], "the number 2 was taken, its operation is still in flight"
    assert 2 not in later, "the reader never sees it"


def test_a_reader_waits_at_an_append_whose_items_appear_one_by_one() -> None:
    backend = Torn(fresh_backend())
    backend.tears = False
    put(backend, "a")
    backend.tears = True
    put(backend, "b")
    assert head(backend) == 2 and ids(backend, after=1, of=log(grace_s=5)) == []
    backend.land()
    assert ids(backend, after=1) == ["b"]


def test_a_reader_does_not_jump_over_a_segment_that_is_not_visible_yet() -> None:
    """The next append has committed and shows, the one before it has not become visible everywhere."""
    backend = fresh_backend()
    put(backend, "a")
    put(backend, "b")
    put(backend, "c")
    hidden = backend.tables.get(STREAMS.key("s", 2))
    backend.tables.apply(Delete(STREAMS.key("s", 2)))
    assert ids(backend, of=log(grace_s=5)) == ["a"]
    assert ids(backend, after=1, of=log(grace_s=5)) == []
    backend.tables.apply(Put(STREAMS, hidden))
    assert ids(backend) == ["a", "b", "c"]


# --- several writers ----------------------------------------------------------------------------------------


def test_of_two_appends_that_read_one_head_both_are_stored_one_after_the_other(store: Any) -> None:
    slow = appending(store, "a", "b").until(Transact)
    assert put(store, "c") == [1]
    assert [one.seq for one in slow.finish()] == [2, 3]
    assert ids(store) == ["c", "a", "b"] and head(store) == 3


def test_a_repush_that_lost_the_race_answers_its_own_sequence_and_burns_none(store: Any) -> None:
    put(store, "x")
    late = appending(store, "a").until(Transact)
    assert put(store, "a") == [2]
    put(store, "y")
    (answer,) = late.finish()
    assert (answer.seq, answer.is_duplicate) == (2, True)
    assert head(store) == 3 and ids(store) == ["x", "a", "y"]


def test_a_duplicate_leaves_its_batch_and_the_others_are_stored_without_a_hole(store: Any) -> None:
    put(store, "b")
    answers = run(append(log(), "s", ops("a", "b", "c")), store)
    assert [(one.id, one.seq, one.is_duplicate) for one in answers] == [
        ("a", 2, False), ("b", 1, True), ("c", 3, False),
    ]  # fmt: skip
    assert segments(store) == [(1, 1, False), (2, 3, False)]


def test_the_same_id_with_other_content_is_refused_by_name_and_stored_nowhere(store: Any) -> None:
    put(store, "a")
    with pytest.raises(OpIdReused, match="'a' is taken at 1") as raised:
        run(append(log(), "s", [Op("b", b"b"), Op("a", b"other"), Op("c", b"c")]), store)
    assert [one.id for one in raised.value.stored] == ["b"]
    assert ids(store) == ["a", "b"], "what was before it is stored, what was behind it is not"


def test_a_push_carries_the_sequence_forward_and_reads_the_head_once(store: Any) -> None:
    counted = Counted(store)
    assert put(counted, *(f"op-{n:03}" for n in range(300))) == list(range(1, 301))
    assert (counted.rounds(), counted.reads()) == (4, 1)


def test_a_second_push_of_the_process_reads_nothing(store: Any) -> None:
    process = log()
    put(store, "a", of=process)
    counted = Counted(store)
    put(counted, "b", of=process)
    assert (counted.rounds(), counted.reads()) == (1, 0)


def test_a_lost_round_is_handed_the_real_head_and_reads_nothing(store: Any) -> None:
    process = log()
    put(store, "a", of=process)
    put(store, "b", "c")
    counted = Counted(store)
    assert put(counted, "d", of=process) == [4]
    assert (counted.rounds(), counted.reads()) == (2, 0)


# --- occupied numbers, older writers ------------------------------------------------------------------------


def test_a_run_of_40_occupied_numbers_is_stepped_over_in_one_round(store: Any) -> None:
    put(store, "a")
    for number in range(2, 42):
        assert run(put_at(number, f"old-{number}"), store)
    counted = Counted(store)
    assert put(counted, "b") == [42]
    assert counted.rounds() == 1
    assert ids(store) == ["a", *(f"old-{n}" for n in range(2, 42)), "b"] and head(store) == 42


def test_a_process_that_knew_the_head_steps_over_occupied_numbers_in_one_extra_round(store: Any) -> None:
    process = log()
    put(store, "a", of=process)
    for number in range(2, 42):
        run(put_at(number, f"old-{number}"), store)
    counted = Counted(store)
    assert put(counted, "b", of=process) == [42]
    assert counted.rounds() == 2


def test_an_append_does_not_commit_over_a_missing_operation_and_crosses_a_foreign_gap_once(store: Any) -> None:
    process = log(foreign_writers=True)
    put(store, "a", of=process)
    assert run(add_one(), store) == 2  # an older writer took 2, and died
    counted = Counted(store)
    assert put(counted, "b", of=process) == [3]
    assert counted.rounds() == 3, "the head had moved; nothing ends at 2; a marker for exactly 2"
    assert segments(store) == [(1, 1, False), (2, 2, True), (3, 3, False)]
    assert ids(store, of=process) == ["a", "b"]
    counted = Counted(store)
    assert put(counted, "c", of=process) == [4]
    assert counted.rounds() == 1, "crossed once"


def test_an_older_writer_that_puts_after_all_is_waited_for_not_crossed(store: Any) -> None:
    process = log(foreign_writers=True)
    put(store, "a", of=process)
    run(add_one(), store)
    ours = appending(store, "b", of=process).until(Transact)
    ours.step()  # refused: the head is 2
    ours.until(Transact).step()  # refused: nothing ends at 2
    assert run(put_at(2, "old"), store)
    ours.until(Transact)
    ours.finish()
    assert ids(store, of=process) == ["a", "old", "b"]
    assert segments(store) == [(1, 1, False), (2, 2, False), (3, 3, False)]


def test_an_older_writer_with_add_meanwhile_overwrites_nothing_and_never_moves_the_counter_back(store: Any) -> None:
    process = log(foreign_writers=True)
    put(store, "a", of=process)
    ours = appending(store, "b", "c", of=process).until(Transact)
    number = run(add_one(), store)
    assert ours.finish()[-1].seq == 4 and head(store) == 4
    assert run(put_at(number, "late"), store) is False, "its number was crossed"
    assert run(naive_append("late"), store) == 5
    assert head(store) == 5 and ids(store, of=process) == ["a", "b", "c", "late"]


def test_two_older_writers_that_died_in_a_row_are_crossed_and_readers_pass(store: Any) -> None:
    process = log(foreign_writers=True)
    put(store, "a", of=process)
    run(add_one(), store)
    run(add_one(), store)
    assert put(store, "b", of=process) == [4]
    assert segments(store) == [(1, 1, False), (3, 3, True), (4, 4, False)]
    ids(store, after=1, of=process)  # fills 2
    assert ids(store, of=process) == ["a", "b"]
    assert segments(store)[1] == (2, 2, True)


def test_a_hole_of_an_older_writer_is_left_alone_during_the_grace(store: Any) -> None:
    process = log(foreign_writers=True, grace_s=3600)
    put(store, "a", of=process)
    run(add_one(), store)
    number = run(add_one(), store)
    put(store, "b", of=process)
    assert ids(store, of=process) == ["a"] and ids(store, after=1, of=process) == []
    assert run(put_at(number - 1, "late"), store)
    assert ids(store, of=process) == ["a", "late", "b"]


def test_a_hole_that_stays_without_foreign_writers_is_loud(store: Any) -> None:
    put(store, "a")
    run(put_at(5, "lost-neighbours"), store)
    with pytest.raises(StreamDamaged, match="nothing between 1 and 5"):
        ids(store, after=1)


def test_with_foreign_readers_nothing_is_appended_over_a_missing_segment(store: Any) -> None:
    process = log(foreign_readers=True)
    put(store, "a", of=process)
    run(add_one(), store)
    with pytest.raises(StreamDamaged, match="no segment that ends at its head 2"):
        put(store, "b", of=process)
    assert ids(store) == ["a"] and run(query_all(STREAMS, "s", low=2), store) == []


def test_overlapping_segments_are_loud(store: Any) -> None:
    put(store, "a", "b", "c")
    run(_store(segment_item("s", 3, ops("x", "y"), 1)), store)
    with pytest.raises(StreamDamaged, match="overlaps"):
        ids(store)


def _store(item: Any) -> Any:
    yield Transact([Put(STREAMS, item)])


# --- lost answers, deadlines, contention --------------------------------------------------------------------


def test_a_round_whose_answer_was_lost_is_answered_by_its_claims() -> None:
    backend = fresh_backend()
    answers = run(append(log(), "s", ops("a", "b")), LosesAnswers(backend, [1]))
    assert [one.seq for one in answers] == [1, 2]
    assert head(backend) == 2 and ids(backend) == ["a", "b"]


def test_later_operations_wait_while_the_outcome_of_earlier_ones_is_unknown() -> None:
    backend = fresh_backend()
    names = [f"op-{n:03}" for n in range(200)]
    answers = run(append(log(), "s", ops(*names)), LosesAnswers(backend, [1, 3]))
    assert [one.seq for one in answers] == list(range(1, 201)) and ids(backend) == names


def test_a_lost_round_that_lands_late_stores_nothing_twice() -> None:
    backend = fresh_backend()
    first = appending(backend, "a").until(Transact)
    late = first.effect
    assert put(backend, "a") == [1]
    with pytest.raises(Exception, match="condition failed"):
        backend.execute(late)
    assert first.finish()[0].seq == 1 and ids(backend) == ["a"]


def test_an_append_that_never_hears_an_answer_says_what_is_stored() -> None:
    backend = fresh_backend()

    class Silent(LosesAnswers):
        def execute(self, effect: Any) -> Any:
            if isinstance(effect, Transact):
                self.writes += 1
                if self.writes > 1:
                    raise OutcomeUnknown("not sent, perhaps")
            return self._backend.execute(effect)

    with pytest.raises(AppendUnknown) as raised:
        run(append(log(lost_rounds_max=3), "s", ops(*(f"{n:03}" for n in range(100)))), Silent(backend, []))
    assert len(raised.value.stored) == 95 and raised.value.unknown == ("095", "096", "097", "098", "099")


def test_a_push_stops_at_its_deadline_and_keeps_what_it_stored() -> None:
    clock = VirtualClock()
    backend = fresh_backend(clock=clock)

    class Slow(Counted):
        def execute(self, effect: Any) -> Any:
            clock.advance(9.0)
            return super().execute(effect)

    names = [f"op-{n:03}" for n in range(400)]
    with pytest.raises(AppendTimeout) as raised:
        run(append(log(), "s", ops(*names), deadline_s=20), Slow(backend))
    stored = [one.seq for one in raised.value.stored]
    assert stored == list(range(1, len(stored) + 1)) and 95 <= len(stored) < 400
    assert ids(backend) == names[: len(stored)]
    again = run(append(log(), "s", ops(*names)), backend)
    assert [one.seq for one in again] == list(range(1, 401))
    assert sum(one.is_duplicate for one in again) == len(stored)


@pytest.mark.parametrize("shared", [False, True], ids=["alone", "by a writer"])
def test_each_repeat_of_a_push_that_meets_its_deadline_goes_further(shared: bool) -> None:
    """A round takes nine seconds, and no call has more than five: what is there already must not use them up."""
    clock = VirtualClock()
    backend = fresh_backend(clock=clock)

    class Slow(Counted):
        def execute(self, effect: Any) -> Any:
            if isinstance(effect, Transact | GetMany):
                clock.advance(9.0)
            return super().execute(effect)

    slow, given, stored = Slow(backend), ops(*(f"op-{n:04}" for n in range(1000))), [0]
    while stored[-1] < 1000:
        push = Writer(log()).append if shared else functools.partial(append, log())
        try:
            answers = run(push("s", given, deadline_s=5), slow)
        except AppendTimeout as stopped:
            answers = list(stopped.stored)
        stored.append(len(answers))
        assert stored[-1] > stored[-2], stored
    assert len(stored) <= 13 and [one.seq for one in answers] == list(range(1, 1001))


def test_the_number_of_lost_rounds_in_a_row_is_bounded() -> None:
    class Busy(Counted):
        def execute(self, effect: Any) -> Any:
            if isinstance(effect, Transact):
                self.effects.append(effect)
                raise Contention("somebody else is faster")
            return super().execute(effect)

    backend = Busy(fresh_backend())
    with pytest.raises(AppendContention, match="7 rounds in a row"):
        put(backend, "a", of=log(lost_rounds_max=7))
    assert backend.rounds() == 7 and StreamOptions().lost_rounds_max == 200


def test_appends_whose_items_appear_one_by_one_are_read_in_order_once_they_are_all_there() -> None:
    backend = Torn(fresh_backend())
    put(backend, "a")  # in flight: only the head shows
    put(backend, "b")  # and this one on top of it
    assert head(backend) == 2 and ids(backend, of=log(grace_s=5)) == []
    with pytest.raises(AppendContention):
        put(backend, "a", of=log(lost_rounds_max=2))
    backend.land()
    assert ids(backend) == ["a", "b"] and put(backend, "a") == [1]


def test_a_claim_that_cannot_be_read_is_loud(store: Any) -> None:
    run(_claim("a"), store)
    with pytest.raises(Exception, match="cannot be read"):
        put(store, "a")
    assert head(store) is None


def _claim(id: str) -> Any:
    yield Transact([Put(STREAM_CLAIMS, {"claim": claim_key("s", id).partition, "format": 1})])
