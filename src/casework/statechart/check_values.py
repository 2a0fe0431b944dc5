"""What ``check`` says about values: texts like expressions, names that there are not, arguments of functions."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from casework.statechart.expressions import ExpressionError, compile_template, is_expression
from casework.statechart.findings import Place, Problem
from casework.statechart.load.source import Places
from casework.statechart.names import actions_in, states_in
from casework.statechart.suggestions import close_to, suggestion

_LOOKS_LIKE_ONE = re.compile(r"\b(context|event|input|item)\s*[.\[]|\bIn\(")


class Functions(Protocol):
    """The registered functions, by name."""

    @property
    def actions(self) -> Mapping[str, Any]: ...
    @property
    def guards(self) -> Mapping[str, Any]: ...
    @property
    def tasks(self) -> Mapping[str, Any]: ...


def value_problems(definition: dict[str, Any], places: Places, functions: Functions) -> Iterator[Problem]:
    """All findings about the values of a machine."""
    checker = _Values(definition, places)
    yield from checker.texts()
    yield from checker.expressions()
    yield from checker.arguments(functions)


class _Values:
    def __init__(self, definition: dict[str, Any], places: Places) -> None:
        self.definition, self.places = definition, places
        self.states = list(states_in(definition["root"]))
        self.actions = [(state["path"], each) for state in self.states for each in actions_in(state)]

    def place(self, part: Any, path: str) -> Place:
        """Where a part stands, or the state that it is in."""
        return self.places.of(part) or self.places.states.get(path) or Place(self.definition["name"], 0, 0, path)

    # --- texts

    def texts(self) -> Iterator[Problem]:
        """Texts where values are computed that are expressions by their look."""
        for path, part, value in self._values():
            for holder, key, text in _texts_in(value, part):
                if _LOOKS_LIKE_ONE.search(text) and _compiles(text):
                    at = self.place(holder, path)
                    if isinstance(key, str) and at.path and not at.path.endswith(key):
                        at = at._replace(path=f"{at.path}.{key}")
                    message = f"{text!r} is a text, not an expression"
                    yield Problem("warning", "text", message, f'write {{expr: "{text}"}} if it is to be computed', at)

    def _values(self) -> Iterator[tuple[str, Any, Any]]:
        """State, mapping that it stands in, and value, wherever a value may be computed."""
        if self.definition.get("context"):
            yield "", self.definition["context"], self.definition["context"]
        for path, action in self.actions:
            params = action.get("params") or {}
            if action["type"] in ("assign", "call"):
                yield path, params, params
            elif action["type"] in ("raise", "send"):
                yield path, action, {key: params[key] for key in ("data", "delay") if key in params}
            elif action["type"] in ("log", "foreach"):
                yield path, action, {key: params[key] for key in ("value", "items") if key in params}
        for state in self.states:
            if "output" in state:
                yield state["path"], state["output"], {"output": state["output"]}
            for invoke in state.get("invoke", []):
                yield state["path"], invoke, {key: invoke[key] for key in ("input",) if key in invoke}

    # --- expressions

    def expressions(self) -> Iterator[Problem]:
        """Names in expressions: states of ``In()``, keys of the context."""
        names = {name for state in self.states for name in (state["path"], state.get("id")) if name}
        known, is_open = self._context_keys()
        for path, part in self._expressions():
            tree = ast.parse(part["expr"].strip(), mode="eval")
            at = self.place(part, path)
            for node in ast.walk(tree):
                name = _asked_state(node)
                if name is not None and name not in names:
                    message = f"In({name!r}): there is no such state"
                    yield Problem("warning", "in-unknown", message, suggestion(name, names), at)
                key = _context_key(node)
                if key is None or known is None or key in known:
                    continue
                meant = close_to(key, known)
                if meant or not is_open:
                    message = f"context.{key} is read, and nothing sets it"
                    fix = meant or suggestion(key, known)
                    yield Problem("warning", "context-unknown", message, fix, at)

    def _expressions(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for state in self.states:
            for key, value in state.items():
                if key not in ("states", "meta"):
                    yield from ((state["path"], each) for each in _expressions_in(value))

    def _context_keys(self) -> tuple[set[str] | None, bool]:
        """The keys that something sets, None when they cannot be known, and whether functions may set others."""
        context = self.definition.get("context")
        if context is None or is_expression(context):
            return None, True
        known, is_open = set(context), False
        for _, action in self.actions:
            params = action.get("params", {})
            if action["type"] == "call" or (action["type"] == "assign" and is_expression(params)):
                is_open = True
            elif action["type"] == "assign":
                known |= set(params)
            elif action["type"] == "foreach":
                known |= {params[key] for key in ("item", "index") if key in params}
        return known, is_open

    # --- arguments

    def arguments(self, functions: Functions) -> Iterator[Problem]:
        """Functions that cannot be called with what the definition gives them."""
        for state in self.states:
            for invoke in state.get("invoke", []):
                kind, name = next(iter(invoke["src"].items()))
                task = functions.tasks.get(name) if kind in ("task", "name") and "each" not in invoke else None
                if task is not None:
                    yield from self._call("task", name, task, 1, invoke.get("input", {}), invoke, state["path"])
            for guard in _guards_in(state):
                function = functions.guards.get(guard.get("name", ""))
                if function is not None:
                    given = guard.get("params", {})
                    yield from self._call("guard", guard["name"], function, 2, given, guard, state["path"])
        for path, action in self.actions:
            function = functions.actions.get(action.get("name", ""))
            if function is not None:
                yield from self._call("action", action["name"], function, 2, action.get("params", {}), action, path)

    def _call(
        self, kind: str, name: str, function: Any, positional: int, given: Any, part: Any, path: str
    ) -> Iterator[Problem]:
        if is_expression(given) or not isinstance(given, dict):
            return
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):
            return
        try:
            signature.bind(*[None] * positional, **dict.fromkeys(given))
        except TypeError as error:
            source = "input" if kind == "task" else "params"
            takes = ", ".join(str(each) for each in signature.parameters.values())
            message = f"the {kind} {name!r} cannot be called with its {source}: {error}"
            fix = f"it is defined with ({takes})"
            yield Problem("error", "arguments", message, fix, self.place(part, path), needs_functions=True)


def _texts_in(value: Any, holder: Any) -> Iterator[tuple[Any, Any, str]]:
    """The texts of a literal, with the mapping and key that each stands at."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if isinstance(value, dict) and is_expression(value):
        return
    for key, item in items:
        if isinstance(item, str):
            yield (value if isinstance(value, dict) else holder), key, item
        else:
            yield from _texts_in(item, item if isinstance(item, dict) else holder)


def _compiles(text: str) -> bool:
    try:
        compile_template({"expr": text}, ("input", "item", "index"))
    except ExpressionError:
        return False
    return True


def _expressions_in(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if is_expression(value) and len(value) == 1 and isinstance(value["expr"], str):
            yield value
            return
        for item in value.values():
            yield from _expressions_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from _expressions_in(item)


def _guards_in(value: Any) -> Iterator[dict[str, Any]]:
    """The named guards of a state, those of ``if`` among them."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key == "guard" and isinstance(item, dict) and "name" in item:
                yield item
            elif key not in ("states", "meta"):
                yield from _guards_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from _guards_in(item)


def _asked_state(node: ast.AST) -> str | None:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "In" and node.args:
        first = node.args[0]
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            return first.value
    return None


def _context_key(node: ast.AST) -> str | None:
    """The key that is read, where a node is ``context.key`` or ``context["key"]``."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "context":
        return node.attr
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Constant):
        return None
    of_context = isinstance(node.value, ast.Name) and node.value.id == "context"
    return node.slice.value if of_context and isinstance(node.slice.value, str) else None
