"""What executions cost: ``python -m bench.executions [--json] [--only sqlite,dynamodb,shares,fairness,import]``.

- **sqlite**: durable events a second, fsync on, side by side with harel in the same run, each in a process of its own:
  the worker path (one and two worker processes, one event in a commit of its own execution, and ten that share it),
  calls from outside, and the time from a send to its commit. Rates are the best of the rounds; ours and the peer's are
  taken in turns, so that a busy machine slows down both.
- **dynamodb**: calls and capacity units, counted by the store's own meter on a ministack of the run's own. What stands
  beside them was measured earlier on harel 0.9.0 and is not measured again here.
- **shares**: how evenly 1 to 64 workers share the buckets: the largest share by the mean one.
- **fairness**: what one kind of work waits for another in a worker (events behind tasks that do not end, timers of
  another process beside threads that send), and from the end of an outage to work.
- **import**: of the package in a fresh process, the best of the rounds times five.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from casework.executions.shares import share_out

PEER = Path(__file__).parent / "peers" / "harel_durable.py"
INLINE, DEFAULT = "harel 0.9.0, in line", "harel 0.9.0, default runner"
EARLIER = "harel 0.9.0 (prior measurement)"
CALLERS = 64
CALLS = {"handle": "in line (handle)", "held": "in line (handle), state held", "send": "sends by mailbox"}


def rows(
    events: int = 10_000, rounds: int = 3, only: str = "sqlite,dynamodb,shares,fairness,import", armed: int = 10_000,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """One row for each measurement, as they are made.

    Args:
        events: executions, and events of each measurement on SQLite; a peer's, and those of one caller, are fewer.
        rounds: measurements of each; the best one counts.
        only: the parts to measure, separated by commas.
        armed: timers armed on DynamoDB that are not due.
    """
    parts = only.split(",")
    if "sqlite" in parts:
        yield from on_sqlite(events, rounds)
    if "dynamodb" in parts:
        yield from on_dynamodb(armed)
    if "shares" in parts:
        yield from shares()
    if "fairness" in parts:
        from bench.fairness import rows as fairness

        for name, took_s in fairness():
            yield row(name, "s", took_s)
    if "import" in parts:
        yield imports(rounds * 5)


def row(
    name: str, unit: str, ours: float | None, peer: float | None = None, peer_name: str | None = None
) -> dict[str, Any]:
    ratio = round(ours / peer, 2) if ours is not None and peer else None
    return {
        "name": name, "unit": unit, "ours": None if ours is None else round(ours, 1),
        "peer": None if peer is None else round(peer, 1), "peer_name": peer_name, "ratio": ratio,
    }  # fmt: skip


def harel(*arguments: str) -> list[float]:
    """What one measurement of the peer found, in a process of its own; nothing where it is not installed."""
    python = os.environ.get("CASEWORK_BENCH_PYTHON", sys.executable)
    done = subprocess.run([python, str(PEER), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        print(f"\nharel: left out ({reason})", file=sys.stderr)
        return []
    return [float(value) for value in json.loads(done.stdout)]


# --- SQLite -----------------------------------------------------------------------------------------------------------


class Best:
    """The best of several measurements, by name: the highest rate, the lowest time of the processor."""

    def __init__(self) -> None:
        self.rates: dict[str, float] = {}
        self.processor_us: dict[str, float] = {}

    def take(self, name: str, rate: float | None = None, processor_us: float | None = None) -> None:
        if rate is not None:
            self.rates[name] = max(rate, self.rates.get(name, 0.0))
        if processor_us is not None:
            self.processor_us[name] = min(processor_us, self.processor_us.get(name, processor_us))


def on_sqlite(events: int, rounds: int) -> Iterator[dict[str, Any]]:
    from bench.durable import Prepared, calls_per_s, latencies_ms, worker_path

    with tempfile.TemporaryDirectory() as folder:
        prepared = Prepared(Path(folder), events)
        best = Best()
        for turn in range(rounds):
            with tempfile.TemporaryDirectory() as fresh:
                best.take("inline", *harel("inline", str(min(events, 3000)), fresh))
                best.take("one", *worker_path(prepared, 1))
                best.take("default", *harel("background", str(min(events, 2000)), fresh))
                best.take("two", *worker_path(prepared, 2))
            if turn == 0:
                best.take("ten", *worker_path(prepared, 1, each=10))
            best.take("handle", calls_per_s(prepared, "handle", 500, 1))
        yield from worker_rows(best)
        for kind, what in CALLS.items():
            if kind != "handle":
                yield row(f"{what}, 1 caller", "events/s", calls_per_s(prepared, kind, 500, 1))
            rates = [calls_per_s(prepared, kind, min(events, 5000), CALLERS) for _ in range(rounds)]
            yield row(f"{what}, {CALLERS} callers", "events/s", max(rates))
        runs = [latencies_ms(prepared, 1000, min(3.0, events / 1000)) for _ in range(rounds)]
        for part in (50, 99):
            value = min(found[len(found) * part // 100] for found in runs)
            yield row(f"from send to commit at 1,000 events/s, p{part}", "ms", value)


def worker_rows(best: Best) -> Iterator[dict[str, Any]]:
    inline, default = best.rates.get("inline"), best.rates.get("default")
    for name, what in (("one", "worker path, 1 process"), ("two", "worker path, 2 processes")):
        yield row(what, "events/s", best.rates[name], inline, INLINE)
        yield row(what, "events/s", best.rates[name], default, DEFAULT)
    for peer, peer_name in (("inline", INLINE), ("default", DEFAULT)):
        what = "worker path, 1 process: processor time"
        yield row(what, "us/event", best.processor_us["one"], best.processor_us.get(peer), peer_name)
    what = "worker path, 1 process, 10 events of an execution share a commit"
    yield row(what, "events/s", best.rates["ten"], inline, INLINE)
    yield row("in line (handle), 1 caller", "events/s", best.rates["handle"], inline, INLINE)


# --- DynamoDB ---------------------------------------------------------------------------------------------------------


def on_dynamodb(armed: int) -> Iterator[dict[str, Any]]:
    from bench.counted import all_counts, server

    many = 200
    with server() as url:
        found = all_counts(url, "bench", armed=armed, forks=(10, many))

    def rows_of(name: str, what: str, *fields: str, peer: tuple[float, ...] = ()) -> Iterator[dict[str, Any]]:
        for position, field in enumerate(fields):
            theirs = peer[position] if position < len(peer) else None
            unit = field.replace("_", " ")
            yield row(what, unit, getattr(found[name], field), theirs, None if theirs is None else EARLIER)

    both = ("calls", "write_units", "index_write_units", "read_units")
    yield from rows_of("in line", "flat event in line", "calls", "write_units", "read_units", peer=(6, 4, 2.5))
    yield from rows_of("in line", "flat event in line", "index_write_units")
    yield from rows_of("in line, held", "flat event in line, state held", *both)
    yield from rows_of("send", "send from outside", *both)
    yield from rows_of("send from inside", "send from inside, with its own state", *both)
    yield from rows_of("consume", "consume a message", *both)
    whole = sum(
        usage.write_units + usage.index_write_units for usage in (found["send"], found["consume"])
    )  # fmt: skip
    yield row("event by mailbox, send and consume, index included", "write units", whole)
    run = task_run(found)
    yield row("task run, from its start to its result taken", "write units", run[0])
    yield row("task run, from its start to its result taken", "index write units", run[1])
    for name in ("arm a timer", "move a timer", "cancel a timer"):
        yield from rows_of(name, name, "write_units", peer=(6,))
        yield from rows_of(name, name, "index_write_units")
    idle = found["timers, none due"]
    name = f"timers, none due, {armed:,} armed, a look at all buckets"
    yield row(name, "read units", idle.read_units + idle.index_read_units, 84.5, EARLIER)
    yield row(f"{name}, for each", "read units", (idle.read_units + idle.index_read_units) / idle.calls)
    for children in (10, many):
        usage = found[f"fork and join of {children}"]
        name = f"fork and join, for each of {children} children"
        theirs = 15.9 if children == 10 else None
        yield row(name, "write units", usage.write_units / children, theirs, EARLIER if theirs else None)
        yield row(name, "index write units", usage.index_write_units / children)


def task_run(found: dict[str, Any]) -> tuple[float, float]:
    """Write units, base and index, of a task; the state that its start would store anyway is not among them."""
    steps = [found[name] for name in ("start of a task", "claim", "finish", "take the result")]
    state = 2.0
    return sum(usage.write_units for usage in steps) - state, sum(usage.index_write_units for usage in steps)


# --- shares -----------------------------------------------------------------------------------------------------------

ALIKE = 50
"""Random names of workers for each number of them; the mean of the largest shares counts."""


def shares() -> Iterator[dict[str, Any]]:
    """The largest share of the buckets by the mean one: so much longer than all together would the busiest work."""
    for buckets in (16, 64):
        for workers in (1, 2, 3, 4, 6, 8, 12, 16, 17, 24, 32, 48, 64):
            largest, plain = 0.0, 0.0
            for n in range(ALIKE):
                names = [hashlib.blake2b(f"{n}/{i}".encode(), digest_size=8).hexdigest() for i in range(workers)]
                shared = share_out(buckets, names).values()
                sizes = [len(share.units) for share in shared]
                largest += max(sizes) * workers / sum(sizes) / ALIKE
                won = collections.Counter(max(names, key=lambda name: score(name, b)) for b in range(buckets))
                plain += max(won.values()) * workers / buckets / ALIKE
            name = f"largest share of {workers} workers, {buckets} buckets"
            yield row(name, "of the mean", largest, plain, "plain rendezvous")


def score(name: str, bucket: int) -> bytes:
    """By which plain rendezvous hashing chooses."""
    return hashlib.blake2b(f"{bucket}/{name}".encode(), digest_size=8).digest()


# --- import -----------------------------------------------------------------------------------------------------------


def imports(times: int) -> dict[str, Any]:
    code = "import time; t = time.perf_counter(); import casework; print((time.perf_counter() - t) * 1000)"
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(times):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        ours.append(float(done.stdout))
        theirs += harel("import")
    return row("import", "ms", min(ours), min(theirs, default=None), INLINE.split(",")[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--events", type=int, default=10_000, help="executions, and events of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each; the best one counts")
    parser.add_argument("--only", default="sqlite,dynamodb,shares,fairness,import", help="parts to measure")
    parser.add_argument("--armed", type=int, default=10_000, help="timers armed on DynamoDB")
    given = parser.parse_args()
    found = list(rows(given.events, given.rounds, given.only, given.armed))
    if given.json:
        print(json.dumps({"rows": found}))
        return
    for each in found:
        peer = f"{each['peer']:>10,} {each['peer_name']}  x{each['ratio']}" if each["peer"] else ""
        print(f"{each['name']:<60} {each['unit']:<18} {each['ours']:>10,}  {peer}")


if __name__ == "__main__":
    main()
