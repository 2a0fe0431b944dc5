"""One event for each of many executions on harel's SQLite store: ``python harel_durable.py STYLE EXECUTIONS FOLDER``.

STYLE is ``background`` (its default runner) or ``inline``, or ``import`` for the time of its import. Runs in the peers'
environment and imports nothing of casework. The chart is the flat one of the other side; what the contexts count is
checked in the end, so that a peer that skips work cannot win. Its store sets WAL and leaves ``synchronous`` at SQLite's
default, which is FULL: every commit is forced to the disk, as ours is.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

EDGES = "\n".join(
    f"  from {one} to {two} on Go set context.n = context.n + 1" for one, two in zip("ABCD", "BCDA", strict=True)
)
STATES = "\n".join(f"  state {key} {{}}" for key in "ABCD")
SOURCE = f"event Go {{}}\nmachine flat {{\n  initial A\n  context {{ n: int = 0 }}\n{STATES}\n{EDGES}\n}}"


def measure(style: str, executions: int, folder: str) -> tuple[float, float]:
    """Events a second, and microseconds of processor time for each."""
    import logging

    import structlog
    from harel import DurableRunner, Event, SqliteStore, definition_from_dsl

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    definition = definition_from_dsl(SOURCE, "flat")
    store = SqliteStore(str(Path(folder) / f"harel-{style}.db"))
    runner = DurableRunner(store, {definition.id: definition}, execution=style)
    ids = [f"order-{n * 7919 % 1_000_003:07d}" for n in range(executions)]
    for id in ids:
        runner.create(definition.id, execution_id=id)
    started, processor_s = time.perf_counter(), time.process_time()
    for id in ids:
        runner.process(id, Event(kind="Go", data={"ref": "p-77"}))
    elapsed, processor_s = time.perf_counter() - started, time.process_time() - processor_s
    counted = sum(store.load(id).context["n"] for id in ids)
    if counted != executions:
        raise SystemExit(f"harel counted {counted} events of {executions}")
    return executions / elapsed, processor_s * 1e6 / executions


def import_ms() -> float:
    started = time.perf_counter()
    import harel  # noqa: F401

    return (time.perf_counter() - started) * 1000


if __name__ == "__main__":
    if sys.argv[1] == "import":
        print(json.dumps([import_ms()]))
    else:
        print(json.dumps(measure(sys.argv[1], int(sys.argv[2]), sys.argv[3])))
