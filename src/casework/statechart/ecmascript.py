"""Expressions of ECMAScript, as SCXML documents hold them, turned into a tree of Python that computes the same.

``{expr: "x === 1", ecmascript: [x]}`` is such an expression; the list names the data that are declared, and so may be
undefined. Nothing is guessed: every operator calls its counterpart in ``ecmascript_values``, and what is not in the
grammar here (assignments, functions, regular expressions, ``new``, templates, bits) is refused by name. Import
:func:`translate` from here.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection
from typing import NamedTuple, NoReturn

from casework.statechart.ecmascript_values import COUNTED, FUNCTIONS, GLOBAL_VALUES, GLOBALS, METHODS, to_number

MAX_DEPTH = 40
"""Brackets and operators inside each other: each costs a dozen of Python's frames."""
MAX_OPERATORS = 100
"""Operators of one kind in a row."""

_SPACE = "[ \t\v\f\n\r\u00a0\ufeff\u2028\u2029\u1680\u2000-\u200a\u202f\u205f\u3000]*"
_TOKEN = re.compile(
    _SPACE
    + r"""(?:
      (?P<number>(?:0[xX][0-9a-fA-F]+|0[bB][01]+|0[oO][0-7]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?
        |\.[0-9]+(?:[eE][+-]?[0-9]+)?)(?![\w$.]))
    | (?P<name>(?:[^\W\d]|\$)(?:\w|\$)*)
    | (?P<text>'(?:[^'\\\n\r]|\\.)*'|"(?:[^"\\\n\r]|\\.)*")
    | (?P<mark>===|!==|==|!=|<=|>=|&&|\|\||\?\?(?!=)|[-+*/%<>!?:.,()\[\]{}])
    )""",
    re.VERBOSE | re.DOTALL,
)
_REFUSED = re.compile(
    _SPACE
    + r"(<!--|-->|\+\+|--|=>|\?\.(?![0-9])|\.\.\.|<<|>>>?|&&=|\|\|=|\*\*|[-+*/%&|^]=|//|/\*|`"
    + r"|&(?!&)|\|(?!\|)|=(?!=)|[\^~;@#\\])"
)
_WHY = {
    "++": "changes a value", "--": "changes a value", "=": "changes a value (use <assign>)", "=>": "makes a function",
    "`": "a template", "//": "a comment", "/*": "a comment", "<!--": "a comment", "-->": "a comment",
    ";": "ends a statement",
}  # fmt: skip
_WORDS = frozenset([
    "arguments", "async", "await", "break", "case", "catch", "class", "const", "continue", "debugger", "default",
    "delete", "do", "else", "enum", "eval", "export", "extends", "finally", "for", "function", "if", "implements",
    "import", "in", "instanceof", "interface", "let", "new", "of", "package", "private", "protected", "public",
    "return", "static", "super", "switch", "this", "throw", "try", "var", "void", "while", "with", "yield",
])  # fmt: skip
_ESCAPES = {"n": "\n", "t": "\t", "b": "\b", "v": "\v", "f": "\f", "r": "\r", "0": "\0"}
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|u\{([0-9a-fA-F]{1,6})\}|(.))", re.DOTALL)
_LEVELS: tuple[dict[str, str], ...] = (
    {"??": ""}, {"||": ""}, {"&&": ""},
    {"===": "_js_same", "!==": "_js_not_same", "==": "_js_equal", "!=": "_js_not_equal"},
    {"<": "_js_less", ">": "_js_greater", "<=": "_js_at_most", ">=": "_js_at_least"},
    {"+": "_js_add", "-": "_js_subtract"},
    {"*": "_js_multiply", "/": "_js_divide", "%": "_js_remainder"},
)  # fmt: skip


class EcmascriptError(ValueError):
    """What is wrong with an expression, or not supported in it."""


class Translated(NamedTuple):
    """The tree of Python, and what it asks for."""

    tree: ast.expr
    asks_active: bool
    """It calls ``In``."""
    asks_event: bool
    """It reads ``_event``."""
    names: frozenset[str]
    """The data that it reads."""


def translate(
    text: str, declared: Collection[str], parameters: Collection[str], read: Callable[[str], ast.expr]
) -> Translated:
    """The Python tree of one expression.

    Names in ``declared`` are undefined where the context lacks them, names in ``parameters`` stand for themselves, all
    others must be in the context when they are read. ``read`` gives the tree that reads ``context``, ``event``,
    ``data`` or ``active`` of the run, or, of an empty name, the run itself. Raises :class:`EcmascriptError`.
    """
    parser = _Parser(text, frozenset(declared), frozenset(parameters), read)
    tree = parser.expression()
    if parser.kind != "end":
        parser.unexpected()
    return Translated(tree, parser.asks_active, parser.asks_event, frozenset(parser.names))


class _Parser:
    def __init__(
        self, text: str, declared: frozenset[str], parameters: frozenset[str], read: Callable[[str], ast.expr]
    ) -> None:
        self.text, self.declared, self.parameters, self.read = text, declared, parameters, read
        self.position = self.depth = self.kept = 0
        self.asks_active = self.asks_event = False
        self.names: set[str] = set()
        self.outermost = ""
        """The operator that binds last in what was read last, outside of brackets."""
        self.kind = self.value = ""
        self.advance()

    # --- tokens

    def advance(self) -> str:
        """Read the next token; returns the value of the one that was current."""
        before = self.value
        refused = _REFUSED.match(self.text, self.position)
        if refused:
            why = _WHY.get(refused[1], "")
            self.refuse(f"{refused[1]!r} is not supported{f' ({why})' if why else ''}")
        found = _TOKEN.match(self.text, self.position)
        if found is None:
            rest = self.text[self.position :].strip(" \t\v\f\n\r\u00a0\ufeff\u2028\u2029\u1680\u202f\u205f\u3000")
            if rest.strip():
                self.refuse(f"{rest[:20]!r} cannot be read")
            self.kind, self.value = "end", ""
            return before
        self.position = found.end()
        self.kind = found.lastgroup or ""
        self.value = found[self.kind]
        return before

    def takes(self, mark: str) -> bool:
        """Go past ``mark`` where it is the current token."""
        if self.kind == "mark" and self.value == mark:
            self.advance()
            return True
        return False

    def expect(self, mark: str) -> None:
        if not self.takes(mark):
            self.refuse(f"{mark!r} is missing before {self.value!r}" if self.value else f"{mark!r} is missing")

    def unexpected(self) -> NoReturn:
        if self.kind == "name" and self.value in _WORDS:
            self.refuse(f"{self.value!r} is not supported")
        self.refuse(f"unexpected {self.value!r}" if self.value else "it ends too early")

    def refuse(self, message: str) -> NoReturn:
        raise EcmascriptError(message)

    # --- the grammar

    def expression(self) -> ast.expr:
        """A conditional expression."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.refuse("it is nested too deeply")
        test = self.binary(0)
        if self.takes("?"):
            then = self.expression()
            self.expect(":")
            test = ast.IfExp(self.call("_js_truth", test), then, self.expression())
        self.depth -= 1
        return test

    def binary(self, level: int) -> ast.expr:
        if level == len(_LEVELS):
            return self.unary()
        left = self.binary(level + 1)
        count = 0
        while self.kind == "mark" and self.value in _LEVELS[level]:
            count += 1
            if count > MAX_OPERATORS:
                self.refuse(f"more than {MAX_OPERATORS} operators in a row")
            outer = self.outermost
            mark = self.advance()
            right = self.binary(level + 1)
            if mark == "??" and {outer, self.outermost} & {"&&", "||"}:
                self.refuse("'??' beside '&&' or '||' needs brackets")
            left = self._operation(mark, _LEVELS[level][mark], left, right)
            self.outermost = mark
        return left

    def _operation(self, mark: str, function: str, left: ast.expr, right: ast.expr) -> ast.expr:
        if function:
            return self.call(function, left, right)
        self.kept += 1
        name = f"_js{self.kept}"
        kept = ast.NamedExpr(ast.Name(name, ast.Store()), left)
        again = ast.Name(name, ast.Load())
        if mark == "&&":
            return ast.IfExp(self.call("_js_truth", kept), right, again)
        if mark == "||":
            return ast.IfExp(self.call("_js_truth", kept), again, right)
        return ast.IfExp(self.call("_js_nothing", kept), right, again)

    def unary(self) -> ast.expr:
        if self.kind == "mark" and self.value in ("!", "-", "+"):
            mark = self.advance()
            self.depth += 1
            if self.depth > MAX_DEPTH:
                self.refuse("it is nested too deeply")
            operand = self.unary()
            self.depth -= 1
            return self.call({"!": "_js_not", "-": "_js_negative", "+": "_js_number"}[mark], operand)
        if self.kind == "name" and self.value == "typeof":
            self.advance()
            if self.kind == "name" and self._is_data(self.value):
                position, kind, value = self.position, self.kind, self.value
                self.advance()
                if not (self.kind == "mark" and self.value in (".", "[", "(")):
                    self.names.add(value)
                    return self.call("_js_typeof", self.call("_js_known", self.read("context"), ast.Constant(value)))
                self.position, self.kind, self.value = position, kind, value
            return self.call("_js_typeof", self.unary())
        return self.postfix()

    def postfix(self) -> ast.expr:
        found = self.primary()
        while True:
            if self.takes("."):
                key = self._property()
                if self.kind == "mark" and self.value == "(":
                    if key not in METHODS:
                        self.refuse(f"the method {key!r} is not supported (only {', '.join(sorted(METHODS))})")
                    found = self.call("_js_method", found, ast.Constant(key), *self._arguments())
                else:
                    found = self.call("_js_member", found, ast.Constant(key))
            elif self.takes("["):
                key_of = self.expression()
                self.expect("]")
                found = self.call("_js_member", found, key_of)
            elif self.kind == "mark" and self.value == "(":
                self.refuse("only named functions can be called")
            else:
                self.outermost = ""
                return found

    def _property(self) -> str:
        if self.kind != "name":
            self.unexpected()
        return self.advance()

    def _arguments(self) -> list[ast.expr]:
        self.expect("(")
        found: list[ast.expr] = []
        while not self.takes(")"):
            if found:
                self.expect(",")
                if self.takes(")"):
                    break
            found.append(self.expression())
        return found

    def primary(self) -> ast.expr:
        if self.kind == "number":
            return ast.Constant(to_number(self.advance()))
        if self.kind == "text":
            return ast.Constant(_unescaped(self.advance()))
        if self.takes("("):
            found = self.expression()
            self.expect(")")
            return found
        if self.takes("["):
            return self._array()
        if self.takes("{"):
            return self._object()
        if self.kind == "name":
            return self._named()
        return self.unexpected()

    def _array(self) -> ast.expr:
        items: list[ast.expr] = []
        while not self.takes("]"):
            if items:
                self.expect(",")
                if self.takes("]"):
                    break
            items.append(self.expression())
        return ast.List(items, ast.Load())

    def _object(self) -> ast.expr:
        pairs: list[ast.expr] = []
        while not self.takes("}"):
            if pairs:
                self.expect(",")
                if self.takes("}"):
                    break
            pairs += self._pair()
        return self.call("_js_object", *pairs)

    def _pair(self) -> list[ast.expr]:
        if self.kind == "name":
            shorthand = (self.position, self.kind, self.value)
            key = self.advance()
            if self.kind == "mark" and self.value in (",", "}"):
                after = (self.position, self.kind, self.value)
                self.position, self.kind, self.value = shorthand
                value = self._named()
                self.position, self.kind, self.value = after
                return [ast.Constant(key), value]
        elif self.kind == "text":
            key = _unescaped(self.advance())
        elif self.kind == "number":
            self.refuse("write the key of an object as a name or as text")
        else:
            self.unexpected()
        if key == "__proto__":
            self.refuse("'__proto__' is not supported")
        self.expect(":")
        return [ast.Constant(key), self.expression()]

    # --- the tree

    def call(self, function: str, *arguments: ast.expr) -> ast.Call:
        """A call of an operator; those that count get the run first."""
        first = [self.read("")] if function in COUNTED else []
        return ast.Call(_name(function), [*first, *arguments], [])

    # --- names

    def _is_data(self, name: str) -> bool:
        if name in self.declared:
            return True
        fixed = ("true", "false", "null", "_event", "_name", "In", "typeof", *self.parameters, *GLOBAL_VALUES)
        return name not in fixed and name not in _WORDS and name not in GLOBALS

    def _named(self) -> ast.expr:
        name = self.value
        if name in _WORDS or name == "typeof":
            self.unexpected()
        self.advance()
        if name in ("true", "false", "null"):
            return ast.Constant({"true": True, "false": False, "null": None}[name])
        if name in self.parameters:
            return _name(name)
        if self._is_data(name):
            if self.kind == "mark" and self.value == "(":
                self.refuse(f"the function {name!r} is not supported")
            if name.startswith("_"):
                self.refuse(f"{name} is not supported")
            self.names.add(name)
            function = "_js_known" if name in self.declared else "_js_read"
            return self.call(function, self.read("context"), ast.Constant(name))
        if name == "_event":
            return self._event()
        if name == "_name":
            self.refuse("_name is not supported")
        if name in GLOBAL_VALUES:
            return ast.Name(GLOBAL_VALUES[name], ast.Load())
        return self._function(name)

    def _event(self) -> ast.expr:
        self.asks_event = True
        if not self.takes("."):
            self.refuse("_event as a whole is not supported (read _event.name or _event.data)")
        key = self._property()
        if key == "name":
            return ast.Attribute(self.read("event"), "type", ast.Load())
        if key == "data":
            return self.call("_js_payload", self.read("data"))
        return self.refuse(f"_event.{key} is not supported")

    def _function(self, name: str) -> ast.expr:
        if name == "In":
            arguments = self._arguments()
            if len(arguments) != 1:
                self.refuse("In() takes one state")
            self.asks_active = True
            return ast.Compare(arguments[0], [ast.In()], [self.read("active")])
        while self.takes("."):
            name += "." + self._property()
        if name not in FUNCTIONS or not (self.kind == "mark" and self.value == "("):
            self.refuse(f"{name!r} is not supported")
        return self.call("_js_function", ast.Constant(name), *self._arguments())


def _unescaped(text: str) -> str:
    def character(match: re.Match[str]) -> str:
        code = match[1] or match[2] or match[3]
        if code:
            number = int(code, 16)
            if number > 0x10FFFF:
                raise EcmascriptError(f"{match[0]!r} is no character")
            return chr(number)
        if match[4] in "123456789\n\r\u2028\u2029" or match[4] in "xu":
            raise EcmascriptError(f"the escape {match[0]!r} is not supported")
        if match[4] == "0" and text[match.end() : match.end() + 1].isdigit():
            raise EcmascriptError("octal escapes are not supported")
        return _ESCAPES.get(match[4], match[4])

    found = _ESCAPE.sub(character, text[1:-1])
    if any("\ud800" <= each <= "\udfff" for each in found):
        found = found.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        if "\ufffd" in found:
            raise EcmascriptError("half a surrogate pair is not text")
    return found


def _name(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())
