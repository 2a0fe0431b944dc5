"""Idempotency, side by side with idemkit and Powertools: ``python -m bench.idempotency [--json] [--quick]``.

In memory: claims and completions of the store, whole function calls, and what the ASGI middleware adds to a request;
each fresh and as a replay. On DynamoDB: calls and write units, counted in the SDKs before a server on loopback, and the
reads that 50 waiting duplicates make in five seconds. Rates are the best of 15 rounds; ours and a peer's are taken in
turns, each in a process of its own, with the Python that CASEWORK_BENCH_PYTHON names (by default this one).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SIDES = Path(__file__).parent / "peers" / "idempotency.py"


def measured(library: str, kind: str, measure: str, count: int) -> Any:
    """One measurement in a process of its own; None where the library is not installed."""
    python = os.environ.get("CASEWORK_BENCH_PYTHON", sys.executable)
    done = subprocess.run(
        [python, str(SIDES), library, kind, measure, str(count)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        print(f"\n{library} {kind}: left out ({reason})", file=sys.stderr)
        return None
    return json.loads(done.stdout.strip().splitlines()[-1])


def row(name: str, unit: str, ours: float | None, theirs: float | None, peer_name: str) -> dict[str, Any]:
    """One row; a ratio above 1 is in our favour for rates, below 1 for costs."""
    ratio = round(ours / theirs, 2) if ours is not None and theirs else None
    return {
        "name": name, "unit": unit, "ours": None if ours is None else round(ours, 1),
        "peer": None if theirs is None else round(theirs, 1), "peer_name": peer_name, "ratio": ratio,
    }  # fmt: skip


def in_turns(kind: str, measure: str, count: int, turns: int) -> tuple[float | None, float | None]:
    """The best of ours and of idemkit's, taken in turns; the lowest where it is a time."""
    choose = min if kind == "asgi" else max
    found: dict[str, list[float]] = {"casework": [], "idemkit": []}
    for _ in range(turns):
        for library, values in found.items():
            value = measured(library, kind, measure, count)
            if value is not None:
                values.append(value)
    ours, theirs = (choose(values) if values else None for values in found.values())
    return ours, theirs


def rows(turns: int = 3) -> Iterator[dict[str, Any]]:
    """One row per measurement, as they are made."""
    for measure in ("fresh", "replay"):
        ours, theirs = in_turns("store", measure, 200, turns)
        yield row(f"in memory, {measure}, 200 records", "op/s", ours, theirs, "idemkit")
    for live in (10_000, 100_000):
        for measure in ("fresh", "replay"):
            ours = measured("casework", "store", measure, live)
            theirs = measured("idemkit", "store", measure, live) if live == 10_000 and turns > 1 else None
            yield row(f"in memory, {measure}, {live:,} records", "op/s", ours, theirs, "idemkit")
    for measure in ("fresh", "replay"):
        ours, theirs = in_turns("function", measure, 200, turns)
        yield row(f"function in memory, {measure}", "call/s", ours, theirs, "idemkit")
    for measure in ("fresh", "replay"):
        ours, theirs = in_turns("asgi", measure, 200, turns)
        yield row(f"ASGI overhead, {measure}", "us", ours, theirs, "idemkit")
    mine = measured("casework", "dynamodb", "calls", 1) or {}
    for library in ("powertools", "idemkit"):
        theirs = measured(library, "dynamodb", "calls", 1) or {}
        for name in ("fresh calls", "fresh write units", "replay calls"):
            yield row(f"DynamoDB, {name}", "", mine.get(name), theirs.get(name), library)
    ours = measured("casework", "waiting", "reads", 50)
    theirs = measured("idemkit", "waiting", "reads", 50)
    yield row("DynamoDB, reads by 50 duplicates that wait 5 s", "reads", ours, theirs, "idemkit")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print rows as JSON")
    parser.add_argument("--quick", action="store_true", help="one turn each")
    options = parser.parse_args()
    found = []
    for each in rows(1 if options.quick else 3):
        found.append(each)
        print(f"\r{len(found)}/17 {'#' * len(found)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    if options.json:
        print(json.dumps({"rows": found}))
        return
    for each in found:
        ours = "-" if each["ours"] is None else f"{each['ours']:,}"
        theirs = "-" if each["peer"] is None else f"{each['peer']:,} {each['peer_name']}"
        ratio = "" if each["ratio"] is None else f"x{each['ratio']}"
        print(f"{each['name']:<48} {ours:>14} {each['unit']:<7} {theirs:>28}  {ratio}")


if __name__ == "__main__":
    main()
