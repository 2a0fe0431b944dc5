"""A soak: writers in threads with a memory of their own each, and pullers, on real stores for some seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from casework.backends.drive import run
from casework.backends.sqlite import SqliteBackend
from casework.kernel.schema import TABLES
from casework.streams.append import append
from casework.streams.log import Log, Op
from casework.streams.read import read_page

SECONDS = 10.0


@pytest.mark.soak
@pytest.mark.parametrize("name", ["sqlite", "ministack", "roto"])
def test_pullers_see_every_operation_once_while_writers_contend(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    if name == "sqlite":
        backend: Any = SqliteBackend(str(tmp_path / "soak.db"))
    else:
        from casework.backends.dynamodb import DynamoDBBackend
        from tests.servers.clients import dynamodb

        client = dynamodb(request.getfixturevalue(f"{name}_url"), max_attempts=1, max_pool_connections=50)
        backend = DynamoDBBackend(client, prefix=unique("soak"))
    backend.create_tables(TABLES)
    ends = time.monotonic() + SECONDS
    written: dict[str, int] = {}
    wrong: list[BaseException] = []
    stopped = threading.Event()
    seen: list[list[Op]] = [[] for _ in range(3)]

    def write(w: int) -> None:
        log, n = Log(), 0
        try:
            while time.monotonic() < ends:
                ops = [Op(f"{w}-{n + i}", b"%d" % i) for i in range(1 + n % 7)]
                for answer in run(append(log, "s", ops), backend):
                    written[answer.id] = answer.seq
                if n % 5 == 0:
                    run(append(Log(), "s", ops), backend)  # a repeated push, from a process that knows nothing
                n += len(ops)
        except BaseException as error:
            wrong.append(error)

    def pull(mine: list[Op]) -> None:
        log = Log()
        try:
            while True:
                last = stopped.is_set()
                page = run(read_page(log, "s", mine[-1].seq if mine else 0, 500), backend)
                mine += page.ops
                if last and not page.ops:
                    return
        except BaseException as error:
            wrong.append(error)

    writers = [threading.Thread(target=write, args=(w,)) for w in range(6)]
    pullers = [threading.Thread(target=pull, args=(mine,)) for mine in seen]
    for thread in (*writers, *pullers):
        thread.start()
    for thread in writers:
        thread.join()
    stopped.set()
    for thread in pullers:
        thread.join()
    backend.close()
    assert wrong == [] and len(written) > 50
    for mine in seen:
        assert [op.seq for op in mine] == list(range(1, len(mine) + 1))
        assert {op.id: op.seq for op in mine} == written
