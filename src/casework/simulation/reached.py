"""What of a chart was reached in the runs of a simulation: states entered and transitions taken, and what never was.

A simulation runs on a compiled copy of each machine, in which every entry and every transition counts itself. A step
that is computed again after a lost race counts again, so the numbers are visits that were tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from casework.simulation.story import spoken
from casework.statechart import Machine
from casework.statechart.names import states_in
from casework.statechart.nodes import Block, Run

LINES_MAX = 12
"""So many are named of each machine in what is printed; the report itself has all."""


class TransitionReached(msgspec.Struct, frozen=True):
    """A transition, and how often it was taken."""

    state: str
    """The path of the state that it belongs to; empty for the machine itself."""
    event: str
    """As its author writes it: ``Paid``, ``after 15m``, ``onDone of charging``; ``always`` without an event."""
    target: list[str]
    guard: str
    """The expression or the function's name; empty without one."""
    taken: int

    def __str__(self) -> str:
        """For people."""
        guard = f" [{self.guard if len(self.guard) <= 60 else self.guard[:57] + '...'}]" if self.guard else ""
        target = f" -> {', '.join(self.target)}" if self.target else ""
        return f"{self.state or '(the machine)'}: {self.event}{guard}{target}"


class Reached(msgspec.Struct, frozen=True):
    """What of one machine was reached in all runs."""

    machine: str
    states: dict[str, int]
    """By path: how often each was entered."""
    transitions: list[TransitionReached]

    @property
    def never_entered(self) -> list[str]:
        """Paths of the states that no run entered."""
        return [path for path, entered in self.states.items() if not entered]

    @property
    def never_taken(self) -> list[TransitionReached]:
        """Transitions that no run took, those of states that were never entered included."""
        return [transition for transition in self.transitions if not transition.taken]

    @property
    def is_all(self) -> bool:
        """Whether everything was reached."""
        return not self.never_entered and not self.never_taken


class Counted:
    """A copy of a machine that counts what its steps enter and take."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine.rebound(machine.definition)
        tables = self.machine.tables
        self._entered = [0] * len(tables.states)
        self._taken = [0] * len(tables.transitions)
        for state in tables.states:
            state.entry = _counting(self._entered, state.index, state.entry)
        for transition in tables.transitions:
            transition.block = _counting(self._taken, transition.index, transition.block)

    def reached(self) -> Reached:
        """What was reached up to now."""
        tables = self.machine.tables
        states = {
            state.path: self._entered[state.index] for state in tables.states[1:] if state.kind != "history"
        }  # fmt: skip
        described = list(_described(self.machine.definition["root"]))
        return Reached(
            self.machine.name,
            states,
            [
                TransitionReached(transition.source.path, event, target, guard, self._taken[transition.index])
                for transition, (event, target, guard) in zip(tables.transitions, described, strict=True)
            ],
        )


def _counting(counts: list[int], position: int, block: Block | None) -> Block:
    if block is None:

        def count(run: Run) -> None:
            counts[position] += 1

        return Block(count, False)
    op = block.op

    def count_and_do(run: Run) -> None:
        counts[position] += 1
        op(run)

    return Block(count_and_do, block.asks_active)


def _described(root: Mapping[str, Any]) -> Iterator[tuple[str, list[str], str]]:
    """Event, targets and guard of each transition, in the order in which ``compile`` numbers them."""
    for state in states_in(dict(root)):
        for timer in state.get("after", []):
            delay = timer["delay"]
            said = f"after {_delay(delay)}" if isinstance(delay, int) else f"after {delay['expr']}"
            yield from _each(said, timer["transitions"])
        for invoke in state.get("invoke", []):
            for key in ("onDone", "onError"):
                yield from _each(f"{key} of {next(iter(invoke['src'].values()))}", invoke.get(key, []))
        yield from _each("onDone", state.get("onDone", []))
        for transition in state.get("on", []):
            yield from _each(", ".join(map(spoken, transition["event"])), [transition])
        yield from _each("always", state.get("always", []))


def _each(event: str, transitions: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, list[str], str]]:
    for transition in transitions:
        guard = transition.get("guard") or {}
        yield event, list(transition.get("target", [])), str(guard.get("expr") or guard.get("name") or "")


def _delay(delay_us: int) -> str:
    """A delay as it is written: the largest unit that it is whole in."""
    for unit, size in (("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000)):
        if delay_us and not delay_us % size:
            return f"{delay_us // size}{unit}"
    return f"{delay_us / 1000:g}ms"


# --- for people -----------------------------------------------------------------------------------------------------


def coverage(reached: Iterable[Reached]) -> str:
    """How much was reached, in a few words."""
    every = list(reached)
    states = sum(len(each.states) for each in every)
    entered = states - sum(len(each.never_entered) for each in every)
    transitions = sum(len(each.transitions) for each in every)
    taken = transitions - sum(len(each.never_taken) for each in every)
    if entered == states and taken == transitions:
        return "all states and transitions"
    return f"{entered} of {states} states and {taken} of {transitions} transitions"


def never(reached: Iterable[Reached]) -> list[str]:
    """Lines that say what no run reached, and what to do about it; none where all was reached."""
    lines: list[str] = []
    every = list(reached)
    for each in every:
        of = f" of {each.machine}" if len(every) > 1 else ""
        lines += _listed(f"never entered{of}", _topmost(each.never_entered))
        known = set(each.never_entered)
        lines += _listed(
            f"never taken{of}", [str(transition) for transition in each.never_taken if transition.state not in known]
        )
    if lines:
        lines.append(
            "to reach them: give events, stand-ins for tasks (with fails: 0.2 for onError), an input, or more runs"
        )
    return lines


def _topmost(paths: list[str]) -> list[str]:
    """Paths, those left out that lie below one that is named."""
    known = set(paths)
    found = []
    for path in paths:
        if path.rpartition(".")[0] not in known:
            below = sum(other.startswith(path + ".") for other in paths)
            found.append(f"{path} (and the {below} below it)" if below else path)
    return found


def _listed(title: str, items: list[str]) -> list[str]:
    if not items:
        return []
    more = len(items) - LINES_MAX
    return [f"{title}:", *(f"  {item}" for item in items[:LINES_MAX]), *([f"  and {more} more"] if more > 0 else [])]
