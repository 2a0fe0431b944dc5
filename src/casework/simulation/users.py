"""``casework.simulate``: a user's charts under everything that can go wrong, replayed from a seed.

What happens in a run stands in :mod:`casework.simulation.scenarios.users`, what must hold in
:mod:`casework.simulation.scenarios.watching`. Here is what a caller gives and gets.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from casework.arguments import check_count, check_flag, check_function, check_seconds, check_text
from casework.errors import Misuse
from casework.kernel.schema import TABLES
from casework.simulation.faults import Faults
from casework.simulation.guesses import Guesses
from casework.simulation.invariants import Invariant, invariants_of
from casework.simulation.payloads import check_events, event_spec, fill
from casework.simulation.reached import Counted, Reached, coverage, never
from casework.simulation.replay import call_of
from casework.simulation.runner import Run, run_once, shrink
from casework.simulation.scenarios.users import Setting, UsersCharts
from casework.simulation.standins import stand_ins
from casework.simulation.versions import versions
from casework.simulation.world import World
from casework.statechart import Machine, check_json

CALM = Faults(conflict=0.2, torn_reads=0.1, index_lag=20)
"""What happens on DynamoDB on any day: conflicts, reads of half a transaction, indexes that lag."""

CRASHES = Faults(
    lost=0.02, unknown=0.01, throttled=0.01, throttled_reads=0.005, conflict=0.3, torn_reads=0.2, index_lag=20,
    crash=0.004, pause=0.003, skew_s_max=2.0, clock_error_s=0.1, ttl=0.5,
)  # fmt: skip
"""With ``crashes``: processes die and stand still, answers are lost, clocks are off, requests are throttled."""

SEEDS = 1 << 31


class SimulationFailure(msgspec.Struct, frozen=True):
    """A run in which something did not hold."""

    seed: int
    schedule: str
    """``uniform``, ``sticky`` or ``priority``; the seed decides it."""
    problem: str
    """What did not hold, in a sentence."""
    timeline: str
    """What happened, in a simpler run that fails in the same way."""
    command: str
    """The call that replays it."""
    versions: str
    """On what: the digest of each machine's definition, casework's version, and the commit where it is a checkout."""


class SimulationReport(msgspec.Struct, frozen=True):
    """What a simulation found."""

    machines: list[str]
    runs: int
    steps: int
    """Scheduled steps, in all runs."""
    seconds: float
    first_seed: int
    failure: SimulationFailure | None = None
    reached: list[Reached] = []
    """By machine: how often each state was entered and each transition taken, in all runs."""

    @property
    def never_entered(self) -> dict[str, list[str]]:
        """By machine: paths of the states that no run entered. Machines of which all was reached are left out."""
        return {each.machine: each.never_entered for each in self.reached if each.never_entered}

    @property
    def never_taken(self) -> dict[str, list[str]]:
        """By machine: the transitions that no run took, as ``charging: Paid -> paid``."""
        return {each.machine: [str(one) for one in each.never_taken] for each in self.reached if each.never_taken}

    @property
    def ok(self) -> bool:
        """Whether everything held in every run; ``never_entered`` and ``never_taken`` say what no run looked at."""
        return self.failure is None

    @property
    def seeds_per_s(self) -> float:
        """Runs a second."""
        return self.runs / self.seconds if self.seconds else 0.0

    @property
    def steps_per_s(self) -> float:
        """Scheduled steps a second."""
        return self.steps / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        """For people: what was run, and the failure with its timeline."""
        names = ", ".join(self.machines)
        rate = f"{self.seeds_per_s:,.0f} seeds/s, {self.steps_per_s:,.0f} steps/s"
        share = coverage(self.reached)
        if self.failure is None:
            last = self.first_seed + self.runs - 1
            seeds = f"(seeds {self.first_seed} to {last}; {rate})"
            lines = never(self.reached)
            held = f"everything held in {'what was reached, ' if lines else ''}{share}"
            return "\n".join([f"{names}: {self.runs:,} run{'s' if self.runs != 1 else ''}, {held} {seeds}", *lines])
        failure = self.failure
        return (
            f"{names}: run {self.runs:,} failed, seed {failure.seed}, {failure.schedule} schedule ({rate}; "
            f"reached up to here: {share})\n\n"
            f"{failure.timeline}\n\n{failure.problem}\n\n"
            f"on: {failure.versions}\nreplay it: {failure.command}"
        )

    def check(self) -> None:
        """Raise AssertionError with the failure's timeline, if there is one."""
        if self.failure is not None:
            raise AssertionError(str(self))


class _Charts:
    """Makes the scenario of a setting for a world; what the runner asks of a scenario's class."""

    name = "charts"
    tables = TABLES

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.faults = setting.faults

    def __call__(self, world: World) -> UsersCharts:
        return UsersCharts(world, self.setting)


def simulate(
    machines: Machine | Sequence[Machine], *, runs: int = 1000, crashes: bool = True, duplicates: bool = True,
    events: Iterable[Any] | None = None, script: Iterable[Any] | None = None, input: Any = None,
    invariants: Iterable[Invariant] = (), tasks: Mapping[str, Any] | None = None, real_tasks: bool = False,
    may_fail: bool = False, workers: int = 2, prepare: Callable[[], Any] | None = None, seed: int | None = None,
    seconds: float | None = None, on_progress: Callable[[int, int], None] | None = None, command: str = "",
) -> SimulationReport:  # fmt: skip
    """Run charts many times in simulated worlds, each under another seed, up to the first run that fails.

    Senders send events that the machines know, workers take them and run tasks, timers fire, all in virtual time. After
    each run, and after each commit, casework's promises and ``invariants`` are checked: a failing run is replayed and
    shrunk to a short timeline. What no run reached is in the report: ``never_entered``, ``never_taken``.

    Args:
        machines: one, or several that invoke each other; those that no other one invokes are started.
        runs: stop after so many runs.
        crashes: processes die and pause, answers are lost, clocks are off, requests are throttled.
        duplicates: events are delivered again with their event id, and results of tasks are handed in twice.
        events: what is sent, by chance: ``"Paid"``, ``("Paid", {"amount": 5})``, ``{"Paid": {...}}`` or ``{"type":
            "Paid", "data": {...}, "id": False, "after": "5s"}``, where ``id: False`` sends it without an event id, and
            data may be a function of a ``random.Random``. None: all that the machines know, payloads guessed.
        script: events sent in this order, each once.
        input: of the executions; guessed when None. It and payloads may hold ``{"$int": [1, 9]}`` and its like, see
            :mod:`casework.simulation.payloads`.
        invariants: functions of (execution, history), beside those registered with ``@casework.invariant(machine)``.
        tasks: stand-ins by task: a value, a function like the task's own, or ``{"returns": ..., "fails": 0.2, "error":
            "declined", "final": True, "takes": ["10ms", "20m"]}``. Others return null, or what the chart reads of them.
        real_tasks: call the registered functions of the tasks that have no stand-in.
        may_fail: an execution that ends as failed is no failure of the run.
        workers: processes that advance executions and run tasks.
        prepare: called before each run, to reset what real tasks and invariants share.
        seed: of the first run, the next has the next; None takes a fresh one.
        seconds: stop after so much real time.
        on_progress: told how many runs and steps are done, now and then.
        command: what replays a failure, in front of ``--seed N --runs 1``; for the command line.

    Raises Misuse for machines that cannot run as they are, and for events or tasks that they do not know.
    """
    options: dict[str, Any] = {
        "crashes": crashes, "duplicates": duplicates, "events": _listed(events, "events"),
        "script": _listed(script, "script"), "input": input, "invariants": _listed(invariants, "invariants") or [],
        "tasks": {} if tasks is None else tasks, "real_tasks": real_tasks, "may_fail": may_fail, "workers": workers,
        "prepare": prepare,
    }  # fmt: skip
    for flag in ("crashes", "duplicates", "real_tasks", "may_fail"):
        check_flag(flag, options[flag])
    check_count("workers", workers, 1, 100)
    for name, function in (("prepare", prepare), ("on_progress", on_progress)):
        if function is not None:
            check_function(name, function)
    if seconds is not None:
        check_seconds("seconds", seconds)
    check_text("command", command, 10_000, may_be_empty=True)
    check_count("runs", runs, 1, 1_000_000_000)
    if seed is not None:
        check_count("seed", seed)
    taking_part = _machines(machines)
    setting = _setting(taking_part, **options)
    first = int.from_bytes(os.urandom(4)) % SEEDS if seed is None else seed
    factory = _Charts(setting)

    def replay(of: int) -> str:
        return f"{command} --seed {of} --runs 1" if command else call_of(taking_part, options, _defaults(), of)

    with _without_log():
        return _explore(factory, runs, first, seconds, on_progress, replay)


def _defaults() -> Mapping[str, Any]:
    return simulate.__kwdefaults__ or {}


def _explore(
    factory: _Charts, runs: int, first: int, seconds: float | None, on_progress: Callable[[int, int], None] | None,
    replay: Callable[[int], str],
) -> SimulationReport:  # fmt: skip
    """Run after run, up to the first that fails; it is made simpler then."""
    started = time.perf_counter()
    steps = 0
    for n in range(runs):
        run = run_once(factory, first + n)
        steps += run.steps
        elapsed = time.perf_counter() - started
        if run.problem:
            break
        if on_progress is not None and n % 8 == 7:
            on_progress(n + 1, steps)
        if seconds is not None and elapsed > seconds:
            break
    setting = factory.setting
    reached = [each.reached() for each in setting.counted]  # before shrinking runs more
    failure = _failure(factory, run, replay(run.seed)) if run.problem else None
    names = [machine.name for machine in setting.machines]
    return SimulationReport(names, n + 1, steps, elapsed, first, failure, reached)


@contextlib.contextmanager
def _without_log() -> Iterator[None]:
    """Casework's own log is silent meanwhile: that the store throttles and answers are lost is what is simulated."""
    log = logging.getLogger("casework")
    before = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(before)


def _failure(factory: _Charts, run: Run, replay: str) -> SimulationFailure:
    """A failing run, made simpler."""
    small = shrink(factory, run, tries=500, is_same=_is_same)
    on = versions(factory.setting.machines)
    return SimulationFailure(run.seed, run.schedule, small.problem, small.timeline, replay, on)


def _is_same(problem: str, other: str) -> bool:
    """Whether two problems are of one kind: the same words, whatever the ids and numbers in them."""
    return _words(problem) == _words(other)


def _words(problem: str) -> str:
    return re.sub(r"[\w./-]*\d[\w./-]*", "", problem.partition(": ")[2].partition(": ")[0] or problem)


def _machines(given: Any) -> list[Machine]:
    """The machines that take part; Misuse for anything else."""
    found = [given] if isinstance(given, Machine) else list(given) if isinstance(given, list | tuple | set) else []
    if not found or not all(isinstance(machine, Machine) for machine in found):
        raise Misuse(
            f"simulate takes a machine or a list of some, not {given!r:.80}; "
            "give casework.Machine.load('order.yaml'), or the machine that your module makes"
        )
    names = [machine.name for machine in found]
    if len(set(names)) < len(names):
        raise Misuse(f"two machines have one name: {', '.join(sorted(names))}")
    found = [machine.beside(names) for machine in found]
    for machine in found:
        missing = [what for what in machine.missing_functions() if not what.startswith("task")]
        if missing:
            raise Misuse(
                f"machine {machine.name!r} names {', '.join(missing)}, which is not here; simulate the module that "
                "registers it, with all the machines that take part"
            )
    return found


def _listed(given: Any, what: str) -> list[Any] | None:
    if given is None:
        return None
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise Misuse(f"{what} is {given!r:.60}; it is a list")
    return list(given)


def _setting(
    machines: list[Machine], *, crashes: bool, events: list[Any] | None, script: list[Any] | None, input: Any,
    invariants: list[Invariant], tasks: Mapping[str, Any], real_tasks: bool, **others: Any,
) -> Setting:  # fmt: skip
    """What is simulated, checked."""
    counted = tuple(Counted(machine) for machine in machines)
    taking_part = tuple(each.machine for each in counted)
    invoked = {
        name
        for machine in machines
        for name in machine.names.only_machines | (machine.names.tasks - set(machine.tasks))
        if name != machine.name
    }
    roots = tuple(machine for machine in taking_part if machine.name not in invoked) or taking_part
    drawn = tuple(event_spec(each, f"events[{n}]") for n, each in enumerate(events or ()))
    ordered = tuple(event_spec(each, f"script[{n}]") for n, each in enumerate(script or ()))
    check_events([*drawn, *ordered], roots)
    if input is not None and not callable(input):
        check_json(input, "input")
        fill(input, lambda bound: 0)
    checks: dict[str, tuple[Invariant, ...]] = {"": tuple(invariants)}
    for machine in machines:
        checks[machine.name] = tuple(each for each in invariants_of(machine) if each not in checks[""])
    guesses = {machine.name: Guesses(machine) for machine in machines}
    return Setting(
        machines=taking_part, roots=roots, counted=counted, guesses=guesses, events=drawn, script=ordered,
        stand_ins=stand_ins(machines, tasks, guesses, real=real_tasks), input=input, invariants=checks,
        faults=CRASHES if crashes else CALM, **others,
    )  # fmt: skip


def command_line(*words: str) -> str:
    """Words as they are typed into a shell."""
    return shlex.join(words)
