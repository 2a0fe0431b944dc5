"""Resolving targets: a sibling ``paid``, a child ``.paid``, an id ``#paid``, each with a deeper path after it."""

from __future__ import annotations

import itertools
from typing import Any

from casework.statechart.load.source import Path, Problems
from casework.statechart.suggestions import suggestion


def resolve_targets(root: dict[str, Any], name: str, places: dict[str, Path], problems: Problems) -> None:
    """Replace every raw target below ``root`` by the path of a state, and check ids, invocations and histories."""
    _Resolver(root, name, places, problems).resolve()


class _Resolver:
    def __init__(self, root: dict[str, Any], name: str, places: dict[str, Path], problems: Problems) -> None:
        self.root, self.places, self.problems = root, places, problems
        self.states: dict[str, dict[str, Any]] = {}
        self.ids: dict[str, str] = {name: ""}
        self.invokes: dict[str, Path] = {}

    def resolve(self) -> None:
        self._collect(self.root)
        for path, node in self.states.items():
            self._node(path, node)

    def _collect(self, node: dict[str, Any]) -> None:
        path = node["path"]
        self.states[path] = node
        if "id" in node:
            other = self.ids.get(node["id"])
            if other is not None:
                where = f"state {other!r}" if other else "the machine"
                at = (*self.places[path], "id")
                self.problems.add(at, f"the id {node['id']!r} is taken by {where}", "choose another")
            self.ids[node["id"]] = path
        for child in node.get("states", ()):
            self._collect(child)

    def _node(self, path: str, node: dict[str, Any]) -> None:
        at = self.places[path]
        if node["kind"] == "history":
            self._history(path, node)
            return
        groups = [node.get("on", []), node.get("always", []), node.get("onDone", [])]
        groups += [timer["transitions"] for timer in node.get("after", [])]
        for invoke in node.get("invoke", []):
            groups += [invoke.get("onDone", []), invoke.get("onError", [])]
            if invoke["id"] in self.invokes:
                self.problems.add((*at, "invoke"), f"the invocation id {invoke['id']!r} is taken", "choose another")
            self.invokes[invoke["id"]] = at
        for transition in (each for group in groups for each in group):
            if "target" in transition:
                transition["target"] = self._targets(path, transition["target"])
        if "initial" in node:
            node["initial"]["target"] = self._initial(path, node["initial"]["target"])

    def _history(self, path: str, node: dict[str, Any]) -> None:
        parent = path.rpartition(".")[0]
        if "target" not in node:
            node["target"] = []
            if path in self.states.get(parent, self.root).get("initial", {}).get("target", []):
                self.problems.add(self.places[path], "the history state is where its parent begins", "give it a target")
            return
        targets = node["target"]
        at = targets[0]["at"] if targets else self.places[path]
        node["target"] = self._targets(path, targets)
        for target in node["target"]:
            if not _is_below(target, parent) or self.states[target]["kind"] == "history":
                fix = f"a state inside {parent or 'the machine'!r}"
                self.problems.add(at, f"{target!r} cannot be what a history state falls back to", fix)

    def _initial(self, path: str, raw: list[Any]) -> list[str]:
        found = []
        for each in raw:
            text = each["raw"]
            if not text.startswith(("#", ".")):
                each = {**each, "raw": "." + text}
            resolved = self._one(path, each, spoken=text)
            if resolved is not None:
                if not _is_below(resolved, path):
                    self.problems.add(each["at"], f"the initial state {text!r} is not inside {path or 'the machine'!r}")
                found.append(resolved)
        self._compatible(found, raw)
        return found

    def _targets(self, path: str, raw: list[Any]) -> list[str]:
        found = [target for target in (self._one(path, each) for each in raw) if target is not None]
        self._compatible(found, raw)
        return found

    def _one(self, path: str, target: dict[str, Any], spoken: str = "") -> str | None:
        text: str = target["raw"]
        if text.startswith("#"):
            return self._by_id(text[1:], target)
        if text.startswith("."):
            base, rest = path, text[1:]
        elif path == "":
            rest = text
            fix = f"a child of the machine is '.{text}'"
            self.problems.add(target["at"], f"the machine itself has no sibling {text!r}", fix, code="target")
            return None
        else:
            base, rest = path.rpartition(".")[0], text
        full = f"{base}.{rest}" if base else rest
        if full in self.states:
            return full
        known = [child["key"] for child in self.states.get(base, self.root).get("states", [])]
        relation = "in" if text.startswith(".") else "beside"
        message = f"there is no state {spoken or text!r} {relation} {path or 'the machine'!r}"
        elsewhere = [other for other in self.states if other.rpartition(".")[2] == rest]
        fix = suggestion(rest, known)
        if "did you mean" not in fix and len(elsewhere) == 1:
            fix = f"there is {elsewhere[0]!r}: write '#{next(iter(self.ids))}.{elsewhere[0]}'"
        self.problems.add(target["at"], message, fix, code="target")
        return None

    def _by_id(self, text: str, target: dict[str, Any]) -> str | None:
        head, rest = text, ""
        while True:
            if head in self.ids:
                base = self.ids[head]
                full = f"{base}.{rest}" if base and rest else base or rest
                if full in self.states:
                    return full
            if "." not in head:
                break
            head, _, last = head.rpartition(".")
            rest = f"{last}.{rest}" if rest else last
        self.problems.add(
            target["at"], f"there is no state with the id {'#' + text!r}", suggestion(text, self.ids), code="target"
        )
        return None

    def _compatible(self, found: list[str], raw: list[Any]) -> None:
        """Several targets must be active together: none holds another, and where two part, the state is parallel."""
        through: dict[str, str] = {}
        for target in found:
            way = _way_to(target)
            for state, inside in itertools.pairwise(way):
                other = through.get(state)
                parts_here = other is not None and inside not in through
                if other == state or (parts_here and self.states[state]["kind"] != "parallel"):
                    return self._apart(str(other), target, raw)
            if target in through:
                return self._apart(through[target], target, raw)
            for state in way:
                through.setdefault(state, target)
        return None

    def _apart(self, first: str, second: str, raw: list[Any]) -> None:
        fix = "several targets lie in different regions of one parallel state"
        self.problems.add(raw[0]["at"], f"{first!r} and {second!r} cannot be active together", fix, code="target")


def _way_to(path: str) -> list[str]:
    """The states from the root down to this one."""
    way = [""]
    for key in path.split(".") if path else ():
        way.append(f"{way[-1]}.{key}" if way[-1] else key)
    return way


def _is_below(path: str, ancestor: str) -> bool:
    return path != ancestor and (not ancestor or path.startswith(ancestor + "."))
