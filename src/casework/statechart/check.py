"""What can only be said once the functions are registered, and what is permitted but probably not meant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from casework.errors import InvalidMachine
from casework.statechart.compile import Tables
from casework.statechart.load.normalise import name_key
from casework.statechart.load.parts import BUILT_INS
from casework.statechart.loops import loops
from casework.statechart.names import Names
from casework.statechart.nodes import StateNode, Transition
from casework.statechart.publishing import Publish
from casework.statechart.suggestions import close_to, suggestion


class Checked(Protocol):
    """What is asked of a machine here."""

    name: str
    lines: dict[str, str]
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


class Problem(NamedTuple):
    """One finding."""

    severity: str
    """``error``: the machine cannot run here as it is. ``warning``: it can, and will hardly do what was meant."""
    text: str
    needs_functions: bool = False
    """It is so in this process, with what is registered and open here; the definition may be right."""
    in_a_file: str = ""
    """What can be said, as a warning, about a file by itself, where ``needs_functions``."""

    def __str__(self) -> str:
        return f"{self.severity}: {self.text}"


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
        *_published(machine),
        *_loops(machine, reached),
    ]
    return sorted(found, key=lambda problem: problem.severity)


def _at(machine: Checked, state: StateNode) -> str:
    return machine.lines.get(state.path) or f"{machine.name}: {state.path or '(top)'}"


def _functions(machine: Checked) -> list[Problem]:
    found = []
    for kind, named, registered in (
        ("action", machine.names.actions, machine.actions),
        ("guard", machine.names.guards, machine.guards),
        ("task", machine.names.only_tasks, machine.tasks),
    ):
        for name in sorted(named - set(registered)):
            at = machine.lines.get(name_key(kind, name)) or machine.name
            meant = close_to(name, BUILT_INS) if kind == "action" else ""
            hint = suggestion(name, registered) if registered else f"@machine.{kind} on a function of that name"
            text = f"{at}: the {kind} {name!r} is named but not registered ({meant or hint})"
            doubt = f"{at}: the {kind} {name!r} is not built in, so it needs a function ({meant})" if meant else ""
            found.append(Problem("error", text, needs_functions=True, in_a_file=doubt))
    return found


def _invocations(machine: Checked) -> list[Problem]:
    found = []
    for state in machine.tables.states:
        for invoke in state.invokes:
            kind = invoke.kind
            if kind == "name":
                try:
                    kind = machine.invocation_kind(invoke.src)
                except InvalidMachine as error:
                    text = f"{_at(machine, state)}: {error}"
                    found.append(Problem("error", text, needs_functions=True))
                    continue
            if invoke.kind == "machine" and machine.machines and invoke.src not in machine.machines:
                fix = suggestion(invoke.src, machine.machines)
                found.append(
                    Problem("error", f"{_at(machine, state)}: no machine {invoke.src!r} is open ({fix})", True)
                )
            if kind == "task" and invoke.each is not None:
                fix = "each starts machines; loop inside the task, or make it a machine"
                text = f"{_at(machine, state)}: each on the task {invoke.src!r} ({fix})"
                found.append(Problem("error", text, needs_functions=True))
            if kind == "machine" and "heartbeat_us" in invoke.options:
                found.append(Problem("warning", f"{_at(machine, state)}: a machine has no heartbeat (remove it)"))
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
            text = f"{_at(machine, state)}: the state {state.path!r} cannot be reached (no transition leads to it)"
            found.append(Problem("warning", text))
    return found


def _loops(machine: Checked, reached: set[StateNode]) -> list[Problem]:
    found = []
    for loop in loops(machine.tables, [state for state in machine.tables.states if state in reached]):
        names = loop.names
        if len(names) > SHOWN_MAX:
            names = [*names[: SHOWN_MAX - 1], f"... {len(names) - SHOWN_MAX} more ...", names[-1]]
        way = " -> ".join(names)
        if loop.has_timer:
            text = f"timers without delay go round without end: {way} (give one of them a delay)"
            found.append(Problem("warning", f"{_at(machine, loop.state)}: {text}"))
        else:
            text = f"eventless transitions go round for ever: {way} (give one of them a guard or an event)"
            found.append(Problem("error", f"{_at(machine, loop.state)}: {text}"))
    return found


def _shadowed(machine: Checked) -> list[Problem]:
    """A transition behind one without guard that matches everything it matches."""
    found = []
    for state in machine.tables.states:
        earlier: dict[str, Transition] = {}
        for transition in state.transitions:
            for descriptor in transition.descriptors or ("",):
                blocker = _blocker(earlier, descriptor)
                if blocker is not None:
                    name = descriptor or "always"
                    by = " ".join(blocker.descriptors) or "always"
                    fix = "only the last of several may have no guard"
                    if by != name:
                        fix = f"put it before {by!r}, which is taken first"
                    found.append(Problem("warning", f"{_at(machine, state)}: {name!r} is never taken here ({fix})"))
            if transition.guard is None:
                for descriptor in transition.descriptors or ("",):
                    earlier.setdefault(f"={descriptor}" if transition.exact else _stem(descriptor), transition)
    return found


def _published(machine: Checked) -> list[Problem]:
    """Events that are to be published and that no transition takes."""
    events = machine.publish.events if machine.publish is not None else None
    found = []
    for event in events or ():
        if not any(transition.matches(event) for transition in machine.tables.transitions):
            hint = suggestion(event, machine.tables.descriptors)
            text = f"{machine.lines.get('', machine.name)}: publish: no transition takes the event {event!r} ({hint})"
            found.append(Problem("warning", text))
    return found


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
