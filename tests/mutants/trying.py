"""Runs the tests on a changed source: in a copy, so that several run side by side and the checkout stays as it is."""

from __future__ import annotations

import concurrent.futures
import os
import queue
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.covering import ROOT, SOURCE, Map
from tests.mutants.mutations import Mutation

TESTS_MAX = 400
"""At most so many tests are run for a mutant, the quickest ones that run its line."""
BUDGET_S = 90.0
"""And at most so many seconds of them, as they took when the map was made."""


@dataclass(frozen=True)
class Place:
    """A mutation and its file."""

    file: Path
    mutation: Mutation

    def __str__(self) -> str:
        source = self.file.read_bytes()
        line = source.splitlines()[self.mutation.line - 1].decode().strip()
        return f"{self.file.relative_to(ROOT)}:{self.mutation.line}: {self.mutation.what}\n    {line}"


@dataclass(frozen=True)
class Tried:
    """What became of a mutant: ``noticed``, ``survived``, or ``unrun`` where no test runs its line."""

    place: Place
    outcome: str
    tests_n: int


def try_all(places: Sequence[Place], known: Map, jobs: int) -> Iterator[Tried]:
    """Try each place; in the order in which they end."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for n in range(jobs):
            copy = Path(folder) / str(n)
            shutil.copytree(SOURCE, copy / "casework", ignore=shutil.ignore_patterns("__pycache__"))
            copies.put(copy)
        _check_that_unchanged_passes(places[:3], known, copies)
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            futures = [pool.submit(_try, place, known, copies) for place in places]
            for future in concurrent.futures.as_completed(futures):
                yield future.result()


def _check_that_unchanged_passes(places: Sequence[Place], known: Map, copies: queue.SimpleQueue[Path]) -> None:
    """Else every mutant would count as noticed."""
    for place in places:
        nothing = Mutation(place.mutation.line, 0, 0, "", "nothing is changed")
        if _try(Place(place.file, nothing), known, copies).outcome == "noticed":
            raise SystemExit(f"the tests of {place.file}:{nothing.line} fail without a change; use --record")


def _chosen(place: Place, known: Map) -> list[str]:
    chosen: list[str] = []
    left_s = BUDGET_S
    for test in known.tests(place.file, place.mutation.line)[:TESTS_MAX]:
        left_s -= known.seconds[test]
        if chosen and left_s < 0:
            break
        chosen.append(test)
    return chosen


def _try(place: Place, known: Map, copies: queue.SimpleQueue[Path]) -> Tried:
    tests = _chosen(place, known)
    if not tests:
        return Tried(place, "unrun", 0)
    copy = copies.get()
    target = copy / "casework" / place.file.relative_to(SOURCE)
    source = place.file.read_bytes()
    try:
        target.write_bytes(place.mutation.apply(source))
        passed = _pass(copy, tests, known)
    finally:
        target.write_bytes(source)
        copies.put(copy)
    return Tried(place, "survived" if passed else "noticed", len(tests))


def _pass(copy: Path, tests: Sequence[str], known: Map) -> bool:
    """Whether all ``tests`` pass on the copy. One that hangs has noticed."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "", "--timeout=60", *tests]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    limit_s = 60 + 5 * sum(known.seconds[test] for test in tests)
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as run:
        try:
            return run.wait(limit_s) == 0
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, 9)
            return False
