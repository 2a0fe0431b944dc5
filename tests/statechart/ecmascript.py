"""Expressions of ECMAScript, made at random, and what node makes of them. Its answers are compared as exact bits."""

from __future__ import annotations

import json
import math
import random
import struct
import subprocess
from typing import Any

from casework.statechart import Machine, start, step
from casework.statechart.ecmascript_values import UNDEFINED
from casework.statechart.snapshot import Event

DATA: dict[str, Any] = {
    "x": 1, "s": "5", "e": "", "n": None, "t": True, "f": False, "z": 0, "d": 1.5, "l": [1, 2, 3], "k": [],
    "o": {"a": 1, "b": "v"}, "p": {}, "big": 1e21, "em": "a\U0001f600b", "w": " 12\u00a0", "m": -7,
}  # fmt: skip
PAYLOAD = {"q": 7, "r": ["a"]}
_PROGRAM = r"""
const data = JSON.parse(process.argv[1]), payload = JSON.parse(process.argv[2]);
const texts = JSON.parse(require("fs").readFileSync(0, "utf8"));
const view = new DataView(new ArrayBuffer(8));
function shown(v) {
  if (v === undefined) return ["undefined"];
  if (v === null || typeof v === "boolean") return [String(v)];
  if (typeof v === "number") {
    if (Number.isNaN(v)) return ["NaN"];
    view.setFloat64(0, v);
    return ["number", view.getBigUint64(0).toString()];
  }
  if (typeof v === "string") return ["text", v];
  if (Array.isArray(v)) return ["list", ...Array.from(v, shown)];
  if (typeof v !== "object") return [typeof v];
  return ["object", ...Object.keys(v).sort().filter(k => v[k] !== undefined).map(k => [k, shown(v[k])])];
}
const names = Object.keys(data);
console.log(JSON.stringify(texts.map(text => {
  try {
    const fresh = JSON.parse(JSON.stringify(data));
    const run = new Function(...names, "u", "_event", `return (${text}\n);`);
    return ["value", shown(run(...names.map(n => fresh[n]), undefined, {name: "go", data: payload}))];
  } catch (error) { return ["error", error.name]; }
})));
"""
_ATOMS = [
    *DATA, "u", "null", "undefined", "true", "false", "NaN", "Infinity", "0", "1", "2", "3", "5", "1.5", ".5", "0x1F",
    "1e21", "1e-7", "0.1", "123456789.125", "1e300", "'5'", "''", "'a'", "'abc'", '"x"', "'0x10'", "'1e3'", "'\\u0041'",
    "[]", "[1]", "['1','2']", "{p: 'v'}", "{}", "{x, 'y z': s}", "o.a", "o.b", "o.c", "l[0]", "l.length", "em.length",
    "l[5]", "_event.name", "_event.data.q", "_event.data.r",
]  # fmt: skip
_BINARY = ["+", "-", "*", "/", "%", "<", ">", "<=", ">=", "==", "!=", "===", "!==", "&&", "||", "??"]
_UNARY = ["!", "-", "+", "typeof ", "!!"]
_CALLS = ["Number", "String", "Boolean", "isNaN", "Array.isArray", "Math.abs", "Math.floor", "Math.ceil", "Math.trunc",
          "Math.round", "Math.max", "Math.min"]  # fmt: skip
_METHODS = ["concat", "indexOf", "includes", "slice", "join", "charAt", "startsWith", "endsWith", "trim"]
_MARKS = [
    *_BINARY,
    "!", "(", ")", "[", "]", "{", "}", ".", ",", "?", ":", "=", "=>", "++", "--", "+=", "**", "&", "|", "<<", "?.",
    "...", ";", "`", "//", "/*", "*/", "<!--", "-->", "~", "new ", "delete ", "void ", "in ", "instanceof ",
    "function ", "this", "x", "l", "s", "1", "'a'", "010", "1n", "1_0", "/a/", "\\", "\n", "@", "#", "0.", "'\\8'",
    "await ", "yield ", "async ", "let", "__proto__", ".x", ".length", "\u00a0", "\u2028", "toString", ".constructor",
    "Object", "Date", "parseInt", "eval", "typeof ", "NaN", "undefined",
]  # fmt: skip


class Maker:
    """Makes expressions that mean something, and heaps of tokens that mostly do not."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def expression(self, depth: int) -> str:
        pick, kind = self.random.choice, self.random.random()
        if depth == 0 or kind < 0.15:
            return pick(_ATOMS)
        inner = self.expression(depth - 1)
        if kind < 0.60:
            return f"{inner} {pick(_BINARY)} {self.expression(depth - 1)}"
        if kind < 0.67:
            return f"({inner})"
        if kind < 0.75:
            return pick(_UNARY) + pick([inner, f"({inner})"])
        if kind < 0.81:
            return f"{inner} ? {self.expression(depth - 1)} : {self.expression(depth - 1)}"
        if kind < 0.84:
            return f"[{inner}, {self.expression(depth - 1)}]"
        if kind < 0.86:
            return f"{{a: {inner}, 'b c': {self.expression(depth - 1)}}}"
        if kind < 0.92:
            given = ", ".join(pick(_ATOMS) for _ in range(self.random.randint(0, 2)))
            return f"({inner}).{pick(_METHODS)}({given})"
        if kind < 0.95:
            return f"({inner})[{pick(_ATOMS)}]"
        return f"{pick(_CALLS)}({inner})"

    def heap(self) -> str:
        return "".join(self.random.choice(_MARKS) for _ in range(self.random.randint(1, 8)))


def answers_of_node(node: str, texts: list[str]) -> list[list[Any]]:
    run = subprocess.run(
        [node, "-e", _PROGRAM, json.dumps(DATA), json.dumps(PAYLOAD)],
        input=json.dumps(texts), capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    found: list[list[Any]] = json.loads(run.stdout)
    return found


def shown(value: Any) -> list[Any]:
    """As the program for node shows it."""
    if value is UNDEFINED:
        return ["undefined"]
    if value is None or isinstance(value, bool):
        return [json.dumps(value)]
    if isinstance(value, int | float):
        number = float(value)
        return ["NaN"] if math.isnan(number) else ["number", str(struct.unpack(">Q", struct.pack(">d", number))[0])]
    if isinstance(value, str):
        return ["text", value]
    if isinstance(value, list):
        return ["list", *map(shown, value)]
    return ["object", *([key, shown(value[key])] for key in sorted(value))]


def machine_of(text: str) -> Machine:
    """A document that assigns the expression to ``u``. Raises InvalidMachine when it is refused."""
    from xml.sax.saxutils import quoteattr

    data = "".join(f"<data id={quoteattr(name)}>{_xml(json.dumps(value))}</data>" for name, value in DATA.items())
    return Machine.from_scxml(
        '<scxml xmlns="http://www.w3.org/2005/07/scxml" name="m" datamodel="ecmascript">'
        f'<datamodel>{data}<data id="u"/></datamodel><state id="a"><transition event="go">'
        f'<assign location="u" expr={quoteattr(text)}/></transition>'
        '<transition event="error"><assign location="u" expr="\'failed\'"/></transition></state></scxml>',
        source="m.scxml",
    )


def our_answer(machine: Machine) -> list[Any]:
    """What the machine assigned, or what went wrong."""
    first = start(machine, None, 0).snapshot
    after = step(machine, first, Event("go", PAYLOAD), 0).snapshot
    return ["error"] if after.context.get("u") == "failed" else ["value", shown(after.context.get("u", UNDEFINED))]


def _xml(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
