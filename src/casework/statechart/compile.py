"""From a normalised definition to the tables that a step runs on. Nothing is checked here: ``normalise`` did that."""

from __future__ import annotations

from typing import Any

from casework.statechart.actions import Registries, compile_block, compile_guard
from casework.statechart.budget import Limits
from casework.statechart.expressions import compile_template, is_expression
from casework.statechart.nodes import Invoke, StateNode, Timer, Transition


class Tables:
    """The states and transitions of one definition, and the caches that grow while it runs."""

    def __init__(self, definition: dict[str, Any], registries: Registries) -> None:
        self.registries = registries
        self.states: list[StateNode] = []
        """In document order; the root first."""
        self.by_path: dict[str, StateNode] = {}
        self.transitions: list[Transition] = []
        self.owners: dict[str, str | None] = {}
        """Types of events that are never taken from outside: the path of the state whose stay they report on, or
        None for the done events of states, which only the step itself raises."""
        self.repeated: set[str] = set()
        """Ids of invocations with ``each``."""
        self.configurations: dict[Any, Any] = {}
        self.cached_bytes = 0
        """What ``configurations`` and all that they know take, about."""
        self.limits = Limits(**definition.get("limits", {}))
        self.by_scxml = definition.get("rules") == "scxml"
        self.has_fates = False
        """Whether some state says what becomes of events that no transition takes."""
        self.ignores_errors = bool(definition.get("ignore_errors"))
        context = definition.get("context")
        self.context = None if context is None else compile_template(context, ("input",))
        self._targets: list[tuple[Transition, list[str]]] = []
        self._defaults: list[tuple[StateNode, list[str]]] = []
        self.root = self._state(definition["root"], None)
        for transition, paths in self._targets:
            transition.targets = tuple(self.by_path[path] for path in paths)
        for node, paths in self._defaults:
            node.default = tuple(self.by_path[path] for path in paths)
        self.descriptors = frozenset(
            descriptor for each in self.transitions if not each.exact for descriptor in each.descriptors
        )
        self.initial_moves: list[Any] = []

    def _state(self, raw: dict[str, Any], parent: StateNode | None) -> StateNode:
        node = StateNode(len(self.states), raw["path"], raw["key"], raw["kind"], parent)
        self.states.append(node)
        self.by_path[node.path] = node
        node.id = raw.get("id", "")
        node.name = node.id or node.path
        node.done_name = "done.state." + node.name
        if node.kind in ("compound", "parallel"):
            self.owners[node.done_name] = None
        node.tags = tuple(raw.get("tags", ()))
        node.meta = raw.get("meta")
        node.description = raw.get("description", "")
        node.defer = tuple(raw.get("defer", ()))
        node.on_unhandled = raw.get("on_unhandled", "")
        self.has_fates = self.has_fates or bool(node.defer or node.on_unhandled)
        node.is_deep = raw.get("deep", False)
        node.entry = compile_block(raw.get("entry", []), self._where("entry", node), self.registries)
        node.exit = compile_block(raw.get("exit", []), self._where("exit", node), self.registries)
        if "output" in raw:
            node.output = compile_template(raw["output"])
        if node.kind == "history":
            self._defaults.append((node, raw["target"]))
            node.default_block = self._block(raw.get("actions"), "default of", node)
        elif "initial" in raw:
            self._defaults.append((node, raw["initial"]["target"]))
            node.default_block = self._block(raw["initial"].get("actions"), "initial of", node)
        node.transitions = tuple(self._own_transitions(raw, node))
        children = [self._state(child, node) for child in raw.get("states", [])]
        node.children = tuple(child for child in children if child.kind != "history")
        node.histories = tuple(child for child in children if child.kind == "history")
        node.last = len(self.states) - 1
        return node

    def _where(self, part: str, node: StateNode) -> str:
        return f"{part} of {node.path or 'the machine'}"

    def _block(self, actions: Any, part: str, node: StateNode) -> Any:
        return compile_block(actions or [], self._where(part, node), self.registries)

    def _own_transitions(self, raw: dict[str, Any], node: StateNode) -> list[Transition]:
        """Those that belong to this very state first, so that a wildcard in ``on`` cannot take their events."""
        found: list[Transition] = []
        timers = []
        for index, timer in enumerate(raw.get("after", [])):
            name = f"after:{index}:{node.path}"
            delay = timer["delay"]
            dynamic = compile_template(delay) if is_expression(delay) else None
            timers.append(Timer(name, None if dynamic else delay, dynamic))
            self.owners[name] = node.path
            found += [self._transition(each, node, (name,), True) for each in timer["transitions"]]
        node.timers = tuple(timers)
        invokes = []
        for invoke in raw.get("invoke", []):
            invokes.append(self._invoke(invoke))
            for event, key in (("done.invoke.", "onDone"), ("error.invoke.", "onError")):
                name = event + invoke["id"]
                self.owners[name] = node.path
                found += [self._transition(each, node, (name,), True) for each in invoke.get(key, [])]
        node.invokes = tuple(invokes)
        found += [self._transition(each, node, (node.done_name,), True) for each in raw.get("onDone", [])]
        found += [self._transition(each, node, tuple(each["event"]), False) for each in raw.get("on", [])]
        found += [self._transition(each, node, (), True) for each in raw.get("always", [])]
        return found

    def _transition(self, raw: dict[str, Any], node: StateNode, events: tuple[str, ...], exact: bool) -> Transition:
        named = f"{' '.join(events) or 'always'} in {node.path or 'the machine'}"
        test = compile_guard(raw.get("guard"), f"guard of {named}", self.registries)
        block = compile_block(raw.get("actions", []), f"transition {named}", self.registries)
        transition = Transition(
            len(self.transitions), node, events, exact, test.holds, test.asks_active, block, raw.get("reenter", False)
        )
        transition.weight = test.weight
        transition.by_scxml = self.by_scxml
        transition.raw = raw
        self.transitions.append(transition)
        self._targets.append((transition, raw.get("target", [])))
        return transition

    def _invoke(self, raw: dict[str, Any]) -> Invoke:
        kind, src = next(iter(raw["src"].items()))
        each = compile_template(raw["each"]) if "each" in raw else None
        if each is not None:
            self.repeated.add(raw["id"])
        default: Any = {"expr": "item"} if each is not None else {}
        given = compile_template(raw.get("input", default), ("item", "index") if each is not None else ())
        return Invoke(raw["id"], kind, src, given, each, raw.get("join", "all"), raw.get("options", {}))
