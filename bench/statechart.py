"""Pure steps a second, side by side with other libraries: ``python -m bench.statechart [--json] [--events N]``.

Two charts: a flat one of four states whose transitions assign to the context, and two parallel regions of depth three
that both move on each event. Ours is ``step``: a new snapshot each time, nothing changed in place. Peers run one after
another with ours in the same minute, each in a process of its own, with the Python that CASEWORK_BENCH_PYTHON names
(by default this one); a peer that is not installed there is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from casework.statechart import Event, Machine, start, step

PEERS_FILE = Path(__file__).parent / "peers" / "statechart.py"
PEERS = {
    "flat": ["harel", "xstate-statemachine, pure", "xstate-statemachine, live", "sismic"],
    "regions": ["xstate-statemachine, pure", "xstate-statemachine, live", "sismic"],
}
COUNT: dict[str, Any] = {"type": "assign", "params": {"n": {"expr": "context.n + 1"}}}


def flat(action: Any) -> Machine:
    edges = zip("abcd", "bcda", strict=True)
    states = {key: {"on": {"go": {"target": target, "actions": action}}} for key, target in edges}
    return Machine.from_dict({"id": "flat", "initial": "a", "context": {"n": 0}, "states": states})


def regions() -> Machine:
    leaf = {key: {"on": {"go": {"target": target, "actions": COUNT}}} for key, target in (("x", "y"), ("y", "x"))}
    region = {"initial": "m", "states": {"m": {"initial": "x", "states": leaf}}}
    definition = {"id": "regions", "type": "parallel", "context": {"n": 0}, "states": {"l": region, "r": region}}
    return Machine.from_dict(definition)


def with_function() -> Machine:
    machine = flat("count")
    machine.action(name="count")(lambda context, event: {"n": context["n"] + 1})
    return machine


def ours(machine: Machine, per_event: int, events: int, rounds: int = 3) -> float:
    event, best = Event("go"), 0.0
    for _ in range(rounds):
        snapshot = start(machine, None, 0).snapshot
        started = time.perf_counter()
        for _ in range(events):
            snapshot = step(machine, snapshot, event, 0).snapshot
        best = max(best, events / (time.perf_counter() - started))
        if snapshot.context["n"] != events * per_event:
            raise SystemExit(f"counted {snapshot.context['n']} transitions for {events} events")
    return best


def peer(name: str, chart: str, events: int) -> float | None:
    python = os.environ.get("CASEWORK_BENCH_PYTHON", sys.executable)
    command = [python, str(PEERS_FILE), name, chart, str(events)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        print(f"\n{name}: left out ({reason})", file=sys.stderr)
        return None
    return float(json.loads(done.stdout))


def rows(events: int = 20_000) -> Iterator[dict[str, Any]]:
    """One row per chart and peer, as they are measured."""
    charts = {"flat": (flat(COUNT), 1), "regions": (regions(), 2)}
    for chart, (machine, per_event) in charts.items():
        for name in PEERS[chart]:
            theirs = peer(name, chart, events)
            speed = ours(machine, per_event, events)
            yield row(f"pure step, {chart}", speed, theirs, name)
    theirs = peer("harel", "flat", events)
    yield row(
        "pure step, flat, action is a Python function", ours(with_function(), 1, events), theirs, "harel, built-in set"
    )


def row(name: str, speed: float, theirs: float | None, peer_name: str) -> dict[str, Any]:
    ratio = round(speed / theirs, 2) if theirs else None
    return {
        "name": name, "unit": "events/s", "ours": round(speed), "peer": round(theirs) if theirs else None,
        "peer_name": peer_name, "ratio": ratio,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print rows as JSON")
    parser.add_argument("--events", type=int, default=20_000, help="events per round")
    options = parser.parse_args()
    total = sum(len(names) for names in PEERS.values()) + 1
    found = []
    for each in rows(options.events):
        found.append(each)
        print(f"\r{len(found)}/{total} {'#' * len(found)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    if options.json:
        print(json.dumps({"rows": found}))
        return
    for each in found:
        other = (
            f"{each['peer']:>9,} {each['peer_name']}  x{each['ratio']}"
            if each["peer"]
            else f"{'-':>9} {each['peer_name']}"
        )
        print(f"{each['name']:<46} {each['ours']:>10,}  {other}")


if __name__ == "__main__":
    main()
