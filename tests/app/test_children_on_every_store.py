"""Children are listed, shown and purged alike on every store, blocking and with coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import casework
from tests.executions.test_children import CHILD
from tests.executions.test_children_listed import STARTED, listed
from tests.executions.watching import machine


@pytest.fixture(params=["memory", "sqlite", pytest.param("dynamodb", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest, tmp_path: Path, unique: Callable[[str], str]) -> str:
    if request.param == "dynamodb":
        endpoint = request.getfixturevalue("ministack_url")
        return f"dynamodb://?endpoint={endpoint}&region=eu-west-1&prefix={unique('kids')}"
    return "memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/kids.db"


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")


def until(app: Any, id: str, configuration: str) -> None:
    while app.get(id).configuration != [configuration]:
        pass


def test_a_failed_child_is_found_and_all_of_it_is_purged(url: str) -> None:
    with casework.open(url, machines=[machine(STARTED), machine(CHILD)], create=True) as app:
        app.start("parent", id="p", input={"inputs": [1, 2, 3]})
        kids = listed(app, 2, parent="p")
        with app.worker(poll_s=0.02):
            for kid in kids:
                until(app, kid, "open")
            app.send(kids[1], "fail")
            until(app, "p", "bad")
            app.wait(kids[0], timeout_s=60)
            app.wait(kids[2], timeout_s=60)
        for limit in (2, 100):
            assert listed(app, limit, status="failed") == [kids[1]]
            assert sorted(listed(app, limit, machine="child")) == sorted(kids)
            assert sorted(listed(app, limit)) == sorted(["p", *kids])
            assert listed(app, limit, parent="p", status="cancelled") == [kids[0], kids[2]]
        app.terminate("p")
        tomorrow = datetime.now(UTC) + timedelta(days=1)
        found = app.purge_ended(before=tomorrow, limit=1000)
        assert [one.id for one in found.items] == ["p"] and listed(app) == []


def test_the_same_with_coroutines(tmp_path: Path) -> None:
    async def main() -> None:
        url = f"sqlite:///{tmp_path}/kids.db"
        async with casework.open_async(url, machines=[machine(STARTED), machine(CHILD)]) as app:
            await app.start("parent", id="p", input={"inputs": [1, 2]})
            assert len((await app.list(parent="p")).items) == 2 == len((await app.list(machine="child")).items)
            await app.terminate("p")
            assert [one.id for one in (await app.purge_ended(before="0s")).items] == ["p"]
            assert (await app.list()).items == []

    asyncio.run(main())
