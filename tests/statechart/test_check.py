"""Every code of ``check``: a chart that shows it, at its line and column, and a near miss that does not."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from casework.errors import InvalidMachine
from casework.statechart import Machine
from casework.statechart.findings import CODES, SEVERITIES, Problem, problem_of

ROOT = Path(__file__).parents[2]


class Row(NamedTuple):
    shows: str
    """The states of a machine, or a whole document."""
    misses: str
    line: int
    says: str
    bind: Callable[[Machine], Any] | None = None


def task(function: Any, name: str = "t") -> Callable[[Machine], Any]:
    return lambda machine: machine.task(name=name)(function)


def action(function: Any) -> Callable[[Machine], Any]:
    return lambda machine: machine.action(name="settle")(function)


HEAD = "id: m\ncontext: {n: 0}\ninitial: a\nstates:\n"
END = "  z: {type: final}\n"
ROWS: dict[str, Row] = {
    "definition": Row("  a: {on: {go: 5}}\n", "  a: {on: {go: z}}\n", 5, "5 is not a transition"),
    "syntax": Row("id: [\n", "  a: {on: {go: z}}\n", 2, "not YAML"),
    "duplicate-key": Row("  a:\n    on: {go: z}\n    on: {no: z}\n", "  a: {on: {go: z, no: z}}\n", 7, "stands twice"),
    "unknown-key": Row("  a:\n    onn: {go: z}\n", "  a:\n    on: {go: z}\n", 6, "did you mean 'on'?"),
    "expression": Row("  a: {on: {go: {target: z, guard: {expr: 'context.n >'}}}}\n",
                      "  a: {on: {go: {target: z, guard: {expr: 'context.n > 1'}}}}\n", 5, "not an expression"),
    "target": Row("  a: {on: {go: zz}}\n", "  a: {on: {go: z}}\n", 5, "there is no state 'zz'"),
    "delay": Row("  a: {after: {soon: z}}\n", "  a: {after: {5s: z}}\n", 5, "is not a delay"),
    "retry": Row("  a: {invoke: {src: t, retry: {initial: 1h, max: 5m}, onDone: z, onError: z}}\n",
                 "  a: {invoke: {src: t, retry: {initial: 1h}, onDone: z, onError: z}}\n", 5,
        "max '5m' is below initial '1h'"),
    "action-missing": Row("  a: {entry: settle, on: {go: z}}\n", "  a: {entry: [], on: {go: z}}\n", 5,
        "not registered"),
    "guard-missing": Row("  a: {on: {go: {target: z, guard: settle}}}\n", "  a: {on: {go: z}}\n", 5, "not registered"),
    "task-missing": Row("  a: {invoke: {src: {task: t}, onDone: z, onError: z}}\n", "  a: {on: {go: z}}\n", 5,
        "not registered"),
    "source": Row("  a: {invoke: {src: t, onDone: z, onError: z}}\n",
                  "  a: {invoke: {src: {machine: t}, onDone: z, onError: z}}\n", 5, "neither a task nor a machine"),
    "machine-missing": Row("  a: {invoke: {src: {machine: m22}, onDone: z, onError: z}}\n",
                           "  a: {invoke: {src: {machine: m2}, onDone: z, onError: z}}\n", 5, "did you mean 'm2'?"),
    "each-on-task": Row("  a: {invoke: {src: {task: t}, each: [1], onDone: z, onError: z}}\n",
                        "  a: {invoke: {src: {machine: m2}, each: [1], onDone: z, onError: z}}\n", 5,
        "each starts machines"),
    "arguments": Row("  a: {invoke: {src: {task: t}, input: {amonut: 1}, onDone: z, onError: z}}\n",
                     "  a: {invoke: {src: {task: t}, input: {amount: 1}, onDone: z, onError: z}}\n", 5, "amount",
                     task(lambda task, *, amount: None)),
    "endless": Row("  a: {always: b}\n  b: {always: a}\n", "  a: {on: {go: b}}\n  b: {always: a}\n", 5, "a -> b -> a"),
    "built-in": Row("  a: {entry: {type: asign, params: {n: 1}}, on: {go: z}}\n",
                    "  a: {entry: {type: assign, params: {n: 1}}, on: {go: z}}\n", 5, "did you mean 'assign'?"),
    "endless-timers": Row("  a: {after: {0: b}}\n  b: {after: {0: a}}\n",
        "  a: {after: {0: b}}\n  b: {after: {1: a}}\n", 5, "a -> b"),
    "heartbeat": Row("  a: {invoke: {src: {machine: m2}, heartbeat: 5s, onDone: z, onError: z}}\n",
                     "  a: {invoke: {src: {task: t}, heartbeat: 5s, onDone: z, onError: z}}\n", 5, "no heartbeat"),
    "unreachable": Row("  a: {on: {go: z}}\n  b: {on: {go: z}}\n", "  a: {on: {go: b}}\n  b: {on: {go: z}}\n", 6,
        "'b' cannot be reached"),
    "dead-end": Row("  a: {on: {go: b}}\n  b: {}\n", "  a: {on: {go: b}}\n  b: {on: {note: {}}}\n", 6, "never left"),
    "shadowed": Row("  a:\n    on:\n      go:\n        - z\n        - a\n",
        "  a: {on: {go: [{target: z, guard: {expr: 'context.n > 1'}}, a]}}\n",
                    9, "'go' is never taken here"),
    "repeated": Row("  a: {on: {go: [{target: z, guard: {expr: context.n}}, {target: a, guard: {expr: context.n}}]}}\n",
                    "  a: {on: {go: [{target: z, guard: {expr: context.n}}, {target: a, guard: {expr: '5'}}]}}\n",
                    5, "the same guard"),
    "timer": Row("  a:\n    after:\n      1s: z\n      5s: a\n",
        "  a: {after: {1s: {target: z, guard: {expr: 'context.n > 1'}}, 5s: z}}\n", 8,
                 "never fires"),
    "text": Row("  a:\n    entry:\n      type: assign\n      params: {n: context.n + 1}\n    on: {go: z}\n",
                "  a: {entry: {type: assign, params: {n: {expr: context.n + 1}, m: the context.}}, on: {go: z}}\n", 8,
                'write {expr: "context.n + 1"}'),
    "in-unknown": Row("  a: {on: {go: {target: z, guard: {expr: In('y')}}}}\n",
        "  a: {on: {go: {target: z, guard: {expr: In('z')}}}}\n", 5, "'y'"),
    "context-unknown": Row("  a: {on: {go: {target: z, guard: {expr: context.m > 1}}}}\n",
                           "  a: {on: {go: {target: z, guard: {expr: context.n > 1}}}}\n", 5, "context.m is read"),
    "done-never": Row("  a: {initial: x, states: {x: {on: {no: {}}}}, onDone: z}\n",
                      "  a: {initial: x, states: {x: {on: {no: y}}, y: {type: final}}, onDone: z}\n", 5,
        "no final state"),
    "done-unknown": Row("  a: {invoke: {id: pay, src: t, onError: z}, on: {done.invoke.payment: z}}\n",
                        "  a: {invoke: {id: pay, src: t, onError: z}, on: {done.invoke.pay: z}}\n", 5,
        "did you mean 'done.invoke.pay'?"),
    "error-untaken": Row("  a: {invoke: {src: t, onDone: z}}\n",
        "  a: {invoke: {src: t, onDone: z}, on: {error: z}}\n", 5, "onError"),
    "event-untaken": Row("  a: {entry: {type: raise, params: {event: goo}}, on: {go: z}}\n",
                         "  a: {entry: {type: raise, params: {event: go}}, on: {go: z}}\n", 5, "did you mean 'go'?"),
    "child-unknown": Row("  a: {entry: {type: send, params: {event: e, to: 'child:kid'}}, on: {go: z}}\n",
                         "  a: {entry: {type: send, params: {event: e, to: parent}}, on: {go: z}}\n", 5,
        "no invocation 'kid'"),
    "cancel-unknown": Row("  a: {entry: {type: cancel, params: {id: late}}, on: {go: z}}\n",
                          "  a: {entry: {type: raise, params: {event: go, delay: 5, id: late}},\n"
                          "      exit: {type: cancel, params: {id: late}}, on: {go: z}}\n", 5, "with the id 'late'"),
    "publish-untaken": Row("  a: {on: {go: z}}\npublish: {stream: s, events: [goo]}\n",
                           "  a: {on: {go: z}}\npublish: {stream: s, events: [go]}\n", 1, "did you mean 'go'?"),
    "defer-untaken": Row("  a: {defer: [goo], on: {go: z}}\n", "  a: {defer: ['go'], on: {stop: b}}\n"
                         "  b: {on: {go: z}}\n", 5, "did you mean 'go'?"),
}  # fmt: skip


def found(text: str, bind: Callable[[Machine], Any] | None = None) -> list[Problem]:
    document = text if text.startswith("id:") else HEAD + text.replace("publish:", END + "publish:")
    if document.startswith(HEAD) and END not in document:
        document += END
    try:
        machine = Machine.from_yaml(document, source="m.yaml")
    except InvalidMachine as error:
        return [problem_of(each) for each in error.problems]
    if bind is not None:
        bind(machine)
    elif "{task: t}" in document and "each" in document:
        machine.task(name="t")(lambda task: None)
    return machine.beside(["m", "m2"]).check()


@pytest.mark.parametrize("code", ROWS)
def test_each_code_is_told_with_its_place_and_a_way_out_and_a_near_miss_is_not(code: str) -> None:
    row = ROWS[code]
    (problem,) = [each for each in found(row.shows, row.bind) if each.code == code]
    assert row.says in f"{problem.message} ({problem.suggestion})"
    assert (problem.place.file, problem.place.line) == ("m.yaml", row.line)
    assert problem.place.column > 0 or code == "duplicate-key"
    assert code in [each.code for each in found(row.shows, row.bind)]
    assert code not in [each.code for each in found(row.misses, row.bind)]


def test_every_code_has_a_row_and_stands_in_the_documents() -> None:
    assert set(ROWS) == set(CODES)
    page = (ROOT / "docs/reference/machines.md").read_text("utf-8")
    assert set(re.findall(r"^\| `([a-z-]+)` \| (?:error|warning|note)", page, re.MULTILINE)) == set(CODES)
    source = "".join(path.read_text("utf-8") for path in (ROOT / "src/casework/statechart").rglob("*.py"))
    used = set(re.findall(r'Problem\(\s*"\w+",\s*f?"([a-z{}-]+)"', source)) | set(
        re.findall(r'code="([a-z-]+)"', source)
    )
    assert {each for each in used if "{" not in each} <= set(CODES)


@pytest.mark.parametrize("code", CODES)
def test_the_documented_severity_is_the_one_that_is_told(code: str) -> None:
    page = (ROOT / "docs/reference/machines.md").read_text("utf-8")
    (severity,) = re.findall(rf"^\| `{code}` \| (\w+)", page, re.MULTILINE)
    (problem,) = [each for each in found(ROWS[code].shows, ROWS[code].bind) if each.code == code]
    assert problem.severity == severity and severity in SEVERITIES


@pytest.mark.parametrize(
    ("states", "says"),
    [
        ("  a: {invoke: {src: t, retry: {max_attempts: 0}, onDone: z, onError: z}}\n", "0 is not a number from 1"),
        ("  a: {invoke: {src: t, timeout: 5s, heartbeat: 10s, onDone: z, onError: z}}\n", "longer than the timeout"),
        ("  a: {invoke: {src: t, retry: {jitter: 2}, onDone: z, onError: z}}\n", "2 is not true"),
        ("  a: {invoke: {src: t, retry: 5, onDone: z, onError: z}}\n", "not a retry policy"),
    ],
)  # fmt: skip
def test_numbers_of_retries_that_contradict_each_other_are_refused(states: str, says: str) -> None:
    (problem,) = found(states)
    assert (problem.severity, problem.code) == ("error", "retry") and says in problem.message


@pytest.mark.parametrize(
    ("function", "params", "fits"),
    [
        (lambda context, event: None, "{}", True),
        (lambda context, event, by: None, "{by: 1}", True),
        (lambda context, event, **params: None, "{by: 1}", True),
        (lambda *args, **params: None, "{by: 1}", True),
        (lambda context, event, by=1: None, "{}", True),
        (lambda context, event, by=1: None, "{of: 1}", False),
        (lambda context, event, by: None, "{}", False),
        (lambda context: None, "{}", False),
    ],
)  # fmt: skip
def test_actions_and_guards_are_compared_with_their_params(function: Any, params: str, fits: bool) -> None:
    codes = [
        each.code
        for each in found(f"  a: {{entry: {{type: settle, params: {params}}}, on: {{go: z}}}}\n", action(function))
    ]
    assert ("arguments" not in codes) is fits
    guarded = f"  a: {{on: {{go: {{target: z, guard: {{type: settle, params: {params}}}}}}}}}\n"
    codes = [each.code for each in found(guarded, lambda machine: machine.guard(name="settle")(function))]
    assert ("arguments" not in codes) is fits


def test_input_that_is_computed_as_a_whole_is_not_judged() -> None:
    states = "  a: {invoke: {src: {task: t}, input: {expr: context}, onDone: z, onError: z}}\n"
    assert found(states, task(lambda task, *, amount: None)) == []


def test_what_functions_may_set_is_not_called_unknown_unless_it_is_nearly_a_known_key() -> None:
    read = "  a: {{entry: settle, on: {{go: {{target: z, guard: {{expr: context.{0} > 1}}}}}}}}\n"
    head = "id: m\ncontext: {amount: 0}\ninitial: a\nstates:\n"
    codes = {
        key: [each.code for each in found(head + read.format(key) + END) if each.severity == "warning"]
        for key in ("amount", "amuont", "other")
    }
    assert codes == {"amount": [], "amuont": ["context-unknown"], "other": []}


@pytest.mark.parametrize("path", sorted([*ROOT.glob("examples/**/*.yaml"), *ROOT.glob("src/**/*.yaml")]), ids=str)
def test_good_charts_are_fine(path: Path) -> None:
    problems = [each for each in Machine.load(path).check() if not each.needs_functions]
    assert [each for each in problems if each.severity != "note"] == []


def test_charts_of_the_documents_are_fine() -> None:
    told = []
    for page in [*ROOT.glob("docs/**/*.md"), ROOT / "README.md"]:
        for block in re.findall(r"^```ya?ml[^\n]*\n(id:.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE):
            problems = Machine.from_yaml(block, source=page.name).check()
            told += [str(each) for each in problems if each.severity != "note" and not each.needs_functions]
    assert told == []


def test_a_problem_in_a_text_without_place_is_told_all_the_same() -> None:
    assert problem_of("order: the state is odd") == Problem(
        "error", "definition", "the state is odd", "", problem_of("order: x").place
    )
