"""Runs the tests on a changed source: first in a fork that changes what is loaded (``forking.py``), then, where no test
noticed, in a process of its own on a changed copy, so that the checkout stays as it is.
"""

from __future__ import annotations

import concurrent.futures
import json
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
UNCHANGED = 3
"""So many places of a share are run without a change first: else every mutant would count as noticed."""
PYTEST = (
    sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:cov", "-m", "",
    "--timeout=60",
)  # fmt: skip
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
    done: queue.SimpleQueue[Tried | BaseException] = queue.SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        shares = [(Path(folder) / str(n), places[n::jobs]) for n in range(jobs)]
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            for copy, share in shares:
                shutil.copytree(SOURCE, copy / "casework", ignore=shutil.ignore_patterns("__pycache__"))
                pool.submit(_try_share, share, known, copy, done)
            for _ in places:
                one = done.get()
                if isinstance(one, BaseException):
                    raise one
                yield one


def _try_share(places: Sequence[Place], known: Map, copy: Path, done: queue.SimpleQueue[Tried | BaseException]) -> None:
    """Forks of one process that has collected the tests are quick; what they did not notice is tried by itself."""
    try:
        tests = [_chosen(place, known) for place in places]
        outcomes = _try_in_forks(places, tests, known, copy)
        for place, own in zip(places, tests, strict=True):
            if not own:
                done.put(Tried(place, "unrun", 0))
                continue
            outcome = next(outcomes, "untried")
            if outcome == "broken":
                raise SystemExit(f"the tests of {place} fail without a change; use --record")
            done.put(Tried(place, outcome, len(own)) if outcome == "noticed" else _try(place, own, known, copy))
    except BaseException as error:  # the main thread waits for it
        done.put(error)


def _try_in_forks(places: Sequence[Place], tests: Sequence[Sequence[str]], known: Map, copy: Path) -> Iterator[str]:
    """The outcome of each place that has tests; fewer where the process ends early."""
    rows = [(place, own) for place, own in zip(places, tests, strict=True) if own]
    unchanged = [(place.file.read_text(), place, own) for place, own in rows]
    changed = [(place.mutation.apply(place.file.read_bytes()).decode(), place, own) for place, own in rows]
    work = [
        {"n": n, "file": str(place.file), "source": source, "tests": own, "limit_s": _limit_s(own, known)}
        for n, (source, place, own) in enumerate([*unchanged[:UNCHANGED], *changed])
    ]
    (copy / "work.json").write_text(json.dumps(work))
    files = sorted({test.partition("::")[0] for _, own in rows for test in own})
    reading, writing = os.pipe()
    environment = {
        **os.environ, "CASEWORK_MUTANTS": str(copy / "work.json"), "CASEWORK_ANSWERS": str(writing),
        "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    command = [*PYTEST, "-p", "tests.mutants.forking", *files]
    with (
        subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, pass_fds=[writing], start_new_session=True
        ) as run,
        os.fdopen(reading) as answers,
    ):
        os.close(writing)
        try:
            for n, line in enumerate(answers):
                outcome = line.split()[1]
                if n >= len(work) - len(changed):
                    yield outcome
                elif outcome == "noticed":
                    yield "broken"
        finally:
            if run.poll() is None:
                os.killpg(run.pid, 9)


def _chosen(place: Place, known: Map) -> list[str]:
    chosen: list[str] = []
    left_s = BUDGET_S
    for test in known.tests(place.file, place.mutation.line)[:TESTS_MAX]:
        left_s -= known.seconds[test]
        if chosen and left_s < 0:
            break
        chosen.append(test)
    return chosen


def _try(place: Place, tests: Sequence[str], known: Map, copy: Path) -> Tried:
    target = copy / "casework" / place.file.relative_to(SOURCE)
    source = place.file.read_bytes()
    try:
        target.write_bytes(place.mutation.apply(source))
        passed = _pass(copy, tests, known)
    finally:
        target.write_bytes(source)
    return Tried(place, "survived" if passed else "noticed", len(tests))


def _pass(copy: Path, tests: Sequence[str], known: Map) -> bool:
    """Whether all ``tests`` pass on the copy. One that hangs has noticed."""
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(
        [*PYTEST, *tests], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as run:  # fmt: skip
        try:
            return run.wait(_limit_s(tests, known)) == 0
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, 9)
            return False


def _limit_s(tests: Sequence[str], known: Map) -> float:
    return 60 + 5 * sum(known.seconds[test] for test in tests)
