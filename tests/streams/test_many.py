"""What many callers, or many streams, cost a process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from casework.app.streams_aio import AsyncStreamStore
from casework.backends.drive import run
from casework.backends.memory import MemoryBackend
from casework.backends.threaded import ThreadedBackend
from casework.kernel.schema import TABLES
from casework.streams import writer as writing
from casework.streams.log import Op
from casework.streams.writer import Writer
from tests.executions.stepping import fresh_backend
from tests.streams.stores import log


@pytest.mark.parametrize("callers", [100, 1000])
def test_an_append_is_woken_a_few_times_however_many_wait(callers: int, monkeypatch: Any) -> None:
    """The queue holds 20 calls; the others stand at its door."""
    waits: list[int] = []
    race = writing.race

    def counted(*flags: Any, timeout_s: float | None = None) -> Any:
        waits.append(1)
        return race(*flags, timeout_s=timeout_s)

    monkeypatch.setattr(writing, "race", counted)
    blocking = MemoryBackend(seed=1)
    blocking.create_tables(TABLES)

    async def main() -> list[int]:
        store = AsyncStreamStore(ThreadedBackend(blocking), writer=Writer(log(), queue_max=20))
        answers = await asyncio.gather(*(store.append("s", [Op(str(n), b"")]) for n in range(callers)))
        await store.close()
        return sorted(one.seq for (one,) in answers)

    assert asyncio.run(main()) == list(range(1, callers + 1))
    assert len(waits) <= 4 * callers


def test_streams_that_nobody_appends_to_any_more_are_forgotten(monkeypatch: Any) -> None:
    monkeypatch.setattr(writing, "LANES_MAX", 10)
    backend, writer = fresh_backend(), Writer(log())
    writer.log._streams_max = 10
    for n in range(50):
        run(writer.append(f"s{n}", [Op("a", b"")]), backend)
    assert len(writer._lanes) <= 11 and len(writer.log._places) <= 10
    assert run(writer.append("s49", [Op("a", b"")]), backend)[0].is_duplicate


def test_what_was_put_is_not_forgotten_before_it_is_flushed(monkeypatch: Any) -> None:
    monkeypatch.setattr(writing, "LANES_MAX", 0)
    backend, writer = fresh_backend(), Writer(log())
    run(writer.put("s", [Op("a", b"")]), backend)
    run(writer.append("t", [Op("a", b"")]), backend)
    run(writer.flush(), backend)
    assert run(writer.append("s", [Op("a", b"")]), backend)[0].is_duplicate
