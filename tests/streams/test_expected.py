"""Appends that say where the stream must end: all of it is stored there, or nothing is; a repeat is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import casework
from casework.app.streams import StreamStore
from casework.app.streams_aio import AsyncStreamStore
from casework.backends.threaded import ThreadedBackend
from casework.errors import ItemTooLarge, Misuse, OpIdReused, OutcomeUnknown, UnexpectedSeq
from casework.kernel.effects import Transact
from casework.kernel.schema import STREAM_CLAIMS
from casework.streams.log import Op
from tests.executions.stepping import fresh_backend
from tests.streams.stores import STORES, Counted, open_store, ops


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path, unique: Callable[[str], str]) -> Iterator[StreamStore]:
    for backend in open_store(request, tmp_path, unique):
        yield StreamStore(backend)


def test_it_is_stored_where_it_was_expected_and_nowhere_else(store: StreamStore) -> None:
    assert [one.seq for one in store.append("s", ops("a", "b"), expected_seq=0)] == [1, 2]
    assert [one.seq for one in store.append("s", ops("c"), expected_seq=2)] == [3]
    for wrong in (0, 2, 4):
        with pytest.raises(UnexpectedSeq) as caught:
            store.append("s", ops("d"), expected_seq=wrong)
        assert (caught.value.expected_seq, caught.value.last_seq) == (wrong, 3)
    other = StreamStore(store.backend)  # another process, which knows nothing
    with pytest.raises(UnexpectedSeq):
        other.append("s", ops("d"), expected_seq=2)
    assert [one.seq for one in other.append("s", ops("d"), expected_seq=3)] == [4]
    with pytest.raises(UnexpectedSeq):
        store.append("s", ops("e"), expected_seq=3)
    assert [op.id for op in store.read("s")] == ["a", "b", "c", "d"]


def test_a_repeat_is_answered_wherever_the_stream_ends(store: StreamStore) -> None:
    store.append("s", ops("a", "b"), expected_seq=0)
    store.append("s", ops("c"))
    again = store.append("s", ops("a", "b"), expected_seq=0)
    assert [(one.seq, one.is_duplicate) for one in again] == [(1, True), (2, True)]
    with pytest.raises(OpIdReused):
        store.append("s", [Op("a", b"other")], expected_seq=0)
    with pytest.raises(UnexpectedSeq):
        store.append("s", ops("a", "new"), expected_seq=0)
    assert [op.id for op in store.read("s")] == ["a", "b", "c"]


@pytest.mark.parametrize("wrong", [-1, 1.0, "1", True, 2**63])
def test_what_cannot_be_a_number_is_misuse_and_so_is_what_one_transaction_does_not_hold(wrong: Any) -> None:
    store = StreamStore(fresh_backend())
    with pytest.raises(Misuse, match="expected_seq"):
        store.append("s", ops("a"), expected_seq=wrong)
    with pytest.raises(Misuse, match="one transaction"):
        store.append("s", ops(*(f"{n}" for n in range(96))), expected_seq=0)
    with pytest.raises((Misuse, ItemTooLarge)):
        store.append("s", [Op(f"{n}", b"x" * 200_000) for n in range(2)], expected_seq=0)
    assert list(store.read("s")) == []


def test_of_many_at_once_one_is_right(store: StreamStore) -> None:
    def one(n: int) -> str:
        try:
            StreamStore(store.backend).append("s", ops(f"{n}"), expected_seq=0)
        except UnexpectedSeq as error:
            return str(error.last_seq)
        return "stored"

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(one, range(8))) == ["1"] * 7 + ["stored"]
    assert len(list(store.read("s"))) == 1


@pytest.mark.parametrize("applied", [True, False])
def test_a_lost_answer_is_found_out(applied: bool) -> None:
    class Loses(Counted):
        lost = False

        def execute(self, effect: Any) -> Any:
            if (
                isinstance(effect, Transact)
                and not self.lost
                and any(w.key.table is STREAM_CLAIMS for w in effect.writes)
            ):
                self.lost = True
                if applied:
                    super().execute(effect)
                raise OutcomeUnknown("the answer was lost")
            return super().execute(effect)

    store = StreamStore(Loses(fresh_backend()))
    assert [one.seq for one in store.append("s", ops("a", "b"), expected_seq=0)] == [1, 2]
    assert [op.id for op in store.read("s")] == ["a", "b"]


def test_on_a_loop_with_a_deadline_too() -> None:
    async def main() -> None:
        store = AsyncStreamStore(ThreadedBackend(fresh_backend(), owns_blocking=True))
        answers = await store.append("s", ops("a"), expected_seq=0, deadline_s=10)
        assert [one.seq for one in answers] == [1]
        with pytest.raises(UnexpectedSeq):
            await store.append("s", ops("b"), expected_seq=0, deadline_s=10)
        await store.backend.close()

    asyncio.run(main())


def test_in_a_transaction_all_of_it_or_nothing() -> None:
    with casework.open("memory:") as app:
        with app.transaction() as tx:
            first = tx.append("s", ops("a"), expected_seq=0)
            tx.append("t", ops("x"))
        assert [one.seq for one in first.results] == [1]

        def late() -> None:
            with app.transaction() as tx:
                tx.append("s", ops("b"), expected_seq=0)
                tx.append("t", ops("y"))

        with pytest.raises(UnexpectedSeq):
            late()
        with app.transaction() as tx:  # a repeat of the first
            again = tx.append("s", ops("a"), expected_seq=0)
        assert [(one.seq, one.is_duplicate) for one in again.results] == [(1, True)]
        with app.transaction() as tx:
            tx.append("s", [])
            first = tx.append("s", ops("a"))
            with pytest.raises(Misuse, match="first operations"):
                tx.append("s", ops("c"), expected_seq=1)
        assert [op.id for op in app.streams.read("t")] == ["x"]
