"""Expressions of ECMAScript have the meaning that node gives them, or are refused when they are loaded."""

from __future__ import annotations

import shutil

import pytest

from casework.errors import InvalidMachine
from casework.statechart import Event, Machine, start, step
from tests.statechart.ecmascript import Maker, answers_of_node, machine_of, our_answer

NODE = shutil.which("node") or ""
needs_node = pytest.mark.skipif(not NODE, reason="node is not installed here; it says what ECMAScript means")

TAKEN = [
    "!x == true", "x.length", "'5' == 5", "-7 % 3", "m % 3", "{p: 'v'}", "x === 1", "x !== '1'", "typeof x", "typeof u",
    "typeof nowhere", "x && s", "e || 'none'", "n ?? 'none'", "null == undefined", "null === undefined", "s + x",
    "x + s", "1 + null", "1 + undefined", "'a' + null", "[] + []", "[1,2] + ''", "[] == ''", "[] ? 1 : 2", "{} ? 1 : 2",
    "k.length", "e ? 1 : 2", "'b' > 'a'", "'10' < '9'", "'10' < 9", "null >= 0", "undefined >= 0", "NaN == NaN",
    "1 / 3", "6 / 3", "0.1 + 0.2", "1 / 0 > 5", "-0", "0 / m", "7 / 2", "2147483648 + 1", "9007199254740991 + 2",
    "1e21 + ''", "1e-7 + ''", "123456789012345680000 + ''", "0.000001 + ''", "-1.5e-9 + ''", "100 + ''", "true + true",
    "true == 1", "true == 'true'", "'' == 0", "'0' == false", "l[1]", "l['1']", "l[-1]", "l['01']", "o['a']", "o.c",
    "o.a.b", "s.length", "em.length", "em[0]", "l.concat(4)", "l.concat([4, 5], 6)", "l.indexOf('1')", "l.slice(-2)",
    "l.slice(1, -1)", "l.join()", "l.join('-')", "[null, undefined, 1].join()", "'abc'.slice(-2)", "'abc'.indexOf('c')",
    "l.includes(2)", "[NaN].includes(NaN)", "'abc'.charAt(9)", "w.trim()", "Number(w)", "Number('0b11')", "Number([])",
    "Number([5])", "Number('1 2')", "String(o)", "String([1, [2, 3]])", "Math.round(-0.5)", "Math.round(2.5)",
    "Math.max()", "Math.max(0, -0)", "Math.min(1, '0')", "Boolean([])", "x ? s ? 1 : 2 : 3", "- - 1",
    "1 - -1", "!-1", "a_b_c ?? 1", "_event.data.q + 1", "_event.name", "'\\x41\\u{1F600}\\n'", "{x, s}", "{'a b': [x]}",
    "[[1], [2]] + ''", "{} + 1", "1 < 2 < 3", "3 > 2 > 1", "x == 1 ? 'one' : 'other'", "l.length > 2 && l[0] === 1",
]  # fmt: skip
REFUSED = {
    "x++": "'++' is not supported (changes a value)",
    "--x": "'--' is not supported (changes a value)",
    "x = 1": "'=' is not supported (changes a value (use <assign>))",
    "x += 1": "'+=' is not supported",
    "l.map(i => i)": "the method 'map' is not supported",
    "l.push(1)": "the method 'push' is not supported",
    "s.toUpperCase()": "the method 'toUpperCase' is not supported",
    "new Date()": "'new' is not supported",
    "Date.now()": "'Date.now' is not supported",
    "Math.pow(2, 3)": "'Math.pow' is not supported",
    "Math.random()": "'Math.random' is not supported",
    "JSON.stringify(o)": "'JSON.stringify' is not supported",
    "function () {}": "'function' is not supported",
    "() => 1": "unexpected ')'",
    "/a/.test(s)": "unexpected '/'",
    "`a`": "'`' is not supported (a template)",
    "x ** 2": "'**' is not supported",
    "x & 1": "'&' is not supported",
    "x | 1": "'|' is not supported",
    "~x": "'~' is not supported",
    "x << 1": "'<<' is not supported",
    "x >>> 1": "'>>>' is not supported",
    "o?.a": "'?.' is not supported",
    "[...l]": "'...' is not supported",
    "'a' in o": "'in' is not supported",
    "o instanceof Object": "'instanceof' is not supported",
    "delete o.a": "'delete' is not supported",
    "void 0": "'void' is not supported",
    "this.x": "'this' is not supported",
    "x, 1": "unexpected ','",
    "x; 1": "';' is not supported",
    "010": "cannot be read",
    "1n": "cannot be read",
    "1_000": "cannot be read",
    "a || b ?? c": "needs brackets",
    "{[x]: 1}": "unexpected '['",
    "{1: 2}": "write the key of an object as a name or as text",
    "{__proto__: o}": "'__proto__' is not supported",
    "x /* note */": "'/*' is not supported (a comment)",
    "x <!-- y": "'<!--' is not supported (a comment)",
    "'half \\ud800'": "half a surrogate pair is not text",
    "'open": "cannot be read",
    "(x": "')' is missing",
    "x +": "it ends too early",
    "_event": "_event as a whole is not supported",
    "_event.origin": "_event.origin is not supported",
    "_sessionid": "_sessionid is not supported",
    "_name": "_name is not supported",
    "doIt()": "the function 'doIt' is not supported",
    "eval('1')": "'eval' is not supported",
    "parseInt('1')": "'parseInt' is not supported",
    "x.y.z()": "the method 'z' is not supported",
    "(" * 60 + "x" + ")" * 60: "nested too deeply",
    "!" * 60 + "x": "nested too deeply",
}

INFINITE = [["NaN"], ["number", str(0x7FF0 << 48)], ["number", str(0xFFF0 << 48)]]
"""A context cannot hold them, so that assigning one is an error."""


@needs_node
def test_what_is_taken_has_the_meaning_that_node_gives_it() -> None:
    for text, theirs in zip(TAKEN, answers_of_node(NODE, TAKEN), strict=True):
        ours = our_answer(machine_of(text))
        is_json = theirs[0] == "value" and theirs[1] not in INFINITE
        assert ours == (theirs if is_json else ["error"]), (text, ours, theirs)


@needs_node
@pytest.mark.parametrize("seed", range(4))
def test_expressions_at_random_have_the_same_value_as_in_node_wherever_they_have_one(seed: int) -> None:
    maker = Maker(seed)
    texts = [maker.expression(maker.random.randint(1, 4)) for _ in range(250)]
    compared = 0
    for text, theirs in zip(texts, answers_of_node(NODE, texts), strict=True):
        try:
            ours = our_answer(machine_of(text))
        except InvalidMachine:
            assert theirs[0] == "error", (text, theirs)
            continue
        compared += ours[0] == "value"
        assert ours[0] == "error" or ours == theirs, (text, ours, theirs)
    assert compared > 150


@needs_node
@pytest.mark.parametrize("seed", range(3))
def test_heaps_of_tokens_are_refused_or_mean_the_same(seed: int) -> None:
    maker = Maker(seed)
    texts = [maker.heap() for _ in range(600)]
    for text, theirs in zip(texts, answers_of_node(NODE, texts), strict=True):
        if not text.strip():
            continue
        try:
            machine = machine_of(text)
        except InvalidMachine:
            continue
        ours = our_answer(machine)
        assert ours[0] == "error" or ours == theirs, (text, ours, theirs)


@pytest.mark.parametrize(("text", "message"), REFUSED.items(), ids=[text[:20] for text in REFUSED])
def test_what_is_not_translated_is_refused_by_name_with_its_line(text: str, message: str) -> None:
    with pytest.raises(InvalidMachine) as caught:
        machine_of(text)
    (problem,) = caught.value.problems
    assert message in problem and problem.startswith("m.scxml:1: <assign>: expr "), problem


HEAD = '<scxml xmlns="http://www.w3.org/2005/07/scxml" name="m" datamodel="ecmascript">'


def test_a_condition_is_true_as_ecmascript_says() -> None:
    for text, holds in (("[]", True), ("{}", True), ("''", False), ("'0'", True), ("NaN", False), ("u", False)):
        machine = Machine.from_scxml(
            f'{HEAD}<datamodel><data id="u"/></datamodel><state id="a">'
            f'<transition event="go" cond="{text}" target="b"/></state><state id="b"/></scxml>'
        )
        after = step(machine, start(machine, None, 0).snapshot, Event("go"), 0).snapshot
        assert (after.configuration == ["b"]) is holds, text


def test_data_without_a_value_are_undefined_until_they_are_assigned_and_again_after() -> None:
    machine = Machine.from_scxml(f"""{HEAD}<datamodel><data id="u"/><data id="n" expr="null"/></datamodel>
      <state id="a">
        <transition event="set"><assign location="u" expr="n"/></transition>
        <transition event="unset"><assign location="u" expr="undefined"/></transition>
        <transition event="ask" cond="u === undefined" target="b"/></state><state id="b"/></scxml>""")
    first = start(machine, None, 0).snapshot
    assert first.context == {"n": None}
    assert step(machine, first, Event("ask"), 0).snapshot.configuration == ["b"]
    second = step(machine, first, Event("set"), 0).snapshot
    assert second.context == {"n": None, "u": None}
    assert not step(machine, second, Event("ask"), 0).taken
    assert step(machine, second, Event("unset"), 0).snapshot.context == {"n": None}


def test_input_takes_the_place_of_data_and_null_is_a_value() -> None:
    machine = Machine.from_scxml(
        f'{HEAD}<datamodel><data id="a" expr="1 + 1"/><data id="b">[1, 2]</data><data id="c"/></datamodel>'
        '<state id="s"/></scxml>'
    )
    assert start(machine, None, 0).snapshot.context == {"a": 2, "b": [1, 2]}
    assert start(machine, {"a": None, "c": 3, "z": 1}, 0).snapshot.context == {"a": None, "b": [1, 2], "c": 3}


def test_an_event_without_payload_has_undefined_data() -> None:
    machine = Machine.from_scxml(
        f'{HEAD}<state id="s"><transition event="go" cond="_event.data === undefined" target="t"/></state>'
        '<state id="t"/></scxml>'
    )
    first = start(machine, None, 0).snapshot
    assert step(machine, first, Event("go"), 0).taken and not step(machine, first, Event("go", {"a": 1}), 0).taken


def test_a_payload_leaves_out_what_is_undefined() -> None:
    machine = Machine.from_scxml(
        f'{HEAD}<datamodel><data id="u"/><data id="x" expr="{{p: \'v\'}}"/></datamodel><state id="s"><onentry>'
        '<send event="e" namelist="u x"><param name="y" expr="x.p + 1"/><param name="z" location="u"/></send>'
        "</onentry></state></scxml>"
    )
    (sent,) = start(machine, None, 0).effects
    assert sent.data == {"x": {"p": "v"}, "y": "v1"}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ('<data id="a" expr="1"/><data id="b" expr="a + 1"/>', "reads a, which is not there at the start"),
        ('<data id="a" expr="_event.data.x"/>', "reads _event, which is not there at the start"),
        ('<data id="a" expr="In(\'s\')"/>', "reads In(), which is not there at the start"),
        ('<data id="a"/><data id="a"/>', "the id is taken by another <data>"),
        ('<data id="a b"/>', "the id 'a b' is not a name"),
        ('<data id="a"><b/></data>', "XML inside it (<b>) is not supported"),
    ],
)
def test_data_that_cannot_be_computed_at_the_start_are_refused(data: str, message: str) -> None:
    with pytest.raises(InvalidMachine) as caught:
        Machine.from_scxml(f'{HEAD}<datamodel>{data}</datamodel><state id="s"/></scxml>', source="m.scxml")
    assert any(message in problem and problem.startswith("m.scxml:1: <data") for problem in caught.value.problems)


def test_two_objects_cannot_be_compared_since_a_store_forgets_which_is_which() -> None:
    assert our_answer(machine_of("l == k")) == ["error"]
    assert our_answer(machine_of("o === o")) == ["error"]


def test_what_is_inherited_cannot_be_read() -> None:
    for text in ("o.constructor", "l['push']", "s.toString", "x.valueOf"):
        assert our_answer(machine_of(text)) == ["error"], text
