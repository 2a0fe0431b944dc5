"""Loops that can be seen in a definition: a chart that never comes to rest, or only to begin again at once.

Where no guard and no history decides, a configuration has one successor, whatever the context holds: the eventless
transitions that are taken in it, or else those of a timer without delay. A configuration that leads back to itself by
eventless transitions alone cannot be stepped at all; one that does so through timers is work without end.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from casework.statechart.compile import Tables
from casework.statechart.configuration import Candidates, Configuration
from casework.statechart.moves import Move, fixed_move, resting_in
from casework.statechart.nodes import StateNode


class Loop(NamedTuple):
    """Configurations that follow each other for ever."""

    state: StateNode
    """The first atomic state of the one that was met first."""
    names: list[str]
    """The configurations, the first one again at the end."""
    has_timer: bool
    """A timer without delay is part of it; otherwise eventless transitions are all."""


def loops(tables: Tables, entered: Iterable[StateNode]) -> list[Loop]:
    """The loops that begin where one of the states is entered, each once."""
    found: list[Loop] = []
    visited: set[Configuration] = set()
    for state in entered:
        if state.kind == "history":
            continue
        path: dict[Configuration, bool] = {}
        configuration: Configuration | None = resting_in(tables, state)
        while configuration is not None and configuration not in visited:
            visited.add(configuration)
            step = _successor(tables, configuration)
            if step is None:
                break
            path[configuration] = step[1]
            configuration = step[0].configuration
        if configuration in path:
            round_trip = list(path)[list(path).index(configuration) :]
            names = [", ".join(each.paths) for each in (*round_trip, configuration)]
            found.append(Loop(configuration.nodes[0], names, any(path[each] for each in round_trip)))
    return found


def _successor(tables: Tables, configuration: Configuration) -> tuple[Move, bool] | None:
    """The one move that must follow, and whether a timer makes it; None when there is none or something decides."""
    if any(node.kind == "final" and node.parent is tables.root for node in configuration.nodes):
        return None
    if configuration.always is not None:
        move = fixed_move(tables, configuration, configuration.always)
        return None if move is None else (move, False)
    for state in configuration.active:
        for timer in state.timers:
            candidates = configuration.candidates(timer.name) if timer.delay_us == 0 else None
            if candidates is None or not _leaves(state, candidates):
                continue
            move = fixed_move(tables, configuration, candidates)
            if move is not None:
                return move, True
    return None


def _leaves(state: StateNode, candidates: Candidates) -> bool:
    """Whether the timer's state is left, so that the timer begins anew when it is entered again."""
    first = candidates.groups[0][0]
    is_inside = not first.reenter and all(target is state or state.holds(target) for target in first.targets)
    return bool(first.targets) and not is_inside
