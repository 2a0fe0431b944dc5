"""A run as a short readable list: who did what to which item, and when."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from casework.errors import CaseworkError
from casework.kernel.effects import (
    All,
    Call,
    Effect,
    Get,
    GetMany,
    Page,
    Query,
    Race,
    RunMany,
    Sleep,
    Transact,
    Write,
)
from casework.kernel.items import AnyWrite, Check, Delete, Put
from casework.simulation.carrier import Carrier, Task

MAX_LINES = 2000


class Timeline:
    """The lines of a run, in order."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.left_out = 0

    def event(self, world: Carrier, who: str, what: str) -> None:
        """Something happened to ``who``."""
        if len(self.lines) >= MAX_LINES:
            self.left_out += 1
            return
        seconds = (world.now_us - 1_750_000_000_000_000) / 1e6
        self.lines.append(f"{world.steps:6d} {seconds:10.4f}s  {who:<12} {what}")

    def note(self, world: Carrier, task: Task | None, what: str) -> None:
        """Something happened for a task, or for nobody."""
        self.event(world, task.process.name if task is not None else "(store)", what)

    def answered(self, world: Carrier, task: Task, value: Any, error: BaseException | None) -> None:
        """A program got the answer to its effect."""
        effect = task.effect
        if isinstance(effect, Sleep | Race | RunMany):
            return
        answer = f"{type(error).__name__}: {error}" if error is not None else _answer(value)
        self.event(world, task.process.name, f"{_effect(effect)} -> {answer}"[:240])

    def write(self, write: AnyWrite) -> str:
        """A write in a few words."""
        return _write(write)

    def text(self) -> str:
        """All lines."""
        more = [f"... and {self.left_out} lines more"] if self.left_out else []
        return "\n".join([*self.lines, *more])


def _effect(effect: Effect) -> str:
    if isinstance(effect, Get):
        return f"get {effect.key}"
    if isinstance(effect, GetMany):
        return f"get {len(effect.keys)} items"
    if isinstance(effect, Query):
        index = f".{effect.index}" if effect.index else ""
        return f"query {effect.table.name}{index}[{effect.partition!r}]"
    if isinstance(effect, Write):
        return _write(effect.write)
    if isinstance(effect, Transact):
        return "transact " + " + ".join(_write(write) for write in effect.writes[:6])
    if isinstance(effect, Call):
        return f"call {getattr(effect.function, '__name__', None) or _shown(effect.function)}"
    if isinstance(effect, All):
        return f"{len(effect.reads)} reads"
    return type(effect).__name__.lower()


def _write(write: AnyWrite) -> str:
    if isinstance(write, Put):
        return f"put {write.key} {_values(write.item)}"
    if isinstance(write, Delete):
        return f"delete {write.key}"
    if isinstance(write, Check):
        return f"check {write.key}"
    return f"update {write.key} {_values(write.set)}"


def _values(item: Mapping[str, Any]) -> str:
    shown = {name: item[name] for name in ("version", "status", "spill", "token", "last_seq", "state") if name in item}
    return " ".join(f"{name}={value}" for name, value in shown.items())


def _answer(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, Page):
        return f"{len(value.items)} items " + ", ".join(str(item.get("sort", "")) for item in value.items[:6])
    if isinstance(value, dict):
        return _values(value) or "an item"
    if isinstance(value, list):
        return f"{len(value)} answers"
    if isinstance(value, CaseworkError):
        return f"{type(value).__name__}: {value}"
    return _shown(value)


def _shown(value: object) -> str:
    """A value without an address in memory, which is another one in a replay."""
    return _ADDRESS.sub("", repr(value))[:80]


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
