"""Random expressions and actions that want much, run one after another under limits of the operating system.

``python -m tests.statechart.hungry SEED COUNT`` prints one line of JSON: how many were run, how many spent their
budget, and the worst of them by time and by memory for what they were charged. An expression that takes more than
:data:`CPU_S_MAX`, or memory that the process does not get, ends it with a traceback and the expression.
"""

from __future__ import annotations

import json
import random
import resource
import signal
import sys
import time
from typing import Any

from casework.errors import StepLimit
from casework.statechart import Event, Machine, start, step
from casework.statechart.expressions import ExpressionError, compile_template

WORK, SIZE = 200_000, 4_000_000
CPU_S_MAX = 2.0
"""A hundred times what the budget of work takes at a tenth of a microsecond for a unit."""
MEMORY_MAX = 512 * 1024 * 1024
"""A hundred times the budget of size, with what Python and the context need."""

LISTS = ("context.numbers", "context.rows", "context.words", "context.deep", "context.same")
TEXTS = ("context.text", "context.wide", "'ab'", "context.word")
MAPPINGS = ("context.mapping", "context.rows[0]", "{'a': 1}")


class Author:
    """Writes one random expression after another, mostly of the right type."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.names: list[str] = []
        self.loops = 0

    def write(self) -> str:
        self.names, self.loops = [], 0
        return self.any(4)

    def any(self, depth: int) -> str:
        return self.rng.choice((self.list, self.list, self.text, self.number, self.mapping, self.truth))(depth)

    def _loop(self, depth: int) -> tuple[str, int] | None:
        if self.loops >= 2:
            return None
        clauses = []
        for _ in range(self.rng.randint(1, 2 - self.loops)):
            self.loops += 1
            clauses.append(f"for {'xy'[len(self.names) % 2]} in {self.list(depth - 2)}")
            self.names.append("xy"[len(self.names) % 2])
        if self.rng.random() < 0.3:
            clauses.append(f"if {self.truth(depth - 2)}")
        return " ".join(clauses), len(clauses)

    def list(self, depth: int) -> str:
        if depth <= 0:
            return self.rng.choice(LISTS)
        case = self.rng.randrange(10)
        if case < 3:
            before = len(self.names)
            loop = self._loop(depth)
            if loop is not None:
                written = f"[{self.any(depth - 2)} {loop[0]}]"
                del self.names[before:]
                return written
        if case < 5:
            return f"({self.list(depth - 1)} + {self.list(depth - 1)})"
        if case == 5:
            return f"sorted({self.list(depth - 1)}, reverse={self.rng.choice(('True', 'False'))})"
        if case == 6:
            return f"({self.list(depth - 1)} * {self.rng.choice((2, 1000, 10**9, 'len(context.numbers)'))})"
        if case == 7:
            return f"[*{self.list(depth - 1)}, *{self.list(depth - 1)}]"
        if case == 8:
            return f"{self.list(depth - 1)}[{self.rng.choice((':', '1:', '::-1', ':500', '::2'))}]"
        return f"[{self.any(depth - 1)}, {self.any(depth - 1)}]"

    def text(self, depth: int) -> str:
        if depth <= 0:
            return self.rng.choice(TEXTS)
        return self.rng.choice((
            lambda: f"str({self.any(depth - 1)})",
            lambda: f"({self.text(depth - 1)} + {self.text(depth - 1)})",
            lambda: f"({self.text(depth - 1)} * {self.rng.choice((3, 10**4, 10**9))})",
            lambda: "f'" + "{context.text}" * self.rng.choice((1, 50, 500)) + "'",
            lambda: f"f'{{{self.number(depth - 1).replace(chr(39), chr(34))}}}'",
            lambda: f"{self.text(depth - 1)}[1:]",
        ))()  # fmt: skip

    def number(self, depth: int) -> str:
        if depth <= 0:
            return self.rng.choice(("context.n", "context.big", "1", "3", *self.names))
        return self.rng.choice((
            lambda: f"({self.number(depth - 1)} {self.rng.choice('+-*%/')} {self.number(depth - 1)})",
            lambda: f"({' * '.join([self.number(0)] * self.rng.choice((2, 40, 200)))})",
            lambda: f"len({self.any(depth - 1)})",
            lambda: f"{self.rng.choice(('sum', 'max', 'min'))}({self._generator(depth)})",
            lambda: f"{self.rng.choice(('sum', 'max', 'min'))}({self.list(depth - 1)})",
            lambda: f"int({self.text(depth - 1)})",
            lambda: f"get({self.mapping(depth - 1)}, {self.text(depth - 1)}, 1)",
        ))()  # fmt: skip

    def _generator(self, depth: int) -> str:
        before = len(self.names)
        loop = self._loop(depth)
        if loop is None:
            return self.list(depth - 1)
        written = f"{self.any(depth - 2)} {loop[0]}"
        del self.names[before:]
        return written

    def mapping(self, depth: int) -> str:
        if depth <= 0:
            return self.rng.choice(MAPPINGS)
        case = self.rng.randrange(3)
        if case == 0:
            before = len(self.names)
            loop = self._loop(depth)
            if loop is not None:
                key = self.rng.choice((self.text, self.number))(depth - 2)
                written = f"{{{key}: {self.any(depth - 2)} {loop[0]}}}"
                del self.names[before:]
                return written
        if case == 1:
            return f"{{**{self.mapping(depth - 1)}, **{self.mapping(depth - 1)}}}"
        return f"{{'k': {self.any(depth - 1)}}}"

    def truth(self, depth: int) -> str:
        if depth <= 0:
            return "context.n > 2"
        return self.rng.choice((
            lambda: f"{self.list(depth - 1)} {self.rng.choice(('==', '<', '!=', '>='))} {self.list(depth - 1)}",
            lambda: f"{self.text(depth - 1)} {self.rng.choice(('==', '<'))} {self.text(depth - 1)}",
            lambda: f"{self.list(depth - 1)} == {self.list(depth - 1)} == {self.list(depth - 1)}",
            lambda: f"{self.any(depth - 1)} {self.rng.choice(('in', 'not in'))} {self.list(depth - 1)}",
            lambda: f"{self.text(depth - 1)} in {self.text(depth - 1)}",
            lambda: f"{self.rng.choice(('any', 'all'))}({self._generator(depth)})",
            lambda: f"{self.mapping(depth - 1)} == {self.mapping(depth - 1)}",
            lambda: f"not {self.any(depth - 1)}",
        ))()  # fmt: skip


def context() -> dict[str, Any]:
    """Lists that are long, equal, deep, and the same again."""
    numbers = list(range(3_000))
    deep: list[Any] = [1]
    for _ in range(12):
        deep = [list(deep), list(deep)]
    return {
        "n": 3, "big": 2**63 - 1, "numbers": numbers, "rows": [{"id": i, "of": "x" * 50} for i in range(500)],
        "words": [f"{'w' * 200}{i}" for i in range(500)], "deep": deep, "word": "word", "text": "t" * 100_000,
        "same": [list(numbers[:300]) for _ in range(50)], "wide": "\U0001f600" * 20_000,
        "mapping": {f"k{i}": i for i in range(2_000)},
    }  # fmt: skip


def chart(rng: random.Random, text: str) -> dict[str, Any]:
    """The expression where it is evaluated once, in a loop of actions, of microsteps, of guards, or as a log."""
    once = {"type": "assign", "params": {"result": {"expr": text}}}
    forms: list[dict[str, Any]] = [
        {"on": {"go": {"target": "b", "actions": once}}},
        {"on": {"go": {"target": "b", "actions": {"type": "foreach", "params": {
            "items": {"expr": "context.numbers"}, "item": "n", "actions": [once],
        }}}}},
        {"on": {"go": {"target": "b", "actions": {"type": "foreach", "params": {
            "items": {"expr": "context.numbers"}, "item": "n",
            "actions": [{"type": "assign", "params": {"same": {"expr": "context.same + context.same"}}}],
        }}}}},
        {"on": {"go": {"target": "b", "guard": {"expr": text}}}},
        {"on": {"go": {"target": "b", "actions": [
            {"type": "log", "params": {"value": {"expr": text}}},
            {"type": "send", "params": {"event": "x", "to": "y", "data": {"expr": text}}},
        ]}}},
        {"on": {"go": {"target": "c", "actions": once}}},
    ]  # fmt: skip
    circle = {"always": {"target": "c", "reenter": True, "actions": once}}
    return {
        "id": "hungry", "initial": "a", "context": {"expr": "input"}, "limits": {"work": WORK, "size": SIZE},
        "states": {"a": rng.choice(forms), "b": {}, "c": circle},
    }  # fmt: skip


def main(seed: int, count: int) -> None:
    rng = random.Random(seed)
    author = Author(rng)
    given = context()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))
    ran = spent = 0
    worst: tuple[float, str] = (0.0, "")
    while ran < count:
        text = author.write()
        try:
            compile_template({"expr": text})
        except ExpressionError:
            continue
        ran += 1
        machine = Machine.from_dict(chart(rng, text))
        first = start(machine, given, 0).snapshot
        signal.signal(signal.SIGVTALRM, _too_long(text))
        signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S_MAX)
        began = time.process_time()
        error: dict[str, Any] = {}
        try:
            error = step(machine, first, Event("go"), 0).snapshot.error or {}
        except StepLimit:
            pass
        except MemoryError:
            error = {"type": "MemoryError"}
        if error.get("type") == "MemoryError":
            raise SystemExit(f"more memory than {MEMORY_MAX:,} bytes: {machine.definition}")
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        worst = max(worst, (round(time.process_time() - began, 3), text[:300]))
        spent += error.get("type") == "OverBudget"
    sys.stdout.write(json.dumps({"ran": ran, "spent": spent, "worst_s": worst[0], "worst": worst[1]}))


def _too_long(text: str) -> Any:
    def stop(*_: Any) -> None:
        raise SystemExit(f"more than {CPU_S_MAX} s of CPU: {text}")

    return stop


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
