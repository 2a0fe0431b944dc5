"""From the authoring format (XState v5 shape) to the normalised definition: one way to write each thing.

The normalised definition is JSON whose lists carry document order, so that sorting keys changes nothing; the hash is
taken over it, it is what the store keeps, and it is what ``compile`` reads. Every mistake that can be seen without
knowing the functions is reported here, all at once.
"""

from __future__ import annotations

import re
from typing import Any

from casework.errors import InvalidMachine, NotJson
from casework.statechart.budget import LIMIT_MAX, LIMIT_MIN, Limits
from casework.statechart.deferring import FATES
from casework.statechart.expressions import find_problem
from casework.statechart.jsonable import check_json
from casework.statechart.load.naming import name_problem, state_problem
from casework.statechart.load.parts import Parts
from casework.statechart.load.publish import normalised_publish
from casework.statechart.load.source import Path, Places, Problems
from casework.statechart.load.targets import resolve_targets
from casework.statechart.load.yaml import MAX_NODES
from casework.statechart.suggestions import suggestion

FORMAT = 1
"""Version of the normalised form."""

ROOT_KEYS = ("$schema", "id", "version", "context", "limits", "rules", "ignore_errors", "publish", "initial", "type",
             "states", "on", "always", "after", "entry", "exit", "invoke", "output", "defer", "on_unhandled", "tags",
             "meta", "description")  # fmt: skip
STATE_KEYS = ("id", "type", "initial", "states", "on", "always", "after", "entry", "exit", "invoke", "onDone",
              "output", "defer", "on_unhandled", "tags", "meta", "description")  # fmt: skip
HISTORY_KEYS = ("id", "type", "history", "target", "actions", "tags", "meta", "description")
FINAL_KEYS = ("id", "type", "entry", "exit", "output", "tags", "meta", "description")
_NAME = re.compile(r"(?![ .])[\w .:-]{1,100}(?<![ .])")
MAX_NESTING = 45
"""Levels of states: each takes two levels of JSON, of which there are 100."""
RULES = ("xstate", "scxml")
KINDS = ("atomic", "compound", "parallel", "final", "history")


def is_normalised(definition: Any) -> bool:
    """True for what :func:`normalise` returns."""
    return isinstance(definition, dict) and "format" in definition and "root" in definition


def normalise(raw: Any, problems: Problems, places: Places | None = None) -> dict[str, Any]:
    """The normalised definition. Raises :class:`~casework.errors.InvalidMachine` with every problem.

    ``places`` is filled.
    """
    if not isinstance(raw, dict):
        raise InvalidMachine([*problems.found, f"{problems.source}: a machine is a mapping, not {type(raw).__name__}"])
    if _is_too_deep(raw):
        message = (
            f"states inside each other on more than {MAX_NESTING} levels (make the inner ones a machine of their own)"
        )
        raise InvalidMachine([*problems.found, f"{problems.source}: {message}"])
    try:
        check_json(raw, "", MAX_NODES)
    except NotJson as error:
        raise InvalidMachine([*problems.found, f"{problems.source}: {error}"]) from None
    normaliser = _Normaliser(problems)
    definition = normaliser.machine(raw)
    if places is not None:
        places.states = {path: problems.place(at) for path, at in normaliser.places.items()}
        places.functions = {key: problems.place(at) for key, at in normaliser.parts.named.items()}
        places.parts = {key: (part, problems.place(at)) for key, (part, at) in normaliser.parts.marks.items()}
    if problems.found:
        raise InvalidMachine(problems.found)
    return definition


def _is_too_deep(raw: dict[str, Any]) -> bool:
    """Whether states are nested deeper than a stored definition can be; by levels, since a document may hold itself."""
    level: list[Any] = [raw]
    for _ in range(MAX_NESTING + 1):
        inside = [each.get("states") for each in level]
        level = [state for states in inside if isinstance(states, dict) for state in states.values()]
        level = [state for state in level if isinstance(state, dict)][:100_000]
    return bool(level)


class _Normaliser:
    def __init__(self, problems: Problems) -> None:
        self.problems = problems
        self.parts = Parts(problems)
        self.places: dict[str, Path] = {}

    def machine(self, raw: dict[str, Any]) -> dict[str, Any]:
        name = raw.get("id")
        if not isinstance(name, str) or not name:
            self.problems.add(("id",) if "id" in raw else (), "the machine has no name", 'add "id: <name>" at the top')
        elif not _NAME.fullmatch(name):
            fix = "letters, digits, blanks, '_', '-', '.' and ':', at most 100, neither blank nor dot at an end"
            self.problems.add(("id",), f"{name!r} cannot name a machine", fix)
        result: dict[str, Any] = {"format": FORMAT, "name": name}
        version = raw.get("version")
        if version is not None:
            if isinstance(version, str | int | float) and not isinstance(version, bool):
                result["version"] = str(version)
            else:
                self.problems.add(("version",), f"the version {version!r} is not text or a number")
        if "context" in raw:
            result["context"] = self.context(raw["context"])
        if raw.get("limits") is not None:
            result["limits"] = self.limits(raw["limits"])
        if raw.get("rules", "xstate") not in RULES:
            self.problems.add(("rules",), f"unknown rules {raw['rules']!r}", suggestion(str(raw["rules"]), RULES))
        elif raw.get("rules") == "scxml":
            result["rules"] = "scxml"
        if "ignore_errors" in raw:
            if not isinstance(raw["ignore_errors"], bool):
                self.problems.add(("ignore_errors",), "is not true or false")
            elif raw["ignore_errors"]:
                result["ignore_errors"] = True
        if raw.get("publish") is not None:
            publish = normalised_publish(raw["publish"], ("publish",), self.problems)
            if publish is not None:
                result["publish"] = publish
        root = self.state(raw, (), "", name if isinstance(name, str) else "", is_root=True)
        if root["kind"] not in ("compound", "parallel"):
            self.problems.add((), "the machine has no states", 'add "initial" and "states"')
        result["root"] = root
        resolve_targets(root, str(name), self.places, self.problems)
        return result

    def limits(self, limits: Any) -> dict[str, int]:
        if not isinstance(limits, dict):
            self.problems.add(("limits",), f"{limits!r} are no limits", "{work: 5000000, size: 50000000}")
            return {}
        for name, value in limits.items():
            if name not in Limits._fields:
                self.problems.add(
                    ("limits", name), f"unknown key {name!r}", suggestion(name, Limits._fields), code="unknown-key"
                )
            elif type(value) is not int or not LIMIT_MIN <= value <= LIMIT_MAX:
                message = f"{value!r} is not a whole number from {LIMIT_MIN:,} to {LIMIT_MAX:,}"
                self.problems.add(("limits", name), message)
        return limits

    def context(self, context: Any) -> Any:
        if not isinstance(context, dict):
            self.problems.add(("context",), f"the context is a mapping, not {type(context).__name__}")
            return {}
        if "expr" in context and len(context) > 1:
            self.problems.add(("context",), "an expression stands alone", "or name the key other than 'expr'")
        found = find_problem(context, ("input",))
        if found:
            self.problems.add(("context", *found[0]), found[1], code="expression")
        self.parts.mark(context, ("context",))
        return context

    def state(self, raw: Any, at: Path, path: str, key: str, is_root: bool = False) -> dict[str, Any]:
        self.places[path] = at
        if raw is None:
            raw = {}
        if not isinstance(raw, dict):
            self.problems.add(at, f"a state is a mapping, not {raw!r}", "write {} for an empty state")
            raw = {}
        kind = self._kind(raw, at)
        node: dict[str, Any] = {"key": key, "path": path, "kind": kind}
        self._check_keys(raw, at, kind, is_root)
        self._describe(raw, at, node, is_root)
        if kind == "history":
            return self._history(raw, at, node)
        for name in ("entry", "exit"):
            if name in raw:
                node[name] = self.parts.actions(raw[name], (*at, name))
        if "output" in raw:
            node["output"] = self.parts.template(raw["output"], (*at, "output"))
        if kind == "final":
            return node
        self._transitions(raw, at, node, is_root)
        self._unhandled(raw, at, node)
        if "states" in raw and kind in ("compound", "parallel"):
            node["states"] = self._states(raw["states"], at, path)
            if node["states"] and all(child["kind"] == "history" for child in node["states"]):
                self.problems.add((*at, "states"), "there are history states only", "add the states that they restore")
            if kind == "parallel":
                self._final_regions(raw["states"], (*at, "states"))
        self._initial(raw, at, node)
        return node

    def _kind(self, raw: dict[str, Any], at: Path) -> str:
        kind = raw.get("type")
        has_states = bool(raw.get("states"))
        if kind is None:
            return "compound" if has_states else "atomic"
        if kind not in KINDS:
            self.problems.add((*at, "type"), f"unknown type {kind!r}", suggestion(str(kind), KINDS))
            return "compound" if has_states else "atomic"
        if kind in ("compound", "parallel") and not has_states:
            self.problems.add((*at, "type"), f"a {kind} state has no states", 'add "states", or remove the type')
        if kind in ("atomic", "final", "history") and raw.get("states"):
            self.problems.add((*at, "states"), f"a {kind} state holds no states", "remove the type or the states")
        return str(kind)

    def _check_keys(self, raw: dict[str, Any], at: Path, kind: str, is_root: bool) -> None:
        known = ROOT_KEYS if is_root else {"history": HISTORY_KEYS, "final": FINAL_KEYS}.get(kind, STATE_KEYS)
        for name in raw:
            if name in known or name in ("type", "states"):
                continue
            if kind == "final" and name in STATE_KEYS:
                self.problems.add((*at, name), f"a final state has no {name!r}", "remove it, or the type: final")
            elif kind == "history" and name in STATE_KEYS:
                self.problems.add((*at, name), f"a history state has no {name!r}", "it has history and target")
            else:
                self.problems.add((*at, name), f"unknown key {name!r}", suggestion(name, known), code="unknown-key")

    def _describe(self, raw: dict[str, Any], at: Path, node: dict[str, Any], is_root: bool) -> None:
        if "id" in raw and not is_root:
            wrong = name_problem(raw["id"]) if isinstance(raw["id"], str) else None
            if wrong and raw["id"]:
                self.problems.add((*at, "id"), f"the id {raw['id']!r:.120} {wrong[0]}", wrong[1])
            elif isinstance(raw["id"], str) and raw["id"]:
                node["id"] = raw["id"]
            else:
                self.problems.add((*at, "id"), f"the id {raw['id']!r:.120} is no name", "give it text, or no id")
        tags = raw.get("tags", [])
        tags = [tags] if isinstance(tags, str) else tags
        if isinstance(tags, list) and all(isinstance(tag, str) for tag in tags):
            for tag in tags:
                wrong = name_problem(tag)
                if wrong:
                    self.problems.add((*at, "tags"), f"the tag {tag!r:.120} {wrong[0]}", wrong[1])
            if tags:
                node["tags"] = tags
        else:
            self.problems.add((*at, "tags"), "tags are text or a list of texts")
        if "meta" in raw:
            node["meta"] = raw["meta"]
        if isinstance(raw.get("description", ""), str):
            if raw.get("description"):
                node["description"] = raw["description"]
        else:
            self.problems.add((*at, "description"), "a description is text")

    def _unhandled(self, raw: dict[str, Any], at: Path, node: dict[str, Any]) -> None:
        deferred = raw.get("defer", [])
        deferred = [deferred] if isinstance(deferred, str) else deferred
        if not isinstance(deferred, list) or not all(isinstance(each, str) for each in deferred):
            self.problems.add((*at, "defer"), f"{deferred!r:.80} are no events", "such as [Paid, payment.*]")
        else:
            for each in deferred:
                self.parts.descriptor(each, (*at, "defer"))
            if deferred:
                node["defer"] = deferred
        fate = raw.get("on_unhandled")
        if fate is None:
            return
        if fate in FATES:
            node["on_unhandled"] = fate
        else:
            self.problems.add((*at, "on_unhandled"), f"unknown word {fate!r:.80}", suggestion(str(fate), FATES))

    def _history(self, raw: dict[str, Any], at: Path, node: dict[str, Any]) -> dict[str, Any]:
        depth = raw.get("history", "shallow")
        if depth not in ("shallow", "deep"):
            self.problems.add((*at, "history"), f"unknown history {depth!r}", "shallow or deep")
        node["deep"] = depth == "deep"
        if "target" in raw:
            node["target"] = self.parts.targets(raw["target"], (*at, "target"))
        if "actions" in raw:
            node["actions"] = self.parts.actions(raw["actions"], (*at, "actions"))
        return node

    def _transitions(self, raw: dict[str, Any], at: Path, node: dict[str, Any], is_root: bool) -> None:
        if "on" in raw:
            node["on"] = self.parts.events(raw["on"], (*at, "on"))
        if "always" in raw:
            node["always"] = self.parts.transitions(raw["always"], (*at, "always"))
        if "after" in raw:
            node["after"] = self.parts.timers(raw["after"], (*at, "after"))
        if "invoke" in raw:
            node["invoke"] = self.parts.invokes(raw["invoke"], (*at, "invoke"), node["path"] or node["key"])
        if "onDone" in raw and not is_root:
            if node["kind"] in ("compound", "parallel"):
                node["onDone"] = self.parts.transitions(raw["onDone"], (*at, "onDone"))
            else:
                self.problems.add((*at, "onDone"), "only a state with states is done", "for a task, put it into invoke")

    def _states(self, raw: Any, at: Path, path: str) -> list[dict[str, Any]]:
        if not isinstance(raw, dict):
            self.problems.add((*at, "states"), "states are a mapping from name to state")
            return []
        result = []
        for key, value in raw.items():
            where = (*at, "states", key)
            wrong = state_problem(key)
            if wrong:
                self.problems.add(where, f"{key!r:.120} cannot name a state: {wrong[0]}", wrong[1])
            result.append(self.state(value, where, f"{path}.{key}" if path else key, key))
        return result

    def _final_regions(self, raw: Any, at: Path) -> None:
        """A region that is final itself is done from the start; the done event of its parent carries no output."""
        for key, value in raw.items() if isinstance(raw, dict) else ():
            if isinstance(value, dict) and value.get("type") == "final" and "output" in value:
                fix = "nobody sees it; compute it in 'output' of the machine, or in a final state inside the region"
                self.problems.add((*at, key, "output"), "a region that is final has no output", fix)

    def _initial(self, raw: dict[str, Any], at: Path, node: dict[str, Any]) -> None:
        initial = raw.get("initial")
        if node["kind"] != "compound":
            if initial is not None:
                why = "enters all its states" if node["kind"] == "parallel" else "has no states"
                self.problems.add((*at, "initial"), f"a state of type {node['kind']} {why}", "remove initial")
            return
        keys = [state["key"] for state in node.get("states", [])]
        if initial is None:
            self.problems.add(at, "a state with states has no initial", f'add "initial: {keys[0] if keys else "..."}"')
            return
        result: dict[str, Any] = {}
        target = initial
        if isinstance(initial, dict):
            known = ("target", "actions")
            for name in initial:
                if name not in known:
                    self.problems.add(
                        (*at, "initial", name), f"unknown key {name!r}", suggestion(name, known), code="unknown-key"
                    )
            target = initial.get("target")
            if "actions" in initial:
                result["actions"] = self.parts.actions(initial["actions"], (*at, "initial", "actions"))
        result["target"] = self.parts.targets(target, (*at, "initial"))
        node["initial"] = result
