"""Expressions in machine files: a small, safe part of Python, compiled once when the machine is loaded.

``{expr: "context.amount > 100"}`` is an expression, everything else in a definition is a literal. An expression sees
``context`` and ``event`` (and ``input``, ``item`` or ``index`` where stated) and a few functions. Each node of its
syntax tree must stand on the list below, and is rebuilt: ``a.b`` becomes ``a["b"]``, so that no attribute of a Python
object is ever reached, and every operator, function and loop whose cost grows with what it is given goes through
``operations``, which counts it against the budget of the step. What stays as it is costs no more than the expression
is long. Loops are limited to :data:`MAX_LOOPS`; what needs more is a named Python function.

Import :func:`compile_template`, :func:`find_problem` and :class:`Template` from here.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

from casework.statechart import operations
from casework.statechart.budget import ELEMENT, KEY
from casework.statechart.ecmascript import EcmascriptError, translate
from casework.statechart.ecmascript_values import OPERATORS
from casework.statechart.operations import FUNCTIONS, MATERIALISED
from casework.statechart.suggestions import suggestion

MAX_LENGTH = 4_000
"""Longest expression, in characters."""
MAX_LOOPS = 2
"""``for`` clauses in one expression."""


class ExpressionError(ValueError):
    """An expression uses something outside the permitted part of Python; the message says what, and what to do."""


class Template(NamedTuple):
    """A compiled literal or expression."""

    evaluate: Callable[..., Any]
    """``evaluate(run, *extra)``: a fresh value each time. Reads ``context``, ``data``, ``event`` and ``active`` of the
    run, and charges it for what it does."""
    is_constant: bool
    """No expression anywhere inside."""
    asks_active: bool
    """Uses ``In(...)``, so ``run.active`` must be the exact set of active state names."""
    weight: int
    """Operations in it, each counted once: what evaluating it costs at least, and what a loop around it counts."""


def _result_of(data: Any, event: Any, key: str) -> Any:
    """``event.output`` and ``event.error``: the payload itself on a done or error event, else a key of it."""
    if event.type.startswith("done." if key == "output" else "error."):
        return data
    return data[key]


_KEYWORDS = {"sorted": {"reverse"}, "min": {"default"}, "max": {"default"}, "get": {"default"}}
_MAX_ARGUMENTS = {"len": 1, "sum": 1, "sorted": 1, "any": 1, "all": 1, "round": 2, "abs": 1, "int": 1, "str": 1,
                  "float": 1, "bool": 1, "get": 3}  # fmt: skip
_GLOBALS = {
    "__builtins__": {},
    "_add": operations.add,
    "_multiply": operations.multiply,
    "_modulo": operations.modulo,
    "_contains": operations.contains,
    "_weighed": operations.weighed,
    "_sliced": operations.sliced,
    "_spread": operations.spread,
    "_key_of": operations.key_of,
    "_looped": operations.looped,
    "_in_text": operations.in_text,
    "_result_of": _result_of,
    **{f"_{name}": compare for name, compare in operations.COMPARISONS.items()},
    **{f"_f_{name}": function for name, function in FUNCTIONS.items()},
    **OPERATORS,
}

_PLAIN = (
    ast.BoolOp, ast.And, ast.Or, ast.Not, ast.USub, ast.UAdd, ast.Sub, ast.Div, ast.FloorDiv, ast.Eq, ast.NotEq,
    ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn, ast.Is, ast.IsNot, ast.IfExp, ast.List, ast.Slice, ast.Load,
    ast.UnaryOp, ast.JoinedStr,
)  # fmt: skip


class _Rebuild(ast.NodeTransformer):
    """Rebuilds a permitted tree; raises ExpressionError at the first node that is not."""

    def __init__(self, extra: tuple[str, ...]) -> None:
        self.names = {"context", "event", *extra}
        self.loops = 0
        self.asks_active = False

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if not isinstance(node, _PLAIN):
            raise ExpressionError(f"{_spoken(node)} is not permitted in an expression (use a named Python function)")
        return super().generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        value = node.value
        if not (value is None or type(value) in (str, bool, float, int)):
            raise ExpressionError(f"the literal {value!r} is not JSON")
        if type(value) is int and abs(value) >= 2**63:
            raise ExpressionError("an integer beyond 64 bits")
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        name = node.id
        if name in ("context", "event"):
            return _of_run("data" if name == "event" else name)
        if name in self.names:
            return _name(name)
        if name in FUNCTIONS or name == "In":
            raise ExpressionError(f"{name} is a function: call it, as in {name}(...)")
        raise ExpressionError(f"unknown name {name!r} ({suggestion(name, [*self.names, *FUNCTIONS, 'In'])})")

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if node.attr.startswith("_"):
            raise ExpressionError(f"the name {node.attr!r} begins with an underscore")
        if isinstance(node.value, ast.Name) and node.value.id == "event":
            if node.attr in ("type", "id", "source"):
                return ast.Attribute(_of_run("event"), node.attr, ast.Load())
            if node.attr == "data":
                return _of_run("data")
            if node.attr in ("output", "error"):
                return ast.Call(_name("_result_of"), [_of_run("data"), _of_run("event"), ast.Constant(node.attr)], [])
        return ast.Subscript(self.visit(node.value), ast.Constant(node.attr), ast.Load())

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        built = ast.Subscript(self.visit(node.value), self.visit(node.slice), ast.Load())
        return _call("_sliced", built) if isinstance(node.slice, ast.Slice) else built

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        left, right = self.visit(node.left), self.visit(node.right)
        if isinstance(node.op, ast.Add):
            is_numeric = any(_is_number(each) for each in (node.left, node.right))
            return ast.BinOp(left, node.op, right) if is_numeric else _call("_add", left, right)
        if isinstance(node.op, ast.Mult):
            return _call("_multiply", left, right)
        if isinstance(node.op, ast.Mod):
            return _call("_modulo", left, right)
        return ast.BinOp(left, self.visit(node.op), right)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        for operator, right in zip(node.ops, node.comparators, strict=True):
            is_fixed = isinstance(right, ast.Constant) and (right.value is None or isinstance(right.value, bool))
            if isinstance(operator, ast.Is | ast.IsNot) and not is_fixed:
                raise ExpressionError("'is' compares with None, True or False only (use ==)")
        sides = [node.left, *node.comparators]
        visited = [self.visit(each) for each in sides]
        ops = [self.visit(op) for op in node.ops]
        if len(ops) == 1:
            return _compare(ops[0], sides, visited)
        # Later operands of a chain are looked at only while it holds, so each is charged where it stands.
        charged = [old if _is_short(side) else _call("_weighed", old) for side, old in zip(sides, visited, strict=True)]
        return ast.Compare(charged[0], ops, charged[1:])

    def visit_Tuple(self, node: ast.Tuple) -> ast.AST:
        return ast.List([self.visit(each) for each in node.elts], ast.Load())

    def visit_Starred(self, node: ast.Starred) -> ast.AST:
        return ast.Starred(_call("_spread", self.visit(node.value)), ast.Load())

    def visit_Dict(self, node: ast.Dict) -> ast.AST:
        keys = [None if key is None else self.visit(key) for key in node.keys]
        values = [self.visit(value) for value in node.values]
        pairs = zip(keys, values, strict=True)
        return ast.Dict(keys, [_call("_spread", value) if key is None else value for key, value in pairs])

    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.AST:
        if node.format_spec is not None or node.conversion != -1:
            raise ExpressionError("a format or conversion in an f-string is not permitted (use round() or str())")
        return ast.FormattedValue(_call("_in_text", self.visit(node.value)), -1, None)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if not isinstance(node.func, ast.Name):
            raise ExpressionError(f"no methods can be called; functions are {', '.join(FUNCTIONS)}")
        name = node.func.id
        if any(isinstance(argument, ast.Starred) for argument in node.args):
            raise ExpressionError("'*' in a call is not permitted")
        if name == "In":
            return self._in(node)
        if name not in FUNCTIONS:
            raise ExpressionError(f"unknown function {name!r} ({suggestion(name, FUNCTIONS)})")
        if len(node.args) > _MAX_ARGUMENTS.get(name, 100):
            raise ExpressionError(f"{name}() takes at most {_MAX_ARGUMENTS[name]} arguments")
        for keyword in node.keywords:
            if keyword.arg not in _KEYWORDS.get(name, ()):
                raise ExpressionError(f"{name}() takes no argument {keyword.arg!r} here")
        arguments: list[Any] = [_name("_run")]
        for each in node.args:
            if isinstance(each, ast.GeneratorExp):
                each_of = ast.ListComp(each.elt, each.generators) if name in MATERIALISED else each
                arguments.append(self._loop(each_of))
            else:
                arguments.append(self.visit(each))
        keywords = [ast.keyword(keyword.arg, self.visit(keyword.value)) for keyword in node.keywords]
        return ast.Call(_name(f"_f_{name}"), arguments, keywords)

    def _in(self, node: ast.Call) -> ast.AST:
        if len(node.args) != 1 or node.keywords:
            raise ExpressionError("In() takes one state, as in In('paid')")
        self.asks_active = True
        return ast.Compare(self.visit(node.args[0]), [ast.In()], [_of_run("active")])

    def visit_ListComp(self, node: ast.ListComp) -> ast.AST:
        return self._loop(node)

    def visit_DictComp(self, node: ast.DictComp) -> ast.AST:
        return self._loop(node)

    def _loop(self, node: ast.ListComp | ast.DictComp | ast.GeneratorExp) -> ast.AST:
        outer = self.names
        body = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        size = KEY if isinstance(node, ast.DictComp) else ELEMENT if isinstance(node, ast.ListComp) else 0
        clauses = [self._clause(clause, [later.iter], 0) for clause, later in itertools.pairwise(node.generators)]
        clauses.append(self._clause(node.generators[-1], body, size and size + _shown_size(body)))
        if isinstance(node, ast.DictComp):
            key = _call("_key_of", self.visit(node.key))
            built: ast.AST = ast.DictComp(key, self.visit(node.value), clauses)
        else:
            built = type(node)(self.visit(node.elt), clauses)
        self.names = outer
        return built

    def _clause(self, clause: ast.comprehension, body: list[ast.expr], size: int) -> ast.comprehension:
        """One ``for``; ``body`` is what is done each time round, ``size`` what is kept of it."""
        self.loops += 1
        if self.loops > MAX_LOOPS or clause.is_async:
            raise ExpressionError(f"more than {MAX_LOOPS} loops in one expression (use a named Python function)")
        work = sum(_weight(each) for each in (*body, *clause.ifs))
        source = _call("_looped", self.visit(clause.iter), ast.Constant(work), ast.Constant(size))
        targets = clause.target.elts if isinstance(clause.target, ast.Tuple) else [clause.target]
        for target in targets:
            if not isinstance(target, ast.Name) or target.id.startswith("_"):
                raise ExpressionError("a loop variable is a plain name that does not begin with an underscore")
            if target.id in ("context", "event", "In", *FUNCTIONS):
                raise ExpressionError(f"the loop variable {target.id!r} hides a name (choose another)")
            self.names = self.names | {target.id}
        return ast.comprehension(clause.target, source, [self.visit(test) for test in clause.ifs], 0)


def _weight(node: ast.AST) -> int:
    """The operations in a tree."""
    return sum(1 for each in ast.walk(node) if isinstance(each, ast.expr))


def _shown_size(body: list[ast.expr]) -> int:
    """The size of the lists and mappings that are written out in a tree."""
    found = 0
    for node in (each for part in body for each in ast.walk(part)):
        if isinstance(node, ast.List | ast.Tuple):
            found += ELEMENT * (4 + len(node.elts))
        elif isinstance(node, ast.Dict):
            found += KEY * (2 + len(node.keys))
    return found


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def _is_short(node: ast.AST) -> bool:
    """True where the value is no larger than the expression: a literal, or a list of them."""
    return isinstance(node, ast.Constant) or (
        isinstance(node, ast.List | ast.Tuple) and all(_is_short(each) for each in node.elts)
    ) or (isinstance(node, ast.UnaryOp) and _is_short(node.operand))  # fmt: skip


def _compare(op: ast.cmpop, sides: list[ast.expr], visited: list[ast.expr]) -> ast.AST:
    if isinstance(op, ast.Is | ast.IsNot):
        return ast.Compare(visited[0], [op], [visited[1]])
    if isinstance(op, ast.In | ast.NotIn):
        if _is_short(sides[1]):
            return ast.Compare(visited[0], [op], [visited[1]])
        found = _call("_contains", *visited)
        return found if isinstance(op, ast.In) else ast.UnaryOp(ast.Not(), found)
    if any(_is_short(side) for side in sides):
        return ast.Compare(visited[0], [op], [visited[1]])
    return _call(f"_{type(op).__name__}", *visited)


# --- compiling ----------------------------------------------------------------------------------------------------


def compile_template(value: Any, extra: tuple[str, ...] = ()) -> Template:
    """Compile a literal that may hold ``{expr: ...}`` at any depth; ``extra`` names further values it may use.

    Raises :class:`ExpressionError`. The literal must be JSON already.
    """
    rebuild = _Rebuild(extra)
    body = _tree(value, rebuild)
    parameters = [ast.arg(name) for name in ("_run", *extra)]
    function = ast.Lambda(ast.arguments([], parameters, None, [], [], None, []), body)
    module = ast.fix_missing_locations(ast.Expression(function))
    try:
        code = compile(module, "<expression>", "eval")
    except (RecursionError, MemoryError, ValueError, SyntaxError) as error:
        raise ExpressionError(f"the expression cannot be compiled ({error})") from None
    # The tree holds permitted nodes only, and the globals nothing else: this evaluates a lambda, not the expression.
    return Template(eval(code, dict(_GLOBALS)), not has_expression(value), rebuild.asks_active, _weight(body))


def has_expression(value: Any) -> bool:
    """True when ``value`` is an expression or holds one."""
    if isinstance(value, dict):
        return is_expression(value) or any(has_expression(item) for item in value.values())
    return isinstance(value, list) and any(has_expression(item) for item in value)


def is_expression(value: Any) -> bool:
    """True for ``{expr: ...}``."""
    return isinstance(value, dict) and "expr" in value


def find_problem(value: Any, extra: tuple[str, ...] = ()) -> tuple[tuple[str | int, ...], str] | None:
    """The path to the first faulty expression within ``value`` and what is wrong with it; None when all are fine."""
    if is_expression(value):
        try:
            compile_template(value, extra)
        except ExpressionError as error:
            return (), str(error)
        return None
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found = find_problem(item, extra)
        if found:
            return (key, *found[0]), found[1]
    return None


def _tree(value: Any, rebuild: _Rebuild) -> ast.expr:
    if isinstance(value, dict):
        if is_expression(value):
            return _parsed(value, rebuild)
        return ast.Dict([ast.Constant(key) for key in value], [_tree(item, rebuild) for item in value.values()])
    if isinstance(value, list):
        return ast.List([_tree(item, rebuild) for item in value], ast.Load())
    return ast.Constant(value)


def _parsed(value: dict[str, Any], rebuild: _Rebuild) -> ast.expr:
    text = value["expr"]
    if "ecmascript" in value:
        return _ecmascript(value, rebuild)
    if len(value) != 1 or not isinstance(text, str):
        raise ExpressionError('an expression is {expr: "..."} with text, and no other key beside it')
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"longer than {MAX_LENGTH} characters (use a named Python function)")
    rebuild.loops = 0
    try:
        built: ast.expr = rebuild.visit(ast.parse(text.strip(), mode="eval").body)
    except SyntaxError as error:
        raise ExpressionError(f"{text!r} is not an expression: {error.msg}") from None
    except (RecursionError, MemoryError, ValueError) as error:
        if isinstance(error, ExpressionError):
            raise
        raise ExpressionError("the expression is nested too deeply (use a named Python function)") from None
    return built


def _of_ecmascript(name: str) -> ast.expr:
    return _of_run(name) if name else _name("_run")


def _ecmascript(value: dict[str, Any], rebuild: _Rebuild) -> ast.expr:
    """An expression that an SCXML document brought: ``{expr: text, ecmascript: [names of data]}``."""
    text, declared = value["expr"], value["ecmascript"]
    if len(value) != 2 or not isinstance(text, str) or not isinstance(declared, list):
        raise ExpressionError('an expression of ECMAScript is {expr: "...", ecmascript: [names of data]}')
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"longer than {MAX_LENGTH} characters (use a named Python function)")
    try:
        found = translate(text, declared, rebuild.names - {"context", "event"}, _of_ecmascript)
    except EcmascriptError as error:
        raise ExpressionError(f"{text!r}: {error}") from None
    except RecursionError:
        raise ExpressionError(f"{text!r} is nested too deeply") from None
    rebuild.asks_active = rebuild.asks_active or found.asks_active
    return found.tree


def _name(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _of_run(name: str) -> ast.Attribute:
    return ast.Attribute(_name("_run"), name, ast.Load())


def _call(function: str, *arguments: ast.expr) -> ast.Call:
    """A call of one of ``operations``, which get the run first."""
    return ast.Call(_name(function), [_name("_run"), *arguments], [])


def _spoken(node: ast.AST) -> str:
    known = {
        "Pow": "'**'", "LShift": "'<<'", "RShift": "'>>'", "BitAnd": "'&'", "BitOr": "'|'", "BitXor": "'^'",
        "MatMult": "'@'", "Invert": "'~'", "Lambda": "lambda", "NamedExpr": "':='", "Set": "a set", "SetComp": "a set",
        "Await": "await", "Yield": "yield", "GeneratorExp": "a generator outside of a function call",
    }  # fmt: skip
    return known.get(type(node).__name__, type(node).__name__)
