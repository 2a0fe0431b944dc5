"""``append`` in ``app.transaction()``: with everything else of the transaction, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import casework
from casework import Op, OpIdReused, TransactionRefused
from casework.backends.drive import run
from casework.kernel.effects import Get, Transact
from casework.streams.append import append
from casework.streams.log import Log
from tests.executions.stepping import Stepped

THINGS = casework.Table(name="things", partition="id")


@pytest.fixture(params=["memory", "sqlite"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[casework.App]:
    url = "memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 'shop.db'}"
    with casework.open(url) as app:
        app.backend.create_tables([THINGS])
        yield app


def ids(app: casework.App, stream: str = "s") -> list[str]:
    return [op.id for op in app.streams.read(stream)]


def thing(app: casework.App) -> Any:
    return app.backend.execute(Get(THINGS.key("a")))


def test_an_append_and_an_item_are_committed_together(app: casework.App) -> None:
    with app.transaction() as tx:
        first = tx.append("s", [Op("a", b"a")])
        tx.put(THINGS, {"id": "a"}, when=casework.absent())
        second = tx.append("s", [Op("b", b"b")])
        other = tx.append("t", [Op("a", b"a")])
    assert ids(app) == ["a", "b"] and ids(app, "t") == ["a"] and thing(app) is not None
    assert first is second and [one.seq for one in first.results] == [1, 2] and other.results[0].seq == 1


def test_when_another_part_is_refused_nothing_is_appended(app: casework.App) -> None:
    app.streams.append("s", [Op("before", b"")])
    with pytest.raises(TransactionRefused), app.transaction() as tx:  # noqa: PT012
        tx.append("s", [Op("a", b"a")])
        tx.put(THINGS, {"id": "a"}, when=casework.present())
    assert ids(app) == ["before"]
    app.streams.append("s", [Op("a", b"other")])
    assert ids(app) == ["before", "a"], "its id is free"


def test_an_operation_that_is_there_is_answered_with_its_number_and_the_rest_is_committed(app: casework.App) -> None:
    app.streams.append("s", [Op("a", b"a")])
    with app.transaction() as tx:
        appended = tx.append("s", [Op("a", b"a"), Op("b", b"b"), Op("b", b"b")])
        tx.put(THINGS, {"id": "a"})
    assert [(one.id, one.seq) for one in appended.results] == [("a", 1), ("b", 2), ("b", 2)]
    assert appended.results[0].is_duplicate and ids(app) == ["a", "b"] and thing(app) is not None
    with app.transaction() as tx:
        again = tx.append("s", [Op("b", b"b")])
    assert again.results[0].seq == 2 and ids(app) == ["a", "b"]


def test_an_id_that_is_taken_by_other_content_refuses_the_whole(app: casework.App) -> None:
    app.streams.append("s", [Op("a", b"a")])
    with pytest.raises(OpIdReused, match="'a' is taken at 1"), app.transaction() as tx:  # noqa: PT012
        tx.append("s", [Op("b", b"b"), Op("a", b"other")])
        tx.put(THINGS, {"id": "a"})
    assert ids(app) == ["a"] and thing(app) is None


def test_a_head_that_moved_meanwhile_is_planned_again(app: casework.App) -> None:
    app.streams.append("s", [Op("a", b"a")])
    tx = app.transaction()
    tx.append("s", [Op("tx", b"tx")])
    tx.put(THINGS, {"id": "a"})
    slow = Stepped(tx._program(), app.backend).until(Transact)
    run(append(Log(), "s", [Op("b", b"b")]), app.backend)
    slow.finish()
    assert ids(app) == ["a", "b", "tx"] and thing(app) is not None


def test_the_async_face_does_the_same(tmp_path: Path) -> None:
    async def main() -> list[str]:
        async with casework.open_async(f"sqlite:///{tmp_path / 'shop.db'}") as app:
            async with app.transaction() as tx:
                tx.append("s", [Op("a", b"a")])
            return [op.id async for op in app.streams.read("s")]

    assert asyncio.run(main()) == ["a"]


def test_more_than_a_transaction_holds_is_refused_before_anything_is_written(app: casework.App) -> None:
    with pytest.raises(casework.ItemTooLarge, match="append to stream 's'"), app.transaction() as tx:
        tx.append("s", [Op(f"{n}", b"") for n in range(120)])
    assert ids(app) == []
