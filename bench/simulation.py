"""How fast the simulator is: ``python -m bench.simulation [--json] [--seconds N] [NAME ...]``.

For each scenario: scheduled steps and seeds (whole runs) in a second of one core's time, with all faults on. ``users``
is ``casework.simulate`` on the demo's machines, with crashes and duplicates. ``bare`` is what the simulator itself
costs: three programs that read one item at each step and do nothing with it. The rest is the code under test.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import casework
from casework.kernel.effects import Effect, Get
from casework.simulation.carrier import Process
from casework.simulation.runner import Scenario, explore
from casework.simulation.scenarios import records
from casework.simulation.scenarios.catalogue import SCENARIOS
from casework.simulation.users import simulate

DEMO = Path(casework.__file__).parent / "demo"
RUNS = 1_000_000
TARGET_STEPS_A_SECOND = 200_000


class Bare(Scenario):
    """Programs without work of their own."""

    name = "bare"
    tables = (records.CELLS,)
    steps_each = 1_000

    def begin(self) -> None:
        """Start the readers."""
        self.left = 3
        for n in range(self.left):
            self.world.process(f"reader-{n}", self.read, may_crash=False)

    def read(self, process: Process) -> Generator[Effect, Any, Any]:
        """One item, again and again."""
        effect = Get(records.CELLS.key("c"))
        for _ in range(self.steps_each):
            yield effect
        self.left -= 1

    def is_over(self) -> bool:
        """All have read."""
        return not self.left


def of_scenario(scenario: Any, seconds: float) -> dict[str, Any]:
    """Rates of one scenario."""
    explore(scenario, runs=5)
    began_s = time.process_time()
    report = explore(scenario, runs=RUNS, seconds_max=seconds, shrinks=False)
    return row(scenario.name, report.steps, report.runs, time.process_time() - began_s, report.failure is not None)


def of_users(seconds: float) -> dict[str, Any]:
    """Rates of a user's charts, tasks replaced."""
    machines = [casework.Machine.load(DEMO / "order.yaml"), casework.Machine.load(DEMO / "shipment.yaml")]
    for machine in machines:
        for name in machine.names.actions:
            machine.action(name=name)(lambda context, event: None)
        for name in machine.names.guards:
            machine.guard(name=name)(lambda context, event: True)
    given = {"order": "o", "customer": "c", "items": ["a", "b"], "amount_cents": 1, "confirm_within_ms": 60_000}
    began_s = time.process_time()
    report = simulate(machines, runs=RUNS, seconds=seconds, input=given, seed=1, may_fail=True)
    return row("users", report.steps, report.runs, time.process_time() - began_s, not report.ok)


def row(name: str, steps: int, runs: int, seconds: float, failed: bool) -> dict[str, Any]:
    return {
        "name": name, "unit": "steps/s", "ours": round(steps / seconds), "peer": TARGET_STEPS_A_SECOND,
        "peer_name": "target", "ratio": round(steps / seconds / TARGET_STEPS_A_SECOND, 2),
        "seeds_per_s": round(runs / seconds, 1), "steps_per_seed": round(steps / runs), "failed": failed,
    }  # fmt: skip


def show(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("scenario", "steps/s", "seeds/s", "steps/seed", "")
    most = max(each["ours"] for each in rows)
    for each in rows:
        bar = "#" * round(30 * each["ours"] / most)
        table.add_row(
            each["name"], f"{each['ours']:,}", f"{each['seeds_per_s']:,}", f"{each['steps_per_seed']:,}",
            "FAILED" if each["failed"] else bar,
        )  # fmt: skip
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="scenarios; all when none is named")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each scenario")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    scenarios = {scenario.name: scenario for scenario in (Bare, *SCENARIOS)}
    names = options.names or [*scenarios, "users"]
    rows = []
    from rich.progress import track

    for name in track(names, description="simulation", disable=options.json, transient=True):
        rows.append(of_users(options.seconds) if name == "users" else of_scenario(scenarios[name], options.seconds))
    if options.json:
        print(json.dumps({"rows": rows}, indent=2))
    else:
        show(rows)


if __name__ == "__main__":
    main()
