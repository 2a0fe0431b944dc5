"""Running scenarios: many seeds, three schedules, and what to show of a failure.

A :class:`Scenario` sets up processes in a world, says when it is over, and what must hold then. Faults happen in the
first part of a run; then the world heals, and everything must come to its end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from casework.kernel.items import Table
from casework.simulation.choices import Choices
from casework.simulation.faults import ROUGH, Faults
from casework.simulation.schedules import KINDS, Explorer
from casework.simulation.versions import casework_version
from casework.simulation.world import ProgramFailed, World


class Scenario:
    """What is run in a world. Subclasses say what happens, when it is over, and what must hold."""

    name = ""
    tables: Sequence[Table] = ()
    faults: Faults = ROUGH
    fault_steps = 1200
    """Faults happen in so many first steps; then the world heals."""
    steps_max = 60_000
    """A run that is not over by then is stuck."""

    def __init__(self, world: World) -> None:
        self.world = world

    def begin(self) -> None:
        """Start the processes."""
        raise TypeError(f"{type(self).__name__} has no begin()")

    def is_over(self) -> bool:
        """Whether nothing is left to do."""
        raise TypeError(f"{type(self).__name__} has no is_over()")

    def waits_for(self) -> str:
        """What a run that is not over waits for, in a few words."""
        return ""

    def problems(self) -> Iterable[str]:
        """What does not hold at the end, each in a sentence."""
        return ()


class Run(msgspec.Struct):
    """One run and what became of it."""

    scenario: str
    seed: int
    schedule: str
    problem: str
    """Empty when all held."""
    steps: int
    choices: list[int]
    timeline: str = ""

    def __str__(self) -> str:
        """For people: what did not hold, what happened, and how to run it again."""
        if not self.problem:
            return f"{self.scenario}: seed {self.seed}, {self.schedule} schedule, {self.steps:,} steps: everything held"
        return (
            f"{self.scenario}: {self.problem}\n\n{self.timeline}\n\non: {casework_version()}\n"
            f"run it again: run_once(<{self.scenario}>, {self.seed}, schedule={self.schedule!r}, records=True)"
        )


class Report(msgspec.Struct):
    """Many runs of one scenario."""

    scenario: str
    runs: int
    steps: int
    seconds: float
    failure: Run | None = None

    @property
    def seeds_per_s(self) -> float:
        """Runs a second."""
        return self.runs / self.seconds if self.seconds else 0.0

    @property
    def steps_per_s(self) -> float:
        """Scheduled steps a second."""
        return self.steps / self.seconds if self.seconds else 0.0


Factory = Callable[[World], Scenario]


def run_once(
    factory: Any, seed: int, *, schedule: str | None = None, faults: Faults | None = None,
    replay: Sequence[int] | None = None, choices: Choices | None = None, records: bool = False,
) -> Run:  # fmt: skip
    """One run of a scenario.

    Args:
        factory: a subclass of :class:`Scenario`, or what makes one for a world; has ``tables`` and ``faults``.
        seed: decides everything, the schedule's kind included when it is not given.
        schedule: ``uniform``, ``sticky`` or ``priority``.
        faults: instead of the scenario's own.
        replay: decisions of an earlier run.
        choices: decisions from elsewhere.
        records: keep a timeline.
    """
    kind = schedule or KINDS[seed % len(KINDS)]
    world = World(
        seed, factory.tables, schedule=kind, faults=faults or factory.faults, replay=replay, choices=choices,
        records=records,
    )  # fmt: skip
    scenario = factory(world)
    problem = _problem_of(world, scenario)
    timeline = world.timeline.text() if world.timeline is not None else ""
    return Run(scenario.name, seed, kind, problem, world.steps, world.choices.made, timeline)


def _problem_of(world: World, scenario: Scenario) -> str:
    try:
        scenario.begin()
        over = world.run(scenario.is_over, steps_max=scenario.fault_steps)
        world.faults = msgspec.structs.replace(
            world.faults,
            lost=0.0,
            unknown=0.0,
            throttled=0.0,
            throttled_reads=0.0,
            crash=0.0,
            pause=0.0,
            torn_reads=0.0,
            partition_limits=False,
        )
        over = over or world.run(scenario.is_over, steps_max=scenario.steps_max)
    except ProgramFailed as failed:
        return str(failed)
    if not over:
        waits = scenario.waits_for()
        return f"stuck: not over after {world.steps} steps{f', waiting for {waits}' if waits else ''}"
    return "; ".join(scenario.problems())


def explore(
    factory: Any, *, runs: int, first_seed: int = 0, schedule: str | None = None, faults: Faults | None = None,
    shrinks: bool = True, on_progress: Callable[[int], None] | None = None, seconds_max: float | None = None,
) -> Report:  # fmt: skip
    """Many runs of a scenario, each with the next seed, up to the first failure, which is shrunk.

    Args:
        factory: a subclass of :class:`Scenario`.
        runs: at most so many.
        first_seed: of the first run.
        schedule: one kind for all; None: all three in turn.
        faults: instead of the scenario's own.
        shrinks: whether to look for a simpler failing run.
        on_progress: told how many runs are done, now and then.
        seconds_max: stop after so much real time.
    """
    started = time.perf_counter()
    steps = 0
    for n in range(runs):
        run = run_once(factory, first_seed + n, schedule=schedule, faults=faults)
        steps += run.steps
        elapsed = time.perf_counter() - started
        if run.problem:
            failure = shrink(factory, run, faults=faults) if shrinks else run
            return Report(run.scenario, n + 1, steps, elapsed, failure)
        if on_progress is not None and n % 16 == 15:
            on_progress(n + 1)
        if seconds_max is not None and elapsed > seconds_max:
            break
    return Report(getattr(factory, "name", ""), n + 1, steps, time.perf_counter() - started)


def explore_all(
    factory: Any, *, runs_max: int = 100_000, faults: Faults, deviations_max: int | None = None
) -> tuple[Report, bool]:
    """Every schedule of a small scenario; whether all of them were run.

    Args:
        factory: a subclass of :class:`Scenario` with few processes and few steps.
        runs_max: give up after so many runs.
        faults: what may go wrong, at every place where it may; the probabilities do not matter unless they are 0.
        deviations_max: only runs with so many interruptions and faults; see :class:`Explorer`.
    """
    started = time.perf_counter()
    explorer = Explorer(runs_max, deviations_max)
    runs = steps = 0
    for choices in explorer:
        run = run_once(factory, 0, schedule="uniform", faults=faults, choices=choices)
        runs += 1
        steps += run.steps
        if run.problem:
            return Report(run.scenario, runs, steps, time.perf_counter() - started, run), False
    return Report(factory.name, runs, steps, time.perf_counter() - started), explorer.is_complete


def shrink(
    factory: Any, run: Run, *, faults: Faults | None = None, tries: int = 300,
    is_same: Callable[[str, str], bool] = lambda problem, other: True,
) -> Run:  # fmt: skip
    """A simpler run that fails, too, with its timeline: fewer decisions, more of them the plain one.

    Args:
        factory: a subclass of :class:`Scenario`.
        run: the run that failed.
        faults: instead of the scenario's own.
        tries: at most so many runs.
        is_same: whether another run's problem counts as this one's.
    """

    def fails(choices: list[int]) -> Run | None:
        again = run_once(factory, run.seed, schedule=run.schedule, faults=faults, replay=choices)
        return again if again.problem and is_same(run.problem, again.problem) else None

    best = run.choices
    left = tries
    width = max(1, len(best) // 2)
    while width and left > 0:
        position = 0
        while position < len(best) and left > 0:
            part = best[position : position + width]
            candidates = []
            if any(part):
                candidates.append(best[:position] + [0] * len(part) + best[position + width :])
            if position + width >= len(best):
                candidates.append(best[:position])
            elif width <= 8:
                candidates.append(best[:position] + best[position + width :])
            for candidate in candidates:
                left -= 1
                again = fails(candidate)
                if again is not None:
                    best = _trimmed(candidate)
                    break
            position += width
        width //= 2
    found = run_once(factory, run.seed, schedule=run.schedule, faults=faults, replay=best, records=True)
    if not found.problem:  # it cannot be: the same decisions give the same run
        return run_once(factory, run.seed, schedule=run.schedule, faults=faults, records=True)
    found.choices = best
    return found


def _trimmed(choices: list[int]) -> list[int]:
    end = len(choices)
    while end and not choices[end - 1]:
        end -= 1
    return choices[:end]
