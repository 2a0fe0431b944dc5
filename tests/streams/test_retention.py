"""Truncation, snapshots and repair: on every store, and with whoever dies in between."""

from __future__ import annotations

from typing import Any

import pytest

from casework.backends.drive import run
from casework.errors import Contention, CursorAhead, CursorTooOld, Misuse, StreamDamaged
from casework.kernel.effects import Query, Sleep, Transact
from casework.kernel.items import Delete, Update
from casework.kernel.programs import get, query_all
from casework.kernel.schema import STREAM_CLAIMS, STREAMS
from casework.streams.log import claim_key, head_key
from casework.streams.read import read_head, read_page
from casework.streams.retention import get_snapshot, list_streams, put_snapshot, repair, truncate
from tests.executions.stepping import Stepped, fresh_backend
from tests.executions.watching import ByHand
from tests.streams.stores import ids, log, put, segments


def test_a_truncated_part_is_gone_with_its_claims_and_the_rest_is_as_it_was(store: Any) -> None:
    for name in "abcdef":
        put(store, name)
    done = run(truncate(log(), "s", 4, repush_window_s=-10), store)
    assert (done.floor_seq, done.removed_ops, done.kept_ops) == (4, 4, 0)
    assert ids(store, after=4) == ["e", "f"]
    assert run(get(claim_key("s", "a")), store) is None and run(get(claim_key("s", "e")), store) is not None
    assert put(store, "g") == [7] and ids(store, after=4) == ["e", "f", "g"]


def test_a_reader_below_the_floor_is_told_so_and_how_to_go_on(store: Any) -> None:
    for name in "abcd":
        put(store, name)
    run(put_snapshot(log(), "s", 3, b"abc"), store)
    run(truncate(log(), "s", 2, repush_window_s=-10), store)
    with pytest.raises(CursorTooOld, match="load the snapshot at 3") as raised:
        ids(store, after=0)
    assert (raised.value.floor_seq, raised.value.snapshot_seq) == (2, 3)
    snapshot = run(get_snapshot(log(), "s"), store)
    assert snapshot is not None and (snapshot.seq, snapshot.data) == (3, b"abc")
    assert ids(store, after=snapshot.seq) == ["d"]


def test_a_stream_that_is_truncated_altogether_keeps_the_segment_that_ends_at_its_head(store: Any) -> None:
    put(store, "a")
    put(store, "b", "c")
    run(truncate(log(), "s", 3, repush_window_s=-10), store)
    assert segments(store) == [(2, 3, False)]
    assert put(store, "d", of=log(foreign_readers=True)) == [4] and ids(store, after=3) == ["d"]
    with pytest.raises(CursorTooOld):
        ids(store, after=0)


def test_what_is_younger_than_the_window_for_repeated_pushes_keeps_its_claims(store: Any) -> None:
    put(store, "a")
    put(store, "b")
    done = run(truncate(log(), "s", 1), store)
    assert (done.removed_ops, done.kept_ops) == (0, 1)
    assert put(store, "a") == [1], "the repeated push is recognised"
    done = run(truncate(log(), "s", 1, repush_window_s=-10), store)
    assert done.removed_ops == 1


def test_a_truncation_that_died_is_finished_by_the_next_one() -> None:
    backend = fresh_backend()
    for name in "abcde":
        put(backend, name)
    dying = Stepped(truncate(log(), "s", 4, repush_window_s=-10), backend).until(Transact)
    dying.step()
    dying.program.close()
    with pytest.raises(CursorTooOld):
        ids(backend, after=0)
    assert run(truncate(log(), "s", 4, repush_window_s=-10), backend).removed_ops == 3
    assert segments(backend) == [(5, 5, False)]
    assert len([c for n in "abcde" if (c := run(get(claim_key("s", n)), backend)) is not None]) == 1


def test_the_floor_never_goes_back() -> None:
    backend = fresh_backend()
    for name in "abcd":
        put(backend, name)
    slow = Stepped(truncate(log(), "s", 1), backend)
    run(truncate(log(), "s", 3), backend)
    slow.finish()
    assert run(read_head(log(), "s"), backend).floor_seq == 3


def test_an_upto_above_the_head_is_refused_and_removes_nothing(store: Any) -> None:
    put(store, "a")
    with pytest.raises(Misuse, match="0 to 1"):
        run(truncate(log(), "s", 2), store)
    assert ids(store) == ["a"]


def test_a_snapshot_of_megabytes_is_one_and_a_smaller_one_leaves_no_rest(store: Any) -> None:
    import random

    put(store, "a")
    put(store, "b")
    large = random.Random(1).randbytes(1_200_000)
    run(put_snapshot(log(), "s", 1, large), store)
    found = run(get_snapshot(log(), "s"), store)
    assert found is not None and found.data == large
    run(put_snapshot(log(), "s", 2, b"small"), store)
    found = run(get_snapshot(log(), "s"), store)
    assert found is not None and (found.seq, found.data) == (2, b"small")
    assert len(run(query_all(STREAMS, "s", low=-100, high=-1), store)) == 1


def test_an_older_snapshot_does_not_replace_a_newer_one() -> None:
    backend = fresh_backend()
    put(backend, "a", "b")
    slow = Stepped(put_snapshot(log(), "s", 1, b"old"), backend).until(Transact)
    run(put_snapshot(log(), "s", 2, b"new"), backend)
    slow.finish()
    found = run(get_snapshot(log(), "s"), backend)
    assert found is not None and (found.seq, found.data) == (2, b"new")


def test_a_snapshot_that_the_head_names_already_is_waited_for_and_the_older_one_is_not_handed_out() -> None:
    backend = fresh_backend()
    put(backend, "a", "b")
    run(put_snapshot(log(), "s", 1, b"old"), backend)
    newer = Stepped(put_snapshot(log(), "s", 2, b"new"), backend).until(Transact)
    head_write, chunk_write = newer.effect.writes  # type: ignore[union-attr]
    backend.tables.apply(head_write)  # a transaction's items may become visible one by one
    reading = Stepped(get_snapshot(log(), "s"), backend).until(Sleep)
    assert not reading.done
    backend.tables.apply(chunk_write)
    while not reading.done:
        reading.step()
    assert (reading.result.seq, reading.result.data) == (2, b"new")


@pytest.mark.parametrize("seq", [0, 2, -1, "1"])
def test_a_snapshot_above_the_head_or_of_no_number_is_refused(seq: Any) -> None:
    backend = fresh_backend()
    put(backend, "a")
    with pytest.raises(Misuse, match="1 to 1"):
        run(put_snapshot(log(), "s", seq, b""), backend)
    assert run(get_snapshot(log(), "s"), backend) is None


def test_the_streams_that_there_are_can_be_listed() -> None:
    from casework.streams.append import append
    from tests.streams.stores import ops

    backend = fresh_backend()
    for stream in ("b", "a", "c"):
        run(append(log(), stream, ops("x")), backend)
    assert run(list_streams(log()), backend).streams == ["a", "b", "c"]


def test_a_repair_marks_a_hole_as_lost_and_readers_pass(store: Any) -> None:
    for name in "abcd":
        put(store, name)
    run(_write(Delete(STREAMS.key("s", 2)), Delete(STREAMS.key("s", 3))), store)
    with pytest.raises(StreamDamaged):
        ids(store, after=1)
    assert [str(one) for one in run(repair(log(), "s"), store)] == ["hole: 2 to 3 (not repaired)"]
    assert [str(one) for one in run(repair(log(), "s", apply=True), store)] == ["hole: 2 to 3 (marked as lost)"]
    assert ids(store) == ["a", "d"] and run(repair(log(), "s"), store) == []


def test_a_repair_corrects_a_head_that_a_restore_put_back(store: Any) -> None:
    for name in "abc":
        put(store, name)
    run(_write(Update(head_key("s"), {"last_seq": 1})), store)
    assert [one.kind for one in run(repair(log(), "s", apply=True), store)] == ["head too low"]
    assert run(read_head(log(), "s"), store).last_seq == 3 and put(store, "d") == [4]


def test_a_repair_marks_what_a_head_that_is_too_high_promises(store: Any) -> None:
    put(store, "a")
    run(_write(Update(head_key("s"), {"last_seq": 4, "at_us": 1})), store)
    with pytest.raises(StreamDamaged, match="head is 4"):
        ids(store, after=1)
    assert [one.kind for one in run(repair(log(), "s", apply=True), store)] == ["head too high"]
    assert put(store, "b") == [5] and ids(store) == ["a", "b"]


def test_what_a_truncation_keeps_below_the_floor_is_no_damage() -> None:
    backend = fresh_backend()
    for name in "abcd":
        put(backend, name)
    assert run(truncate(log(), "s", 3), backend).kept_ops == 3
    assert run(repair(log(), "s"), backend) == []
    run(_write(Delete(STREAMS.key("s", 1))), backend)
    assert run(repair(log(), "s", apply=True), backend) == [], "what it has removed so far is no hole"


def test_a_repair_beside_a_truncation_lets_no_reader_pass_unawares() -> None:
    """Found by the scenario "repairs": the floor moved between the repair's look at the head and at the segments."""
    backend = fresh_backend()
    for name in "abcd":
        put(backend, name)
    repairing = ByHand(repair(log(), "s", apply=True), backend).up_to(lambda effect: isinstance(effect, Query))
    run(truncate(log(), "s", 2, repush_window_s=-10), backend)
    with pytest.raises(Contention, match="repair it again"):
        repairing.finish()
    with pytest.raises(CursorTooOld):
        ids(backend)
    assert run(repair(log(), "s", apply=True), backend) == []


def test_of_two_who_repair_one_hole_one_does_and_the_other_is_told_to_look_again() -> None:
    backend = fresh_backend()
    for name in "abc":
        put(backend, name)
    run(_write(Delete(STREAMS.key("s", 2))), backend)
    late = ByHand(repair(log(), "s", apply=True), backend).up_to()
    assert [one.kind for one in run(repair(log(), "s", apply=True), backend)] == ["hole"]
    with pytest.raises(Contention, match="repair it again"):
        late.finish()
    assert ids(backend) == ["a", "c"] and run(repair(log(), "s"), backend) == []


def test_a_process_steps_above_what_a_restored_head_has_forgotten(store: Any) -> None:
    process = log()
    for name in "abc":
        put(store, name, of=process)
    run(_write(Update(head_key("s"), {"last_seq": 1})), store)
    assert put(store, "x", "y", "z", of=process) == [4, 5, 6]
    assert ids(store) == ["a", "b", "c", "x", "y", "z"]


def test_a_cursor_above_everything_is_refused(store: Any) -> None:
    put(store, "a")
    with pytest.raises(CursorAhead, match="ends at 1"):
        run(read_page(log(), "s", 7), store)
    assert run(read_page(log(), "s", 1), store).ops == []


def _write(*writes: Any) -> Any:
    yield Transact(writes)


def test_claims_name_their_table() -> None:
    assert claim_key("s", "a").table is STREAM_CLAIMS
