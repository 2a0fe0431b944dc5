"""One process of the contention tests: threads that count up shared counters and leave a receipt for each step.

``python -m tests.dynamodb.contend URL PREFIX PROCESS THREADS COMMITS``: each thread commits until it has its number of
acknowledged commits; every commit moves one of a few counters from ``n`` to ``n + 1`` and puts the receipt of
``n + 1``, in one transaction. Two writers of one number would meet at the receipt; a lost one would leave a gap.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

from casework.backends.dynamodb import DynamoDBBackend
from casework.errors import ConditionFailed, Contention, OutcomeUnknown, Unavailable
from casework.kernel.conditions import absent, equals
from casework.kernel.effects import Get, Transact, Write
from casework.kernel.items import Item, Put, Table, Update

THINGS = Table(name="things", partition="id", sort="n", sort_type="int")
COUNTERS = 4


def commit(backend: Any, counter: str, who: str, found: Item | None) -> int | Item | None:
    """One attempt: the number that it took, or (refused) the counter as it stands."""
    n = 0 if found is None else int(found["count"])
    when = absent() if found is None else equals("count", n)
    moved = Update(THINGS.key(counter, 0), {"count": n + 1}, when=when)
    receipt = Put(THINGS, {"id": counter, "n": n + 1, "who": who}, when=absent())
    try:
        backend.execute(Transact([moved, receipt]))
    except ConditionFailed as refused:
        refusal = refused.refusals[0]
        assert refusal is not None, f"the counter was at {n}, but somebody else holds the receipt of {n + 1}"
        return None if refusal.item is None else dict(refusal.item)
    return n + 1


def count_up(backend: Any, who: str, commits: int, taken: list[tuple[str, int]], first: int) -> None:
    """Commit until ``commits`` are acknowledged; what was taken is appended to ``taken``."""
    done = 0
    while done < commits:
        counter = f"counter-{(first + done) % COUNTERS}"
        found: Any = backend.execute(Get(THINGS.key(counter, 0)))
        while True:
            try:
                answer = commit(backend, counter, f"{who}-{done}", found)
            except (Contention, OutcomeUnknown, Unavailable):
                answer = backend.execute(Get(THINGS.key(counter, 0)))
                taken_unseen = receipt_of(backend, counter, f"{who}-{done}", answer)
                answer = taken_unseen if taken_unseen is not None else answer
            if isinstance(answer, int):
                break
            found = answer
        taken.append((counter, answer))
        done += 1


def receipt_of(backend: Any, counter: str, who: str, found: Item | None) -> int | None:
    """The number whose receipt names ``who``, when the outcome of its commit was not told."""
    for n in range(int(found["count"]) if found else 0, 0, -1):
        receipt = backend.execute(Get(THINGS.key(counter, n)))
        if receipt is not None and receipt["who"] == who:
            return n
    return None


def main(url: str, prefix: str, process: int, threads: int, commits: int) -> list[tuple[str, int]]:
    """All threads of one process; what they were told that they took."""
    taken: list[tuple[str, int]] = []
    with DynamoDBBackend(endpoint_url=url, prefix=prefix) as backend:
        workers = [
            threading.Thread(target=count_up, args=(backend, f"{process}-{t}", commits, taken, process + t))
            for t in range(threads)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        backend.execute(Write(Put(THINGS, {"id": "ended", "n": process, "who": str(len(taken))})))
    return taken


if __name__ == "__main__":
    url, prefix, *numbers = sys.argv[1:]
    json.dump(main(url, prefix, *map(int, numbers)), sys.stdout)
