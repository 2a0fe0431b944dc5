"""A run is its decisions: replayed bit for bit, shrunk, and walked through exhaustively where it is small."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Generator, Iterable
from typing import Any

import pytest

from casework.errors import ConditionFailed
from casework.kernel.conditions import absent, equals
from casework.kernel.effects import Effect, Flag, Outcome
from casework.kernel.items import Put, Table, Update
from casework.kernel.programs import get, race, run_together, sleep, spawn, transact, write
from casework.simulation.carrier import Process
from casework.simulation.checkers import Operation, not_linearizable, read_problems
from casework.simulation.choices import Choices
from casework.simulation.faults import NONE, Faults
from casework.simulation.runner import Scenario, explore, explore_all, run_once
from casework.simulation.scenarios.catalogue import SCENARIOS
from casework.simulation.scenarios.executions import ALL, Mailbox
from casework.simulation.scenarios.records import cell
from casework.simulation.schedules import Explorer
from casework.simulation.world import World

NUMBERS = Table(name="numbers", partition="id")


class LostUpdate(Scenario):
    """Two who read a number and write it back, one higher, without a condition."""

    name = "lost update"
    tables = (NUMBERS,)
    faults = NONE
    is_conditional = False

    def begin(self) -> None:
        self.left = 2
        for n in range(2):
            self.world.process(f"p{n}", self.work)

    def work(self, process: Process) -> Generator[Effect, Any, Any]:
        while True:
            item = yield from get(NUMBERS.key("n"))
            value = 0 if item is None else int(item["v"])  # type: ignore[arg-type]
            condition = (absent() if item is None else equals("v", value)) if self.is_conditional else None
            try:
                yield from write(Put(NUMBERS, {"id": "n", "v": value + 1}, condition))
                break
            except ConditionFailed:
                continue
        self.left -= 1

    def is_over(self) -> bool:
        return not self.left

    def problems(self) -> Iterable[str]:
        item = self.world.store.tables.get(NUMBERS.key("n"))
        if item is None or item["v"] != 2:
            yield f"the number is {item}"


class Guarded(LostUpdate):
    """The same with a condition."""

    name = "guarded"
    is_conditional = True


def digest_of_runs() -> str:
    """Everything that a handful of runs decided and saw."""
    digest = hashlib.sha256()
    for scenario in ALL:
        for seed in (1, 2, 3):
            run = run_once(scenario, seed, records=True)
            digest.update(repr((run.problem, run.steps, run.choices, run.timeline)).encode())
    return digest.hexdigest()


def test_the_same_seed_gives_the_same_run_under_any_hash_seed() -> None:
    code = "from tests.simulation.test_runs import digest_of_runs; print(digest_of_runs())"
    found = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "4242")
    }  # fmt: skip
    assert found == {digest_of_runs() + "\n"}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[scenario.__name__ for scenario in SCENARIOS])
def test_a_run_replayed_from_its_decisions_is_the_same(scenario: Any) -> None:
    for seed in range(3):
        run = run_once(scenario, seed, records=True)
        again = run_once(scenario, seed, replay=run.choices, records=True)
        assert (again.problem, again.steps, again.timeline) == (run.problem, run.steps, run.timeline)


def test_another_seed_gives_another_run() -> None:
    assert run_once(Mailbox, 1).choices != run_once(Mailbox, 4).choices


def test_a_failure_is_shrunk_to_a_short_timeline_that_fails_in_the_same_way() -> None:
    report = explore(LostUpdate, runs=200)
    assert report.failure is not None
    assert report.failure.problem == "the number is {'id': 'n', 'v': 1}"
    assert 4 <= len(report.failure.timeline.splitlines()) <= 6
    assert report.failure.timeline.count("get numbers['n'] -> none") == 2
    again = run_once(LostUpdate, report.failure.seed, schedule=report.failure.schedule, replay=report.failure.choices)
    assert again.problem == report.failure.problem


def test_every_schedule_of_a_small_scenario_is_run() -> None:
    report, is_complete = explore_all(Guarded, faults=NONE)
    assert report.failure is None
    assert is_complete
    assert report.runs == 6, "two steps of one and two of the other: six ways to interleave them"
    report, _ = explore_all(LostUpdate, faults=NONE)
    assert report.failure is not None


class Deaths(Guarded):
    """Counts them as problems."""

    name = "deaths"

    def problems(self) -> Iterable[str]:
        return [f"{process.name} died" for process in self.world.processes if process.starts_n > 1]


def test_a_fault_that_cannot_happen_happens_neither_in_a_replay_nor_where_every_run_is_run() -> None:
    report, is_complete = explore_all(Deaths, faults=Faults(pause=0.1), deviations_max=2)
    assert report.failure is None
    assert is_complete
    assert run_once(Deaths, 0, faults=Faults(pause=0.1), replay=[0, 1, 1, 1]).problem == ""
    report, _ = explore_all(Deaths, faults=Faults(pause=0.1, crash=0.1), deviations_max=1)
    assert report.failure is not None


def decisions_of(choices: Choices, tree: int) -> tuple[int, ...]:
    """A few decisions, each of a kind and with a bound that depend on those before."""
    made: list[int] = []
    while len(made) < 5:
        dice = hashlib.sha256(repr((tree, made)).encode()).digest()
        if dice[0] % 4 == 0:
            made.append(choices.below(1 + dice[1] % 4))
        elif dice[0] % 4 == 1:
            made.append(choices.which(dice[1] % 2 / 10, dice[2] % 2 / 10))
        elif dice[0] % 4 == 2:
            made.append(choices.happens(dice[1] % 2 / 10))
        else:
            break
    return tuple(made)


class Prefix(Choices):
    """The decisions of a list; behind its end it says how many there are to choose from."""

    def replayed(self, bound: int) -> int:
        if len(self.made) == len(self._replay or ()):
            raise LookupError(bound)
        return super().replayed(bound)


def every_run(tree: int, deviations_max: int) -> list[tuple[int, ...]]:
    """By brute force."""
    found, waiting = [], [[]]  # type: ignore[var-annotated]
    while waiting:
        prefix = waiting.pop()
        if sum(map(bool, prefix)) > deviations_max:
            continue
        try:
            found.append(decisions_of(Prefix(0, prefix), tree))
        except LookupError as more:
            waiting += [[*prefix, choice] for choice in range(more.args[0])]
    return sorted(found)


@pytest.mark.parametrize("deviations_max", [0, 1, 2, 5])
def test_every_run_within_the_bound_is_run_exactly_once(deviations_max: int) -> None:
    for tree in range(50):
        explorer = Explorer(10_000, deviations_max)
        runs = [decisions_of(choices, tree) for choices in explorer]
        assert explorer.is_complete
        assert sorted(runs) == every_run(tree, deviations_max)


def test_a_report_says_how_fast_it_was() -> None:
    report = explore(Guarded, runs=20)
    assert report.runs == 20
    assert report.steps > 20 * 4
    assert report.seeds_per_s > 0
    assert report.steps_per_s > report.seeds_per_s


# --- shells in the world ----------------------------------------------------------------------------------------------


def carried(main: Any, **options: Any) -> World:
    world = World(1, (NUMBERS,), **options)
    world.process("p", main)
    world.run(lambda: False, steps_max=2000)
    return world


def test_a_race_ends_at_the_first_of_its_waits_or_at_its_timeout() -> None:
    seen: list[Any] = []
    flag = Flag()

    def child() -> Generator[Effect, Any, Any]:
        yield from sleep(1)
        flag.set()
        yield from sleep(5)
        return "done"

    def main(process: Process) -> Generator[Effect, Any, Any]:
        handle = yield from spawn(child(), "child")
        yield from race(handle, flag, timeout_s=0.5)
        seen.append((flag.is_set, handle.done))
        yield from race(handle, flag)
        seen.append((flag.is_set, handle.done))
        yield from race(handle)
        seen.append((handle.done, handle.outcome.value))

    carried(main)
    assert seen == [(False, False), (True, False), (True, "done")]


def test_a_program_that_ends_takes_those_that_it_spawned_with_it() -> None:
    seen: list[str] = []

    def child() -> Generator[Effect, Any, Any]:
        try:
            yield from sleep(100)
        except BaseException as error:
            seen.append(type(error).__name__)
            yield from write(Put(NUMBERS, {"id": "released", "v": 1}))
            raise

    def main(process: Process) -> Generator[Effect, Any, Any]:
        yield from spawn(child(), "child")
        yield from sleep(1)

    world = carried(main)
    assert seen == ["Cancelled"]
    assert world.store.tables.get(NUMBERS.key("released")) is not None


def test_a_cancelled_program_hears_of_it_only_after_its_transaction_was_answered() -> None:
    seen: list[Any] = []

    def child() -> Generator[Effect, Any, Any]:
        try:
            yield from transact([Put(NUMBERS, {"id": "a", "v": 1}), Put(NUMBERS, {"id": "b", "v": 1})])
        except BaseException as error:
            a, b = (yield from get(NUMBERS.key("a"))), (yield from get(NUMBERS.key("b")))
            seen.append((type(error).__name__, a is not None, b is not None))
            raise

    def main(process: Process) -> Generator[Effect, Any, Any]:
        handle = yield from spawn(child(), "child")
        yield from sleep(0.0004)
        handle.cancel()
        yield from race(handle)

    carried(main)
    assert seen in ([("Cancelled", True, True)], [("Cancelled", False, False)])


def test_programs_that_run_together_are_answered_together() -> None:
    seen: list[Any] = []

    def one(n: int) -> Generator[Effect, Any, Any]:
        yield from sleep(0.1 * n)
        if n == 2:
            raise ValueError("two")
        return n

    def main(process: Process) -> Generator[Effect, Any, Any]:
        outcomes: list[Outcome[Any]] = yield from run_together([one(n) for n in range(4)])
        seen.extend(type(o.error).__name__ if o.error else o.value for o in outcomes)

    carried(main)
    assert seen == [0, 1, "ValueError", 3]


def test_a_killed_process_takes_no_step_more_and_what_it_sent_goes_on() -> None:
    cleaned: list[int] = []

    def main(process: Process) -> Generator[Effect, Any, Any]:
        try:
            while True:
                item = yield from get(NUMBERS.key("n"))
                value = 0 if item is None else int(item["v"])  # type: ignore[arg-type]
                yield from transact([Update(NUMBERS.key("n"), {"v": value + 1})])
        except GeneratorExit:
            cleaned.append(1)
            raise

    world = World(7, (NUMBERS,), faults=Faults(crash=0.02))
    process = world.process("p", main)
    world.run(lambda: process.starts_n > 3, steps_max=200_000)
    assert process.starts_n > 3
    assert world.store.tables.get(NUMBERS.key("n")) is not None


# --- checkers ---------------------------------------------------------------------------------------------------------


def op(name: str, argument: Any, answer: Any, called: int, answered: int | None) -> Operation:
    return Operation("k", name, argument, answer, called, answered)


@pytest.mark.parametrize(
    ("history", "is_linear"),
    [
        ([op("set", (None, "a"), True, 1, 2), op("read", None, "a", 3, 4)], True),
        ([op("set", (None, "a"), True, 1, 2), op("read", None, None, 3, 4)], False),
        ([op("set", (None, "a"), True, 1, 9), op("read", None, None, 3, 4), op("read", None, "a", 5, 6)], True),
        ([op("set", (None, "a"), True, 1, 9), op("read", None, "a", 3, 4), op("read", None, None, 5, 6)], False),
        ([op("set", (None, "a"), True, 1, None), op("read", None, None, 3, 4), op("read", None, "a", 5, 6)], True),
        ([op("set", (None, "a"), True, 1, None), op("read", None, None, 3, 4)], True),
        ([op("set", (None, "a"), True, 1, 5), op("set", (None, "b"), True, 2, 6)], False),
        ([op("set", (None, "a"), True, 1, 5), op("set", (None, "b"), False, 2, 6)], True),
    ],
)
def test_a_history_is_linearizable_or_not(history: list[Operation], is_linear: bool) -> None:
    assert (not_linearizable(history, cell) == "") is is_linear


def test_what_is_wrong_with_a_read_is_named() -> None:
    assert list(read_problems("abc", [(1, "a"), (2, "b"), (3, "c")])) == []
    assert list(read_problems("abc", [(1, "a"), (3, "c")])) == ["read 3 where 2 comes next"]
    assert list(read_problems("abc", [(1, "a"), (2, "a")])) == ["'a' was read twice"]
    assert list(read_problems("abc", [(1, "x")])) == ["'x' was read and never written"]
