"""How many seeds it takes to find each planted fault: ``python -m tests.simulation.report [ROUNDS]``.

Each round begins at a fresh random seed. Prints a line for each fault with the median; one that a round did not find
within ``SEEDS_MAX`` seeds is shown as such, and the exit code is 1 then.
"""

from __future__ import annotations

import logging
import statistics
import sys
from typing import Any

from casework.simulation.runner import explore
from tests.simulation.classics import MISTAKES
from tests.simulation.seeds import fresh_seed
from tests.simulation.test_planted_faults import FAULTS, SEEDS_MAX, Impatient

WIDTH = max(len(fault.scenario.name) for fault in FAULTS)


def seeds_to_find(scenario: Any) -> int | None:
    """Runs until the fault that is planted now is found, from a fresh seed; None when it is not."""
    report = explore(Impatient(scenario), runs=SEEDS_MAX, first_seed=fresh_seed(), shrinks=False)
    return report.runs if report.failure is not None else None


def main() -> int:
    """Print the table; 1 when a fault was not found."""
    logging.disable(logging.CRITICAL)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    missed = 0
    out = sys.stdout.write
    out(f"{'median':>7} {'most':>6}  {'scenario':{WIDTH}} fault\n")
    for fault in FAULTS:
        with fault.plant():
            missed += line(fault.scenario.name, fault.name, [seeds_to_find(fault.scenario) for _ in range(rounds)])
    for design in MISTAKES:
        missed += line(design.name, design.__name__, [seeds_to_find(design) for _ in range(rounds)])
    return 1 if missed else 0


def line(scenario: str, name: str, found: list[int | None]) -> int:
    """Print one fault's line; how many rounds did not find it."""
    counts = [SEEDS_MAX if runs is None else runs for runs in found]
    missed = found.count(None)
    note = f"  (not found in {missed} of {len(found)} rounds)" if missed else ""
    sys.stdout.write(f"{statistics.median(counts):7.0f} {max(counts):6}  {scenario:{WIDTH}} {name}{note}\n")
    sys.stdout.flush()
    return missed


if __name__ == "__main__":
    sys.exit(main())
