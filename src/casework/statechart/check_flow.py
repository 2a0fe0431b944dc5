"""What ``check`` says about the flow: dead ends, timers, done events, errors and events that nobody takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from casework.statechart.compile import Tables
from casework.statechart.configuration import domain_of
from casework.statechart.findings import Place, Problem
from casework.statechart.load.source import Places
from casework.statechart.names import actions_in, states_in
from casework.statechart.nodes import StateNode, Transition
from casework.statechart.suggestions import close_to, suggestion


def flow_problems(
    definition: dict[str, Any], tables: Tables, places: Places, reached: set[StateNode]
) -> Iterator[Problem]:
    """All findings about the flow of a machine."""
    checker = _Flow(definition, tables, places, reached)
    yield from checker.dead_ends()
    yield from checker.timers()
    yield from checker.done()
    yield from checker.typed_by_hand()
    yield from checker.errors()
    yield from checker.sent()


class _Flow:
    def __init__(self, definition: dict[str, Any], tables: Tables, places: Places, reached: set[StateNode]) -> None:
        self.definition, self.tables, self.places, self.reached = definition, tables, places, reached
        self.raws = {state["path"]: state for state in states_in(definition["root"])}
        self.descriptors = {_stem(each) for transition in tables.transitions for each in transition.descriptors}

    def place(self, part: Any, path: str) -> Place:
        """Where a part stands, or the state that it is in."""
        return self.places.of(part) or self.places.states.get(path) or Place(self.definition["name"], 0, 0, path)

    def is_taken(self, event: str) -> bool:
        """Whether some transition matches this type of event."""
        parts = event.split(".")
        return "*" in self.descriptors or any(
            ".".join(parts[:end]) in self.descriptors for end in range(len(parts) + 1)
        )

    def dead_ends(self) -> Iterator[Problem]:
        """Atomic states in which nothing can happen any more, though the chart has not ended."""
        left: set[StateNode] = set()
        for transition in self.tables.transitions:
            domain = domain_of(transition, list(transition.targets)) if transition.targets else None
            if transition.targets and transition.source.kind != "history":
                left.add(domain if domain is not None else self.tables.root)
        if any(transition.source is self.tables.root for transition in self.tables.transitions):
            return
        for state in self.tables.states:
            if state.kind != "atomic" or state not in self.reached or state.transitions or state.has_stay:
                continue
            if any(each.transitions or each.has_stay for each in state.ancestors):
                continue
            if any(each in left and each.parent is not None and _is_regional(each, state) for each in state.ancestors):
                continue
            if _is_regional(self.tables.root, state) and self.tables.root in left:
                continue
            message = f"the state {state.path!r} takes no event and is never left"
            fix = "add 'type: final' if the chart ends here, or a transition"
            yield Problem("warning", "dead-end", message, fix, self.place(None, state.path))

    def timers(self) -> Iterator[Problem]:
        """Timers that do nothing, or that never fire because the state is left before."""
        for state in self.tables.states:
            at_once = next((each for each in state.transitions if not each.descriptors), None)
            is_passed = at_once is not None and at_once.guard is None and _leaves(state, at_once)
            earliest: int | None = None
            timers = self.raws[state.path].get("after", [])
            delays = sorted(timers, key=lambda each: each["delay"] if isinstance(each["delay"], int) else -1)
            for timer in delays:
                at = self.place(timer, state.path)
                delay = timer["delay"] if isinstance(timer["delay"], int) else None
                what = "the timer" if delay is None else f"the timer of {delay / 1_000_000:g} s"
                if all(not each.get("target") and not each.get("actions") for each in timer["transitions"]):
                    yield Problem("warning", "timer", f"{what} does nothing", "give it a target or actions", at)
                elif is_passed:
                    message = f"{what} never fires: the state is left at once, by 'always'"
                    yield Problem("warning", "timer", message, "remove it, or give 'always' a guard", at)
                elif earliest is not None and delay is not None and delay > earliest:
                    message = f"{what} never fires: an earlier one leaves the state"
                    yield Problem("warning", "timer", message, "remove it, or give the earlier one a guard", at)
                if delay is not None and earliest is None and self._always_leaves(state, timer):
                    earliest = delay

    def _always_leaves(self, state: StateNode, timer: dict[str, Any]) -> bool:
        name = f"after:{self.raws[state.path]['after'].index(timer)}:{state.path}"
        first = next((each for each in state.transitions if name in each.descriptors), None)
        return first is not None and first.guard is None and _leaves(state, first)

    def done(self) -> Iterator[Problem]:
        """``onDone`` of states that are never done."""
        for state in self.tables.states:
            raw = self.raws[state.path]
            if raw.get("onDone") and not _can_be_done(state):
                missing = "no final state" if state.kind == "compound" else "a region without final state"
                message = f"onDone of {state.path!r} is never taken: it has {missing}"
                fix = "give it a state of 'type: final'"
                yield Problem("warning", "done-never", message, fix, self.place(raw["onDone"][0], state.path))

    def typed_by_hand(self) -> Iterator[Problem]:
        """Done and error events in ``on`` that nothing raises."""
        known = set(self.tables.owners)
        for path, raw in self.raws.items():
            for transition in raw.get("on", []):
                for event in transition["event"]:
                    parts = event.split(".", 2)
                    if len(parts) < 3 or parts[:2] not in (["done", "invoke"], ["error", "invoke"], ["done", "state"]):
                        continue
                    if _stem(event) not in known and not any(each.startswith(_stem(event) + ".") for each in known):
                        message = f"nothing raises {event!r}"
                        fix = suggestion(event, [each for each in known if each.startswith(parts[0])])
                        yield Problem("warning", "done-unknown", message, fix, self.place(transition, path))

    def errors(self) -> Iterator[Problem]:
        """Invocations whose error fails the execution, because nobody takes it."""
        if self.tables.ignores_errors:
            return
        for state in self.tables.states:
            for invoke in self.raws[state.path].get("invoke", []):
                event = "error.invoke." + invoke["id"]
                takers = [each for around in (state, *state.ancestors) for each in around.transitions]
                if not invoke.get("onError") and not any(each.matches(event) for each in takers):
                    message = f"nothing takes an error of {invoke['id']!r}, so it fails the execution"
                    fix = "if that is not meant, add onError, or on: {error: ...} in a state around it"
                    yield Problem("note", "error-untaken", message, fix, self.place(invoke, state.path))

    def sent(self) -> Iterator[Problem]:
        """Events that are raised or sent to this execution, its children, or taken back."""
        actions = [(path, each) for path, raw in self.raws.items() for each in actions_in(raw)]
        invoked = [each["id"] for raw in self.raws.values() for each in raw.get("invoke", [])]
        ids = [each["params"].get("id") for _, each in actions if each["type"] in ("send", "raise")]
        for path, action in actions:
            params, kind, at = action.get("params", {}), action["type"], self.place(action, path)
            event, to = params.get("event"), params.get("to", "")
            is_own = kind == "raise" or (kind == "send" and to in ("", "self"))
            if is_own and isinstance(event, str) and not self.is_taken(event) and not event.startswith("error"):
                fix = close_to(event, self.tables.descriptors) or "add a transition, or remove it"
                yield Problem("warning", "event-untaken", f"no transition takes the event {event!r}", fix, at)
            if kind == "send" and isinstance(to, str) and to.startswith("child:") and to[6:] not in invoked:
                fix = suggestion(to[6:], invoked)
                yield Problem("warning", "child-unknown", f"there is no invocation {to[6:]!r} to send to", fix, at)
            wanted = params.get("id")
            all_known = all(isinstance(each, str | None) for each in ids)
            if kind == "cancel" and isinstance(wanted, str) and all_known and wanted not in ids:
                fix = suggestion(wanted, [each for each in ids if each])
                yield Problem("warning", "cancel-unknown", f"nothing is sent with the id {wanted!r}", fix, at)


def _is_regional(domain: StateNode, state: StateNode) -> bool:
    """Whether ``state`` is left with what is left below ``domain`` by a transition from another region."""
    around = [each for each in state.ancestors if domain.holds(each)]
    return any(each.kind == "parallel" for each in around)


def _leaves(state: StateNode, transition: Transition) -> bool:
    is_inside = not transition.reenter and all(each is state or state.holds(each) for each in transition.targets)
    return bool(transition.targets) and not is_inside


def _can_be_done(state: StateNode) -> bool:
    if state.kind == "compound":
        return any(child.kind == "final" for child in state.children)
    if state.kind == "parallel":
        return all(_can_be_done(child) for child in state.children)
    return state.kind == "final"


def _stem(descriptor: str) -> str:
    return descriptor.removesuffix(".*")
