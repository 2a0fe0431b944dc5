"""Configurations, and which transitions an event enables in them (SCXML appendix D: selection and conflicts).

A machine follows one of two sets of rules, which differ around parallel states only: XState's, or SCXML's.

A configuration that was met once is kept with everything that can be known about it: its candidates per event type,
and the moves that were computed from it. So the algorithm runs once per situation; afterwards a step is look-ups.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right, insort
from typing import TYPE_CHECKING, Any

from casework.statechart.nodes import Run, StateNode, Transition

if TYPE_CHECKING:
    from casework.statechart.compile import Tables

MAX_CACHE_BYTES = 32_000_000
"""Memory for configurations, and what is known of them, per machine; all are dropped when there is more, since each can
be computed again. Estimated: see ``STATE_BYTES``."""
STATE_BYTES, KNOWN_BYTES, OP_BYTES = 160, 256, 160
"""What a configuration takes for each active state; what is known of an event type or a move takes; and what each
operation of a move, or each transition in question, takes."""


_ALL_LEFT, _NOTHING_LEFT = -1, -2
"""Stand for the index of a domain where the root is left as well, and where no state is."""


class Candidates:
    """What an event type can do in a configuration."""

    __slots__ = ("fixed", "groups", "weight")

    def __init__(self, groups: tuple[tuple[Transition, ...], ...]) -> None:
        self.groups = groups
        """Per active atomic state: transitions of it and its ancestors that match, in order of preference."""
        self.fixed: Any = None
        """The move, where neither a guard nor history can change it."""
        self.weight = sum(1 + each.weight for group in groups for each in group)
        """Operations in the guards, each counted once."""


class Configuration:
    """A legal set of active states."""

    __slots__ = ("active", "always", "asks_active", "by_type", "key", "moves", "names", "nodes", "paths")

    def __init__(self, nodes: tuple[StateNode, ...]) -> None:
        self.nodes = nodes
        """The active atomic states, in document order."""
        self.paths = [node.path for node in nodes]
        self.key: Any = self.paths[0] if len(nodes) == 1 else tuple(self.paths)
        active = {node for atomic in nodes for node in (atomic, *atomic.ancestors)}
        self.active = tuple(sorted(active, key=lambda node: node.index))
        """All active states, in document order, the root included."""
        self.names = names_of(self.active)
        self.by_type: dict[str, Candidates | None] = {}
        self.moves: dict[tuple[int, ...], Any] = {}
        self.always = _candidates(self, None)

    def candidates(self, event_type: str) -> Candidates | None:
        """What the event can enable; None when it cannot enable anything."""
        try:
            return self.by_type[event_type]
        except KeyError:
            found = self.by_type[event_type] = _candidates(self, event_type)
            return found


def configuration_of(tables: Tables, paths: list[str]) -> Configuration:
    """The configuration with these atomic states.

    Raises KeyError for a path that the machine does not have, ValueError when these states cannot be active together.
    """
    nodes = tuple(tables.by_path[path] for path in paths)
    if not is_legal(tables.root, nodes):
        raise ValueError(paths)
    return intern(tables, nodes)


def is_legal(root: StateNode, nodes: tuple[StateNode, ...]) -> bool:
    """Whether these are the active atomic states of a legal configuration, in document order (SCXML 3.11)."""
    active = {state for node in nodes for state in (node, *node.ancestors)}
    expected: list[StateNode] = []

    def collect(state: StateNode) -> bool:
        if state.is_atomic:
            expected.append(state)
            return True
        inside = [child for child in state.children if child in active]
        wanted = 1 if state.kind == "compound" else len(state.children)
        return len(inside) == wanted and all(collect(child) for child in inside)

    return root in active and collect(root) and tuple(expected) == nodes


def intern(tables: Tables, nodes: tuple[StateNode, ...]) -> Configuration:
    """One object per configuration."""
    key: Any = nodes[0].path if len(nodes) == 1 else tuple(node.path for node in nodes)
    found: Configuration | None = tables.configurations.get(key)
    if found is None:
        found = Configuration(nodes)
        count_cached(tables, KNOWN_BYTES + STATE_BYTES * len(found.active))
        tables.configurations[key] = found
    return found


def count_cached(tables: Tables, size: int) -> None:
    """Count what is about to be kept; when that is too much, everything kept so far is dropped.

    Whoever holds a configuration goes on with it; it is no longer found, and so goes with its holder.
    """
    tables.cached_bytes += size
    if tables.cached_bytes > MAX_CACHE_BYTES:
        for each in list(tables.configurations.values()):
            each.by_type.clear()
            each.moves.clear()
        tables.configurations.clear()
        tables.initial_moves.clear()
        tables.cached_bytes = size


def names_of(active: Any) -> frozenset[str]:
    """What ``In()`` knows the active states by: path, and id where there is one."""
    return frozenset(name for node in active for name in (node.path, node.name) if name)


def _candidates(configuration: Configuration, event_type: str | None) -> Candidates | None:
    groups = []
    for atomic in configuration.nodes:
        group: list[Transition] = []
        for state in (atomic, *atomic.ancestors):
            if event_type is None:
                group += [each for each in state.transitions if not each.descriptors]
            else:
                group += [each for each in state.transitions if each.matches(event_type)]
        if group:
            # What stands behind one without guard can never be reached.
            last = next((i for i, each in enumerate(group) if each.guard is None), len(group))
            groups.append(tuple(group[: last + 1]))
    return Candidates(tuple(groups)) if groups else None


def select(run: Run, configuration: Configuration, groups: tuple[tuple[Transition, ...], ...]) -> list[Transition]:
    """The optimal set of enabled transitions: per atomic state the first whose guard holds, conflicts removed."""
    enabled: list[Transition] = []
    answers: dict[int, bool] = {}
    for group in groups:
        for transition in group:
            index = transition.index
            if index not in answers:
                if transition.guard is not None and transition.guard_asks_active:
                    run.active = configuration.names
                answers[index] = transition.guard is None or transition.guard(run)
                if answers[index]:
                    enabled.append(transition)
            if answers[index]:
                break
    return enabled if len(enabled) < 2 else without_conflicts(enabled, run.history)


def without_conflicts(enabled: list[Transition], history: dict[str, list[str]]) -> list[Transition]:
    """Of two transitions that leave a common state, the one of the descendant wins, else the first (SCXML 3.13).

    Each leaves what is active below its domain, so two of them conflict where one domain lies within the other. Those
    kept are found by the index of their domain, in which the descendants of a state are a range.

    As XState has it, and SCXML has not, an event that a region takes or swallows is not offered to the states around
    all regions on behalf of another region. Eventless transitions are chosen by SCXML's rule in both.
    """
    if not enabled[0].by_scxml and enabled[0].descriptors:
        around_them = {ancestor for each in enabled for ancestor in each.source.ancestors}
        enabled = [each for each in enabled if each.source not in around_them]
    kept: dict[Transition, int] = {}
    by_domain: dict[int, Transition] = {}
    indexes: list[int] = []
    for candidate in enabled:
        domain = domain_of(candidate, effective_targets(candidate.targets, history)) if candidate.targets else None
        if not candidate.targets or (domain is not None and domain.is_atomic):
            kept[candidate] = _NOTHING_LEFT
            continue
        index, last = (_ALL_LEFT, sys.maxsize) if domain is None else (domain.index, domain.last)
        around = [] if domain is None else [_ALL_LEFT, *(each.index for each in domain.ancestors)]
        inside = indexes[bisect_left(indexes, index) : bisect_right(indexes, last)]
        others = [by_domain[each] for each in (*around, *inside) if each in by_domain]
        if all(other.source.holds(candidate.source) for other in others):
            for other in others:
                lost = kept.pop(other)
                del by_domain[lost]
                indexes.remove(lost)
            kept[candidate] = index
            by_domain[index] = candidate
            insort(indexes, index)
    return list(kept)


def exit_set(configuration: Configuration, transition: Transition, history: dict[str, list[str]]) -> list[StateNode]:
    """The active states that the transition leaves, in document order."""
    if not transition.targets:
        return []
    domain = domain_of(transition, effective_targets(transition.targets, history))
    if domain is None:
        return list(configuration.active)
    active = configuration.active
    begin = bisect_right(active, domain.index, key=_index_of)
    return list(active[begin : bisect_right(active, domain.last, key=_index_of)])


def _index_of(state: StateNode) -> int:
    return state.index


def effective_targets(targets: tuple[StateNode, ...], history: dict[str, list[str]]) -> list[StateNode]:
    """The targets with history states replaced by what they stand for now."""
    found: list[StateNode] = []
    for target in targets:
        if target.kind != "history":
            found.append(target)
        else:
            found += effective_targets(restored(target, history) or _fallback(target), history)
    return found


def restored(node: StateNode, history: dict[str, list[str]]) -> tuple[StateNode, ...]:
    """The states that a history state recorded, none if it was never recorded."""
    paths = history.get(node.path)
    if not paths:
        return ()
    parent = node.parent
    assert parent is not None
    wanted = set(paths)
    return tuple(state for state in descendants(parent) if state.path in wanted)


def descendants(node: StateNode) -> list[StateNode]:
    """All states below ``node``, in document order, history states not among them."""
    found: list[StateNode] = []
    for child in node.children:
        found.append(child)
        found += descendants(child)
    return found


def _fallback(node: StateNode) -> tuple[StateNode, ...]:
    parent = node.parent
    assert parent is not None
    return node.default or parent.default or parent.children


def domain_of(transition: Transition, targets: list[StateNode]) -> StateNode | None:
    """The state whose descendants are left and entered; None when the root itself is left and entered again.

    Unless it re-enters, a transition to the source itself or into it leaves the source active (XState v5). All others
    have the least common ancestor of source and targets as their domain; by SCXML's rules it is never a parallel state,
    so that a transition from one region to another leaves and enters that state, too (appendix D, LCCA).
    """
    source = transition.source
    if not transition.reenter and all(target is source or source.holds(target) for target in targets):
        return source
    for ancestor in source.ancestors:
        is_candidate = ancestor.kind == "compound" or ancestor.parent is None or not transition.by_scxml
        if is_candidate and all(ancestor.holds(target) for target in targets):
            return ancestor
    return None if transition.reenter or source.parent is None else source.ancestors[-1]
