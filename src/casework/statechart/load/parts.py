"""Normalising what stands inside a state: transitions, actions, guards, timers, invocations."""

from __future__ import annotations

import re
from typing import Any

from casework.statechart.durations import HOW_TO, delay_us
from casework.statechart.expressions import find_problem, is_expression
from casework.statechart.load.naming import event_problem, name_problem
from casework.statechart.load.source import Path, Problems
from casework.statechart.suggestions import suggestion

TRANSITION_KEYS = ("target", "guard", "actions", "reenter", "description", "meta")
INVOKE_KEYS = ("id", "src", "input", "onDone", "onError", "retry", "timeout", "heartbeat", "each", "join",
               "description", "meta")  # fmt: skip
RETRY_KEYS = ("max_attempts", "initial", "factor", "max", "jitter")
MAX_INVOKE_BYTES = 800
"""A task's key in the store holds the id of its invocation, and a key of DynamoDB holds 1,024 bytes."""
BUILT_INS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    # name: required and optional params; assign takes any
    "assign": ((), ()),
    "raise": (("event",), ("data", "delay", "id")),
    "send": (("event",), ("data", "to", "delay", "id")),
    "cancel": (("id",), ()),
    "log": ((), ("label", "value")),
    "if": (("branches",), ()),
    "foreach": (("items", "item", "actions"), ("index",)),
    "block": (("actions",), ()),
}
_FUNCTION = re.compile(r"[A-Za-z_][\w.-]*(@[\w.-]+)?")


class Parts:
    """Each method takes the raw value and its path, and returns the normalised value; problems are collected."""

    def __init__(self, problems: Problems) -> None:
        self.problems = problems
        self.named: dict[tuple[str, str], Path] = {}
        """Where a kind of function is named first."""
        self.marks: dict[int, tuple[Any, Path]] = {}
        """Where a mapping of the normalised definition came from, by its identity."""

    def note(self, part: dict[str, Any], at: Path) -> dict[str, Any]:
        """``part``, of which is noted that it stands at ``at``."""
        self.marks.setdefault(id(part), (part, at))
        return part

    def mark(self, part: Any, at: Path) -> Any:
        """``part``, of which is noted that it stands at ``at``, with all mappings in it."""
        if isinstance(part, dict):
            self.marks.setdefault(id(part), (part, at))
            for key, value in part.items():
                if isinstance(value, dict | list):
                    self.mark(value, (*at, key))
        elif isinstance(part, list):
            for index, value in enumerate(part):
                if isinstance(value, dict | list):
                    self.mark(value, (*at, index))
        return part

    # --- transitions

    def events(self, raw: Any, at: Path) -> list[dict[str, Any]]:
        """``on``: a list of transitions, each with its event descriptors, in document order.

        Written as a mapping from event to transitions, or as a list where the order across events matters.
        """
        result: list[dict[str, Any]] = []
        if isinstance(raw, dict):
            for name, value in raw.items():
                self.descriptor(name, (*at, name))
                result += [self._taking([name], each) for each in self.transitions(value, (*at, name))]
        elif isinstance(raw, list):
            for index, each in enumerate(raw):
                where = (*at, index)
                names = each.get("event") if isinstance(each, dict) else None
                names = [names] if isinstance(names, str) else names
                if names and isinstance(names, list) and all(isinstance(name, str) for name in names):
                    rest = {key: value for key, value in each.items() if key != "event"}
                    for name in names:
                        self.descriptor(name, (*where, "event"))
                    result.append(self.note({"event": names, **self._transition(rest, where)}, where))
                else:
                    self.problems.add(where, "a transition in a list has an event", "{event: Paid, target: paid}")
        else:
            self.problems.add(at, "'on' is a mapping from event to transition")
        return result

    def descriptor(self, text: str, at: Path) -> None:
        """One event, whatever stands in its name; only SCXML's attribute holds several."""
        problem = event_problem(text)
        if problem:
            self.problems.add(at, f"{text!r:.120} {problem[0]}", problem[1])

    def transitions(self, raw: Any, at: Path) -> list[dict[str, Any]]:
        """One transition, or a list of candidates."""
        if isinstance(raw, list):
            return [self.note(self._transition(each, (*at, index)), (*at, index)) for index, each in enumerate(raw)]
        return [self.note(self._transition(raw, at), at)]

    def _taking(self, events: list[str], transition: dict[str, Any]) -> dict[str, Any]:
        return self.note({"event": events, **transition}, self.marks[id(transition)][1])

    def _transition(self, raw: Any, at: Path) -> dict[str, Any]:
        if isinstance(raw, str):
            return {"target": self.targets(raw, at)}
        if not isinstance(raw, dict):
            self.problems.add(at, f"{raw!r} is not a transition", "a target, a mapping, or {} to swallow the event")
            return {}
        result: dict[str, Any] = {}
        self._known(raw, TRANSITION_KEYS, at)
        if raw.get("target") is not None:
            result["target"] = self.targets(raw["target"], (*at, "target"))
        if "guard" in raw:
            result["guard"] = self.note(self.guard(raw["guard"], (*at, "guard")), (*at, "guard"))
        if "actions" in raw:
            result["actions"] = self.actions(raw["actions"], (*at, "actions"))
        if not isinstance(raw.get("reenter", False), bool):
            self.problems.add((*at, "reenter"), "is not true or false")
        elif raw.get("reenter"):
            result["reenter"] = True
        for name in ("description", "meta"):
            if raw.get(name):
                result[name] = raw[name]
        return result

    def targets(self, raw: Any, at: Path) -> list[Any]:
        """Raw targets with their paths; ``resolve_targets`` replaces them by absolute paths."""
        listed = raw if isinstance(raw, list) else [raw]
        if not listed or not all(isinstance(each, str) and each for each in listed):
            self.problems.add(at, f"{raw!r} is not a target", "a sibling 'paid', a child '.paid' or an id '#paid'")
            return []
        return [{"raw": each, "at": at} for each in listed]

    # --- guards and actions

    def guard(self, raw: Any, at: Path) -> dict[str, Any]:
        """A named guard, or an expression."""
        if isinstance(raw, str):
            self._function(raw, at, "guard")
            return {"name": raw}
        if is_expression(raw):
            return dict(self.template(raw, at))
        if isinstance(raw, dict) and isinstance(raw.get("type"), str):
            self._known(raw, ("type", "params"), at)
            self._function(raw["type"], (*at, "type"), "guard")
            result: dict[str, Any] = {"name": raw["type"]}
            if raw.get("params"):
                result["params"] = self._mapping(raw["params"], (*at, "params"))
            return result
        self.problems.add(at, f"{raw!r} is not a guard", 'the name of a function, or {expr: "context.n > 3"}')
        return {"expr": "False"}

    def actions(self, raw: Any, at: Path) -> list[dict[str, Any]]:
        """One action, or a list."""
        if isinstance(raw, list):
            return [self.note(self._action(each, (*at, index)), (*at, index)) for index, each in enumerate(raw)]
        return [self.note(self._action(raw, at), at)]

    def _action(self, raw: Any, at: Path) -> dict[str, Any]:
        if isinstance(raw, str):
            if raw in BUILT_INS:
                self.problems.add(at, f"the built-in action {raw!r} needs params", f"{{type: {raw}, params: ...}}")
            else:
                self._function(raw, at, "action")
            return {"type": "call", "name": raw}
        if not isinstance(raw, dict) or not isinstance(raw.get("type"), str):
            self.problems.add(at, f"{raw!r} is not an action", "a function's name, or {type: assign, params: {...}}")
            return {"type": "call", "name": ""}
        self._known(raw, ("type", "params"), at)
        name = raw["type"]
        params = raw.get("params", {})
        where = (*at, "params")
        if name not in BUILT_INS:
            self._function(name, (*at, "type"), "action")
            result = {"type": "call", "name": name}
            if params:
                result["params"] = self._mapping(params, where)
            return result
        if not isinstance(params, dict):
            self.problems.add(where, "params are a mapping")
            return {"type": name, "params": {}}
        if name == "assign":
            return {"type": name, "params": self.template(params, where)}
        return {"type": name, "params": self._built_in(name, params, where)}

    def _built_in(self, name: str, params: dict[str, Any], at: Path) -> dict[str, Any]:
        required, optional = BUILT_INS[name]
        self._known(params, (*required, *optional), at)
        for each in required:
            if each not in params:
                self.problems.add(at, f"{name} needs {each!r}", f"{{type: {name}, params: {{{each}: ...}}}}")
        if name == "if":
            return self._branches(params, at)
        if name == "foreach":
            return self._foreach(params, at)
        if name == "block":
            return {"actions": self.actions(params.get("actions", []), (*at, "actions"))}
        result = {key: self.template(value, (*at, key)) for key, value in params.items()}
        event = result.get("event")
        if isinstance(event, dict) and not is_expression(event):
            result["event"] = event.get("type")
            result["data"] = {key: value for key, value in event.items() if key != "type"}
            if "data" in params:
                self.problems.add((*at, "data"), "the payload stands twice", "as data, or inside event")
        if "event" in params and not isinstance(result["event"], str | dict):
            self.problems.add((*at, "event"), f"{params['event']!r} is not an event", "its type as text")
        if "delay" in result and not is_expression(result["delay"]):
            result["delay"] = self.delay(result["delay"], (*at, "delay"))
        if name in ("send", "raise", "cancel") and "id" in result and not is_expression(result["id"]):
            wrong = name_problem(result["id"]) if isinstance(result["id"], str) else ("is no name", "give it text")
            if wrong:
                self.problems.add((*at, "id"), f"the id of the {name} {result['id']!r:.120} {wrong[0]}", wrong[1])
        if name == "raise" and "delay" not in result and "id" in result:
            self.problems.add((*at, "id"), "only a delayed raise can be cancelled", "add delay, or remove id")
        return result

    def _branches(self, params: dict[str, Any], at: Path) -> dict[str, Any]:
        branches = []
        listed = params.get("branches")
        for index, each in enumerate(listed if isinstance(listed, list) else []):
            where = (*at, "branches", index)
            if not isinstance(each, dict):
                self.problems.add(where, "a branch is {guard, actions}")
                continue
            self._known(each, ("guard", "actions"), where)
            branch: dict[str, Any] = {"actions": self.actions(each.get("actions", []), (*where, "actions"))}
            if "guard" in each:
                branch["guard"] = self.note(self.guard(each["guard"], (*where, "guard")), (*where, "guard"))
            branches.append(branch)
        if not branches:
            self.problems.add(at, "'if' has no branches", "{type: if, params: {branches: [{guard, actions}]}}")
        return {"branches": branches}

    def _foreach(self, params: dict[str, Any], at: Path) -> dict[str, Any]:
        result: dict[str, Any] = {"items": self.template(params.get("items"), (*at, "items"))}
        for name in ("item", "index"):
            if name in params:
                if not isinstance(params[name], str) or not params[name]:
                    self.problems.add((*at, name), "is the name of a key of the context")
                result[name] = params[name]
        result["actions"] = self.actions(params.get("actions", []), (*at, "actions"))
        return result

    # --- values

    def template(self, value: Any, at: Path, extra: tuple[str, ...] = ()) -> Any:
        """A literal that may hold expressions, each of which is compiled once to see that it can be."""
        found = find_problem(value, extra)
        if found:
            self.problems.add((*at, *found[0]), found[1], code="expression")
        return self.mark(value, at)

    def delay(self, raw: Any, at: Path) -> int:
        """A literal delay, in microseconds."""
        try:
            return delay_us(raw)
        except ValueError as error:
            self.problems.add(at, str(error), code="delay")
            return 0

    # --- timers and invocations

    def timers(self, raw: Any, at: Path) -> list[dict[str, Any]]:
        """``after``: a mapping from delay to transitions, or a list of ``{delay, ...transition}``."""
        result = []
        if isinstance(raw, list):
            for index, each in enumerate(raw):
                where = (*at, index)
                if not isinstance(each, dict) or "delay" not in each:
                    self.problems.add(where, "a timer in a list has a delay", HOW_TO)
                    continue
                rest = {key: value for key, value in each.items() if key != "delay"}
                delay = each["delay"]
                timer = self.template(delay, (*where, "delay")) if is_expression(delay) else None
                waits = timer or self.delay(delay, (*where, "delay"))
                result.append(self.note({"delay": waits, "transitions": self.transitions(rest, where)}, where))
        elif isinstance(raw, dict):
            for key, value in raw.items():
                where = (*at, key)
                timer = {"delay": self.delay(key, where), "transitions": self.transitions(value, where)}
                result.append(self.note(timer, where))
        else:
            self.problems.add(at, "'after' is a mapping from delay to transition", HOW_TO)
        return result

    def invokes(self, raw: Any, at: Path, path: str) -> list[dict[str, Any]]:
        """``invoke``: one, or a list."""
        if isinstance(raw, list):
            ids = [f"{path}.{index}" if len(raw) > 1 else path for index in range(len(raw))]
            return [self.note(self._invoke(each, (*at, i), ids[i]), (*at, i)) for i, each in enumerate(raw)]
        return [self.note(self._invoke(raw, at, path), at)]

    def _invoke(self, raw: Any, at: Path, default_id: str) -> dict[str, Any]:
        if not isinstance(raw, dict):
            self.problems.add(at, f"{raw!r} is not an invocation", "{src: name, onDone: target}")
            return {"id": default_id, "src": {"name": ""}}
        self._known(raw, INVOKE_KEYS, at)
        name = raw.get("id", default_id)
        if not isinstance(name, str) or not name:
            self.problems.add(
                (*at, "id"), f"the id of the invocation {name!r:.120} is no name", "give it text, or no id"
            )
            name = default_id
        wrong = name_problem(name) if "id" in raw else None
        if wrong or len(name.encode("utf-8", "replace")) > MAX_INVOKE_BYTES:
            why, fix = wrong or (
                f"is longer than {MAX_INVOKE_BYTES} bytes (by default it is the path)",
                "give it an id",
            )
            self.problems.add((*at, "id") if "id" in raw else at, f"the id of the invocation {name!r:.120} {why}", fix)
        result: dict[str, Any] = {"id": name, "src": self._src(raw.get("src"), at)}
        loop = ("item", "index") if "each" in raw else ()
        if "input" in raw:
            result["input"] = self.template(raw["input"], (*at, "input"), loop)
        if "each" in raw:
            result["each"] = self.template(raw["each"], (*at, "each"))
            if not isinstance(raw["each"], list) and not is_expression(raw["each"]):
                self.problems.add((*at, "each"), "is not a list", '{expr: "context.items"}')
        join = raw.get("join", "all")
        if join not in ("all", "any") and (not isinstance(join, int) or isinstance(join, bool) or join < 1):
            self.problems.add((*at, "join"), f"unknown join {join!r}", "all, any or a count of at least 1")
        if "join" in raw:
            if "each" not in raw:
                self.problems.add((*at, "join"), "there is one child only", "add each, or remove join")
            result["join"] = join
        self._options(raw, at, result)
        for name in ("onDone", "onError"):
            if name in raw:
                result[name] = self.transitions(raw[name], (*at, name))
        for name in ("description", "meta"):
            if raw.get(name):
                result[name] = raw[name]
        return result

    def _src(self, src: Any, at: Path) -> dict[str, str]:
        if isinstance(src, str) and src:
            self._named_well(src, (*at, "src"))
            return {"name": src}
        if isinstance(src, dict) and len(src) == 1:
            kind, name = next(iter(src.items()))
            if kind in ("task", "machine") and isinstance(name, str) and name:
                self._named_well(name, (*at, "src"))
                self.named.setdefault((kind, name), (*at, "src"))
                return {kind: name}
        fix = "src: name, {task: name} or {machine: name}"
        self.problems.add((*at, "src") if src is not None else at, "an invocation names a task or a machine", fix)
        return {"name": ""}

    def _named_well(self, name: str, at: Path) -> None:
        """What it names could be registered under this name; else the mistake would show only in a worker."""
        wrong = name_problem(name)
        if wrong:
            self.problems.add(at, f"the name {name!r:.120} {wrong[0]}", wrong[1])

    def _options(self, raw: dict[str, Any], at: Path, result: dict[str, Any]) -> None:
        options: dict[str, Any] = {}
        for name in ("timeout", "heartbeat"):
            if name in raw:
                options[f"{name}_us"] = self.delay(raw[name], (*at, name))
        retry = raw.get("retry")
        if isinstance(retry, dict):
            options["retry"] = self._retry(retry, (*at, "retry"))
        elif "retry" in raw:
            self.problems.add(
                (*at, "retry"), f"{retry!r} is not a retry policy", "{max_attempts: 5, initial: 1s}", code="retry"
            )
        longest, heartbeat = options.get("timeout_us", 0), options.get("heartbeat_us", 0)
        if longest and heartbeat > longest:
            message = "the heartbeat is longer than the timeout, which ends the attempt before"
            self.problems.add((*at, "heartbeat"), message, "make it shorter, or remove it", code="retry")
        if options:
            result["options"] = options

    def _retry(self, raw: dict[str, Any], at: Path) -> dict[str, Any]:
        self._known(raw, RETRY_KEYS, at)
        result: dict[str, Any] = {}
        for name in ("initial", "max"):
            if name in raw:
                result[f"{name}_us"] = self.delay(raw[name], (*at, name))
        if result.get("max_us", result.get("initial_us", 0)) < result.get("initial_us", 0):
            message = f"max {raw['max']!r} is below initial {raw['initial']!r}"
            self.problems.add((*at, "max"), message, "pauses grow from initial to max", code="retry")
        bounds = {"max_attempts": (1, 1_000_000), "factor": (1, 1000)}
        for name, (low, high) in bounds.items():
            if name in raw:
                value = raw[name]
                if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                    self.problems.add((*at, name), f"{value!r} is not a number from {low} to {high:,}", code="retry")
                elif name == "max_attempts" and not isinstance(value, int):
                    self.problems.add((*at, name), f"{value!r} is not a whole number", code="retry")
                result[name] = value
        if "jitter" in raw:
            if not isinstance(raw["jitter"], bool | int | float) or not 0 <= raw["jitter"] <= 1:
                message = f"{raw['jitter']!r} is not true, false, or a share from 0 to 1"
                self.problems.add((*at, "jitter"), message, code="retry")
            result["jitter"] = raw["jitter"]
        return result

    # --- shared checks

    def _known(self, raw: dict[str, Any], known: tuple[str, ...], at: Path) -> None:
        for name in raw:
            if name not in known:
                self.problems.add((*at, name), f"unknown key {name!r}", suggestion(name, known), code="unknown-key")

    def _mapping(self, raw: Any, at: Path) -> Any:
        if not isinstance(raw, dict):
            self.problems.add(at, "params are a mapping")
            return {}
        return self.template(raw, at)

    def _function(self, name: str, at: Path, kind: str) -> None:
        if not _FUNCTION.fullmatch(name):
            fix = f"the {kind}'s name, with @version where wanted"
            if kind == "guard":
                fix += '; an expression is {expr: "..."}'
            self.problems.add(at, f"{name!r:.120} cannot name {'an' if kind == 'action' else 'a'} {kind}", fix)
        else:
            self._named_well(name, at)
        self.named.setdefault((kind, name), at)
