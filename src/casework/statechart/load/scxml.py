"""Import of SCXML documents: states, transitions, history, executable content, with Python-like expressions.

The document becomes the authoring format, so everything behind it is shared. Expressions are the subset of
``expressions``; names of data are read from the context, ``_event`` is the event. As the recommendation says, an error
event that nothing handles is ignored, and reading or assigning data that was not declared raises ``error.execution``.
Data of the document can be given as the input of the machine. A document invoked inline becomes a machine of its own.
Scripts, late binding, autoforward, finalize and other I/O processors are refused by name.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import Any
from xml.etree import ElementTree

from casework.errors import InvalidMachine
from casework.statechart.operations import FUNCTIONS

Element = ElementTree.Element
_NAMESPACE = "http://www.w3.org/2005/07/scxml"
_STATES = ("state", "parallel", "final", "history")
_INVOKED = (None, "scxml", "http://www.w3.org/TR/scxml", "http://www.w3.org/TR/scxml/")
_PROCESSORS = (None, "scxml", "http://www.w3.org/TR/scxml/#SCXMLEventProcessor")


def parse(text: str, source: str = "machine") -> list[dict[str, Any]]:
    """The document in the authoring format, then the documents that it invokes inline, each with a name of its own.

    Raises InvalidMachine with everything that is not supported.
    """
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise InvalidMachine([f"{source}: a document type is not supported (remove <!DOCTYPE ...>)"])
    try:
        root = ElementTree.fromstring(text.lstrip("\ufeff \r\n\t"))
    except (ElementTree.ParseError, ValueError) as error:
        raise InvalidMachine([f"{source}: not XML: {error}"]) from None
    if _tag(root) != "scxml":
        raise InvalidMachine([f"{source}: the root is <{_tag(root)}>, not <scxml>"])
    reader = _Reader(source)
    found = reader.machine(root, root.get("name") or PurePath(source).stem)
    if reader.problems:
        raise InvalidMachine(reader.problems)
    return found


def _own(element: Element) -> Iterator[Element]:
    """All elements below, those of documents within not among them."""
    for child in element:
        if _tag(child) != "scxml":
            yield child
            yield from _own(child)


def _tag(element: Element) -> str:
    tag = str(element.tag)
    return tag.removeprefix(f"{{{_NAMESPACE}}}")


class _Reader:
    def __init__(self, source: str) -> None:
        self.source = source
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
        self.problems.append(f"{self.source}: <{_tag(element)}{' ' + name if name else ''}>: {message}")

    # --- states

    def machine(self, root: Element, name: str) -> list[dict[str, Any]]:
        """The machine of one document, and those of the documents within it."""
        self.name = name
        self.is_ecmascript = root.get("datamodel") == "ecmascript"
        result: dict[str, Any] = {"id": self.name, "ignore_errors": True, "context": {}}
        self.data = [each.get("id", "") for each in _own(root) if _tag(each) == "data"]
        for element in _own(root):
            if _tag(element) == "data":
                is_global = any(element in list(child) for child in root)
                result["context"][element.get("id", "")] = self._data(element, is_global)
        for child in root:
            if _tag(child) == "transition":
                self._transition(child, result, is_compound=True)
            elif _tag(child) not in (*_STATES, "datamodel"):
                self.refuse(child, "is not supported here")
        if root.get("binding") == "late":
            self.refuse(root, "late binding is not supported (data gets its value at the start)")
        result["states"] = self._states(root)
        result["initial"] = self._initial(root)
        found = [result]
        for inline, inner in self.inline:
            reader = _Reader(self.source)
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
            elif tag not in (*_STATES, "onentry", "onexit", "initial", "datamodel"):
                self.refuse(child, "is not supported")
        return result

    def _initial(self, element: Element) -> dict[str, Any]:
        for child in element:
            if _tag(child) == "initial":
                transition = child.find(f"{{{_NAMESPACE}}}transition")
                if transition is None:
                    transition = child.find("transition")
                if transition is None:
                    self.refuse(child, "has no transition")
                    break
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
                result["target"] = _targets(child.get("target", ""))
                actions = self.content(child)
                if actions:
                    result["actions"] = actions
        return result

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
            state.setdefault("on", []).append({"event": " ".join(words), **result})
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
            else:
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
            location = element.get("location", "")
            if not location.isidentifier():
                self.refuse(element, f"the location {location!r} is not the id of a <data>")
            # Reading it first: assigning what was not declared is an error (SCXML 5.4).
            yield {"type": "if", "params": {"branches": [{"actions": [
                {"type": "assign", "params": {location: {"expr": f"context[{location!r}]"}}},
                {"type": "assign", "params": {location: self._value(element)}},
            ]}]}}  # fmt: skip
        elif tag == "if":
            yield {"type": "if", "params": {"branches": self._branches(element)}}
        elif tag == "foreach":
            yield self._foreach(element)
        elif tag == "cancel":
            name = self.expression(element, "sendidexpr") if element.get("sendidexpr") else element.get("sendid")
            yield {"type": "cancel", "params": {"id": name}}
        elif tag == "send":
            yield self._send(element)
        else:
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
        if not params["item"].isidentifier():
            self.refuse(element, f"the item {params['item']!r} is not a name")
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

    def _data(self, element: Element, is_global: bool) -> Any:
        """Data of the document itself may be given from outside, as the input (SCXML 6.4.4)."""
        if element.get("src"):
            self.refuse(element, "data from a file is not supported (write it into the document)")
        text = "None"
        if element.get("expr"):
            text = self.expression(element, "expr")["expr"]
        elif (element.text or "").strip():
            text = repr(_literal(element))
        return {"expr": f"get(input, {element.get('id')!r}, {text})" if is_global else text}

    def _value(self, element: Element) -> Any:
        return self.expression(element, "expr") if element.get("expr") else _literal(element)

    def _payload(self, element: Element) -> Any:
        data: dict[str, Any] = {name: _read(name) for name in element.get("namelist", "").split()}
        for child in element:
            if _tag(child) == "content":
                return self.expression(child, "expr") if child.get("expr") else _literal(child)
            if _tag(child) == "param":
                name = child.get("name", "")
                location = child.get("location")
                data[name] = _read(location) if location else self.expression(child, "expr")
        return data

    def expression(self, element: Element, attribute: str) -> dict[str, str]:
        """An attribute as an expression of ours."""
        text = " ".join((element.get(attribute) or "").split())
        if self.is_ecmascript:
            text = _from_ecmascript(text)
        try:
            tree = ast.parse(text, mode="eval")
        except SyntaxError as error:
            self.refuse(element, f"{attribute} {text!r} is not an expression: {error.msg}")
            return {"expr": "None"}
        rewriter = _Rewriter(self.name, self.data)
        rewritten = ast.unparse(ast.fix_missing_locations(rewriter.visit(tree)))
        for name in rewriter.unsupported:
            self.refuse(element, f"{name} is not supported in {attribute} {text!r}")
        return {"expr": rewritten}


class _Rewriter(ast.NodeTransformer):
    """From the names of SCXML to ``context`` and ``event``."""

    def __init__(self, name: str, data: Iterable[str]) -> None:
        self.name = name
        self.data = frozenset(data)
        self.bound: set[str] = set()
        self.unsupported: list[str] = []

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id == "_name":
            return ast.Constant(self.name)
        if node.id.startswith("_"):
            self.unsupported.append(node.id)
            return node
        if not isinstance(node.ctx, ast.Load):
            self.bound.add(node.id)
        is_function = node.id in FUNCTIONS or node.id == "In"
        if node.id in self.bound or (is_function and node.id not in self.data):
            return node
        return ast.Subscript(ast.Name("context", ast.Load()), ast.Constant(node.id), ast.Load())

    def visit_ListComp(self, node: ast.ListComp) -> ast.AST:
        node.generators = [self.visit(each) for each in node.generators]
        node.elt = self.visit(node.elt)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if isinstance(node.value, ast.Name) and node.value.id == "_event":
            known = {"name": "type", "data": "data"}
            if node.attr not in known:
                self.unsupported.append(f"_event.{node.attr}")
            return ast.Attribute(ast.Name("event", ast.Load()), known.get(node.attr, "data"), ast.Load())
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            arguments = [self.visit(node.func.value), *(self.visit(each) for each in node.args)]
            return ast.Call(ast.Name("get", ast.Load()), arguments, [])
        return self.generic_visit(node)


_ECMASCRIPT = {"===": "==", "!==": "!=", "&&": " and ", "||": " or ", "!": " not ", "true": "True", "false": "False",
               "null": "None", "undefined": "None"}  # fmt: skip
_ECMASCRIPT_TOKEN = re.compile(
    r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|===|!==|!=|&&|\|\||!|(?<![\w.$])(?:true|false|null|undefined)(?![\w$])"""
)


def _from_ecmascript(text: str) -> str:
    """Operators and literals that differ in simple conditions; what is more than that is not Python and refused."""
    return _ECMASCRIPT_TOKEN.sub(lambda match: _ECMASCRIPT.get(match[0], match[0]), text).strip()


def _targets(text: str) -> list[str]:
    return ["#" + target for target in text.split()]


def _read(name: str) -> dict[str, str]:
    return {"expr": f"context[{name!r}]"}


def _literal(element: Element) -> Any:
    """Text content: JSON or a Python literal where it is one, else the text with its blanks evened out."""
    text = "".join(element.itertext()).strip()
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return " ".join(text.split())
