"""Where a group of consumers begins, how it is moved, what becomes of it when the stream is truncated, replays."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from casework.backends.drive import run
from casework.backends.surroundings import VirtualClock
from casework.errors import Misuse
from casework.kernel.conditions import absent
from casework.kernel.effects import Flag, Handle, Outcome, Transact
from casework.streams import consumer as consuming
from casework.streams import cursors
from casework.streams.append import append
from casework.streams.consumer import Consumer, ConsumerOptions, HandlerWrites, follow
from casework.streams.groups import list_groups, replay_parked, seek
from casework.streams.log import Op
from casework.streams.positions import position_of, start_of
from casework.streams.retention import put_snapshot, truncate
from tests.executions.stepping import LosesAnswers, Stepped, fresh_backend
from tests.streams.stores import log, put
from tests.streams.test_consumer import SEEN, backend_with, recorded


def follow_until(backend: Any, last: str | None, handle: Any = None, **options: Any) -> tuple[Consumer, list[str]]:
    """Take the cursor of ``g`` in ``s``, handle up to the operation ``last`` or the stop; what was handled."""
    leave, seen = Flag(), []

    def handler(op: Op, writes: HandlerWrites) -> None:
        seen.append(op.id)
        if op.id == last:
            leave.set()
        if handle is not None:
            handle(op, writes)

    consumer = Consumer(log(), "g", ["s"], handler, ConsumerOptions(**options))
    consumer.token = "me"
    taken = cursors.take("g", "s", "me", 30, log=consumer.log, start=consumer.options.start)
    cursor = run(taken, backend)
    assert cursor is not None
    run(follow(consumer, cursor, leave), backend)
    return consumer, seen


def at(second: int) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=second)


def stream_of_ten(backend: Any = None) -> Any:
    """Operations ``1`` to ``10``, two to a segment, one segment every ten seconds from second 0 on."""
    backend = backend or fresh_backend(clock=VirtualClock())
    backend.create_tables([SEEN])
    backend.clock.advance((at(0).timestamp() * 1e6 - backend.clock.now().middle_us) / 1e6)
    for n in range(1, 11, 2):
        put(backend, str(n), str(n + 1))
        backend.clock.advance(10)
    return backend


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("floor", "4"), ("snapshot", "7"), (0, "1"), (5, "6"), (at(20), "5"), (at(21), "7"), (at(-99), "4"),
        (at(40).astimezone(timezone(timedelta(hours=5))), "9"),
    ],
)  # fmt: skip
def test_a_new_group_begins_where_it_is_told_to(start: Any, first: str) -> None:
    backend = stream_of_ten()
    run(put_snapshot(log(), "s", 6, b"state"), backend)
    run(truncate(log(), "s", 3), backend)  # all of it is younger than the window: what is below the floor is there
    _, seen = follow_until(backend, "10", start=start)
    assert seen == [str(n) for n in range(int(first), 11)]


def test_a_new_group_that_begins_at_the_head_gets_only_what_comes() -> None:
    backend = stream_of_ten()
    for start in ("head", at(1000)):
        assert run(position_of(log(), "s", start), backend) == 10  # type: ignore[arg-type]
    assert run(cursors.take("g", "s", "me", 30, start="head"), backend).after == 10  # type: ignore[union-attr]
    assert run(position_of(log(), "new", at(0)), backend) == 0


def test_a_time_is_found_in_every_stream_whatever_its_segments() -> None:
    backend = stream_of_ten()
    for second in range(-5, 60):
        expected = min(10, max(0, 2 * -(-second // 10)))
        assert run(position_of(log(), "s", at(second)), backend) == expected


def test_a_new_group_on_a_truncated_stream_begins_at_its_floor_by_default() -> None:
    backend = stream_of_ten()
    run(truncate(log(), "s", 6, repush_window_s=-10), backend)
    _, seen = follow_until(backend, "10")
    assert seen == ["7", "8", "9", "10"]


@pytest.mark.parametrize("wrong", ["begin", "", -1, 1.5, True, None, datetime(2026, 1, 1), 2**63, ["floor"]])  # noqa: DTZ001
def test_what_is_no_place_is_refused_before_anything_is_read(wrong: Any) -> None:
    with pytest.raises(Misuse, match="it must be 'floor', 'snapshot', 'head'"):
        ConsumerOptions(start=wrong)
    with pytest.raises(Misuse, match="it must be 'floor', 'snapshot', 'head'"):
        run(seek(log(), "g", "s", wrong), fresh_backend())


def test_a_place_in_words() -> None:
    assert start_of("floor") == "floor" and start_of("17") == 17
    assert start_of("2026-01-01T00:00:00Z") == at(0)
    for text in ("soon", "-3", "", "1.5"):
        with pytest.raises(Misuse, match="no place in a stream"):
            start_of(text)
    with pytest.raises(Misuse, match="zone"):
        start_of("2026-01-01T00:00:00")


# --- truncated under a group ------------------------------------------------------------------------------------------


def truncated_under_a_group(**truncation: Any) -> Any:
    backend = stream_of_ten()
    assert run(cursors.take("g", "s", "me", 30), backend) is not None
    run(truncate(log(), "s", 6, **truncation), backend)
    return backend


def test_a_group_below_the_floor_stops_says_so_and_goes_on_after_a_seek() -> None:
    backend = truncated_under_a_group(repush_window_s=-10)
    follow_until(backend, None)
    (lag,) = run(cursors.lag(log(), "g", ["s"]), backend)
    assert lag.is_stopped and "truncated up to 6" in lag.error
    assert "casework streams seek g s --to floor" in lag.error
    moved = run(seek(log(), "g", "s", "floor"), backend)
    assert (moved.after, moved.is_stopped, moved.error, moved.token) == (6, False, "", "")
    _, seen = follow_until(backend, "10")
    assert seen == ["7", "8", "9", "10"]


@pytest.mark.parametrize(("choice", "first"), [("floor", 7), ("snapshot", 9)])
def test_a_group_that_wants_to_goes_on_behind_what_was_truncated(choice: Any, first: int, caplog: Any) -> None:
    backend = truncated_under_a_group(repush_window_s=-10)
    run(put_snapshot(log(), "s", 8, b"state"), backend)
    _, seen = follow_until(backend, "10", on_truncated=choice)
    assert seen == [str(n) for n in range(first, 11)]
    assert f"goes on behind {first - 1}" in caplog.text


# --- seek -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", [0, 2, 10, "floor", "head"])
def test_a_group_goes_on_where_it_was_moved_to(to: Any) -> None:
    backend = stream_of_ten()
    follow_until(backend, "10")
    after = run(seek(log(), "g", "s", to), backend).after
    put(backend, "11")
    _, seen = follow_until(backend, "11")
    assert seen == [str(n) for n in range(after + 1, 12)]


def test_a_place_that_the_stream_does_not_have_is_refused_and_nothing_moves() -> None:
    backend = truncated_under_a_group()
    for to in (5, 11):
        with pytest.raises(Misuse, match="up to 10, its head"):
            run(seek(log(), "g", "s", to), backend)
    assert run(cursors.read_cursor("g", "s"), backend).after == 0


def test_what_a_consumer_sent_before_a_seek_is_refused_and_it_holds_the_stream_no_more() -> None:
    backend = stream_of_ten()
    cursor = run(cursors.take("g", "s", "me", 30), backend)
    assert cursor is not None
    late = Stepped(cursors.advance(cursor, 4, (), 30), backend).until(Transact)
    run(seek(log(), "g", "s", 8), backend)
    with pytest.raises(cursors.Lost):
        late.finish()
    assert run(cursors.read_cursor("g", "s"), backend).after == 8
    assert run(cursors.take("g", "s", "another", 30), backend) is not None


def test_a_seek_whose_answer_was_lost_moves_the_group_once() -> None:
    backend = stream_of_ten()
    run(seek(log(), "g", "s", 4), LosesAnswers(backend, [1]))
    assert run(cursors.read_cursor("g", "s"), backend).after == 4


def test_groups_are_listed_with_their_streams(store: Any) -> None:
    run(append(log(), "s", [Op("a", b""), Op("b", b"")]), store)
    run(append(log(), "t", [Op("a", b"")]), store)
    run(seek(log(), "mailer", "s", 1), store)
    assert run(cursors.take("audit", "t", "me", 30), store) is not None
    found = run(list_groups(log()), store)
    assert [(lag.group, lag.stream, lag.after, lag.lag) for lag in found.groups] == [
        ("audit", "t", 0, 1),
        ("mailer", "s", 1, 1),
    ]
    first = run(list_groups(log(), limit=1), store)
    assert [lag.group for lag in run(list_groups(log(), limit=1, cursor=first.next_cursor), store).groups] == ["mailer"]


# --- replay of what was parked ----------------------------------------------------------------------------------------


def failing(*bad: str) -> Any:
    def handle(op: Op, writes: HandlerWrites) -> None:
        if op.id in bad:
            raise ValueError("not now")
        writes.put(SEEN, {"place": f"{op.seq:06}", "id": op.id}, absent())

    return handle


def with_parked(store: Any = None) -> Any:
    backend = store or backend_with()
    if store is not None:
        backend.create_tables([SEEN])
    put(backend, "a", "bad", "c", "worse", "e")
    follow_until(backend, "e", failing("bad", "worse"), attempts_max=1)
    return backend


def parked(backend: Any) -> list[str]:
    return [one.op.id for one in run(cursors.parked_ops("g", "s"), backend)]


def test_parked_operations_are_handled_once_more_when_somebody_asks(store: Any) -> None:
    backend = with_parked(store)
    assert parked(backend) == ["bad", "worse"]
    assert run(replay_parked(log(), "g", "s"), backend) == 2
    put(backend, "f")
    consumer, seen = follow_until(backend, "f", failing("worse"))
    assert seen == ["bad", "worse", "f"] and (consumer.handled_n, consumer.failed_n) == (2, 1)
    assert parked(backend) == ["worse"]
    (worse,) = run(cursors.parked_ops("g", "s"), backend)
    assert worse.attempts == 2
    assert recorded(backend, 6) == ["a", "bad", "c", "e", "f"]


def test_one_that_is_replayed_leaves_the_others_parked_and_is_not_tried_again_by_itself() -> None:
    backend = with_parked()
    assert run(replay_parked(log(), "g", "s", 4), backend) == 1
    put(backend, "f")
    assert follow_until(backend, "f", failing("worse"))[1] == ["worse", "f"]
    put(backend, "g")
    assert follow_until(backend, "g", failing())[1] == ["g"]
    assert parked(backend) == ["bad", "worse"]
    with pytest.raises(Misuse, match="nothing parked at 3"):
        run(replay_parked(log(), "g", "s", 3), backend)
    assert run(replay_parked(log(), "other", "s"), backend) == 0


def test_a_replay_takes_the_stream_from_whoever_holds_it_so_that_it_begins_soon() -> None:
    backend = with_parked()
    held = run(cursors.take("g", "s", "another", 30), backend)
    assert held is not None
    run(replay_parked(log(), "g", "s"), backend)
    with pytest.raises(cursors.Lost):
        run(cursors.renew(held, 30), backend)
    taken = run(cursors.take("g", "s", "third", 30), backend)
    assert taken is not None and taken.replay


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_replay_whose_answers_are_lost_has_its_effects_once(lost: int) -> None:
    backend = with_parked()
    run(replay_parked(log(), "g", "s"), backend)
    put(backend, "f")
    leave = Flag()

    def handle(op: Op, writes: HandlerWrites) -> None:
        failing()(op, writes)
        if op.id == "f":
            leave.set()

    consumer = Consumer(log(), "g", ["s"], handle)
    consumer.token = "me"
    cursor = run(cursors.take("g", "s", "me", 30), backend)
    assert cursor is not None
    run(follow(consumer, cursor, leave), LosesAnswers(backend, [lost]))
    assert parked(backend) == [] and len(recorded(backend, 6)) == 6


# --- errors of a consumer's own ---------------------------------------------------------------------------------------


def test_an_error_that_nobody_foresaw_is_logged_counted_shown_and_sat_out(monkeypatch: Any, caplog: Any) -> None:
    backend = stream_of_ten()
    whole = consuming.wait_page
    raised: list[str] = []

    def broken(*args: Any, **kwargs: Any) -> Any:
        if len(raised) < 2:
            raised.append("once")
            raise ZeroDivisionError("in the consumer itself")
        (lag,) = yield from cursors.lag(log(), "g", ["s"])
        raised.append(lag.trouble)
        return (yield from whole(*args, **kwargs))

    monkeypatch.setattr(consuming, "wait_page", broken)
    consumer, seen = follow_until(backend, "10")
    assert seen == [str(n) for n in range(1, 11)] and consumer.errors_n == 2
    assert raised[2] == "ZeroDivisionError: in the consumer itself"
    logged = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(logged) == 2 and all(record.exc_info for record in logged)
    (lag,) = run(cursors.lag(log(), "g", ["s"]), backend)
    assert (lag.trouble, lag.trouble_n) == ("", 0), "it went on"


def test_a_follower_that_ended_with_an_error_is_begun_again_after_a_pause(caplog: Any) -> None:
    backend = stream_of_ten()
    consumer = Consumer(log(), "g", ["s"], lambda op, writes: None)
    consumer.token = "me"
    handle = Handle("g s")
    handle.outcome = Outcome(error=ZeroDivisionError("gone"))
    consumer.held["s"] = (handle, Flag())
    balance = consuming._balance(consumer, 1)
    run(balance, backend)
    assert consumer.held == {} and consumer.errors_n == 1 and "gone" in caplog.text
    ended_n, until_us = consumer.rests["s"]
    assert ended_n == 1 and until_us > backend.clock.now().middle_us


@pytest.mark.parametrize("error", [ZeroDivisionError("odd"), Misuse("odd")])
def test_a_beat_that_fails_in_an_unforeseen_way_does_not_end_the_consumer(
    error: Exception, monkeypatch: Any, caplog: Any
) -> None:
    consumer = Consumer(log(), "g", ["s"], lambda op, writes: None, ConsumerOptions(heartbeat_s=0.01))
    beats: list[int] = []

    def beat(_: Consumer) -> Any:
        beats.append(1)
        if len(beats) == 3:
            consumer.stop.set()
        raise error
        yield

    monkeypatch.setattr(consuming, "_beat", beat)
    monkeypatch.setattr(consuming, "_pause_s", lambda trouble: 0.0)
    run(consuming.consume(consumer), fresh_backend())
    assert len(beats) == 3 and consumer.errors_n == 3 and "odd" in caplog.text
