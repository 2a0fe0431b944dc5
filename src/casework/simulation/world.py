"""A simulated world: processes with clocks of their own, programs that interleave at their yields, virtual time.

A :class:`World` is the third driver of programs, beside ``run`` and ``run_async``. Each step, a schedule picks one of
those who can go on, and carries out the effect that it waits at; between two effects of a program anything may happen.
Time passes a little with every step, and jumps when everybody sleeps. A process may pause, or die at any yield and be
started again; what it sent to the store goes on without it.
"""

from __future__ import annotations

import asyncio
import heapq
import inspect
from collections.abc import Callable, Generator, Sequence
from typing import Any

from casework.errors import Unavailable
from casework.kernel.containment import contained, is_interrupt
from casework.kernel.effects import (
    All,
    Call,
    Cancelled,
    Effect,
    Flag,
    Get,
    GetMany,
    Handle,
    Now,
    Outcome,
    Query,
    Race,
    RunMany,
    Signal,
    Sleep,
    Spawn,
    Token,
    Transact,
    Write,
)
from casework.kernel.items import Table
from casework.simulation import schedules, store
from casework.simulation.carrier import Main, Process, Task
from casework.simulation.choices import Choices
from casework.simulation.clocks import SampledClock
from casework.simulation.faults import NONE, Faults
from casework.simulation.timeline import Timeline

START_US = 1_750_000_000_000_000
STEP_US = 200
"""Virtual time of one step."""


class World:
    """Everything of one run.

    Args:
        seed: decides everything that is not decided by ``replay``.
        tables: of the store.
        schedule: ``uniform``, ``sticky`` or ``priority``.
        faults: what goes wrong, and how often.
        replay: the decisions of an earlier run.
        choices: decisions from elsewhere, in place of ``seed`` and ``replay``.
        records: keep a timeline.
    """

    def __init__(
        self, seed: int, tables: Sequence[Table], *, schedule: str = "uniform", faults: Faults = NONE,
        replay: Sequence[int] | None = None, choices: Choices | None = None, records: bool = False,
    ) -> None:  # fmt: skip
        self.choices = choices or Choices(seed, replay)
        self.faults = faults
        self.store = store.SimulatedStore(tables)
        self.now_us = START_US
        self.steps = 0
        self.actor: Any = None
        """Who takes the step under way: a task, or something of the store's own."""
        self.history: list[Any] = []
        self.processes: list[Process] = []
        self.timeline: Timeline | None = Timeline() if records else None
        self._schedule = schedules.make(schedule, self.choices)
        self._ready: list[Any] = []
        self._sleepers: list[tuple[int, int, Task]] = []
        self._starts: list[tuple[int, int, Process]] = []
        self._numbers = 0
        self._tokens = 0
        self._samples_clocks = faults.sampled_clocks

    def next_number(self) -> int:
        """A number that nobody had before."""
        self._numbers += 1
        return self._numbers

    # --- processes ----------------------------------------------------------------------------------------------------

    def process(self, name: str, main: Main, *, may_crash: bool = True) -> Process:
        """Start a process that runs ``main``, again after each crash."""
        skew_us = 0
        if self.faults.skew_s_max:
            skew_us = int((self.choices.below(2001) - 1000) / 1000 * self.faults.skew_s_max * 1e6)
        process = Process(self, name, main, skew_us, may_crash=may_crash)
        self.processes.append(process)
        self._start(process)
        return process

    def _start(self, process: Process) -> None:
        process.is_up = True
        process.starts_n += 1
        if self._samples_clocks:
            process.clock = SampledClock(self, process.skew_us, process.clock)
        again = f" (start {process.starts_n})" if process.starts_n > 1 else ""
        if self.timeline is not None and again:
            self.timeline.event(self, process.name, "starts again")
        self.spawn(process, process.main(process), f"main{again}")

    def crash(self, process: Process) -> None:
        """Kill a process: no program of it takes another step. It is started again after a while."""
        if self.timeline is not None:
            self.timeline.event(self, process.name, "is killed")
        process.is_up = False
        for task in process.tasks:
            self._bury(task)
        process.tasks = []
        restart_us = self.now_us + 1000 * (1 + self.choices.below(2000))
        heapq.heappush(self._starts, (restart_us, self.next_number(), process))

    def _bury(self, task: Task) -> None:
        task.is_dead = True
        task.wake_number += 1
        task.flight = None
        if task in self._ready:
            self._ready.remove(task)
        task.program = _DEAD  # a killed process runs no cleanup: its generator is dropped, not closed

    # --- tasks --------------------------------------------------------------------------------------------------------

    def spawn(self, process: Process, program: Generator[Effect, Any, Any], what: str) -> Task:
        """Let a process carry a program beside its others."""
        task = Task(process, program, what, self.next_number())
        process.tasks.append(task)
        self._ready.append(task)
        self.answer(task, None)
        return task

    def admit(self, actor: Any) -> None:
        """Let something of the store's own take part."""
        self._ready.append(actor)

    def retire(self, actor: Any) -> None:
        """Let something take part no longer."""
        if actor in self._ready:
            self._ready.remove(actor)

    def block(self, task: Task) -> None:
        """Let a task wait until it is answered."""
        self._ready.remove(task)

    def answer(self, task: Task, value: Any, error: BaseException | None = None) -> None:
        """Give a program the answer to its effect, and carry it to the next one that takes a step."""
        program = task.program
        waited_at = task.effect
        if waited_at is not None:
            if self._samples_clocks and type(waited_at) in _ANSWERED_BY_THE_SERVICE:
                task.process.clock.saw_answer(task.sent)
            if task.flight is None and task not in self._ready:
                self._ready.append(task)
            if self.timeline is not None:
                self.timeline.answered(self, task, value, error)
        try:
            while True:
                effect = program.send(value) if error is None else program.throw(error)
                error = None
                at_once = _AT_ONCE.get(type(effect))
                if at_once is None:
                    break
                value = at_once(self, task, effect)
        except StopIteration as stop:
            self._end(task, Outcome(stop.value))
            return
        except (Exception, Cancelled) as raised:  # noqa: BLE001 - handed to whoever waits for the program
            self._end(task, Outcome(error=raised))
            return
        task.effect = effect
        if self._samples_clocks:
            task.sent = task.process.clock.service.mark()
        begins = _BEGINS.get(type(effect))
        if begins is not None:
            begins(self, task, effect)

    def token(self) -> str:
        """A token that nobody had before."""
        self._tokens += 1
        return f"token-{self._tokens:016d}"

    def _end(self, task: Task, outcome: Outcome[Any]) -> None:
        task.is_dead = True
        if task in self._ready:
            self._ready.remove(task)
        if task in task.process.tasks:
            task.process.tasks.remove(task)
        for child in task.children:
            if not child.is_dead:
                self.cancel(child)
        if task.handle is not None:
            task.handle.outcome = outcome
            task.handle.wake = None
            for listener in task.handle.task or ():
                listener()
        if task.on_end is not None:
            task.on_end(outcome)
        elif outcome.error is not None and task.handle is None:
            raise ProgramFailed(task, outcome.error)

    def cancel(self, task: Task) -> None:
        """Raise ``Cancelled`` in a program at the effect that it waits at, once a write under way is answered."""
        if task.is_dead:
            return
        if task.flight is not None:
            task.is_cancelled = True
            return
        task.wake_number += 1
        task.partial = task.nonce = task.answers = None
        self.answer(task, None, Cancelled())

    def begin_spawned(self, parent: Task, effect: Spawn) -> Handle:
        """Carry a program beside the one that asks for it."""
        handle = Handle(effect.name)
        child = Task(parent.process, effect.program, effect.name or "spawned", self.next_number())
        child.handle = handle
        handle.task = []
        handle.wake = lambda: self.cancel(child)
        parent.children = [other for other in parent.children if not other.is_dead]
        parent.children.append(child)
        parent.process.tasks.append(child)
        self._ready.append(child)
        child.effect = Sleep(0)  # its first step is a step of its own
        return handle

    def begin_sleep(self, task: Task, seconds: float) -> None:
        """Let a task go on after a while."""
        if seconds > 0:
            self.put_off(task, self.now_us + int(seconds * 1e6))

    def put_off(self, task: Any, due_us: int) -> None:
        """Let a task go on no sooner than at ``due_us``."""
        self._ready.remove(task)
        task.wake_number += 1
        heapq.heappush(self._sleepers, (due_us, task.number * 1_000_000 + task.wake_number % 1_000_000, task))

    def begin_race(self, task: Task, effect: Race) -> None:
        """Let a task wait for whatever comes first."""
        for wait in effect.waits:
            if (isinstance(wait, Flag) and wait.is_set) or (isinstance(wait, Handle) and wait.done):
                return  # it goes on at its next step
        if effect.timeout_s is not None:
            self.begin_sleep(task, max(effect.timeout_s, 1e-6))
        else:
            self._ready.remove(task)
            task.wake_number += 1
        number = task.wake_number

        def wake() -> None:
            if task.wake_number == number and not task.is_dead:
                task.wake_number += 1
                self._ready.append(task)

        for wait in effect.waits:
            if isinstance(wait, Flag):
                wait.listeners[wake] = None
            else:
                wait.task.append(wake)
        task.partial = wake

    def begin_many(self, task: Task, effect: RunMany) -> None:
        """Carry several programs at once, whose outcomes a task waits for."""
        outcomes: list[Any] = [None] * len(effect.programs)
        if not outcomes:
            self.answer(task, [])
            return
        left = len(outcomes)
        self._ready.remove(task)
        task.wake_number += 1

        def ended(position: int, outcome: Outcome[Any]) -> None:
            nonlocal left
            outcomes[position] = outcome
            left -= 1
            if not left and not task.is_dead:
                self._ready.append(task)
                self.answer(task, outcomes)

        for position, program in enumerate(effect.programs):
            child = Task(task.process, program, f"{task.what}[{position}]", self.next_number())
            child.on_end = lambda outcome, position=position: ended(position, outcome)
            task.children = [other for other in task.children if not other.is_dead]
            task.children.append(child)
            task.process.tasks.append(child)
            self._ready.append(child)
            child.effect = Sleep(0)

    def begin_call(self, task: Task, body: Generator[Any, Any, Any]) -> None:
        """Let a task wait for a function that takes virtual time: one that is written as a generator of effects."""
        self._ready.remove(task)
        task.wake_number += 1
        number = task.wake_number

        def ended(outcome: Outcome[Any]) -> None:
            if task.wake_number == number and not task.is_dead:
                self._ready.append(task)
                self.answer(task, outcome.value, outcome.error)

        child = Task(task.process, body, f"{task.what}, a call", self.next_number())
        child.on_end = ended
        task.children = [other for other in task.children if not other.is_dead]
        task.children.append(child)
        task.process.tasks.append(child)
        self._ready.append(child)
        child.effect = Sleep(0)

    # --- the run ------------------------------------------------------------------------------------------------------

    def run(self, is_over: Callable[[], bool], *, steps_max: int) -> bool:
        """Go on until ``is_over`` says so, which is asked now and then; False after ``steps_max`` steps more."""
        last_step = self.steps + steps_max
        while self.steps < last_step:
            if is_over():
                return True
            if not self._go_on(min(last_step, self.steps + 64)):
                return is_over()
        return is_over()

    def _go_on(self, until: int) -> bool:
        """Take steps; False when nobody will ever take one again."""
        ready, pick, which, handlers = self._ready, self._schedule.pick, self.choices.which, _HANDLERS
        sleepers, starts = self._sleepers, self._starts
        crash, pause = self.faults.crash, self.faults.pause
        can_fail = bool(crash or pause)
        while self.steps < until:
            now_us = self.now_us
            if not ready or (sleepers and sleepers[0][0] <= now_us) or (starts and starts[0][0] <= now_us):
                if not self._wake():
                    return False
                if not ready:
                    continue
                now_us = self.now_us
            self.steps += 1
            self.now_us = now_us = now_us + STEP_US
            position = pick(ready) if len(ready) > 1 else 0
            actor = ready[position]
            if position:
                ready[position], ready[0] = ready[0], actor
            self.actor = actor
            process = actor.process
            if process is None:
                actor.step(self)  # something of the store's own
            elif process.paused_until_us > now_us:
                self.put_off(actor, process.paused_until_us)
            elif can_fail and (fault := which(crash if process.may_crash else 0.0, pause)):
                self._stumble(actor, process, fault)
            else:
                effect = actor.effect
                handlers[type(effect)](self, actor, effect)
        return True

    def _stumble(self, actor: Task, process: Process, fault: int) -> None:
        """Let a process die (1) or stand still (2) instead of taking a step."""
        if fault == 1:
            self.crash(process)
            return
        process.paused_until_us = self.now_us + int(self.faults.pause_s_max * 1e3 * (1 + self.choices.below(1000)))
        if process.clock is not None and self.choices.happens(0.5):
            process.clock.stands_still(process.paused_until_us - self.now_us)
        step_us = int(self.faults.clock_step_s_max * 1e6)
        if step_us and process.clock is not None and self.choices.happens(0.5):
            by_us = step_us // 4 + self.choices.below(1000) * (step_us * 3 // 4000)
            process.clock.is_set(by_us if self.choices.happens(0.5) else -by_us)
        if self.timeline is not None:
            seconds = (process.paused_until_us - self.now_us) / 1e6
            self.timeline.event(self, process.name, f"pauses for {seconds:g} s")
        self.put_off(actor, process.paused_until_us)

    def _wake(self) -> bool:
        """Let those go on whose time has come; when nobody can, let time jump. False: nobody sleeps either."""
        if not self._ready:
            times = [queue[0][0] for queue in (self._sleepers, self._starts) if queue]
            if not times:
                return False
            self.now_us = max(self.now_us, min(times))
        while self._sleepers and self._sleepers[0][0] <= self.now_us:
            _, number, task = heapq.heappop(self._sleepers)
            if not task.is_dead and number % 1_000_000 == task.wake_number % 1_000_000:
                task.wake_number += 1
                self._ready.append(task)
        while self._starts and self._starts[0][0] <= self.now_us:
            _, _, process = heapq.heappop(self._starts)
            self._start(process)
        return True


class ProgramFailed(Exception):
    """A process's main program raised: the scenario, or what it tests, is broken."""

    def __init__(self, task: Task, error: BaseException) -> None:
        self.error = error
        super().__init__(f"{task!r} raised {type(error).__name__}: {error}")
        self.__cause__ = error


def _dead() -> Generator[Effect, Any, Any]:
    yield Sleep(0)


_DEAD = _dead()


# --- effects that are not the store's ---------------------------------------------------------------------------------


def _do_answer_none(world: World, task: Task, effect: Effect) -> None:
    world.answer(task, None)


def _do_now(world: World, task: Task, effect: Now) -> None:
    """A step of its own: a host may stand still between what it read and its look at the clock.

    Where its clocks are in doubt it asks the service, which takes a round trip in which it may stand still again.
    """
    clock = task.process.clock
    if clock is not None:
        asked_n, task.partial = task.partial or 0, None
        if asked_n:
            clock.saw_answer(task.sent)
        if clock.asks(asked_n):
            if world.choices.happens(world.faults.throttled_reads):
                world.answer(task, None, Unavailable("the service could not be asked what time it is"))
                return
            task.partial, task.sent = asked_n + 1, clock.service.mark()
            world.put_off(task, world.now_us + 1000 * (1 + world.choices.below(50)))
            return
    world.answer(task, task.process.now())


def _do_race(world: World, task: Task, effect: Race) -> None:
    wake, task.partial = task.partial, None
    for wait in effect.waits:
        if isinstance(wait, Flag):
            wait.listeners.pop(wake, None)
    world.answer(task, None)


def _do_call(world: World, task: Task, effect: Call) -> None:
    try:
        result = effect.function(*effect.args, **effect.kwargs)
        if inspect.iscoroutine(result):
            result = asyncio.run(result)
        elif inspect.isgenerator(result):
            world.begin_call(task, result)
            return
    except BaseException as error:
        if is_interrupt(error):
            raise
        world.answer(task, None, contained(error))
        return
    world.answer(task, result)


# What is answered within the step in which it is asked: nobody else could tell the difference.
_AT_ONCE: dict[type, Callable[[World, Task, Any], Any]] = {
    Token: lambda world, task, effect: world.token(),
    Signal: lambda world, task, effect: effect.flag.set(),
    Spawn: World.begin_spawned,
}

# What a task begins to wait for as soon as it asks.
_BEGINS: dict[type, Callable[[World, Task, Any], None]] = {
    Sleep: lambda world, task, effect: world.begin_sleep(task, effect.seconds),
    Race: World.begin_race,
    RunMany: World.begin_many,
}

# What is carried out at a task's turn.
_HANDLERS: dict[type, Callable[[World, Task, Any], None]] = {
    Get: store.do_read,
    GetMany: store.do_read,
    Query: store.do_read,
    All: store.do_all,
    Write: store.do_write,
    Transact: store.do_transact,
    Now: _do_now,
    Sleep: _do_answer_none,
    Race: _do_race,
    Call: _do_call,
}

_ANSWERED_BY_THE_SERVICE = frozenset((Get, GetMany, Query, Write, Transact, All))
