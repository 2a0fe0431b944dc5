"""The small changes: each turns one place of a source text into another that still parses.

They are the slips of a tired writer: a comparison turned or off by one, half of a condition, a statement or an option
that was forgotten, a wrong constant. Texts for people (messages, docstrings, log lines) are left alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

TURNED = {
    ast.Lt: ("<=", ">="), ast.LtE: ("<", ">"), ast.Gt: (">=", "<="), ast.GtE: (">", "<"),
    ast.Eq: ("!=",), ast.NotEq: ("==",), ast.Is: ("is not",), ast.IsNot: ("is",), ast.In: ("not in",),
    ast.NotIn: ("in",),
}  # fmt: skip
SYMBOLS = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=", ast.Is: "is",
    ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in",
}  # fmt: skip
ARITHMETIC = {ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "//"), ast.FloorDiv: ("//", "*")}
LOGGING = ("log.", "logging.", "logger.", "warnings.")
"""Calls that only tell a person something."""


@dataclass(frozen=True)
class Mutation:
    """One change of one file."""

    line: int
    begin: int
    """Offset in bytes of what is replaced."""
    end: int
    new: str
    what: str

    def apply(self, source: bytes) -> bytes:
        """The changed text."""
        return source[: self.begin] + self.new.encode() + source[self.end :]


def mutations(source: bytes) -> list[Mutation]:
    """Every change of ``source`` inside functions, in order of place. What would not parse is left out."""
    return [mutation for mutation in candidates(source) if parses(mutation.apply(source))]


def candidates(source: bytes) -> list[Mutation]:
    """The same, and those that would not parse: to find that out of all takes longer than to find them."""
    return sorted(_Finder(source).all(), key=lambda mutation: (mutation.begin, mutation.end, mutation.new))


def parses(source: bytes) -> bool:
    """Whether it is a program at all."""
    try:
        compile(source, "mutant", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


class _Finder:
    def __init__(self, source: bytes) -> None:
        self.source = source
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def all(self) -> Iterator[Mutation]:
        module = ast.parse(self.source)
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name != "__repr__":
                defaults = [*node.args.defaults, *(default for default in node.args.kw_defaults if default)]
                for part in [*defaults, *node.body]:
                    yield from self._inside(part)

    def _inside(self, node: ast.AST) -> Iterator[Mutation]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return  # the walk comes to it by itself
        if self._is_for_people(node):
            return
        yield from self._of(node)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "type_comment"):
                continue
            if isinstance(node, ast.keyword) and node.arg == "strict":
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr):
                    yield from self._inside(child)

    def _is_for_people(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return True  # a docstring
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            return ast.unparse(node.value.func).startswith(LOGGING)
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            return True
        return isinstance(node, ast.Assert)  # they are for the type checker

    def _at(self, node: ast.AST) -> tuple[int, int]:
        begin = self.starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        return begin, self.starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]

    def _text(self, node: ast.AST) -> str:
        begin, end = self._at(node)
        return self.source[begin:end].decode()

    def _whole(self, node: ast.AST, new: str, what: str) -> Mutation:
        begin, end = self._at(node)
        return Mutation(node.lineno, begin, end, new, what)  # type: ignore[attr-defined]

    def _between(self, left: ast.AST, right: ast.AST, old: str, new: str, what: str) -> Iterator[Mutation]:
        begin, end = self._at(left)[1], self._at(right)[0]
        at = self.source.find(old.encode(), begin, end)
        if at >= 0:
            line = self.source.count(b"\n", 0, at) + 1
            yield Mutation(line, at, at + len(old.encode()), new, what)

    # --- one kind of place after the other ------------------------------------------------------------------------

    def _of(self, node: ast.AST) -> Iterator[Mutation]:
        match node:
            case ast.Compare():
                yield from self._compare(node)
            case ast.BoolOp():
                yield from self._bool_op(node)
            case ast.UnaryOp(op=ast.Not()):
                yield self._whole(node, f"({self._text(node.operand)})", "`not` is forgotten")
            case ast.BinOp() if type(node.op) in ARITHMETIC:
                old, new = ARITHMETIC[type(node.op)]
                yield from self._between(node.left, node.right, old, new, f"`{old}` becomes `{new}`")
            case ast.If() | ast.IfExp() if not isinstance(node.test, ast.Compare | ast.BoolOp | ast.UnaryOp):
                yield self._whole(node.test, f"(not ({self._text(node.test)}))", "the condition is turned round")
            case ast.Constant():
                yield from self._constant(node)
            case ast.Return() if node.value is not None and not _is_bool_or_nothing(node.value):
                yield self._whole(node.value, "None", "nothing is returned")
            case ast.Call():
                yield from self._call(node)
            case ast.Expr() | ast.AugAssign() | ast.Delete() | ast.Raise() | ast.Continue() | ast.Break():
                yield self._whole(node, "pass", "the statement is forgotten")
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]):
                yield self._whole(node, "pass", "the statement is forgotten")
            case ast.ExceptHandler() if node.type is not None:
                yield self._whole(node.type, "ZeroDivisionError", "the exception is not caught")

    def _compare(self, node: ast.Compare) -> Iterator[Mutation]:
        left = node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            old = SYMBOLS[type(operator)]
            for new in TURNED[type(operator)]:
                yield from self._between(left, right, old, new, f"`{old}` becomes `{new}`")
            left = right

    def _bool_op(self, node: ast.BoolOp) -> Iterator[Mutation]:
        neutral, word, other = ("True", "and", "or") if isinstance(node.op, ast.And) else ("False", "or", "and")
        if len(node.values) == 2:
            yield from self._between(*node.values, word, other, f"`{word}` becomes `{other}`")
        for value in node.values:
            yield self._whole(value, neutral, f"one side of `{word}` is forgotten")

    def _constant(self, node: ast.Constant) -> Iterator[Mutation]:
        value = node.value
        if isinstance(value, bool):
            yield self._whole(node, str(not value), f"{value} becomes {not value}")
        elif isinstance(value, int):
            yield self._whole(node, f"({value + 1})", f"{value} becomes {value + 1}")
        elif isinstance(value, float):
            yield self._whole(node, f"({value * 2 + 1})", f"{value} becomes {value * 2 + 1}")
        elif isinstance(value, str) and value and " " not in value and self._text(node)[0] in "'\"":
            yield self._whole(node, repr(value + "_"), f"{value!r} becomes {value + '_'!r}")

    def _call(self, node: ast.Call) -> Iterator[Mutation]:
        """A call without one of its options. What is given by position alone is left: it would only be a TypeError.

        ``zip(..., strict=True)`` is a belt for the writer: lists of unequal length are a mistake that is not there.
        """
        for keyword in node.keywords:
            if keyword.arg in (None, "strict") or len(node.args) + len(node.keywords) == 1:
                continue
            begin, end = self._at(keyword)
            rest = self.source[end : self._at(node)[1]]
            comma = len(rest) - len(rest.lstrip(b", \n")) if rest.lstrip().startswith(b",") else 0
            yield Mutation(keyword.lineno, begin, end + comma, "", f"the option {keyword.arg} is forgotten")


def _is_bool_or_nothing(node: ast.expr) -> bool:
    """Whoever asks a yes-or-no question cannot tell None from False, and a bool is turned anyway."""
    return isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, bool))
