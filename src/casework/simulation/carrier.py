"""Processes and their tasks, and what they and the store ask of the world that carries them."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Protocol

from casework.kernel.effects import Effect, Handle, Instant, Outcome
from casework.simulation.choices import Choices
from casework.simulation.faults import Faults

Main = Callable[["Process"], Generator[Effect, Any, Any]]


class Carrier(Protocol):
    """The world, as seen by those it carries; see :class:`casework.simulation.world.World`."""

    choices: Choices
    faults: Faults
    store: Any
    timeline: Any
    now_us: int
    steps: int
    actor: Any
    """Who takes the step under way: a task, or something of the store's own."""

    def next_number(self) -> int:
        """A number that nobody had before."""

    def answer(self, task: Task, value: Any, error: BaseException | None = None) -> None:
        """Give a program the answer to its effect."""

    def admit(self, actor: Any) -> None:
        """Let something of the store's own take part."""

    def retire(self, actor: Any) -> None:
        """Let something take part no longer."""

    def block(self, task: Task) -> None:
        """Let a task wait until it is answered."""

    def put_off(self, actor: Any, due_us: int) -> None:
        """Let a task, or something of the store's own, go on no sooner than at ``due_us``."""


class Process:
    """A host's process: a clock, programs that die with it, and how it is started."""

    def __init__(self, world: Carrier, name: str, main: Main, skew_us: int, *, may_crash: bool) -> None:
        self.world = world
        self.name = name
        self.main = main
        self.skew_us = skew_us
        self.may_crash = may_crash
        self.tasks: list[Task] = []
        self.starts_n = 0
        self.paused_until_us = 0
        self.is_up = False
        self.clock: Any = None
        """Where the time is known from samples only (a ``SampledClock``); a process that starts has none."""
        self._last_us = 0
        faults = world.faults
        is_off = skew_us or faults.clock_error_s
        self._error_us = int((faults.skew_s_max + faults.clock_error_s) * 1e6) if is_off else 0

    def now(self) -> Instant:
        """This host's clock, with a bound that holds the true time."""
        if self.clock is not None:
            instant: Instant = self.clock.service.now()
            return instant
        seen_us = self.world.now_us + self.skew_us
        if seen_us < self._last_us:
            seen_us = self._last_us
        else:
            self._last_us = seen_us
        return Instant(seen_us - self._error_us, seen_us + self._error_us)


class Task:
    """A program of a process, waiting at an effect."""

    __slots__ = (
        "answers", "children", "effect", "error", "flight", "handle", "is_cancelled", "is_dead", "is_repeat", "nonce",
        "number", "on_end", "partial", "process", "program", "sent", "wake_number", "what",
    )  # fmt: skip

    def __init__(self, process: Process, program: Generator[Effect, Any, Any], what: str, number: int) -> None:
        self.process = process
        self.program = program
        self.what = what
        self.number = number
        self.effect: Any = None
        self.handle: Handle | None = None
        self.on_end: Callable[[Outcome[Any]], None] | None = None
        self.children: list[Task] = []
        self.answers: list[Any] | None = None
        self.partial: Any = None
        self.nonce: str | None = None
        self.is_repeat = False
        self.flight: Any = None
        self.sent = (0.0, 0.0)
        self.wake_number = 0
        self.is_dead = False
        self.is_cancelled = False

    def __repr__(self) -> str:
        return f"<{self.what} of {self.process.name}>"
