"""A run as a short readable list: who did what to which item, and when."""

from __future__ import annotations

import collections
import re
from collections.abc import Mapping, Sequence
from typing import Any

from casework.errors import CaseworkError
from casework.kernel.effects import (
    All,
    Call,
    Effect,
    Get,
    GetMany,
    Now,
    Page,
    Query,
    Race,
    RunMany,
    Sleep,
    Transact,
    Write,
)
from casework.kernel.items import AnyWrite, Check, Delete, Key, Put
from casework.simulation.carrier import Carrier, Task

FIRST_LINES, LAST_LINES = 600, 60
"""So many are shown of a long run: a run that is stuck says at its beginning why, and at its end what it still does."""


class Timeline:
    """The lines of a run, in order. A look that sees what its process saw there before is not shown again."""

    def __init__(self) -> None:
        self._first: list[str] = []
        self._last: collections.deque[str] = collections.deque(maxlen=LAST_LINES)
        self._lines_n = 0
        self._looks_n = 0
        self._seen: dict[tuple[str, str], str] = {}

    def event(self, world: Carrier, who: str, what: str) -> None:
        """Something happened to ``who``."""
        seconds = (world.now_us - 1_750_000_000_000_000) / 1e6
        self.add(f"{world.steps:6d} {seconds:10.4f}s  {who:<12} {what}")

    def add(self, line: str) -> None:
        """One line more."""
        lines = self._first if len(self._first) < FIRST_LINES else self._last
        lines.append(line)
        self._lines_n += 1

    def note(self, world: Carrier, task: Task | None, what: str) -> None:
        """Something happened for a task, or for nobody."""
        self.event(world, task.process.name if task is not None else "(store)", what)

    def answered(self, world: Carrier, task: Task, value: Any, error: BaseException | None) -> None:
        """A program got the answer to its effect."""
        effect = task.effect
        if isinstance(effect, Now | Sleep | Race | RunMany):
            return
        answer = f"{type(error).__name__}: {error}" if error is not None else _answer(value)
        asked = _effect(effect)
        if isinstance(effect, Get | GetMany | Query | All):
            place = (task.process.name, asked)
            if self._seen.get(place) == answer:
                self._looks_n += 1
                return
            self._seen[place] = answer
        self.event(world, task.process.name, f"{asked} -> {answer}"[:240])

    def write(self, write: AnyWrite) -> str:
        """A write in a few words."""
        return _write(write)

    def text(self) -> str:
        """The lines, and how many there were besides."""
        between = self._lines_n - len(self._first) - len(self._last)
        more = [f"... {between:,} lines ..."] if between else []
        looks = [f"({self._looks_n:,} looks that saw nothing new are left out)"] if self._looks_n else []
        return "\n".join([*self._first, *more, *self._last, *looks])


def _effect(effect: Effect) -> str:
    if isinstance(effect, Get):
        return f"get {_key(effect.key)}"
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
        return " and ".join(_effect(read) for read in effect.reads[:4]) + (", ..." if len(effect.reads) > 4 else "")
    return type(effect).__name__.lower()


def _write(write: AnyWrite) -> str:
    if isinstance(write, Put):
        return f"put {_key(write.key)} {_values(write.item, SHOWN)}".rstrip()
    if isinstance(write, Delete):
        return f"delete {_key(write.key)}"
    if isinstance(write, Check):
        return f"check {_key(write.key)}"
    removed = "".join(f" -{name}" for name in write.remove)
    return f"update {_key(write.key)} {_values(write.set, (*SHOWN, 'pending'))}".rstrip() + removed


def _key(key: Key) -> str:
    """A key, with what is long in it cut: digests and addresses."""
    sort = [] if key.sort is None else [key.sort]
    parts = [repr(part if len(str(part)) <= 44 else f"{str(part)[:16]}...") for part in (key.partition, *sort)]
    return f"{key.table.name}[{' '.join(parts)}]"


SHOWN = ("version", "status", "spill", "token", "last_seq", "state")
"""Attributes by which the parts of a race are told apart."""


def _values(item: Mapping[str, Any], names: Sequence[str]) -> str:
    return " ".join(f"{name}={item[name]}" for name in names if name in item)


def _answer(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, Page):
        places = ", ".join(str(item.get("sort", item.get("seq", ""))) for item in value.items[:6])
        return f"{len(value.items)} items {places}".rstrip()
    if isinstance(value, dict):
        return _values(value, SHOWN) or "an item"
    if isinstance(value, list):
        return " and ".join(_answer(one) for one in value[:4]) + (", ..." if len(value) > 4 else "")
    if isinstance(value, CaseworkError):
        return f"{type(value).__name__}: {value}"
    return _shown(value)


def _shown(value: object) -> str:
    """A value without an address in memory, which is another one in a replay."""
    return _ADDRESS.sub("", repr(value))[:80]


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
