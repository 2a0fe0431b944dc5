"""Reading definitions: YAML 1.2 core, and every mistake with its place and a way out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from casework.errors import InvalidMachine, Misuse
from casework.statechart import Machine, start
from casework.statechart.load.yaml import parse


def problems(text: str) -> list[str]:
    with pytest.raises(InvalidMachine) as caught:
        Machine.from_yaml(text, source="order.yaml")
    return list(caught.value.problems)


def wrong_state(body: str) -> list[str]:
    return problems(f"id: m\ninitial: a\nstates:\n  a: {body}\n  b: {{}}\n")


# --- YAML


def test_a_key_that_stands_twice_hides_no_other_problem() -> None:
    text = "id: x\ninitial: a\nstates:\n  a: {onn: {}}\n  b: {}\n  b: {}\n"
    with pytest.raises(InvalidMachine) as caught:
        Machine.from_yaml(text, source="x")
    assert caught.value.problems == (
        "x:6: states: the key 'b' stands twice (first on line 5; remove one)",
        "x:4: states.a.onn: unknown key 'onn' (did you mean 'on'?)",
    )


def test_problems_of_json_have_lines_and_its_own_name() -> None:
    def found(text: str) -> tuple[str, ...]:
        with pytest.raises(InvalidMachine) as caught:
            Machine.from_yaml(text, source="x.json")
        return caught.value.problems

    assert found('{"id": "x",\n "initial": "a",\n "states": {\n "a": {"onn": {}}}}') == (
        "x.json:4: states.a.onn: unknown key 'onn' (did you mean 'on'?)",
    )
    assert found('{"id": "x",\n "id": "x", "initial": "a", "states": {"a": {}}}') == (
        "x.json:2: (top): the key 'id' stands twice (first on line 1; remove one)",
    )
    assert found('{"id": "x",\n "states": [}') == ("x.json:2: not JSON: Expecting value",)
    twice, *_ = found('{\t"id": "x",\t"id": "\\ud83d\\ude00", "initial": "a", "states": {"a": {}}}')
    assert "stands twice" in twice


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("on", "on"), ("yes", "yes"), ("No", "No"), ("off", "off"), ("true", True), ("False", False), ("null", None),
        ("~", None), ("1", 1), ("-7", -7), ("0o17", 15), ("0x1F", 31), ("010", 10), ("1_000", "1_000"), ("1.5", 1.5),
        ("1e3", 1000.0), (".5", 0.5), ("12:30", "12:30"), ("2024-01-01", "2024-01-01"), ("'1'", "1"),
        ('"true"', "true"),
        ("!!str 5", 5), ("[a, 1]", ["a", 1]), ("|\n  x\n", "x\n"),
    ],
)  # fmt: skip
def test_scalars_follow_the_core_schema(text: str, expected: Any) -> None:
    assert parse(f"v: {text}")[0] == {"v": expected}


def test_keys_are_always_strings() -> None:
    assert parse("on: 1\n1000: 2\ntrue: 3\n")[0] == {"on": 1, "1000": 2, "true": 3}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "x:3: (top): the key 'a' stands twice (first on line 1; remove one)"),
        ("a: .inf", "x:1: a: .inf is not a number that JSON can hold (quote it if text is meant)"),
        (
            "a: !python/object:os.system x",
            "x:1: a: the tag '!python/object:os.system' is not supported (remove the tag)",
        ),
        ("[1]: 2", "x:1: (top): a key is not a plain name (write the key as text)"),
        ("", "x: the document is empty (a machine has an id and states)"),
        ("a: [1, }", "x:1: not YAML: "),
        ("a: &x [*x]", "x:1: a[0]: the document holds itself or is too large (at most 100,000 values)"),
    ],
)
def test_what_yaml_would_take_silently_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidMachine) as caught:
        parse(text, "x")
    assert caught.value.problems[0].startswith(message)


def test_aliases_cannot_multiply_without_bound() -> None:
    text = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9))
    with pytest.raises(InvalidMachine, match="too large"):
        parse(text)


def test_json_is_read_as_well() -> None:
    definition = {"id": "m", "initial": "a", "states": {"a": {"on": {"go": "b"}}, "b": {}}}
    assert Machine.from_yaml(json.dumps(definition, indent=1)).hash == Machine.from_dict(definition).hash


# --- mistakes


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("{on: {go: c}}", "order.yaml:4: states.a.on.go: there is no state 'c' beside 'a' (known: a, b)"),
        ("{on: {go: .c}}", "order.yaml:4: states.a.on.go: there is no state '.c' in 'a' (none are known)"),
        ("{on: {go: '#c'}}", "order.yaml:4: states.a.on.go: there is no state with the id '#c' (known: m)"),
        ("{onn: {go: b}}", "order.yaml:4: states.a.onn: unknown key 'onn' (did you mean 'on'?)"),
        ("{on: {go: {targt: b}}}", "order.yaml:4: states.a.on.go.targt: unknown key 'targt' (did you mean 'target'?)"),
        ("{on: [b]}", "states.a.on[0]: a transition in a list has an event"),
        ("{on: {go: null}}", "order.yaml:4: states.a.on.go: None is not a transition"),
        ("{on: {go: {target: []}}}", "[] is not a target"),
        ("{on: {'a..b': b}}", "'a..b' is not an event"),
        ("{on: {'after:1': b}}", "events that begin with 'after:' are timers (use 'after')"),
        ("{on: {go: {target: b, guard: 'x > 1'}}}", "'x > 1' cannot name a guard"),
        ("{on: {go: {target: b, actions: 'x > 1'}}}", "'x > 1' cannot name an action"),
        ("{on: {go: {target: b, guard: {expr: contxt.n}}}}", "unknown name 'contxt' (did you mean 'context'?)"),
        ("{on: {go: {target: b, reenter: 1}}}", "is not true or false"),
        ("{entry: assign}", "the built-in action 'assign' needs params ({type: assign, params: ...})"),
        ("{entry: {type: raise, params: {evnt: x}}}", "unknown key 'evnt' (did you mean 'event'?)"),
        ("{entry: {type: send}}", "send needs 'event'"),
        ("{entry: {type: send, params: {event: x, delay: soon}}}", "'soon' is not a delay"),
        ("{entry: [[x]]}", "states.a.entry[0]: ['x'] is not an action"),
        ("{after: {soon: b}}", "order.yaml:4: states.a.after.soon: 'soon' is not a delay"),
        ("{after: {-1: b}}", "'-1' is not a delay"),
        ("{after: {40000000d: b}}", "is out of range (0 to 100 years)"),
        ("{invoke: {}}", "states.a.invoke: an invocation names a task or a machine"),
        ("{invoke: {src: x, retry: {max_attempts: 0}}}", "0 is not a number from 1 to 1,000,000"),
        ("{invoke: {src: x, join: any}}", "there is one child only"),
        ("{invoke: {src: x, each: 5}}", "states.a.invoke.each: is not a list"),
        ("{invoke: {src: x, each: [1], join: some}}", "unknown join 'some' (all, any or a count of at least 1)"),
        ("{invoke: [{src: x, id: i}, {src: y, id: i}]}", "the invocation id 'i' is taken"),
        ("{onDone: b}", "only a state with states is done"),
        ("{type: final, on: {go: b}}", "order.yaml:4: states.a.on: a final state has no 'on'"),
        ("{type: final, invoke: {src: x}}", "a final state has no 'invoke'"),
        ("{type: final, after: {1s: b}}", "a final state has no 'after'"),
        ("{type: final, states: {x: {}}}", "a final state holds no states"),
        ("{type: parallel}", "a parallel state has no states"),
        ("{type: parallel, initial: x, states: {x: {}}}", "a state of type parallel enters all its states"),
        ("{states: {x: {}}}", 'order.yaml:4: states.a: a state with states has no initial (add "initial: x")'),
        ("{initial: y, states: {x: {}}}", "there is no state 'y' in 'a' (known: x)"),
        ("{initial: '#m.b', states: {x: {}}}", "the initial state '#m.b' is not inside 'a'"),
        ("{type: history, on: {go: b}}", "a history state has no 'on'"),
        ("{type: history, target: b, history: deeep}", "unknown history 'deeep' (shallow or deep)"),
        ("{initial: h, states: {h: {type: history}, x: {}}}", "the history state is where its parent begins"),
        ("{type: parallel, states: {h: {type: history}}}", "there are history states only"),
        ("{type: fnal}", "unknown type 'fnal' (did you mean 'final'?)"),
        ("{id: m}", "the id 'm' is taken by the machine"),
        ("[]", "order.yaml:4: states.a: a state is a mapping, not []"),
        ("{tags: 5}", "tags are text or a list of texts"),
        ("{on: {go: {target: ['#m.a', '#m.b']}}}", "'a' and 'b' cannot be active together"),
        ("{meta: {n: 1e999}}", "meta.n: inf is not a JSON number"),
    ],
)
def test_each_mistake_is_named_with_its_place(body: str, message: str) -> None:
    assert any(message in problem for problem in wrong_state(body)), wrong_state(body)


def test_all_problems_are_reported_at_once() -> None:
    found = problems("id: m\ninitial: x\nfoo: 1\nstates:\n  a: {on: {go: c}}\n  b: {bar: 1}\n")
    assert len(found) == 4


def test_a_target_elsewhere_is_spelled_out() -> None:
    text = "id: m\ninitial: a\nstates:\n  a: {on: {go: deep}}\n  b: {initial: deep, states: {deep: {}}}\n"
    assert problems(text) == [
        "order.yaml:4: states.a.on.go: there is no state 'deep' beside 'a' (there is 'b.deep': write '#m.b.deep')"
    ]


@pytest.mark.parametrize("text", ["id: m", "id: m\nstates: {}", "5", "[]", "initial: a\nstates: {a: {}}"])
def test_what_is_no_machine_at_all_is_refused(text: str) -> None:
    assert problems(text)


def test_ids_are_unique() -> None:
    text = "id: m\ninitial: a\nstates:\n  a: {id: same}\n  b: {id: same}\n"
    assert problems(text) == ["order.yaml:5: states.b.id: the id 'same' is taken by state 'a' (choose another)"]


def test_a_file_is_loaded_by_its_path(tmp_path: Path) -> None:
    file = tmp_path / "order.yaml"
    file.write_text("id: order\ninitial: a\nstates: {a: {}}\n", "utf-8")
    assert Machine.load(file).name == "order"
    assert Machine.load(str(file)).hash == Machine.load(file).hash
    with pytest.raises(Misuse, match="there is no file"):
        Machine.load(tmp_path / "none.yaml")
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidMachine, match="not UTF-8"):
        Machine.load(file)


@pytest.mark.parametrize("target", ["#m.b.c", "#other", "#b.c", "#b"])
def test_ids_reach_states_and_what_is_below_them(target: str) -> None:
    text = f"""
id: m
initial: a
states:
  a: {{on: {{go: "{target}"}}}}
  b: {{id: b, initial: c, states: {{c: {{id: other}}}}}}
"""
    (transition,) = Machine.from_yaml(text).state("a").transitions
    assert transition.targets[0].path in ("b", "b.c")


def test_json_keeps_its_own_rules() -> None:
    text = '{\n\t"id": "m",\n\t"initial": "a",\n\t"states": {"a": {"description": "\\ud83d\\ude00"}}}'
    assert Machine.from_yaml(text).state("a").description == "\U0001f600"
    for wrong in ('{"id": "m", "id": "n"}', '{"id": NaN}'):
        with pytest.raises(InvalidMachine, match=r"stands twice|NaN is not a number"):
            Machine.from_yaml(wrong)


@pytest.mark.parametrize("name", ["a/b", "#a", " a", "a.", "x" * 101, "a\nb", ""])
def test_names_that_would_be_ambiguous_are_refused(name: str) -> None:
    with pytest.raises(InvalidMachine, match=r"cannot name a machine|has no name"):
        Machine.from_dict({"id": name, "initial": "a", "states": {"a": {}}})


@pytest.mark.parametrize("levels", [45, 46, 200, 2000])
def test_states_are_nested_on_45_levels_at_most(levels: int) -> None:
    definition: dict[str, Any] = {"entry": [{"type": "assign", "params": {"a": {"expr": "1"}}}]}
    for _ in range(levels):
        definition = {"initial": "s", "states": {"s": definition}}
    if levels == 45:
        machine = Machine.from_dict({"id": "m", **definition})
        assert start(machine, None, 0).snapshot.context == {"a": 1}
        return
    with pytest.raises(InvalidMachine, match="states inside each other on more than 45 levels"):
        Machine.from_dict({"id": "m", **definition})
