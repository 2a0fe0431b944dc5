"""What expressions say about the values that they read: which keys, lists of what, compared with what.

A :class:`Shape` collects that for one value, and :func:`template_of` makes a payload's template from it. Where a value
goes on into the context, the shape is linked with that of the context's key, so that what is read there counts too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from typing import Any

DEPTH_MAX = 6
"""Deeper than this nothing is guessed: the context may go into itself."""
_TEXTS = ("ref", "sku", "name", "key", "email", "reason", "currency", "id", "receipt", "token")
_NUMBERS = (ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)


class Shape:
    """What is known about one value."""

    __slots__ = ("elements", "initial", "is_read", "keys", "kinds", "length", "links", "name", "near", "values")

    def __init__(self, name: str = "") -> None:
        self.name = name
        """The key under which it stands."""
        self.keys: dict[str, Shape] = {}
        self.elements: Shape | None = None
        self.length = 0
        """The list has at least so many."""
        self.links: list[Shape] = []
        """Shapes of which everything holds for this one as well."""
        self.near: list[Shape] = []
        """What it is compared with: their values are worth a try."""
        self.values: list[Any] = []
        """Constants that it is compared with."""
        self.initial: list[Any] = []
        """Constants that it begins as."""
        self.kinds: set[str] = set()
        """Of ``text``, ``number``, ``flag`` and ``none``."""
        self.is_read = False

    def key(self, name: str) -> Shape:
        """The value below a key."""
        return self.keys.setdefault(name, Shape(name))

    def each(self) -> Shape:
        """An element of the list that it is."""
        if self.elements is None:
            self.elements = Shape(self.name)
        return self.elements

    def like(self, literal: Any) -> None:
        """It begins as ``literal``, the value of a context's key."""
        if isinstance(literal, bool):
            self.kinds.add("flag")
        elif isinstance(literal, int | float):
            self.kinds.add("number")
            self.initial.append(literal)
        elif isinstance(literal, str):
            self.kinds.add("text")
            self.initial += [literal] if literal else []
        elif isinstance(literal, list):
            for each in literal or [None]:
                self.each().like(each)
        elif isinstance(literal, Mapping):
            for name, value in literal.items():
                self.key(str(name)).like(value)


# --- from what is known to a template -----------------------------------------------------------------------------


def template_of(*shapes: Shape, depth: int = 0) -> Any:
    """A template for a value that has all of these shapes, see :mod:`casework.simulation.payloads`."""
    every = _with_links(shapes)
    keys = {name: None for shape in every for name in shape.keys if not name.startswith("$")}
    if depth > DEPTH_MAX:
        return None
    if keys:
        below = {name: [shape.keys[name] for shape in every if name in shape.keys] for name in keys}
        return {name: template_of(*parts, depth=depth + 1) for name, parts in below.items()}
    lists = [shape.elements for shape in every if shape.elements is not None]
    if lists:
        element = template_of(*lists, depth=depth + 1)
        least = max(shape.length for shape in every)
        return [element] * least if least else {"$list": [element, 3]}
    return _plain(every)


def _plain(every: list[Shape]) -> Any:
    """A template for a text, a number or a flag."""
    kinds = {kind for shape in every for kind in shape.kinds}
    values = [value for shape in every for value in shape.values]
    if not values:
        near = _with_links(other for shape in every for other in shape.near)
        values = [value for other in near for value in (*other.values, *other.initial)]
        wanted = "text" if "text" in kinds else "number" if "number" in kinds else ""
        values = [value for value in values if isinstance(value, str) is (wanted == "text") or not wanted]
    names = list(dict.fromkeys(shape.name for shape in every if shape.name))
    found: Any
    if values:
        found = {"$choice": _around(values, names)}
    elif "number" in kinds:
        found = {"$int": [1, 3]}
    elif "text" in kinds or (not kinds - {"none"} and any(_is_text(name) for name in names[:1])):
        found = {"$id": names[0] if names else "text"}
    elif "flag" in kinds:
        found = {"$choice": [True, False]}
    else:
        found = {"$int": [1, 3]}
    return {"$maybe": found} if "none" in kinds else found


def _around(values: list[Any], names: list[str]) -> list[Any]:
    """The values themselves, what is just beside them, and something else."""
    found: list[Any] = []
    for value in values:
        near: list[Any]
        if isinstance(value, bool):
            near = [True, False]
        elif isinstance(value, int | float):
            near = [value, value + 1, *([value - 1] if value > 0 else [])]
        elif isinstance(value, str):
            near = [value, {"$id": names[0] if names else "text"}]
        else:
            near = [value]
        found += [each for each in near if not any(each == other and type(each) is type(other) for other in found)]
    return found


def _with_links(shapes: Iterable[Shape]) -> list[Shape]:
    found = list(shapes)
    for shape in found:  # grows on the way
        found += [link for link in shape.links if not any(link is other for other in found)]
    return found


def _is_text(name: str) -> bool:
    return name in _TEXTS or name.endswith(("_id", "_ref", "_key", "_name", "id"))


# --- reading expressions ------------------------------------------------------------------------------------------

Names = Mapping[str, Shape]
"""The shapes of the names that an expression sees."""


class Reader:
    """Reads values that hold expressions, and notes what they say about the names that they use.

    Args:
        names: the shapes of ``event``, ``context`` and so on.
        is_result: the event reports on a task: ``event.output`` is its payload.
    """

    def __init__(self, names: Names, *, is_result: bool = False) -> None:
        self.names = names
        self.is_result = is_result

    def read(self, value: Any, *, into: Shape | None = None, is_test: bool = False) -> None:
        """A literal that may hold expressions at any depth; it becomes what ``into`` is the shape of."""
        if isinstance(value, Mapping):
            if set(value) == {"expr"} and isinstance(value["expr"], str):
                self._read_text(value["expr"], into, is_test=is_test)
                return
            for name, part in value.items():
                self.read(part, into=None if into is None else into.key(str(name)))
        elif isinstance(value, list):
            for part in value:
                self.read(part, into=None if into is None else into.each())
        elif into is not None:
            into.like(value)

    def _read_text(self, text: str, into: Shape | None, *, is_test: bool) -> None:
        try:
            node = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError):
            return
        shape = self.node(node, self.names)
        if is_test:
            self._test(node, self.names)
        if into is not None:
            self._flow(node, into, self.names)
        if shape is not None:
            shape.is_read = True

    def list_in(self, value: Any) -> Shape:
        """An element of the list that an expression gives."""
        element = Shape()
        if isinstance(value, Mapping) and isinstance(value.get("expr"), str):
            try:
                node = ast.parse(value["expr"].strip(), mode="eval").body
            except (SyntaxError, ValueError, RecursionError):
                return element
            shape = self.node(node, self.names)
            if shape is not None:
                return shape.each()
        else:
            self.read(value)
        return element

    def node(self, node: ast.AST, names: Names) -> Shape | None:
        """The shape that a part of an expression reads, None where it computes; everything in it is noted."""
        if isinstance(node, ast.Name):
            return names.get(node.id)
        if isinstance(node, ast.Attribute):
            return self._attribute(node, names)
        if isinstance(node, ast.Subscript):
            return self._subscript(node, names)
        if isinstance(node, ast.Call):
            return self._call(node, names)
        if isinstance(node, ast.ListComp | ast.GeneratorExp | ast.DictComp):
            self._loop(node, names)
            return None
        for child in ast.iter_child_nodes(node):
            shape = self.node(child, names)
            if shape is not None:
                shape.is_read = True
        if isinstance(node, ast.Compare):
            self._compare(node, names)
        elif isinstance(node, ast.BinOp):
            self._compute(node, names)
        elif isinstance(node, ast.IfExp):
            self._test(node.test, names)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            self._test(node.operand, names)
        elif isinstance(node, ast.UnaryOp):
            self._is(node.operand, "number", names)
        return None

    def _attribute(self, node: ast.Attribute, names: Names) -> Shape | None:
        base = self.node(node.value, names)
        if base is None:
            return None
        if isinstance(node.value, ast.Name) and node.value.id == "event" and base is self.names.get("event"):
            if node.attr in ("type", "id", "source"):
                return None
            if node.attr == "data" or (self.is_result and node.attr == "output"):
                return base
        return base.key(node.attr)

    def _subscript(self, node: ast.Subscript, names: Names) -> Shape | None:
        base = self.node(node.value, names)
        index = node.slice
        self.node(index, names)
        if base is None or isinstance(index, ast.Slice):
            return base
        if isinstance(index, ast.Constant) and isinstance(index.value, str):
            return base.key(index.value)
        number = _whole(index)
        if number is not None:
            base.length = max(base.length, number + 1 if number >= 0 else -number)
            return base.each()
        return Shape()

    def _call(self, node: ast.Call, names: Names) -> Shape | None:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        shapes = [self.node(argument, names) for argument in arguments]
        if name in ("any", "all") and node.args and isinstance(node.args[0], ast.GeneratorExp):
            self._loop(node.args[0], names, is_test=True)
        first = shapes[0] if shapes else None
        if name == "get" and first is not None and len(node.args) > 1:
            key = node.args[1]
            if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
                return None
            found = first.key(key.value)
            if len(arguments) > 2 and isinstance(arguments[2], ast.Constant) and arguments[2].value is not None:
                found.like(arguments[2].value)
            return found
        for shape in shapes:
            if shape is not None:
                shape.is_read = True
        if first is None:
            return None
        if name in ("len", "sum", "sorted", "any", "all") or (name in ("min", "max") and len(node.args) == 1):
            if name == "sum":
                first.each().kinds.add("number")
            elif name == "len":
                first.each()
            return first if name == "sorted" else first.each() if name in ("min", "max") else None
        if name in ("round", "abs", "int", "float", "min", "max"):
            for argument in node.args:
                self._is(argument, "number", names)
        return None

    def _loop(
        self, node: ast.ListComp | ast.GeneratorExp | ast.DictComp, names: Names, *, is_test: bool = False
    ) -> None:
        inner = dict(names)
        for clause in node.generators:
            shape = self.node(clause.iter, inner)
            targets = clause.target.elts if isinstance(clause.target, ast.Tuple) else [clause.target]
            element = shape.each() if shape is not None else Shape()
            for n, target in enumerate(targets):
                if isinstance(target, ast.Name):
                    if len(targets) > 1:
                        element.length = max(element.length, n + 1)
                    inner[target.id] = element if len(targets) == 1 else element.each()
            for test in clause.ifs:
                self.node(test, inner)
                self._test(test, inner)
        parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        for part in parts:
            shape = self.node(part, inner)
            if shape is not None:
                shape.is_read = True
            if is_test:
                self._test(part, inner)

    # --- what an operation says of its operands

    def _is(self, node: ast.AST, kind: str, names: Names) -> None:
        shape = self.node(node, names)
        if shape is not None:
            shape.kinds.add(kind)

    def _test(self, node: ast.AST, names: Names) -> None:
        """``node`` is asked whether it is true."""
        if isinstance(node, ast.BoolOp):
            for part in node.values:
                self._test(part, names)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            self._test(node.operand, names)
        else:
            self._is(node, "flag", names)

    def _compare(self, node: ast.Compare, names: Names) -> None:
        sides = [node.left, *node.comparators]
        for left, operator, right in zip(sides, node.ops, sides[1:], strict=False):
            if isinstance(operator, ast.In | ast.NotIn):
                self._contains(left, right, names)
                continue
            for side, other in ((left, right), (right, left)):
                shape = self.node(side, names)
                if shape is not None:
                    self._compared(shape, other, names)

    def _compared(self, shape: Shape, other: ast.AST, names: Names) -> None:
        value = _literal(other)
        if value is None:
            against = self.node(other, names)
            if isinstance(other, ast.Constant):
                shape.kinds.add("none")
            elif against is not None:
                shape.near.append(against)
        elif isinstance(value, bool):
            shape.kinds.add("flag")
        else:
            shape.values.append(value)

    def _contains(self, left: ast.AST, right: ast.AST, names: Names) -> None:
        shape, holder = self.node(left, names), self.node(right, names)
        if shape is not None and isinstance(right, ast.List | ast.Tuple):
            shape.values += [value for value in map(_literal, right.elts) if value is not None]
        elif holder is not None:
            value = _literal(left)
            if value is not None:
                holder.each().values.append(value)
            elif shape is not None:
                holder.each().links.append(shape)

    def _compute(self, node: ast.BinOp, names: Names) -> None:
        left, right = self.node(node.left, names), self.node(node.right, names)
        if isinstance(node.op, _NUMBERS):
            for shape in (left, right):
                if shape is not None:
                    shape.kinds.add("number")
            return
        for shape, other, text in ((left, right, node.right), (right, left, node.left)):
            if shape is None:
                continue
            value = _literal(text)
            if isinstance(value, str) or isinstance(text, ast.JoinedStr):
                shape.kinds.add("text")
            elif value is not None:
                shape.kinds.add("number")
            elif isinstance(text, ast.List):
                shape.each()
            elif other is not None:
                shape.links.append(other)

    def _flow(self, node: ast.AST, into: Shape, names: Names) -> None:
        """What ``node`` gives becomes what ``into`` is the shape of."""
        if isinstance(node, ast.List | ast.Tuple):
            for part in node.elts:
                self._flow(part, into.each(), names)
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    self._flow(value, into.key(key.value), names)
        elif isinstance(node, ast.IfExp):
            self._flow(node.body, into, names)
            self._flow(node.orelse, into, names)
        elif isinstance(node, ast.BoolOp):
            for part in node.values:
                self._flow(part, into, names)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            self._flow(node.left, into, names)
            self._flow(node.right, into, names)
        else:
            shape = self.node(node, names)
            if shape is not None and shape is not into:
                shape.is_read = True
                shape.links.append(into)


def _literal(node: ast.AST) -> Any:
    """The constant that a part of an expression is; None for what is none, and for None."""
    number = _whole(node)
    if number is not None:
        return number
    return node.value if isinstance(node, ast.Constant) else None


def _whole(node: ast.AST) -> int | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _whole(node.operand)
        return None if inner is None else -inner
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    return None
