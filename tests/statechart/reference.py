"""The algorithm of the SCXML recommendation (appendix D), written down plainly, to compare the engine with.

It reads the normalised definition, keeps sets of paths, caches nothing, and knows only what the comparison needs:
actions ``log`` and ``raise``, guards ``True`` and ``In('path')``. Its liberties are the engine's as well: a transition
that does not re-enter and stays within its source leaves the source active (XState v5); and unless ``rules: scxml`` is
said, an event that a region takes is not offered to the states around it, and a parallel state can be a domain.
"""

from __future__ import annotations

import re
from typing import Any

Node = dict[str, Any]
ROOT = ""


class Reference:
    def __init__(self, definition: Node, limit: int = 1000) -> None:
        self.nodes: dict[str, Node] = {}
        self.parents: dict[str, str] = {}
        self._collect(definition["root"], None)
        self.order = {path: index for index, path in enumerate(self.nodes)}
        self.active: set[str] = set()
        self.history: dict[str, list[str]] = {}
        self.queue: list[str] = []
        self.trace: list[str] = []
        self.is_running = True
        self.limit = limit
        self.by_scxml = definition.get("rules") == "scxml"
        self._enter([({"target": []}, ROOT)], is_start=True)
        self._macrostep()

    def _collect(self, node: Node, parent: str | None) -> None:
        self.nodes[node["path"]] = node
        if parent is not None:
            self.parents[node["path"]] = parent
        for child in node.get("states", []):
            self._collect(child, node["path"])

    # --- the state tree

    def kind(self, path: str) -> str:
        return str(self.nodes[path]["kind"])

    def ancestors(self, path: str) -> list[str]:
        found = []
        while path in self.parents:
            path = self.parents[path]
            found.append(path)
        return found

    def is_below(self, path: str, other: str) -> bool:
        return other in self.ancestors(path)

    def children(self, path: str) -> list[str]:
        return [child["path"] for child in self.nodes[path].get("states", []) if child["kind"] != "history"]

    def in_final(self, path: str) -> bool:
        if self.kind(path) == "compound":
            return any(self.kind(child) == "final" and child in self.active for child in self.children(path))
        if self.kind(path) == "parallel":
            return all(self.in_final(child) for child in self.children(path))
        return self.kind(path) == "final" and path in self.active

    @property
    def configuration(self) -> list[str]:
        atomic = [path for path in self.active if self.kind(path) in ("atomic", "final")]
        return sorted(atomic, key=self.order.__getitem__)

    # --- selection

    def transitions(self, path: str) -> list[tuple[list[str], bool, Node]]:
        """Descriptors, whether they are exact, and the transition, in the order in which they are tried."""
        node = self.nodes[path]
        found: list[tuple[list[str], bool, Node]] = []
        for index, timer in enumerate(node.get("after", [])):
            found += [([f"after:{index}:{path}"], True, each) for each in timer["transitions"]]
        for invoke in node.get("invoke", []):
            found += [([f"done.invoke.{invoke['id']}"], True, each) for each in invoke.get("onDone", [])]
        found += [([f"done.state.{path}"], True, each) for each in node.get("onDone", [])]
        found += [(each["event"], False, each) for each in node.get("on", [])]
        return found + [([], True, each) for each in node.get("always", [])]

    def matches(self, descriptors: list[str], is_exact: bool, event: str) -> bool:
        if is_exact or event.startswith("after:"):
            return event in descriptors
        words = event.split(".")
        return any(each == "*" or words[: len(each.split("."))] == each.split(".") for each in descriptors)

    def holds(self, transition: Node) -> bool:
        text = transition.get("guard", {}).get("expr", "True")
        asked = re.fullmatch(r"In\('(.*)'\)", text)
        return asked[1] in self.active if asked else text == "True"

    def select(self, event: str | None) -> list[tuple[Node, str]]:
        enabled: list[tuple[Node, str]] = []
        for atomic in self.configuration:
            chosen = self._first(atomic, event)
            if chosen is not None and not any(chosen[0] is each[0] for each in enabled):
                enabled.append(chosen)
        if event is not None and not self.by_scxml:
            enabled = [one for one in enabled if not any(self.is_below(other[1], one[1]) for other in enabled)]
        kept: list[tuple[Node, str]] = []
        for one in enabled:
            preempted = []
            for other in kept:
                if self.exit_set(one) & self.exit_set(other):
                    if self.is_below(one[1], other[1]):
                        preempted.append(other)
                    else:
                        break
            else:
                kept = [each for each in kept if each not in preempted] + [one]
        return kept

    def _first(self, atomic: str, event: str | None) -> tuple[Node, str] | None:
        for path in [atomic, *self.ancestors(atomic)]:
            for descriptors, is_exact, transition in self.transitions(path):
                fits = not descriptors if event is None else self.matches(descriptors, is_exact, event)
                if fits and self.holds(transition):
                    return transition, path
        return None

    # --- what is left

    def effective(self, targets: list[str]) -> list[str]:
        found: list[str] = []
        for target in targets:
            if self.kind(target) != "history":
                found.append(target)
            elif target in self.history:
                found += self.history[target]
            else:
                found += self.effective(self._default(target))
        return found

    def _default(self, history: str) -> list[str]:
        parent = self.parents[history]
        initial: list[str] = self.nodes[parent].get("initial", {}).get("target", [])
        return self.nodes[history]["target"] or initial or self.children(parent)

    def domain(self, transition: Node, source: str, targets: list[str]) -> str | None:
        if not transition.get("reenter") and all(each == source or self.is_below(each, source) for each in targets):
            return source
        for ancestor in self.ancestors(source):
            is_candidate = self.kind(ancestor) == "compound" or ancestor == ROOT or not self.by_scxml
            if is_candidate and all(self.is_below(each, ancestor) for each in targets):
                return ancestor
        return None if source == ROOT else ROOT

    def exit_set(self, enabled: tuple[Node, str]) -> set[str]:
        transition, source = enabled
        if not transition.get("target"):
            return set()
        domain = self.domain(transition, source, self.effective(transition["target"]))
        return {path for path in self.active if domain is None or self.is_below(path, domain)}

    # --- a microstep

    def microstep(self, enabled: list[tuple[Node, str]]) -> None:
        domains = [self._domain_now(each) for each in enabled]
        left = sorted(set().union(*(self.exit_set(each) for each in enabled)), key=self.order.__getitem__, reverse=True)
        before = set(self.active)
        for path in left:
            for child in self.nodes[path].get("states", []):
                if child["kind"] == "history":
                    self.history[child["path"]] = self._record(path, child, before)
        for path in left:
            self._act(self.nodes[path].get("exit", []))
            self.active.discard(path)
        for transition, _ in enabled:
            self._act(transition.get("actions", []))
        self._enter(enabled, domains=domains)

    def _domain_now(self, enabled: tuple[Node, str]) -> str | None:
        targets = self.effective(enabled[0].get("target", []))
        return self.domain(*enabled, targets) if targets else ""

    def _record(self, path: str, history: Node, before: set[str]) -> list[str]:
        if history["deep"]:
            found = [each for each in before if self.kind(each) in ("atomic", "final") and self.is_below(each, path)]
        else:
            found = [each for each in self.children(path) if each in before]
        return sorted(found, key=self.order.__getitem__)

    def _enter(self, enabled: list[tuple[Node, str]], domains: Any = None, is_start: bool = False) -> None:
        entered: set[str] = set()
        for index, (transition, _) in enumerate(enabled):
            if is_start:
                self._descend(ROOT, entered)
            elif transition.get("target"):
                domain, own = domains[index], set[str]()
                for target in transition["target"]:
                    self._descend(target, own)
                for target in self.effective(transition["target"]):
                    self._ascend(target, domain, own)
                entered |= {path for path in own if domain is None or self.is_below(path, domain)}
        for path in sorted(entered, key=self.order.__getitem__):
            self.active.add(path)
            self._act(self.nodes[path].get("entry", []))
            if self.kind(path) == "final":
                self._final(path)

    def _descend(self, path: str, entered: set[str]) -> None:
        if self.kind(path) == "history":
            parent = self.parents[path]
            targets = self.history.get(path) or self._default(path)
            for target in targets:
                self._descend(target, entered)
            for target in targets:
                self._ascend(target, parent, entered)
            return
        entered.add(path)
        if self.kind(path) == "compound":
            targets = self.nodes[path]["initial"]["target"]
            for target in targets:
                self._descend(target, entered)
            for target in targets:
                self._ascend(target, path, entered)
        elif self.kind(path) == "parallel":
            self._regions(path, entered)

    def _ascend(self, path: str, domain: str | None, entered: set[str]) -> None:
        for ancestor in self.ancestors(path):
            if ancestor == domain:
                if self.kind(ancestor) == "parallel":
                    self._regions(ancestor, entered)
                return
            entered.add(ancestor)
            if self.kind(ancestor) == "parallel":
                self._regions(ancestor, entered)

    def _regions(self, path: str, entered: set[str]) -> None:
        for child in self.children(path):
            if not any(each == child or self.is_below(each, child) for each in entered):
                self._descend(child, entered)

    def _final(self, path: str) -> None:
        parent = self.parents[path]
        ancestor: str | None = parent
        if self.kind(parent) == "compound":
            if parent == ROOT:
                self.is_running = False
                return
            self.queue.append(f"done.state.{parent}")
            ancestor = self.parents.get(parent)
        while ancestor is not None and self.kind(ancestor) == "parallel" and self.in_final(ancestor):
            if ancestor == ROOT:
                self.is_running = False
            else:
                self.queue.append(f"done.state.{ancestor}")
            ancestor = self.parents.get(ancestor)

    def _act(self, actions: list[Node]) -> None:
        for action in actions:
            if action["type"] == "log":
                self.trace.append(action["params"]["label"])
            else:
                self.queue.append(action["params"]["event"])

    # --- events

    def send(self, event: str) -> None:
        self.trace = []
        if self.is_running:
            enabled = self.select(event)
            if enabled:
                self.microstep(enabled)
            self._macrostep()

    def _macrostep(self) -> None:
        for _ in range(self.limit):
            if not self.is_running:
                for path in sorted(self.active, key=self.order.__getitem__, reverse=True):
                    self._act(self.nodes[path].get("exit", []))
                return
            enabled = self.select(None)
            if not enabled:
                if not self.queue:
                    return
                enabled = self.select(self.queue.pop(0))
            if enabled:
                self.microstep(enabled)
        raise RecursionError("no rest")
