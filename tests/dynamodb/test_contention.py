"""Four processes of four threads on a few items: no update is lost, none is made twice."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from casework.backends.dynamodb import DynamoDBBackend
from casework.errors import OutcomeUnknown, Unavailable
from casework.kernel.conditions import absent
from casework.kernel.effects import Get, GetMany, Query, Transact, Write
from casework.kernel.items import Put
from tests.dynamodb.contend import COUNTERS, THINGS
from tests.servers import process

PROCESSES, THREADS = 4, 4


def everything(backend: DynamoDBBackend, partition: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    after = None
    while True:
        page = backend.execute(Query(THINGS, partition, after=after))
        items += page.items
        after = page.next
        if after is None:
            return items


def contend(url: str, prefix: str, commits_each: int) -> None:
    with DynamoDBBackend(endpoint_url=url, prefix=prefix) as backend:
        backend.create_tables([THINGS])
        command = [sys.executable, "-m", "tests.dynamodb.contend", url, prefix]
        children = [
            subprocess.Popen(
                [*command, str(n), str(THREADS), str(commits_each)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=process.ROOT,
            )
            for n in range(PROCESSES)
        ]
        taken: list[tuple[str, int]] = []
        for child in children:
            output, errors = child.communicate()
            assert child.returncode == 0, errors
            assert "Traceback" not in errors, errors
            taken += [(counter, n) for counter, n in json.loads(output)]
        assert len(taken) == PROCESSES * THREADS * commits_each
        assert [place for place, times in Counter(taken).items() if times > 1] == [], "a number was taken twice"
        for counter in (f"counter-{c}" for c in range(COUNTERS)):
            numbers = sorted(n for name, n in taken if name == counter)
            items = everything(backend, counter)
            assert numbers == list(range(1, len(numbers) + 1)), "an update was lost"
            assert items[0]["count"] == len(numbers)
            assert [item["n"] for item in items[1:]] == numbers
        assert len({item["who"] for c in range(COUNTERS) for item in everything(backend, f"counter-{c}")[1:]}) == len(
            taken
        )


@pytest.mark.slow
@pytest.mark.parametrize("server", ["ministack", "roto"])
def test_processes_and_threads_that_contend_lose_no_update_and_make_none_twice(
    request: pytest.FixtureRequest, server: str, prefix: str
) -> None:
    contend(request.getfixturevalue(f"{server}_url"), prefix, commits_each=8)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("server", ["ministack", "roto"])
def test_twenty_thousand_commits_under_contention(request: pytest.FixtureRequest, server: str, prefix: str) -> None:
    contend(request.getfixturevalue(f"{server}_url"), prefix, commits_each=1250)


@pytest.mark.slow
def test_every_acknowledged_commit_outlives_a_server_killed_in_the_middle(
    roto_server: process.Server, unique: Callable[[str], str]
) -> None:
    acknowledged: list[int] = []
    unknown: list[int] = []
    stop = threading.Event()
    with DynamoDBBackend(endpoint_url=roto_server.url, prefix=unique("crash")) as backend:
        backend.create_tables([THINGS])

        def write_on(first: int) -> None:
            n = first
            while not stop.is_set():
                n += THREADS
                pair = [Put(THINGS, {"id": "pair", "n": sign * n}, when=absent()) for sign in (1, -1)]
                effect = Transact(pair) if n % 3 else Write(pair[0])
                try:
                    backend.execute(effect)
                    acknowledged.append(n)
                except Unavailable:
                    pass  # certainly not written; the server is away
                except OutcomeUnknown:
                    unknown.append(n)

        writers = [threading.Thread(target=write_on, args=(first,)) for first in range(1, THREADS + 1)]
        for writer in writers:
            writer.start()
        for _ in range(3):
            seen = len(acknowledged)
            while len(acknowledged) < seen + 30:
                stop.wait(0.01)
            roto_server.restart_after_kill()
        stop.set()
        for writer in writers:
            writer.join()
        stored = {item["n"] for item in everything(backend, "pair")}
        assert set(acknowledged) <= stored, "an acknowledged commit is gone"
        assert {n for n in stored if n > 0} <= {*acknowledged, *unknown}, "what was refused is there"
        halves = {n for n in acknowledged + unknown if n % 3 and (n in stored) != (-n in stored)}
        assert halves == set(), "a transaction was half applied"


def test_reads_and_writes_side_by_side_keep_their_order_of_outcomes(ministack_url: str, prefix: str) -> None:
    with DynamoDBBackend(endpoint_url=ministack_url, prefix=prefix) as backend:
        backend.create_tables([THINGS])
        puts = [Write(Put(THINGS, {"id": "a", "n": n // 2}, when=absent())) for n in range(40)]
        outcomes = backend.execute_many(puts)
        assert sum(outcome.error is None for outcome in outcomes) == 20
        reads = backend.execute_many([Get(THINGS.key("a", n)) for n in range(21)])
        assert [o.value and o.value["n"] for o in reads] == [*range(20), None]
        assert len(backend.execute(GetMany([THINGS.key("a", n) for n in range(21)]))) == 21
