"""How tasks end: attempts that fail and are repeated, answers from outside, time-outs, workers that leave.

Workers are the real shell. Each is stopped and started again a few times, as a rolling deploy does it; it gives back
what it cannot finish.
"""

from __future__ import annotations

import collections
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from casework.errors import TaskFailed, TaskNotClaimed
from casework.executions import deliver, tasks
from casework.executions.buckets import WORKERS
from casework.executions.run_task import LATER, TaskRunner, call_function, find_function
from casework.executions.runtime import Runtime
from casework.executions.task_items import read_public_token
from casework.executions.worker import Worker, WorkerOptions, work
from casework.kernel.effects import Effect
from casework.kernel.items import Item, Key
from casework.kernel.programs import Program, race, signal, sleep, spawn
from casework.kernel.schema import EXECUTIONS, REGISTRY, TABLES
from casework.simulation.carrier import Main, Process
from casework.simulation.faults import ROUGH
from casework.simulation.scenarios.executions import LOST, ExecutionScenario, insist
from casework.simulation.world import World
from casework.statechart import Machine

OUTCOMES = """
id: outcomes
initial: open
context: {ends: [], fails: {expr: "input.fails"}, final: {expr: "input.final"}}
states:
  open:
    type: parallel
    onDone: closed
    states:
"""

REGION = """
      NAME:
        initial: busy
        states:
          busy:
            invoke:
              id: NAME
              src: {task: NAME}
              input: {fails: {expr: "context.fails"}, final: {expr: "context.final"}}
              timeout: TIMEOUT
              retry: {max_attempts: ATTEMPTS, initial: 200ms, factor: 2, max: 1s}
              onDone:
                target: over
                actions: [{type: assign, params: {ends: {expr: "context.ends + [['NAME', 'done', event.output]]"}}}]
              onError:
                target: over
                actions: [{type: assign, params: {ends: {expr: "context.ends + [['NAME', 'error', event.error]]"}}}]
          over: {type: final}
"""

ATTEMPTS = {"flaky": 3, "slow": 2, "asked": 2, "asked-b": 2, "asked-c": 2}
TIMEOUTS_S = {"flaky": 30.0, "slow": 30.0}
ANSWER_S = 1.5
"""What is asked is waited for so long."""


def region(name: str) -> str:
    """The region of one task."""
    text = REGION.replace("NAME", name).replace("ATTEMPTS", str(ATTEMPTS[name]))
    return text.replace("TIMEOUT", f"{TIMEOUTS_S.get(name, ANSWER_S)}s")


def is_asked(name: str) -> bool:
    """Whether an outsider completes the task."""
    return name.startswith("asked")


def flaky(task: Any, *, fails: int, final: bool) -> dict[str, Any]:
    """Fails so often, perhaps for good."""
    if task.attempt <= fails:
        if final:
            raise TaskFailed(f"refused {task.attempt}")
        raise ValueError(f"failed {task.attempt}")
    return {"attempt": task.attempt}


def slow(task: Any, *, fails: int, final: bool) -> dict[str, Any]:
    """Comes to its end."""
    return {"attempt": task.attempt}


def asked(task: Any, *, fails: int, final: bool) -> Any:
    """Somebody else completes it."""
    return LATER


FUNCTIONS = {"flaky": flaky, "slow": slow}

_machines: dict[Any, Machine] = {}


def machine(names: Sequence[str], functions: Sequence[str]) -> Machine:
    """The machine with regions for these tasks, and the functions that a process has."""
    key = (*names, "", *functions)
    if key not in _machines:
        made = _machines[key] = Machine.from_yaml(OUTCOMES + "".join(map(region, names)) + "  closed: {type: final}\n")
        for name in functions:
            made.task(name=name)(FUNCTIONS.get(name, asked))
    return _machines[key]


class Attempt(msgspec.Struct):
    """One attempt that was begun."""

    number: int
    token: str
    process: str
    is_over: bool = False
    """Its function came to its end."""
    is_given_back: bool = False
    """By a worker that left; it does not count."""
    was_put_off: bool = False
    """It failed, and another one was to follow."""
    was_kept: bool = False
    """For somebody who completes it from outside."""


class Outcomes(ExecutionScenario):
    """Tasks that fail, are repeated, time out, are given back by workers that leave, and answered by outsiders.

    Each ends once, with an outcome that an attempt or an outsider gave it, after no more attempts than it has.
    """

    name = "outcomes"
    tables = TABLES
    faults = msgspec.structs.replace(
        ROUGH, unknown=0.04, crash=0.004, pause=0.005, pause_s_max=2.0, skew_s_max=0.3, clock_error_s=0.1
    )
    names: tuple[str, ...] = ("flaky", "slow", "asked")
    """Its tasks."""
    stops = 2
    outsiders = 2
    longest = 6
    """An attempt takes up to so many times 0.15 s."""
    worker_options = WorkerOptions(
        poll_s=1.0, lease_s=1.0, heartbeat_s=2.0, concurrency=3, group=8, drain_s=0.3,
    )  # fmt: skip

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.attempts: dict[str, list[Attempt]] = collections.defaultdict(list)
        """By the task's name."""
        self.given: dict[str, list[tuple[str, str]]] = collections.defaultdict(list)
        """What outsiders were told to have stored, by the task's name: how it ended, and with what."""
        self.tried: list[tuple[str, str]] = []
        """What outsiders tried to store: how it ended, and with what."""
        self.tokens: list[tuple[str, str]] = []
        """Names of tasks that wait for outsiders, and the tokens that these were told."""
        self.wrongs: list[str] = []
        """What did not hold at a moment at which it must."""
        self.stopped: dict[str, int] = collections.Counter()

    def runtime(self) -> Runtime:
        """What a process knows."""
        return Runtime([machine(self.names, self.names)], self.options)

    def runtime_of(self, process: Process) -> Runtime:
        """What a worker knows."""
        return self.runtime()

    # --- the processes ------------------------------------------------------------------------------------------------

    def begin_clients(self) -> None:
        """One who starts it, and outsiders."""
        self.world.store.watch = self.see
        below = self.world.choices.below
        self.input = {"fails": below(5), "final": below(4) == 1}
        self.client("starter", lambda rt: insist(deliver.start, rt, "outcomes", "x", self.input))
        for n in range(self.outsiders):
            self.world.process(f"outsider-{n}", self.outsider(n))

    def worker(self, process: Process) -> Generator[Effect, Any, Any]:
        """The real shell, which is told to stop a few times and started again."""
        while True:
            worker = Worker(self.runtime_of(process), self.worker_options, perform=self.performer(process))
            shell = yield from spawn(work(worker), "shell")
            if self.stopped[process.name] < self.stops:
                yield from race(shell, timeout_s=0.2 * (1 + self.world.choices.below(10)))
                yield from signal(worker.stop)
            while not shell.done:
                yield from race(shell)
            if shell.outcome is not None and shell.outcome.error is not None:
                raise shell.outcome.error
            self.stopped[process.name] += 1

    def performer(self, process: Process) -> Any:
        """What begins an attempt: its function, after a while."""

        def perform(runner: TaskRunner) -> Program[Any]:
            find_function(runner.rt, runner.task)
            return self.perform_in(process, runner)

        return perform

    def perform_in(self, process: Process, runner: TaskRunner) -> Program[Any]:
        """An attempt, counted; whoever is asked hears its token."""
        task = runner.task
        attempt = Attempt(task.attempt, task.token, process.name)
        self.begun(task.name, attempt)
        if is_asked(task.name):
            self.tokens.append((task.name, runner.context.token))
        yield from sleep(0.15 * self.world.choices.below(2 if task.name == "flaky" else self.longest))
        try:
            return (yield from call_function(runner))
        finally:
            attempt.is_over = True

    def outsider(self, n: int) -> Main:
        """The process of one who answers."""
        return lambda process: self.answer(n)

    def answer(self, n: int) -> Program[None]:
        """Answer what is asked, sooner or later, and again whatever became of it."""
        done = 0
        while True:
            while done < len(self.tokens):
                name, public = self.tokens[done]
                yield from sleep(0.25 * self.world.choices.below(8))
                for _ in range(1 + self.world.choices.below(2)):
                    yield from self.give(n, name, public)
                done += 1
            yield from sleep(0.1)

    def give(self, n: int, name: str, public: str) -> Program[None]:
        """One answer, until the store says what became of it."""
        rt, text = self.runtime(), f"{n} says"
        how = "error" if self.world.choices.below(3) == 1 else "done"
        place, token = read_public_token(public)
        self.tried.append((how, text))
        while True:
            try:
                if how == "done":
                    yield from tasks.complete_from_outside(rt, public, {"by": text})
                else:
                    yield from tasks.fail_from_outside(rt, public, text)
            except TaskNotClaimed:
                item = self.world.store.tables.get(place)
                if item is not None and item.get("token") == token:
                    self.wrongs.append(f"{text} for {name!r} was refused, which waited for just that")
            except LOST:
                yield from sleep(0.02)
                continue
            else:
                self.given[name].append((how, text))
            return

    # --- what is seen -------------------------------------------------------------------------------------------------

    def begun(self, name: str, attempt: Attempt) -> None:
        """Note an attempt; its number is that of none before it, but for those that were given back."""
        for before in self.attempts[name]:
            if before.number == attempt.number and not before.is_given_back:
                self.wrongs.append(f"attempt {attempt.number} at {name!r} was begun twice")
        self.attempts[name].append(attempt)

    def see(self, key: Key, before: Item | None, after: Item | None) -> None:
        """Look at each item as it becomes visible."""
        if key.table is REGISTRY:
            self.see_worker(before, after)
        elif key.table is EXECUTIONS and str(key.sort).startswith("w/") and before is not None:
            self.see_task(str(key.sort).rsplit("/", 1)[1], before, after or {})

    def see_worker(self, before: Item | None, after: Item | None) -> None:
        """A worker that said that it leaves is not heard of again: others would leave its buckets to it."""
        if before is None or after is None or before["kind"] != WORKERS:
            return
        if not before["heard_us"] and after["heard_us"]:
            self.wrongs.append("a worker that had left was heard of again")

    def see_task(self, name: str, before: Item, after: Mapping[str, Any]) -> None:
        """What is kept for outside stays so until its time."""
        token = before.get("token")
        mine = [each for each in self.attempts[name] if each.token == token]
        if not after:
            return
        if token and not after.get("token"):
            self.see_given_back(name, mine, was=int(before["attempt"]), now=int(after["attempt"]))
        if after.get("is_external"):
            for attempt in mine:
                attempt.was_kept = True
        if not before.get("is_external"):
            return
        until_us = int(before["lease_until_us"])
        if after.get("token") != token and self.world.now_us < until_us:
            self.wrongs.append(
                f"{name!r} was kept for outside, and taken {(until_us - self.world.now_us) / 1e6:g} s early"
            )
        if after.get("token") == token and after["lease_until_us"] < until_us:
            self.wrongs.append(f"{name!r} was kept for outside, and its time was cut short")

    def see_given_back(self, name: str, mine: Sequence[Attempt], *, was: int, now: int) -> None:
        """An attempt that was given back before it had ended does not count."""
        for attempt in mine:
            attempt.is_given_back = now < was
            attempt.was_put_off = now == was
        if now == was and not is_asked(name) and not any(each.is_over for each in mine):
            self.wrongs.append(f"attempt {was} at {name!r} was given back before it had ended, and counted")

    # --- what must hold -----------------------------------------------------------------------------------------------

    def is_over(self) -> bool:
        """It has ended."""
        state = self.state("x")
        return self.is_idle() and state is not None and state.ended

    def waits_for(self) -> str:
        """Which tasks have not ended."""
        ended = {end[0] for end in self.context("x").get("ends", [])}
        return ", ".join(sorted(set(self.names) - ended))

    def problems(self) -> Iterable[str]:
        """Each task ended once, and as somebody said who had a say."""
        yield from dict.fromkeys(self.wrongs)
        state, ends = self.state("x"), self.context("x").get("ends", [])
        if state is None or state.status != "done" or sorted(end[0] for end in ends) != sorted(self.names):
            yield f"it is {state and state.status}, its tasks ended as {ends}"
            return
        for name, how, what in ends:
            yield from self.misfits(name, how, what)
        for name, given in self.given.items():
            if len(given) > 1:
                yield f"two outsiders were told that their answer to {name!r} counts: {given}"

    def misfits(self, name: str, how: str, what: dict[str, Any]) -> Iterable[str]:
        """What is wrong with one task's end."""
        begun = [each for each in self.attempts[name] if not each.is_given_back]
        most = ATTEMPTS[name]
        if len(begun) > most or any(each.number > most for each in begun):
            yield f"{name!r} has {most} attempts, begun were {begun}"
        if how == "error" and not 0 < what["attempts"] <= most:
            yield f"{name!r} ended after attempt {what['attempts']} of {most}"
        numbers = {each.number for each in self.attempts[name]}
        given = self.given[name]
        if given and (how, _said(how, what)) != given[0]:
            yield f"an outsider was told that {given[0]} counts, and {name!r} ended with {how} {what}"
        elif how == "done" and is_asked(name):
            if (how, what["by"]) not in self.tried:
                yield f"nobody completed {name!r} with {what}"
        elif how == "done":
            fails = self.input["fails"] if name == "flaky" else 0
            if what["attempt"] not in numbers or what["attempt"] <= fails:
                yield f"{name!r} ended with {what}, begun were {self.attempts[name]}"
        else:
            yield from self.wrong_error(name, what)

    def wrong_error(self, name: str, error: dict[str, Any]) -> Iterable[str]:
        """What is wrong with the error with which a task ended."""
        kind, message, number = error["type"], error["message"], error["attempts"]
        attempts = [each for each in self.attempts[name] if each.number == number]
        is_last = number == ATTEMPTS[name]
        if name == "flaky" and kind in ("ValueError", "TaskFailed"):
            is_final = kind == "TaskFailed"
            said = "refused" if is_final else "failed"
            if message != f"{said} {number}" or not attempts or not (is_final or is_last):
                yield f"{name!r} ended with {error}, begun were {self.attempts[name]}"
        elif is_asked(name) and kind == "TaskFailed":
            if ("error", message) not in self.tried:
                yield f"nobody failed {name!r} with {error}"
        elif is_asked(name) and kind == "Timeout":
            was_running = message.startswith("no result within")  # its worker stood still with it
            if not is_last or not (was_running or any(each.was_kept for each in attempts)):
                yield f"{name!r} ended with {error}, begun were {self.attempts[name]}"
        elif kind == "Crashed":
            if not is_last or any(each.was_kept or each.was_put_off for each in attempts):
                yield f"{name!r} ended with {error}, begun were {self.attempts[name]}"
        else:
            yield f"{name!r} ended with {error}, which nobody said"


def _said(how: str, what: Mapping[str, Any]) -> Any:
    return what.get("by") if how == "done" else what.get("message")


class Asked(Outcomes):
    """What is kept for outside stays so until its time, whatever its worker sent before that arrives late."""

    name = "outcomes, asked"
    names = ("asked", "asked-b", "asked-c")
    faults = msgspec.structs.replace(
        ROUGH, unknown=0.2, crash=0.0003, pause=0.02, pause_s_max=2.0, skew_s_max=0.2, clock_error_s=0.1
    )
    stops = 0
    longest = 9
    worker_options = WorkerOptions(
        poll_s=0.5, lease_s=0.5, heartbeat_s=2.0, concurrency=3, group=8, drain_s=0.3,
    )  # fmt: skip


class Parked(Outcomes):
    """A rolling deploy: a worker that has not the functions yet parks their tasks, which costs no attempt."""

    name = "outcomes, deploy"
    stops = 1
    worker_options = WorkerOptions(
        poll_s=2.0, lease_s=1.0, heartbeat_s=4.0, concurrency=3, group=8, drain_s=0.3,
    )  # fmt: skip

    def runtime_of(self, process: Process) -> Runtime:
        """One worker is old until it was stopped once."""
        if process.name != "worker-0" or self.stopped[process.name]:
            return self.runtime()
        return Runtime([machine(self.names, ("flaky",))], self.options)


ALL: tuple[type[ExecutionScenario], ...] = (Outcomes, Asked, Parked)
