"""Drivers: the loops that carry programs, and the only code in which sync and async differ.

``run`` carries one program, ``run_many`` a group of them in lockstep so that their writes share commits, ``run_async``
(in :mod:`casework.backends.drive_async`) one program or a shell on an event loop. What a store raises is thrown into
the program at its yield, ``BaseException`` too, and the driver goes on driving: a program may still yield a release.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from casework.backends.port import Backend
from casework.errors import CaseworkError, Misuse, StepLimit
from casework.kernel.containment import guarded
from casework.kernel.effects import (
    All,
    Call,
    Effect,
    Flag,
    Get,
    GetMany,
    Now,
    Outcome,
    Query,
    Race,
    RunMany,
    Signal,
    Sleep,
    Token,
    Transact,
    Write,
)
from casework.kernel.programs import Program

T = TypeVar("T")

STEP_LIMIT = 1_000_000
"""A program that yields more often than this is stopped with StepLimit: it would never end."""

READS = frozenset((Get, GetMany, Query))
WRITES = frozenset((Write, Transact))
_GROUPED_READS = READS | {All}


def run(program: Program[T], backend: Backend) -> T:
    """Carry ``program`` to its end on the calling thread, and return what it returns.

    Raises what the program raises; StepLimit when it does not end.
    """
    return run_on(program, None, backend)


def run_on(program: Program[T], effect: Effect | None, backend: Backend) -> T:
    """As :func:`run`, for a program that has yielded ``effect`` already; None: it has not begun."""
    answer: Any = None
    error: BaseException | None = None
    if effect is not None:
        try:
            answer = perform(effect, backend)
        except BaseException as raised:
            error = raised
    for _ in range(STEP_LIMIT):
        try:
            effect = program.send(answer) if error is None else program.throw(error)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        answer = error = None
        try:
            answer = perform(effect, backend)
        except BaseException as raised:
            error = raised
    stop_program(program)
    raise StepLimit(f"a program took more than {STEP_LIMIT:,} steps and was stopped: {program!r}")


def perform(effect: Effect, backend: Backend) -> Any:
    """Carry out any effect but those of shells, and return its answer."""
    kind = type(effect)
    if kind in READS or kind in WRITES:
        return backend.execute(effect)  # type: ignore[arg-type]
    if kind is Now:
        return backend.now()
    if kind is Token:
        return backend.token()
    if kind is All:
        return [outcome.result() for outcome in backend.execute_many(effect.reads)]  # type: ignore[attr-defined]
    if kind is Sleep:
        return backend.sleep(effect.seconds)  # type: ignore[attr-defined]
    if kind is Call:
        return call_function(effect)  # type: ignore[arg-type]
    if kind is Signal:
        return effect.flag.set()  # type: ignore[attr-defined]
    if kind is Race:
        return wait_for_flags(effect, backend)  # type: ignore[arg-type]
    if kind is RunMany:
        return run_many(effect.programs, backend)  # type: ignore[attr-defined]
    raise Misuse(f"{kind.__name__} is for shells, which run on the async driver (run_async)")


def wait_for_flags(effect: Race, backend: Backend) -> None:
    """Block until one of the flags is set or the time has passed. Handles belong to shells: Misuse."""
    happened = threading.Event()
    wake = happened.set
    flags = [wait for wait in effect.waits if isinstance(wait, Flag)]
    if not flags or len(flags) < len(effect.waits):
        raise Misuse("a Race for anything but flags is for shells, which run on the async driver (run_async)")
    try:
        for flag in flags:
            flag.listeners[wake] = None
        if any(flag.is_set for flag in flags):
            return
        let_pass = getattr(backend, "let_pass", None)  # a virtual clock moves on; a host's is waited for
        if let_pass is None or effect.timeout_s is None:
            happened.wait(effect.timeout_s)
        else:
            let_pass(effect.timeout_s)
    finally:
        for flag in flags:
            flag.listeners.pop(wake, None)


def call_function(effect: Call) -> Any:
    """Run a user's function on this thread; Misuse when it is a coroutine function, which needs the async driver."""
    result = guarded(effect.function, *effect.args, **effect.kwargs)
    if inspect.iscoroutine(result):
        result.close()
        name = getattr(effect.function, "__qualname__", repr(effect.function))
        raise Misuse(f"{name} is a coroutine function; use casework.open_async, or make it a plain function")
    return result


class _Runner:
    """One program of a group: where it stands, and what it is to be sent next."""

    __slots__ = ("answer", "effect", "error", "outcome", "program", "sleep_s", "steps")

    def __init__(self, program: Program[Any]) -> None:
        self.program = program
        self.answer: Any = None
        self.error: BaseException | None = None
        self.effect: Any = None
        self.outcome: Outcome[Any] | None = None
        self.steps = 0
        self.sleep_s = 0.0

    def advance(self, backend: Backend) -> None:
        """Step to the next effect of the store, sleep or call; answer the quick ones on the way."""
        program = self.program
        answer, error = self.answer, self.error
        self.answer = self.error = None
        try:
            while True:
                self.steps += 1
                effect = program.send(answer) if error is None else program.throw(error)
                kind = type(effect)
                if self.steps > STEP_LIMIT:
                    stop_program(program)
                    raise StepLimit(f"a program took more than {STEP_LIMIT:,} steps and was stopped: {program!r}")
                if kind is Now:
                    answer = error = None
                    try:
                        answer = backend.now()
                    except CaseworkError as raised:  # a service that had to be asked for the time did not answer
                        error = raised
                elif kind is Token:
                    answer, error = backend.token(), None
                else:
                    self.effect = effect
                    if kind is Sleep:
                        self.sleep_s = effect.seconds  # type: ignore[attr-defined]
                    return
        except StopIteration as stop:
            self.outcome = Outcome(stop.value)
        except BaseException as raised:
            self.outcome = Outcome(error=raised)


def stop_program(program: Program[Any]) -> None:
    """Close a program that will not be driven on; one that yields in answer is left alone."""
    with contextlib.suppress(RuntimeError):
        program.close()


HandOver = Callable[[int, Program[Any], Call], None]
"""Takes over a program of a group, by its position, that waits for a function of the user's."""

LEFT: Outcome[Any] = Outcome()
"""Stands for the outcome of a program that left its group."""


def run_many(
    programs: Sequence[Program[Any]], backend: Backend, hand_over: HandOver | None = None
) -> list[Outcome[Any]]:
    """Carry a group of programs in lockstep: the reads of all, then the writes of all in one go, then the rest.

    Programs that read are served before any that writes, so that a group's writes share one commit. A user's function
    runs when no read or write is waiting: a slow one delays nobody's commit. With ``hand_over`` a program that calls
    one leaves the group instead, and its outcome here is :data:`LEFT`.

    An interrupt (KeyboardInterrupt, SystemExit) is thrown into every program that has not ended; the group is driven
    on, so that each may still yield a release, and then the interrupt is raised.
    """
    runners = [_Runner(program) for program in programs]
    interrupt: BaseException | None = None
    try:
        moving = waiting = runners
        while True:
            for runner in moving:
                runner.advance(backend)
            if hand_over is not None:
                _let_callers_leave(runners, moving, hand_over)
            waiting = [runner for runner in waiting if runner.outcome is None]
            if interrupt is None:
                interrupt = _interrupt_of(moving)
                if interrupt is not None:
                    moving = _throw(interrupt, waiting)
                    continue
            if not waiting:
                break
            moving, carry_out = _choose(waiting)
            try:
                carry_out(moving, waiting, backend)
            except Exception as raised:
                _throw(raised, moving)
            except BaseException as raised:
                moving = _throw(raised, waiting if interrupt is None else moving)
                interrupt = interrupt or raised
    except BaseException:
        for runner in runners:
            if runner.outcome is None:
                stop_program(runner.program)
        raise
    if interrupt is not None:
        raise interrupt
    return [runner.outcome for runner in runners]  # type: ignore[misc]


def _let_callers_leave(runners: list[_Runner], moving: list[_Runner], hand_over: HandOver) -> None:
    for runner in moving:
        if type(runner.effect) is Call and runner.outcome is None:
            runner.outcome = LEFT
            hand_over(runners.index(runner), runner.program, runner.effect)


def _interrupt_of(runners: Sequence[_Runner]) -> BaseException | None:
    for runner in runners:
        outcome = runner.outcome
        if outcome is not None and outcome.error is not None and not isinstance(outcome.error, Exception):
            return outcome.error
    return None


def _throw(error: BaseException, runners: list[_Runner]) -> list[_Runner]:
    for runner in runners:
        runner.answer, runner.error = None, error
    return runners


_CarryOut = Callable[[list[_Runner], list[_Runner], Backend], None]


def _choose(waiting: list[_Runner]) -> tuple[list[_Runner], _CarryOut]:
    """Who goes next: readers, else writers, else one of the others, else those whose sleep ends first."""
    readers = [runner for runner in waiting if type(runner.effect) in _GROUPED_READS]
    if readers:
        return readers, _carry_out_reads
    writers = [runner for runner in waiting if type(runner.effect) in WRITES]
    if writers:
        return writers, _carry_out_writes
    for runner in waiting:
        if type(runner.effect) is not Sleep:
            return [runner], _carry_out_alone
    first_s = min(runner.sleep_s for runner in waiting)
    return [runner for runner in waiting if runner.sleep_s == first_s], _carry_out_sleep


def _carry_out_writes(runners: list[_Runner], waiting: list[_Runner], backend: Backend) -> None:
    outcomes = backend.execute_many([runner.effect for runner in runners])
    for runner, outcome in zip(runners, outcomes, strict=True):
        runner.answer, runner.error = outcome.value, outcome.error


def _carry_out_reads(runners: list[_Runner], waiting: list[_Runner], backend: Backend) -> None:
    """As the writes, with the reads of each ``All`` among those of the others."""
    if not any(type(runner.effect) is All for runner in runners):
        return _carry_out_writes(runners, waiting, backend)
    effects: list[Any] = []
    for runner in runners:
        effects += runner.effect.reads if type(runner.effect) is All else (runner.effect,)
    outcomes = iter(backend.execute_many(effects))
    for runner in runners:
        if type(runner.effect) is All:
            several = list(itertools.islice(outcomes, len(runner.effect.reads)))
            runner.error = next((outcome.error for outcome in several if outcome.error is not None), None)
            runner.answer = None if runner.error is not None else [outcome.value for outcome in several]
        else:
            outcome = next(outcomes)
            runner.answer, runner.error = outcome.value, outcome.error
    return None


def _carry_out_alone(runners: list[_Runner], waiting: list[_Runner], backend: Backend) -> None:
    for runner in runners:
        try:
            runner.answer = perform(runner.effect, backend)
        except BaseException as raised:
            runner.error = raised


def _carry_out_sleep(runners: list[_Runner], waiting: list[_Runner], backend: Backend) -> None:
    """Only sleepers are left: let the shortest sleep pass, for all of them."""
    passed_s = runners[0].sleep_s
    backend.sleep(passed_s)
    for runner in waiting:
        runner.sleep_s -= passed_s
