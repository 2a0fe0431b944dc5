"""Loops that can be seen in a definition: a chart that never comes to rest, or only to begin again at once.

Where no guard and no history decides, a configuration has one successor, whatever the context holds: the eventless
transitions that are taken in it, or else those of a timer without delay. A configuration that leads back to itself by
eventless transitions alone cannot be stepped at all; one that does so through timers is work without end.

Regions of a parallel state that do not leave it go their own ways, so each is followed by itself: from each state, the
active states of its own region only. So the work grows with the chart, not with the product of its regions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from casework.statechart.compile import Tables
from casework.statechart.configuration import domain_of, effective_targets, without_conflicts
from casework.statechart.moves import AskedHistory, Entry
from casework.statechart.nodes import StateNode, Transition

FOLLOWED_MAX = 1000
"""So many configurations are followed from one state: as many microsteps as a step may take (``MAX_MICROSTEPS``), so
that eventless transitions that have not come round by then are as good as endless."""
LOOKED_AT_MAX = 200_000
"""So many active states are looked at in all; what was not found by then is not reported."""


class Loop(NamedTuple):
    """Configurations that follow each other for ever."""

    state: StateNode
    """The first atomic state of the one that was met first."""
    names: list[str]
    """The configurations, the first one again at the end."""
    has_timer: bool
    """A timer without delay is part of it; otherwise eventless transitions are all."""


class _Part(NamedTuple):
    """What is active within one region, or in the whole machine."""

    scope: StateNode
    nodes: tuple[StateNode, ...]
    active: tuple[StateNode, ...]


def loops(tables: Tables, entered: Iterable[StateNode]) -> list[Loop]:
    """The loops that begin where one of the states is entered, each once; those of inner regions come first."""
    found: list[Loop] = []
    looping: set[StateNode] = set()
    visited: set[Any] = set()
    looked_at = 0
    starts = [state for state in entered if state.kind != "history"]
    for state in sorted(starts, key=lambda each: -_scope_of(each).depth):
        path: dict[Any, tuple[_Part, bool]] = {}
        part: _Part | None = _resting_in(tables, state)
        while part is not None and part.nodes not in visited and len(path) < FOLLOWED_MAX:
            looked_at += len(part.active)
            if looked_at > LOOKED_AT_MAX:
                return found
            visited.add(part.nodes)
            step = None if looping.intersection(part.nodes) else _successor(tables, part)
            if step is None:
                part = None
                break
            path[part.nodes] = part, step[1]
            part = step[0]
        if part is None:
            continue
        begin = list(path).index(part.nodes) if part.nodes in path else 0
        circle = list(path.values())[begin:]
        has_timer = any(by_timer for _, by_timer in circle)
        if part.nodes in path or (len(path) == FOLLOWED_MAX and not has_timer):
            ways = [", ".join(node.path for node in each.nodes) for each in (*(each for each, _ in circle), part)]
            found.append(Loop(circle[0][0].nodes[0], ways, has_timer))
            looping.update(node for each, _ in circle for node in each.nodes)
    return found


def _scope_of(state: StateNode) -> StateNode:
    """The region that ``state`` is in, itself perhaps; the root where it is in none."""
    while state.parent is not None and state.parent.kind != "parallel":
        state = state.parent
    return state


def _resting_in(tables: Tables, state: StateNode) -> _Part:
    """What is active in the state's region right after it was entered from outside, with no history recorded."""
    scope = _scope_of(state)
    entry = Entry(AskedHistory())
    entry.add_descendants(state)
    if state is not scope:
        entry.add_ancestors(state, scope)
    return _part(scope, entry.states)


def _part(scope: StateNode, states: Iterable[StateNode]) -> _Part:
    active = tuple(sorted({*states, scope}, key=lambda each: each.index))
    return _Part(scope, tuple(each for each in active if each.is_atomic), active)


def _successor(tables: Tables, part: _Part) -> tuple[_Part, bool] | None:
    """The one part that must follow, and whether a timer leads to it; None when there is none or something decides."""
    if any(node.kind == "final" and node.parent is tables.root for node in part.nodes):
        return None
    eventless = _groups(part)
    if eventless:
        following = _after(part, eventless)
        return None if following is None else (following, False)
    for state in part.active:
        for timer in state.timers:
            own = [each for each in state.transitions if each.matches(timer.name)] if timer.delay_us == 0 else []
            if own and _leaves(state, own[0]) and _is_of(part.scope, own[0]):
                following = _after(part, [own])
                if following is not None:
                    return following, True
    return None


def _groups(part: _Part) -> list[list[Transition]]:
    """Per active atomic state, the eventless transitions of it and its ancestors within the scope."""
    found = []
    for atomic in part.nodes:
        group: list[Transition] = []
        for state in (atomic, *atomic.ancestors):
            group += [each for each in state.transitions if not each.descriptors]
            if state is part.scope or (group and group[0].guard is None):
                break
        if group:
            found.append(group)
    return found


def _after(part: _Part, groups: list[list[Transition]]) -> _Part | None:
    """Where the first transitions of these groups lead; None where a guard or history decides, or the scope is left."""
    if any(group[0].guard is not None for group in groups):
        return None
    history = AskedHistory()
    enabled = list(dict.fromkeys(group[0] for group in groups))
    chosen = without_conflicts(enabled, history)
    states = set(part.active)
    entered: set[StateNode] = set()
    for transition in chosen:
        if not transition.targets:
            continue
        targets = effective_targets(transition.targets, history)
        domain = domain_of(transition, targets)
        if domain is None:
            if part.scope.parent is not None:
                return None
            states.clear()
        elif domain is part.scope or part.scope.holds(domain):
            states = {each for each in states if not domain.holds(each)}
        else:
            return None
        entry = Entry(history)
        for target in transition.targets:
            entry.add_descendants(target)
        for target in targets:
            entry.add_ancestors(target, domain)
        entered |= {each for each in entry.states if domain is None or domain.holds(each)}
    return None if history.was_read() else _part(part.scope, states | entered)


def _is_of(scope: StateNode, transition: Transition) -> bool:
    """Whether it leaves no more and no less than a part of this region; those of inner ones are followed there."""
    domain = domain_of(transition, list(transition.targets))
    return domain is None or _scope_of(domain) is scope


def _leaves(state: StateNode, first: Transition) -> bool:
    """Whether the timer's state is left, so that the timer begins anew when it is entered again."""
    is_inside = not first.reenter and all(target is state or state.holds(target) for target in first.targets)
    return bool(first.targets) and not is_inside
