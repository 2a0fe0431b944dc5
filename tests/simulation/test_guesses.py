"""What the simulator guesses where the user says nothing: it follows every read, and says so when it guessed wrong."""

from __future__ import annotations

from typing import Any

import pytest

import casework
from casework.simulation.guesses import Guesses
from casework.simulation.users import simulate

READS = ["event.output.ref", 'event.output["ref"]', 'event["ref"]', "event.ref", "event.data.ref", 'event.data["ref"]',
         'get(event.output, "ref")', 'get(event, "ref", "none")']  # fmt: skip
CHART = """
id: order
context: {ref: null, ok: false}
initial: charging
states:
  charging:
    invoke:
      src: {task: charge}
      onDone: {target: paid, actions: {type: assign, params: {ref: {expr: READ}}}}
  paid: {always: {target: end, guard: {expr: context.ref + "!" > "!"}}}
  end: {type: final}
"""
SCORED = """
id: loan
context: {score: 0, limit: 700, lines: []}
initial: scoring
states:
  scoring:
    invoke:
      src: score
      onDone: {target: scored, actions: {type: assign, params: {score: {expr: event.output.score}}}}
  scored:
    always:
      - {target: approved, guard: {expr: context.score >= context.limit}}
      - refused
  approved:
    on:
      Sign: {target: signed, guard: {expr: 'event["by"].role == "owner" and event.pages > 20 and not event.isdraft'}}
      Lines: {target: listed, guard: {expr: "len(event.lines) > 1 and any(line.price > 5 for line in event.lines)"}}
  signed: {type: final}
  listed: {entry: {type: assign, params: {lines: {expr: event.lines}}}, on: {Ship: shipped}}
  shipped: {type: final, output: {expr: "[line.sku for line in context.lines]"}}
  refused: {type: final}
"""


def machine(text: str) -> casework.Machine:
    return casework.Machine.from_yaml(text)


@pytest.mark.parametrize("read", READS)
def test_a_tasks_result_is_guessed_however_the_chart_reads_it(read: str) -> None:
    chart = machine(CHART.replace("READ", repr(read)))
    assert Guesses(chart).result("charge").template == {"ref": {"$id": "ref"}}
    report = simulate(chart, runs=20, crashes=False)
    assert report.ok, str(report)
    assert report.never_entered == report.never_taken == {}


def test_a_result_that_is_read_whole_is_a_plain_value_and_one_that_nobody_reads_is_null() -> None:
    assert Guesses(machine(CHART.replace("READ", "event.output"))).result("charge").template == {"$id": "ref"}
    assert Guesses(machine(CHART.replace("READ", "context.ok"))).result("charge").template is None


def test_a_chart_as_documented_is_reached_behind_its_guards_too() -> None:
    report = simulate(machine(SCORED), runs=200, seed=1, crashes=False)
    assert report.ok, str(report)
    assert report.never_entered == report.never_taken == {}


def test_a_stand_in_that_says_how_and_not_what_returns_the_guess() -> None:
    report = simulate(machine(SCORED), runs=100, crashes=False, tasks={"score": {"fails": 0.0, "takes": "1s"}})
    assert report.ok, str(report)
    chart = machine(CHART.replace("READ", "event.output.ref"))
    nothing = simulate(chart, runs=5, crashes=False, tasks={"charge": {"returns": None}}).failure
    assert nothing is not None and "did not mean to" in nothing.problem


def test_what_constants_and_the_context_say_of_a_value_is_followed() -> None:
    guesses = Guesses(machine(SCORED))
    assert guesses.result("score").template == {"score": {"$choice": [700, 701, 699]}}
    assert guesses.payload("Sign").template == {
        "by": {"role": {"$choice": ["owner", {"$id": "role"}]}},
        "pages": {"$choice": [20, 21, 19]},
        "isdraft": {"$choice": [True, False]},
    }
    line = {"price": {"$choice": [5, 6, 4]}, "sku": {"$id": "sku"}}
    assert guesses.payload("Lines").template == {"lines": {"$list": [line, 3]}}
    assert guesses.payload("Ship").template == {}


@pytest.mark.parametrize(
    ("expression", "template"),
    [
        ("event.n - 1", {"n": {"$int": [1, 3]}}),
        ('event.n + "x"', {"n": {"$id": "n"}}),
        ("event.lines[1].n", {"lines": [{"n": {"$int": [1, 3]}}] * 2}),
        ("sum(event.prices)", {"prices": {"$list": [{"$int": [1, 3]}, 3]}}),
        ("[a + b for a, b in event.pairs]", {"pairs": {"$list": [[{"$int": [1, 3]}] * 2, 3]}}),
        ("event.note is None", {"note": {"$maybe": {"$int": [1, 3]}}}),
        ("event.kind in ['a', 'b']", {"kind": {"$choice": ["a", {"$id": "kind"}, "b"]}}),
        ("'a' in event.tags", {"tags": {"$list": [{"$choice": ["a", {"$id": "tags"}]}, 3]}}),
        ("-event.n", {"n": {"$int": [1, 3]}}),
        ("1 if event.isgift else 2", {"isgift": {"$choice": [True, False]}}),
        ("event.at > -5", {"at": {"$choice": [-5, -4]}}),
        ("event.type + event.id + event.source", {}),
        ('event["type"]', {"type": {"$int": [1, 3]}}),
        ("event", {}),
        ("max(event.a, event.b)", {"a": {"$int": [1, 3]}, "b": {"$int": [1, 3]}}),
    ],
)
def test_an_expression_says_what_it_reads(expression: str, template: Any) -> None:
    text = "{id: x, context: {}, initial: a, states: {a: {on: {Go: {actions: {type: assign, params: {v: READ}}}}}}}"
    chart = machine(text.replace("READ", f"{{expr: {expression!r}}}"))
    assert Guesses(chart).payload("Go").template == template


def test_conditions_lists_and_children_are_read_as_well() -> None:
    chart = machine("""
id: x
context: {sum: 0}
initial: a
states:
  a:
    exit: {type: log, params: {value: {expr: event.left}}}
    on:
      Go:
        target: b.c
        actions:
          - {type: foreach, params: {items: {expr: event.rows}, item: row, actions: [{type: assign, params: {sum: {expr:
              context.sum + context.row.n}}}]}}
          - type: if
            params: {branches: [{guard: {expr: event.isnew}, actions: [{type: raise, params: {event: Hi}}]}]}
  b:
    initial: c
    states:
      c: {invoke: {src: {machine: x}, each: {expr: event.kids}, input: {name: {expr: item.name}}, onDone: d}}
      d: {}
""")
    assert Guesses(chart).payload("Go").template == {
        "rows": {"$list": [{"n": {"$int": [1, 3]}}, 3]},
        "isnew": {"$choice": [True, False]},
        "left": {"$int": [1, 3]},
        "kids": {"$list": [{"name": {"$id": "name"}}, 3]},
    }


def test_an_input_is_guessed_from_the_context_or_is_the_context() -> None:
    text = "{id: x, CONTEXT initial: a, states: {a: {on: {Go: {guard: {expr: context.cart.total > 9}, target: a}}}}}"
    cart = {"cart": {"total": {"$choice": [9, 10, 8]}}}
    assert Guesses(machine(text.replace("CONTEXT", ""))).input().template == cart
    assert Guesses(machine(text.replace("CONTEXT", "context: {cart: {expr: input.cart}},"))).input().template == cart
    assert Guesses(machine(text.replace("CONTEXT", "context: {cart: {total: 1}},"))).input().template == {}


# --- a guess that is wrong --------------------------------------------------------------------------------------------

BLAMED = """
id: order
context: {CONTEXT}
initial: waiting
states:
  waiting: {on: {Paid: {target: charging, actions: [PAID]}}}
  charging: {invoke: {src: {task: charge}, onDone: {target: done, actions: [CHARGED]}}}
  done: {}
"""


def problem(*, paid: str = "log", charged: str = "log", context: str = "x: 1", **options: Any) -> str:
    log = "{type: log, params: {value: 1}}"
    text = BLAMED.replace("CONTEXT", context)
    for place, name in (("PAID", paid), ("CHARGED", charged)):
        text = text.replace(place, log if name == "log" else name)
    chart = machine(text)
    if "read_ref" in (paid, charged):
        chart.action(lambda context, event: {"x": event["ref"]}, name="read_ref")  # type: ignore[call-overload]
    failure = simulate(chart, runs=60, seed=1, crashes=False, **options).failure
    return failure.problem if failure is not None else ""


def test_a_guessed_payload_that_lacks_a_key_is_said_to_be_guessed_with_the_way_to_give_a_real_one() -> None:
    found = problem(paid="read_ref")
    assert "failed on a guess of the simulator's, not the chart's fault: KeyError in transition Paid" in found
    assert "there is no key 'ref'. Guessed: the payload of Paid, {}." in found
    assert "events: [{Paid: {ref: ...}}] in the file of --events, events=... in Python" in found
    assert problem(paid="read_ref", events=[{"Paid": {"ref": 5}}]) == ""
    assert "did not mean to" in problem(paid="read_ref", events=[{"Paid": {"rf": 5}}])


def test_a_guessed_result_that_lacks_a_key_is_said_to_be_guessed() -> None:
    found = problem(charged="read_ref")
    assert "Guessed: the result of charge, null." in found
    assert "tasks: {charge: {returns: {ref: ...}}}" in found
    assert problem(charged="read_ref", tasks={"charge": {"returns": {"ref": 1}}}) == ""
    assert "did not mean to" in problem(charged="read_ref", tasks={"charge": {"returns": {"rf": 1}}})


def test_a_guess_that_may_be_behind_a_later_failure_is_named_and_the_charts_own_faults_stay_its_own() -> None:
    later = "{type: assign, params: {x: {expr: 'context.x[str(1)]'}}}"
    paid = "{type: assign, params: {z: {expr: event.z}}}"
    found = problem(charged=later, paid=paid, context="x: {expr: input.start}", tasks={"charge": 1})
    assert "perhaps on a guess of the simulator's" in found
    assert 'Guessed: the input; the payload of Paid, {"z": ' in found
    mistyped = "{type: assign, params: {x: {expr: context.y}}}"
    assert "failed, and its machine did not mean to" in problem(paid=mistyped)


def test_an_input_that_was_guessed_and_does_not_do_is_said_to_be_guessed() -> None:
    found = problem(context='x: {expr: "input[str(1)].k"}')
    assert "the input has no '1'" in found and "Guessed: the input. Give a real one: input: {...}" in found
