"""Import of SCXML documents: states, transitions, history, executable content.

The document becomes the authoring format, so everything behind it is shared. Expressions are those of
``scxml_expressions``; names of data are read from the context, ``_event`` is the event. As the recommendation says, an
error event that nothing handles is ignored, and reading or assigning data that was not declared raises
``error.execution``. What the recommendation forbids is refused: see ``_CHILDREN``.
Data of the document can be given as the input of the machine. A document invoked inline becomes a machine of its own.
Scripts, late binding, autoforward, finalize and other I/O processors are refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import Any
from xml.etree.ElementTree import Element

from casework.errors import InvalidMachine
from casework.statechart.load.elements import NAMESPACE, Lines, own, parse_xml
from casework.statechart.load.elements import tag_of as _tag
from casework.statechart.load.scxml_expressions import expression, first_value, literal, location, mapping

_CONTENT = ("raise", "if", "foreach", "log", "assign", "send", "cancel", "script")
_CHILDREN: dict[str, tuple[str, ...]] = {
    "scxml": ("state", "parallel", "final", "datamodel", "script", "transition", "initial"),
    "state": ("onentry", "onexit", "transition", "initial", "state", "parallel", "final", "history", "datamodel",
              "invoke"),
    "parallel": ("onentry", "onexit", "transition", "state", "parallel", "history", "datamodel", "invoke"),
    "final": ("onentry", "onexit", "donedata"), "history": ("transition",), "initial": ("transition",),
    "onentry": _CONTENT, "onexit": _CONTENT, "transition": _CONTENT, "foreach": _CONTENT,
    "if": (*_CONTENT, "elseif", "else"), "elseif": (), "else": (), "raise": (), "log": (), "cancel": (), "data": (),
    "param": (), "assign": (), "datamodel": ("data",), "donedata": ("content", "param"), "send": ("content", "param"),
    "invoke": ("param", "finalize", "content"), "content": ("scxml",),
}  # fmt: skip
"""Which elements the recommendation permits inside which (section 3 to 6)."""
_EITHER = (
    ("event", "eventexpr"), ("target", "targetexpr"), ("type", "typeexpr"), ("id", "idlocation"),
    ("delay", "delayexpr"), ("src", "srcexpr"), ("sendid", "sendidexpr"), ("src", "expr"),
)  # fmt: skip
"""Attributes of which an element has one at most."""
_STATES = ("state", "parallel", "final", "history")
_INVOKED = (None, "scxml", "http://www.w3.org/TR/scxml", "http://www.w3.org/TR/scxml/")
_PROCESSORS = (None, "scxml", "http://www.w3.org/TR/scxml/#SCXMLEventProcessor")


def parse(text: str, source: str = "machine") -> list[dict[str, Any]]:
    """The document in the authoring format, then the documents that it invokes inline, each with a name of its own.

    Raises InvalidMachine with everything that is not supported.
    """
    root, lines = parse_xml(text, source)
    if _tag(root) != "scxml":
        raise InvalidMachine([f"{source}:{lines[root]}: the root is <{_tag(root)}>, not <scxml>"])
    reader = _Reader(source, lines)
    found = reader.machine(root, root.get("name") or PurePath(source).stem)
    if reader.problems:
        raise InvalidMachine(reader.problems)
    return found


class _Reader:
    def __init__(self, source: str, lines: Lines) -> None:
        self.source, self.lines = source, lines
        self.problems: list[str] = []
        self.name = ""
        self.is_ecmascript = False
        self.unnamed = 0
        self.data: list[str] = []
        """Ids of all data."""
        self.inline: list[tuple[Element, str]] = []

    def refuse(self, element: Element, message: str) -> None:
        """Record a problem at an element."""
        name = element.get("id") or element.get("event") or element.get("target") or ""
        line = self.lines.get(element)
        where = f"{self.source}:{f'{line}:' if line else ''}"
        self.problems.append(f"{where} <{_tag(element)}{' ' + name if name else ''}>: {message}")

    def _check(self, element: Element) -> None:
        """Refuse what the recommendation does not permit in this place."""
        tag = _tag(element)
        for one, other in _EITHER:
            if element.get(one) is not None and element.get(other) is not None:
                self.refuse(element, f"has {one!r} and {other!r}, which exclude each other")
        for child in element:
            inside = _tag(child)
            if tag == "parallel" and inside == "final":
                fix = "a region of <parallel> is a <state>; put the <final> into one"
                self.refuse(child, f"cannot be a child of <parallel> ({fix})")
            elif tag in _CHILDREN and inside not in _CHILDREN[tag] and "}" not in inside:
                self.refuse(child, f"is not supported in <{tag}>")

    # --- states

    def machine(self, root: Element, name: str) -> list[dict[str, Any]]:
        """The machine of one document, and those of the documents within it."""
        self.name = name
        self.is_ecmascript = root.get("datamodel") == "ecmascript"
        if root.get("datamodel") not in (None, "ecmascript", "python", "null"):
            known = "ecmascript, python, or none"
            self.refuse(root, f"the datamodel {root.get('datamodel')!r} is not supported (use {known})")
        for element in (root, *own(root)):
            self._check(element)
        result: dict[str, Any] = {"id": self.name, "rules": "scxml", "ignore_errors": True, "context": {}}
        self.data = [each.get("id", "") for each in own(root) if _tag(each) == "data"]
        for element in own(root):
            if _tag(element) == "data":
                if not element.get("id", "").isidentifier():
                    self.refuse(element, f"the id {element.get('id')!r} is not a name")
                if element.get("src"):
                    self.refuse(element, "data from a file is not supported (write it into the document)")
                if self.data.count(element.get("id", "")) > 1:
                    self.refuse(element, "the id is taken by another <data>")
                is_global = any(element in list(child) for child in root)
                result["context"][element.get("id", "")] = first_value(self, element, is_global)
        for child in root:
            if _tag(child) == "transition":
                self._transition(child, result, is_compound=True)
            elif _tag(child) == "script":
                self.refuse(child, "is not supported (use <assign>, or a named function)")
        if root.get("binding") == "late":
            self.refuse(root, "late binding is not supported (data gets its value at the start)")
        result["states"] = self._states(root)
        result["initial"] = self._initial(root)
        found = [result]
        for inline, inner in self.inline:
            reader = _Reader(self.source, self.lines)
            found += reader.machine(inline, inner)
            self.problems += reader.problems
        return found

    def _states(self, parent: Element) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for child in parent:
            if _tag(child) in _STATES:
                if not child.get("id"):
                    self.unnamed += 1
                    child.set("id", f"_unnamed-{self.unnamed}")
                key = child.get("id", "").replace(".", "-")
                if key in result:
                    self.refuse(child, "the id is taken")
                result[key] = self._state(child)
        return result

    def _state(self, element: Element) -> dict[str, Any]:
        kind = _tag(element)
        for name in ("defer", "on_unhandled"):
            if element.get(name) is not None:
                self.refuse(element, f"has {name!r}, which SCXML does not know (write the machine in YAML)")
        result: dict[str, Any] = {"id": element.get("id")}
        if kind != "state":
            result["type"] = kind
        if kind == "history":
            return self._history(element, result)
        states = self._states(element)
        if states:
            result["states"] = states
        if kind == "state" and states:
            result["initial"] = self._initial(element)
        for name in ("entry", "exit"):
            handlers = [self.content(child) for child in element if _tag(child) == f"on{name}"]
            if len(handlers) == 1:
                result[name] = handlers[0]
            elif handlers:
                result[name] = [{"type": "block", "params": {"actions": actions}} for actions in handlers]
        for child in element:
            tag = _tag(child)
            if tag == "transition":
                self._transition(child, result, is_compound=kind == "state" and bool(states))
            elif tag == "invoke":
                result.setdefault("invoke", []).append(self._invoke(child))
            elif tag == "donedata":
                result["output"] = self._payload(child)
        if not states and (element.get("initial") or any(_tag(child) == "initial" for child in element)):
            self.refuse(element, "has an initial state, and no states")
        return result

    def _initial(self, element: Element) -> dict[str, Any]:
        for child in element:
            if _tag(child) == "initial":
                transition = child.find(f"{{{NAMESPACE}}}transition")
                if transition is None:
                    transition = child.find("transition")
                if transition is None:
                    self.refuse(child, "has no transition")
                    break
                self._plain(transition, child)
                if element.get("initial"):
                    self.refuse(element, "has an attribute initial and an <initial>, which exclude each other")
                return {"target": _targets(transition.get("target", "")), "actions": self.content(transition)}
        named = element.get("initial")
        if named:
            return {"target": _targets(named)}
        first = next((child for child in element if _tag(child) in _STATES and _tag(child) != "history"), None)
        if first is None:
            self.refuse(element, "has no states")
            return {"target": []}
        return {"target": ["#" + first.get("id", "")]}

    def _history(self, element: Element, result: dict[str, Any]) -> dict[str, Any]:
        result["history"] = element.get("type", "shallow")
        for child in element:
            if _tag(child) == "transition":
                self._plain(child, element)
                result["target"] = _targets(child.get("target", ""))
                actions = self.content(child)
                if actions:
                    result["actions"] = actions
        return result

    def _plain(self, transition: Element, parent: Element) -> None:
        """That of ``<initial>`` and ``<history>`` has a target, and no event or condition (SCXML 3.6, 3.10)."""
        if transition.get("event") or transition.get("cond") or not transition.get("target"):
            self.refuse(transition, f"in <{_tag(parent)}> has a target, and neither event nor cond")
        if sum(_tag(child) == "transition" for child in parent) > 1:
            self.refuse(parent, "has more than one transition")

    def _transition(self, element: Element, state: dict[str, Any], is_compound: bool) -> None:
        result: dict[str, Any] = {}
        targets = _targets(element.get("target", ""))
        if targets:
            result["target"] = targets
            stays = element.get("type") == "internal" and is_compound and f"#{state['id']}" not in targets
            result["reenter"] = not stays
        if element.get("cond"):
            result["guard"] = self.expression(element, "cond")
        actions = self.content(element)
        if actions:
            result["actions"] = actions
        event = element.get("event")
        if event:
            # A descriptor may end in a dot or dot star, which mean the same (SCXML 3.12.1).
            words = [word if word == "*" else word.removesuffix("*").removesuffix(".") for word in event.split()]
            state.setdefault("on", []).append({"event": words, **result})
        else:
            state.setdefault("always", []).append(result)

    def _invoke(self, element: Element) -> dict[str, Any]:
        if element.get("type") not in _INVOKED:
            self.refuse(element, f"the type {element.get('type')!r} is not supported")
        for name in ("typeexpr", "srcexpr", "idlocation"):
            if element.get(name):
                self.refuse(element, f"{name!r} is not supported")
        if element.get("autoforward") == "true":
            self.refuse(element, "autoforward is not supported (send the events that matter)")
        result: dict[str, Any] = {"id": element.get("id")} if element.get("id") else {}
        machine = PurePath(element.get("src", "").removeprefix("file:")).stem
        payload = Element("payload", {"namelist": element.get("namelist", "")})
        for child in element:
            tag = _tag(child)
            inline = [each for each in child if _tag(each) == "scxml"] if tag == "content" else []
            if inline:
                machine = f"{self.name}.{element.get('id') or len(self.inline) + 1}"
                self.inline.append((inline[0], machine))
            elif tag == "param":
                payload.append(child)
            elif tag in _CHILDREN["invoke"]:
                self.refuse(child, "is not supported in <invoke>")
        if not machine:
            self.refuse(element, "has neither src nor a document inside")
        return {**result, "src": {"machine": machine or "none"}, "input": self._payload(payload)}

    # --- executable content

    def content(self, element: Element) -> list[Any]:
        """The actions below an element."""
        return [action for child in element for action in self._action(child)]

    def _action(self, element: Element) -> Iterator[Any]:
        tag = _tag(element)
        if tag == "raise":
            yield {"type": "raise", "params": {"event": element.get("event")}}
        elif tag == "log":
            params: dict[str, Any] = {"label": element.get("label", "")}
            if element.get("expr"):
                params["value"] = self.expression(element, "expr")
            yield {"type": "log", "params": params}
        elif tag == "assign":
            name = element.get("location", "")
            if not name.isidentifier():
                self.refuse(element, f"the location {name!r} is not the id of a <data>")
            assigned = {"type": "assign", "params": {name: self._value(element)}}
            if self.is_ecmascript and name in self.data:
                yield assigned
                return
            # Reading it first: assigning what was not declared is an error (SCXML 5.4).
            read = {"type": "assign", "params": {name: {"expr": f"context[{name!r}]"}}}
            yield {"type": "if", "params": {"branches": [{"actions": [read, assigned]}]}}
        elif tag == "if":
            yield {"type": "if", "params": {"branches": self._branches(element)}}
        elif tag == "foreach":
            yield self._foreach(element)
        elif tag == "cancel":
            sent = self.expression(element, "sendidexpr") if element.get("sendidexpr") else element.get("sendid")
            yield {"type": "cancel", "params": {"id": sent}}
        elif tag == "send":
            yield self._send(element)
        elif tag in _CONTENT:
            self.refuse(element, "is not supported")

    def _branches(self, element: Element) -> list[Any]:
        branches: list[dict[str, Any]] = [{"guard": self.expression(element, "cond"), "actions": []}]
        for child in element:
            tag = _tag(child)
            if tag == "elseif":
                branches.append({"guard": self.expression(child, "cond"), "actions": []})
            elif tag == "else":
                branches.append({"actions": []})
            else:
                branches[-1]["actions"] += self._action(child)
        return branches

    def _foreach(self, element: Element) -> Any:
        params: dict[str, Any] = {"items": self.expression(element, "array"), "item": element.get("item", "")}
        if element.get("index"):
            params["index"] = element.get("index")
        for key in ("item", "index"):
            if not params.get(key, "name").isidentifier():
                self.refuse(element, f"the {key} {params[key]!r} is not a name")
        params["actions"] = self.content(element)
        return {"type": "foreach", "params": params}

    def _send(self, element: Element) -> Any:
        if element.get("type") not in _PROCESSORS or element.get("typeexpr"):
            self.refuse(element, f"the processor {element.get('type')!r} is not supported")
        for name in ("idlocation", "targetexpr"):
            if element.get(name):
                self.refuse(element, f"{name!r} is not supported")
        event: Any = self.expression(element, "eventexpr") if element.get("eventexpr") else element.get("event")
        params: dict[str, Any] = {"event": event, "data": self._payload(element)}
        target = element.get("target", "")
        if target == "#_internal":
            return {"type": "raise", "params": params}
        params["to"] = {"": "self", "#_parent": "parent"}.get(target, target)
        if params["to"].startswith("#_scxml_"):
            params["to"] = target.removeprefix("#_scxml_")
        elif params["to"].startswith("#_"):
            params["to"] = "child:" + target.removeprefix("#_")
        if element.get("delayexpr"):
            params["delay"] = self.expression(element, "delayexpr")
        elif element.get("delay"):
            delay = element.get("delay", "")
            params["delay"] = delay
        if element.get("id"):
            params["id"] = element.get("id")
        return {"type": "send", "params": params}

    # --- values

    def expression(self, element: Element, attribute: str) -> dict[str, Any]:
        """An attribute as an expression of ours."""
        return expression(self, element, attribute)

    def _value(self, element: Element) -> Any:
        if element.get("expr"):
            return self.expression(element, "expr")
        return literal(self, element)

    def _payload(self, element: Element) -> Any:
        pairs = [(name, location(self, name)) for name in element.get("namelist", "").split()]
        for child in element:
            if _tag(child) == "content":
                return self._value(child)
            if _tag(child) == "param":
                where = child.get("location")
                value = location(self, where) if where else self.expression(child, "expr")
                pairs.append((child.get("name", ""), value))
        return mapping(self, pairs)


def _targets(text: str) -> list[str]:
    return ["#" + target for target in text.split()]
