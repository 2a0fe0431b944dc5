"""The expressions and values of SCXML documents: Python's, which are rewritten, and ECMAScript's, which are translated.

A document whose ``datamodel`` is ``ecmascript`` keeps its expressions as they are written, marked as ECMAScript, so
that they are read with the meaning of that language. All others are taken for the part of Python that ``expressions``
knows. What neither knows is refused by name.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Collection, Iterable
from typing import Any, Protocol
from xml.etree.ElementTree import Element

from casework.statechart.ecmascript import EcmascriptError, translate
from casework.statechart.ecmascript_values import INHERITED
from casework.statechart.load.elements import tag_of
from casework.statechart.operations import FUNCTIONS


class Document(Protocol):
    """What is asked of the reader of a document."""

    name: str
    is_ecmascript: bool
    data: list[str]

    def refuse(self, element: Element, message: str) -> None:
        """Record a problem at an element."""


def expression(document: Document, element: Element, attribute: str) -> dict[str, Any]:
    """An attribute as an expression of ours."""
    text = (element.get(attribute) or "").strip()
    if document.is_ecmascript:
        return _ecmascript(document, element, attribute, text)
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        why = getattr(error, "msg", None) or str(error) or "it is too deep"
        document.refuse(element, f"{attribute} {text!r} is not an expression: {why}")
        return {"expr": "None"}
    rewriter = _Rewriter(document.name, document.data)
    rewritten = ast.unparse(ast.fix_missing_locations(rewriter.visit(tree)))
    for name in rewriter.unsupported:
        document.refuse(element, f"{name} is not supported in {attribute} {text!r}")
    return {"expr": rewritten}


def first_value(document: Document, element: Element, is_global: bool) -> dict[str, Any]:
    """The value of a ``<data>``; what stands in the document itself may be given as input instead (SCXML 6.4.4)."""
    name = element.get("id", "")
    text = element.get("expr", "").strip()
    if document.is_ecmascript:
        if name in INHERITED:
            document.refuse(element, f"{name!r} is a name of ECMAScript's own (choose another)")
        if text:
            _check_first(document, element, text)
        elif not is_blank(element):
            text = json.dumps(literal(document, element))
        own = f"({text or 'undefined'})"
        given = f"input[{json.dumps(name)}]"
        return {"expr": f"{given} === undefined ? {own} : {given}" if is_global else own, "ecmascript": []}
    text = "None"
    if element.get("expr"):
        text = expression(document, element, "expr")["expr"]
    elif not is_blank(element):
        text = repr(literal(document, element))
    return {"expr": f"get(input, {name!r}, {text})" if is_global else text}


def mapping(document: Document, pairs: list[tuple[str, dict[str, Any]]]) -> Any:
    """A payload of names and expressions; in ECMAScript one object, so that what is undefined is left out."""
    if not document.is_ecmascript or not pairs:
        return dict(pairs)
    text = ", ".join(f"{json.dumps(name)}: ({value['expr']})" for name, value in pairs)
    names = sorted({name for _, value in pairs for name in value["ecmascript"]})
    return {"expr": f"{{{text}}}", "ecmascript": names}


def location(document: Document, name: str) -> dict[str, Any]:
    """The value of a ``<data>``."""
    if document.is_ecmascript:
        return {"expr": name, "ecmascript": [name] if name in document.data else []}
    return {"expr": f"context[{name!r}]"}


def literal(document: Document, element: Element) -> Any:
    """Text content: JSON (or a literal of Python) where it is one, else the text with its blanks evened out."""
    for child in element:
        document.refuse(element, f"XML inside it (<{tag_of(child)}>) is not supported (write JSON or text)")
    text = "".join(element.itertext()).strip()
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        pass
    if not document.is_ecmascript:
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
            pass
    return " ".join(text.split())


def is_blank(element: Element) -> bool:
    """Nothing inside but blanks."""
    return not len(element) and not (element.text or "").strip()


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def _ecmascript(document: Document, element: Element, attribute: str, text: str) -> dict[str, Any]:
    try:
        found = translate(text, document.data, (), _unread)
    except (EcmascriptError, RecursionError) as error:
        why = str(error) if isinstance(error, EcmascriptError) else "it is nested too deeply"
        document.refuse(element, f"{attribute} {text!r}: {why}")
        return {"expr": "null", "ecmascript": []}
    return {"expr": text, "ecmascript": sorted(found.names & set(document.data))}


def _check_first(document: Document, element: Element, text: str) -> None:
    """Data get their values all at once, so that one cannot be computed from another."""
    try:
        found = translate(text, document.data, (), _unread)
    except (EcmascriptError, RecursionError) as error:
        document.refuse(element, f"expr {text!r}: {error}")
        return
    if found.names or found.asks_event or found.asks_active:
        what = ", ".join(sorted(found.names)) or ("_event" if found.asks_event else "In()")
        document.refuse(element, f"expr {text!r} reads {what}, which is not there at the start (use <assign>)")


def _unread(name: str) -> ast.expr:
    return ast.Name(name, ast.Load())


class _Rewriter(ast.NodeTransformer):
    """From the names of SCXML to ``context`` and ``event``."""

    def __init__(self, name: str, data: Iterable[str]) -> None:
        self.name = name
        self.data: Collection[str] = frozenset(data)
        self.bound: set[str] = set()
        self.unsupported: list[str] = []

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

    def visit_ListComp(self, node: ast.ListComp) -> Any:
        return self._loop(node)

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> Any:
        return self._loop(node)

    def visit_DictComp(self, node: ast.DictComp) -> Any:
        return self._loop(node)

    def _loop(self, node: Any) -> Any:
        """The clauses first, since they bind the names that the element uses."""
        before = set(self.bound)
        for clause in node.generators:
            clause.iter = self.visit(clause.iter)
            clause.target = self.visit(clause.target)
            clause.ifs = [self.visit(each) for each in clause.ifs]
        for part in ("elt", "key", "value"):
            if hasattr(node, part):
                setattr(node, part, self.visit(getattr(node, part)))
        self.bound = before
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
