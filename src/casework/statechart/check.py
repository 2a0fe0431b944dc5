"""What can only be said once the functions are registered, and what is permitted but probably not meant."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from casework.errors import InvalidMachine
from casework.statechart.check_flow import flow_problems
from casework.statechart.check_values import value_problems
from casework.statechart.compile import Tables
from casework.statechart.findings import SEVERITIES, Place, Problem
from casework.statechart.load.parts import BUILT_INS
from casework.statechart.load.source import Places
from casework.statechart.loops import loops
from casework.statechart.names import Names, states_in
from casework.statechart.nodes import StateNode, Transition, any_matches
from casework.statechart.publishing import Publish
from casework.statechart.suggestions import close_to, suggestion


class Checked(Protocol):
    """What is asked of a machine here."""

    name: str
    definition: dict[str, Any]
    places: Places
    tables: Tables
    names: Names
    publish: Publish | None

    @property
    def actions(self) -> Mapping[str, Any]: ...
    @property
    def guards(self) -> Mapping[str, Any]: ...
    @property
    def tasks(self) -> Mapping[str, Any]: ...
    @property
    def machines(self) -> frozenset[str]: ...
    def invocation_kind(self, src: str) -> str: ...


SHOWN_MAX = 12
"""So many configurations of a loop are shown."""


def check_machine(machine: Checked) -> list[Problem]:
    """All findings, errors first."""
    reached = _reached(machine)
    found = [
        *_functions(machine),
        *_invocations(machine),
        *_unreachable(machine, reached),
        *_shadowed(machine),
        *_loops(machine, reached),
        *_published(machine),
        *_deferred(machine),
        *flow_problems(machine.definition, machine.tables, machine.places, reached),
        *value_problems(machine.definition, machine.places, machine),
    ]
    return sorted(found, key=lambda problem: SEVERITIES.index(problem.severity))


def _at(machine: Checked, state: StateNode) -> Place:
    return machine.places.states.get(state.path) or Place(machine.name, 0, 0, state.path or "(top)")


def _functions(machine: Checked) -> list[Problem]:
    found = []
    for kind, named, registered in (
        ("action", machine.names.actions, machine.actions),
        ("guard", machine.names.guards, machine.guards),
        ("task", machine.names.only_tasks, machine.tasks),
    ):
        for name in sorted(named - set(registered)):
            at = machine.places.functions.get((kind, name)) or Place(machine.name)
            meant = close_to(name, BUILT_INS) if kind == "action" else ""
            hint = suggestion(name, registered) if registered else f"@machine.{kind} on a function of that name"
            message = f"the {kind} {name!r} is named but not registered"
            found.append(Problem("error", f"{kind}-missing", message, meant or hint, at, needs_functions=True))
            if meant:
                message = f"the action {name!r} is not built in, so it needs a function"
                found.append(Problem("warning", "built-in", message, meant, at))
    return found


def _invocations(machine: Checked) -> list[Problem]:
    found = []
    raws = {raw["path"]: raw.get("invoke", []) for raw in states_in(machine.definition["root"])}
    for state in machine.tables.states:
        for invoke, raw in zip(state.invokes, raws[state.path], strict=True):
            at = machine.places.of(raw) or _at(machine, state)
            kind = invoke.kind
            if kind == "name":
                try:
                    kind = machine.invocation_kind(invoke.src)
                except InvalidMachine as error:
                    message = str(error).removeprefix(f"{machine.name}: ")
                    found.append(Problem("error", "source", message, "", at, needs_functions=True))
                    continue
            if invoke.kind == "machine" and machine.machines and invoke.src not in machine.machines:
                fix = suggestion(invoke.src, machine.machines)
                found.append(Problem("error", "machine-missing", f"no machine {invoke.src!r} is open", fix, at, True))
            if kind == "task" and invoke.each is not None:
                fix = "each starts machines; loop inside the task, or make it a machine"
                found.append(Problem("error", "each-on-task", f"each on the task {invoke.src!r}", fix, at, True))
            if kind == "machine" and "heartbeat_us" in invoke.options:
                found.append(Problem("warning", "heartbeat", "a machine has no heartbeat", "remove it", at))
    return found


def _reached(machine: Checked) -> set[StateNode]:
    """The states to which transitions and initial states lead, guards not asked."""
    root = machine.tables.root
    reached: set[StateNode] = set()
    waiting: list[StateNode] = [root]
    while waiting:
        state = waiting.pop()
        if state in reached:
            continue
        reached.add(state)
        waiting += state.ancestors
        if state.kind == "compound" or state.kind == "history":
            waiting += state.default
        if state.kind == "history" and not state.default and state.parent is not None:
            waiting += state.parent.default or state.parent.children
        if state.kind == "parallel":
            waiting += state.children
        for transition in state.transitions:
            waiting += transition.targets
    return reached


def _unreachable(machine: Checked, reached: set[StateNode]) -> list[Problem]:
    found = []
    for state in machine.tables.states:
        if state not in reached and state.kind != "history" and (state.parent in reached):
            message = f"the state {state.path!r} cannot be reached"
            found.append(Problem("warning", "unreachable", message, "no transition leads to it", _at(machine, state)))
    return found


def _loops(machine: Checked, reached: set[StateNode]) -> list[Problem]:
    found = []
    for loop in loops(machine.tables, [state for state in machine.tables.states if state in reached]):
        names = loop.names
        if len(names) > SHOWN_MAX:
            names = [*names[: SHOWN_MAX - 1], f"... {len(names) - SHOWN_MAX} more ...", names[-1]]
        way, at = " -> ".join(names), _at(machine, loop.state)
        if loop.has_timer:
            message, fix = f"timers without delay go round without end: {way}", "give one of them a delay"
            found.append(Problem("warning", "endless-timers", message, fix, at))
        else:
            message, fix = f"eventless transitions go round for ever: {way}", "give one of them a guard or an event"
            found.append(Problem("error", "endless", message, fix, at))
    return found


def _shadowed(machine: Checked) -> list[Problem]:
    """A transition behind one that matches everything it matches, and has no guard or the same."""
    found = []
    for state in machine.tables.states:
        earlier: dict[str, Transition] = {}
        guarded: set[tuple[str, str]] = set()
        for transition in state.transitions:
            raw = transition.raw
            at = machine.places.of(raw) or _at(machine, state)
            guard = json.dumps(raw.get("guard"), sort_keys=True)
            always_holds = transition.guard is None or raw.get("guard", {}).get("expr") == "True"
            for descriptor in transition.descriptors or ("",):
                name = descriptor or "always"
                blocker = _blocker(earlier, descriptor)
                if blocker is not None:
                    by = " ".join(blocker.descriptors) or "always"
                    fix = "only the last of several may have no guard"
                    if by != name:
                        fix = f"put it before {by!r}, which is taken first"
                    found.append(Problem("warning", "shadowed", f"{name!r} is never taken here", fix, at))
                elif not always_holds and (descriptor, guard) in guarded:
                    message = f"{name!r} is never taken here: one before it has the same guard"
                    found.append(Problem("warning", "repeated", message, "remove it, or change its guard", at))
                guarded.add((descriptor, guard))
            if always_holds:
                for descriptor in transition.descriptors or ("",):
                    earlier.setdefault(f"={descriptor}" if transition.exact else _stem(descriptor), transition)
    return found


def _published(machine: Checked) -> list[Problem]:
    """Events that are to be published and that no transition takes."""
    events = machine.publish.events if machine.publish is not None else None
    found = []
    for event in events or ():
        if not _is_taken(machine, event):
            hint = suggestion(event, machine.tables.descriptors)
            message = f"publish: no transition takes the event {event!r}"
            at = machine.places.states.get("") or Place(machine.name)
            found.append(Problem("warning", "publish-untaken", message, hint, at))
    return found


def _deferred(machine: Checked) -> list[Problem]:
    """Events that a state keeps for another one, and that none takes: they are kept until the end."""
    found = []
    for state in machine.tables.states:
        for event in state.defer:
            if not _is_taken(machine, event):
                hint = suggestion(event, machine.tables.descriptors)
                message = f"defer: no transition takes the event {event!r}"
                found.append(Problem("warning", "defer-untaken", message, hint, _at(machine, state)))
    return found


def _is_taken(machine: Checked, event: str) -> bool:
    """Whether a transition takes an event of that name, or one of those that a wildcard means."""
    if any(any_matches((event,), descriptor) for descriptor in machine.tables.descriptors):
        return True
    return any(transition.matches(event) for transition in machine.tables.transitions)


def _blocker(earlier: dict[str, Transition], descriptor: str) -> Transition | None:
    """The first of the earlier transitions, by descriptor, that matches whatever this descriptor matches."""
    if not descriptor:
        return earlier.get("=")
    stem = _stem(descriptor)
    parts = stem.split(".")
    names = [f"={stem}", stem, *(".".join(parts[:end]) for end in range(1, len(parts)))]
    if not descriptor.startswith("after:"):
        names.append("*")
    blockers = [earlier[name] for name in names if name in earlier]
    return min(blockers, key=lambda each: each.index, default=None)


def _stem(descriptor: str) -> str:
    return descriptor.removesuffix(".*")
