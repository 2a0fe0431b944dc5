"""Loops that can be seen in a definition: a chart that never comes to rest, or only to begin again at once.

Where no guard and no history decides, a configuration has one successor, whatever the context holds: the eventless
transitions that are taken in it, or else those of a timer without delay. A configuration that leads back to itself by
eventless transitions alone cannot be stepped at all; one that does so through timers is work without end.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from casework.statechart.compile import Tables
from casework.statechart.configuration import Candidates, Configuration
from casework.statechart.moves import Move, fixed_move, resting_in
from casework.statechart.nodes import StateNode

FOLLOWED_MAX = 1000
"""So many configurations are followed from one state: as many microsteps as a step may take (``MAX_MICROSTEPS``), so
that eventless transitions that have not come round by then are as good as endless. Regions side by side can have
cycles of thousands."""


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
    visited: set[Any] = set()
    for state in entered:
        if state.kind == "history":
            continue
        path: dict[Any, tuple[Configuration, bool]] = {}
        configuration: Configuration | None = resting_in(tables, state)
        while configuration is not None and configuration.key not in visited and len(path) < FOLLOWED_MAX:
            visited.add(configuration.key)
            step = _successor(tables, configuration)
            if step is None:
                break
            path[configuration.key] = configuration, step[1]
            configuration = step[0].configuration
        begin = 0 if configuration is None or configuration.key not in path else list(path).index(configuration.key)
        part = list(path.values())[begin:]
        has_timer = any(by_timer for _, by_timer in part)
        if configuration is not None and (configuration.key in path or (len(path) == FOLLOWED_MAX and not has_timer)):
            names = [", ".join(each.paths) for each in (*(each for each, _ in part), configuration)]
            found.append(Loop(part[0][0].nodes[0], names, has_timer))
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
