"""The combining writer: many callers of one process, few transactions, each caller's order kept."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import pytest

from casework.backends.drive import run
from casework.backends.drive_async import run_async
from casework.backends.surroundings import VirtualClock
from casework.backends.threaded import ThreadedBackend
from casework.errors import AppendTimeout, OpIdReused, Unavailable
from casework.kernel.effects import Race, Transact
from casework.kernel.programs import get
from casework.streams.log import Log, Op, StreamOptions, claim_key
from casework.streams.writer import Writer
from tests.executions.stepping import LosesAnswers, Stepped, fresh_backend
from tests.streams.stores import Counted, ids, log, ops


def caller(writer: Writer, backend: Any, *names: str) -> Stepped:
    return Stepped(writer.append("s", ops(*names)), backend)


def test_calls_that_wait_while_one_is_stored_go_together_in_the_next_transaction() -> None:
    backend, writer = Counted(fresh_backend()), Writer(log())
    first = caller(writer, backend, "a").until(Transact)
    others = [caller(writer, backend, f"b{n}").until(Race) for n in range(20)]
    first.finish()
    for other in others:
        other.finish()
    assert backend.rounds() == 2
    assert ids(backend) == ["a", *(f"b{n}" for n in range(20))]


def test_threads_share_transactions_and_keep_each_ones_order(store: Any) -> None:
    backend, writer = Counted(store), Writer(log())
    wrong: list[BaseException] = []

    def work(name: str) -> None:
        try:
            for n in range(10):
                run(writer.append("s", ops(f"{name}-{n}")), backend)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcdefgh"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    stored = ids(store)
    assert len(stored) == 80
    for name in "abcdefgh":
        assert [id for id in stored if id[0] == name] == [f"{name}-{n}" for n in range(10)]
    assert backend.rounds() <= 80


def test_tasks_of_one_loop_share_transactions_over_several_streams() -> None:
    counted = Counted(fresh_backend())

    async def main() -> None:
        backend, writer = ThreadedBackend(counted), Writer(log())

        async def work(stream: str, name: str) -> None:
            for n in range(5):
                await run_async(writer.append(stream, ops(f"{name}-{n}")), backend)

        await asyncio.gather(*(work(stream, f"{c}") for stream in ("s", "t") for c in range(30)))
        await backend.close()

    asyncio.run(main())
    assert len(ids(counted)) == 150
    assert counted.rounds() < 60, "300 operations in far fewer transactions"


def test_a_refused_operation_is_its_own_callers_alone() -> None:
    backend, writer = fresh_backend(), Writer(log())
    run(writer.append("s", [Op("x", b"x")]), backend)
    leader = caller(writer, backend, "a").until(Transact)
    wrong = Stepped(writer.append("s", [Op("w1", b"w1"), Op("x", b"other"), Op("w2", b"w2")]), backend).until(Race)
    right = caller(writer, backend, "r1", "r2").until(Race)
    leader.finish()
    with pytest.raises(OpIdReused, match="'x' is taken at 1") as raised:
        wrong.finish()
    assert [one.seq for one in right.finish()] == [4, 5]
    assert [one.id for one in raised.value.stored] == ["w1"]
    assert ids(backend) == ["x", "a", "w1", "r1", "r2"]


def test_a_failure_of_the_store_reaches_every_caller_of_the_group_and_the_next_call_works() -> None:
    class Down(Counted):
        is_down = False

        def execute(self, effect: Any) -> Any:
            if self.is_down and isinstance(effect, Transact):
                raise Unavailable("nobody answers")
            return super().execute(effect)

    backend, writer = Down(fresh_backend()), Writer(log())
    leader = caller(writer, backend, "a").until(Transact)
    follower = caller(writer, backend, "b").until(Race)
    backend.is_down = True
    for one in (leader, follower):
        with pytest.raises(Unavailable):
            one.finish()
    backend.is_down = False
    assert run(writer.append("s", ops("c")), backend)[0].seq == 1


def test_a_caller_that_is_cancelled_while_it_leads_holds_nobody_up() -> None:
    backend, writer = fresh_backend(), Writer(log())
    leader = caller(writer, backend, "a").until(Transact)
    follower = caller(writer, backend, "b").until(Race)
    leader.program.close()
    assert follower.finish()[0].id == "b"
    assert "b" in ids(backend)


def test_a_caller_that_is_cancelled_while_it_waits_is_not_stored_and_holds_nobody_up() -> None:
    backend, writer = fresh_backend(), Writer(log())
    leader = caller(writer, backend, "a").until(Transact)
    gone = caller(writer, backend, "b").until(Race)
    follower = caller(writer, backend, "c").until(Race)
    gone.program.close()
    leader.finish()
    follower.finish()
    assert ids(backend) == ["a", "c"]


def test_a_lost_answer_of_a_shared_transaction_is_resolved_for_all_of_its_callers() -> None:
    backend = fresh_backend()
    lossy, writer = LosesAnswers(backend, [2]), Writer(log())
    leader = caller(writer, lossy, "a").until(Transact)
    others = [caller(writer, lossy, name).until(Race) for name in ("b", "c")]
    leader.finish()
    assert [one.finish()[0].seq for one in others] == [2, 3] and ids(backend) == ["a", "b", "c"]


def test_a_queue_that_is_full_holds_callers_back_at_the_door() -> None:
    backend, writer = fresh_backend(), Writer(log(), queue_max=2)
    leader = caller(writer, backend, "a").until(Transact)
    inside = [caller(writer, backend, name).until(Race) for name in ("b", "c")]
    outside = caller(writer, backend, "d").until(Race)
    assert len(writer.lane("s").queue) == 2
    leader.finish()
    for one in (*inside, outside):
        one.finish()
    assert ids(backend) == ["a", "b", "c", "d"]


def test_what_was_put_is_stored_by_flush_in_its_order_and_in_whole_transactions_before() -> None:
    backend, writer = Counted(fresh_backend()), Writer(log())
    for n in range(200):
        run(writer.put("s", ops(f"{n:03}")), backend)
    assert len(ids(backend)) == 190, "a transaction's worth is stored as soon as it is there"
    run(writer.flush(), backend)
    assert ids(backend) == [f"{n:03}" for n in range(200)] and backend.rounds() == 3


def test_flush_raises_what_went_wrong_with_what_was_put() -> None:
    backend, writer = fresh_backend(), Writer(log())
    run(writer.append("s", ops("a")), backend)
    run(writer.put("s", [Op("a", b"other")]), backend)
    with pytest.raises(OpIdReused):
        run(writer.flush(), backend)
    run(writer.flush(), backend)
    assert ids(backend) == ["a"]


def test_what_is_put_behind_something_that_could_not_be_stored_is_not_stored_before_it() -> None:
    """Whoever puts it all again after the flush has said so keeps the order. Found by the scenario "buffered"."""
    backend, writer = fresh_backend(), Writer(log())
    for n in range(94):
        run(writer.put("s", ops(f"{n:03}")), backend)
    leading = Stepped(writer.put("s", ops("094")), backend).until(Transact)
    run(writer.put("s", ops("095")), backend)
    assert leading.effect is not None
    with contextlib.suppress(StopIteration):
        leading.program.throw(Unavailable("the store is down"))
    run(writer.put("s", ops("096")), backend)
    with pytest.raises(Unavailable):
        run(writer.flush(), backend)
    assert ids(backend) == []
    for n in range(97):
        run(writer.put("s", ops(f"{n:03}")), backend)
    run(writer.flush(), backend)
    assert ids(backend) == [f"{n:03}" for n in range(97)]


def test_a_caller_whose_deadline_passes_in_the_queue_is_told_so_and_is_not_stored() -> None:
    clock = VirtualClock()
    backend, writer = fresh_backend(clock=clock), Writer(log())
    leader = caller(writer, backend, "a").until(Transact)
    late = Stepped(writer.append("s", ops("b"), deadline_s=5), backend).until(Race)
    clock.advance(6)
    with pytest.raises(AppendTimeout):
        late.finish()
    leader.finish()
    assert ids(backend) == ["a"]


def test_the_leaders_deadline_is_not_that_of_the_others() -> None:
    clock = VirtualClock()
    backend, writer = fresh_backend(clock=clock), Writer(log())
    leader = caller(writer, backend, "a").until(Transact)
    short = Stepped(writer.append("s", ops(*(f"s{n}" for n in range(50))), deadline_s=5), backend).until(Race)
    patient = caller(writer, backend, "p").until(Race)
    leader.finish()
    clock.advance(6)
    with pytest.raises(AppendTimeout):
        short.finish()
    assert patient.finish()[0].id == "p"
    assert ids(backend) == ["a", "p"]


def test_a_claim_that_may_be_forgotten_is_kept_as_long_as_was_asked_for() -> None:
    backend = fresh_backend(clock=VirtualClock(1_750_000_000_900_000))
    run(Writer(Log(StreamOptions(claims_expire_s=1.5))).append("s", ops("a")), backend)
    claim = run(get(claim_key("s", "a")), backend)
    assert claim is not None and claim["expires_at_s"] >= 1_750_000_000.9 + 1.5
