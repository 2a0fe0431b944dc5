"""The SCXML importer beyond what the public suites show: input, inline documents, refusals by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from casework.errors import InvalidMachine
from casework.statechart import Event, Machine, StartChildren, start, step

HEAD = '<scxml xmlns="http://www.w3.org/2005/07/scxml" name="m" datamodel="python">'


def scxml(body: str, head: str = HEAD) -> Machine:
    return Machine.from_scxml(f"{head}{body}</scxml>", source="m.scxml")


def test_data_of_the_document_is_its_input() -> None:
    machine = scxml('<datamodel><data id="n" expr="1"/><data id="k">[1, 2]</data></datamodel><state id="a"/>')
    assert start(machine, None, 0).snapshot.context == {"n": 1, "k": [1, 2]}
    assert start(machine, {"n": 5, "other": 1}, 0).snapshot.context == {"n": 5, "k": [1, 2]}


def test_names_of_data_are_read_from_the_context_even_when_a_function_has_the_same() -> None:
    machine = scxml("""<datamodel><data id="sum" expr="2"/></datamodel>
      <state id="a"><transition event="go" cond="sum == 2 and len([1]) == 1" target="b"/></state><state id="b"/>""")
    assert step(machine, start(machine, None, 0).snapshot, Event("go"), 0).snapshot.configuration == ["b"]


def test_an_ecmascript_condition_is_read() -> None:
    machine = scxml(
        """<datamodel><data id="x" expr="1"/></datamodel><state id="a">
        <transition event="go" cond="!In('b') &amp;&amp; x === 1 || false" target="b"/></state><state id="b"/>""",
        HEAD.replace("python", "ecmascript"),
    )
    assert step(machine, start(machine, None, 0).snapshot, Event("go"), 0).snapshot.configuration == ["b"]


def test_an_inline_document_becomes_a_machine_of_its_own() -> None:
    text = f"""{HEAD}<state id="a"><invoke id="sub"><param name="n" expr="3"/><content>
      <scxml><datamodel><data id="n"/></datamodel><final id="z"/></scxml></content></invoke></state></scxml>"""
    parent, child = Machine.all_from_scxml(text)
    assert (parent.name, child.name) == ("m", "m.sub")
    assert start(parent, None, 0).effects == [StartChildren("sub", "a", 1, "m.sub", [{"n": 3}], False, "all", {})]
    with pytest.raises(InvalidMachine, match=r"m\.sub; use Machine\.all_from_scxml"):
        Machine.from_scxml(text)


def test_a_file_is_recognised_by_its_suffix(tmp_path: Path) -> None:
    file = tmp_path / "light.scxml"
    file.write_text('<scxml xmlns="http://www.w3.org/2005/07/scxml"><state id="a"/></scxml>', "utf-8")
    assert Machine.load(file).name == "light"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("<state id='a'><onentry><script>x</script></onentry></state>", "<script>: is not supported"),
        ("<state id='a'><transition cond='x =' target='a'/></state>", "cond 'x =' is not an expression"),
        ("<state id='a'><onentry><send event='e' type='http'/></onentry></state>", "the processor 'http'"),
        ("<state id='a'><invoke type='x'/></state>", "the type 'x' is not supported"),
        ("<state id='a'><transition target='b'/></state>", "there is no state with the id '#b'"),
        ("<state id='a'/><state id='a'/>", "<state a>: the id is taken"),
        ("", "<scxml>: has no states"),
        ("<datamodel><data id='x' src='file'/></datamodel><state id='a'/>", "data from a file"),
        ("<state id='a'><transition cond='_sessionid' target='a'/></state>", "_sessionid is not supported"),
        (
            "<parallel id='p'>\n<state id='a'/>\n<final id='f'/></parallel>",
            "m.scxml:3: <final f>: cannot be a child of",
        ),
        ("<parallel id='p'><initial/><state id='a'/></parallel>", "<initial>: is not supported in <parallel>"),
        ("<state id='a' initial='b'/>", "<state a>: has an initial state, and no states"),
        (
            "<state id='a'><initial><transition target='a'/></initial></state>",
            "<state a>: has an initial state, and no",
        ),
        (
            "<state id='a' initial='b'><initial><transition target='b'/></initial><state id='b'/></state>",
            "<state a>: has an attribute initial and an <initial>",
        ),
        (
            "<state id='a'><initial><transition event='e' target='b'/></initial><state id='b'/></state>",
            "in <initial> has",
        ),
        ("<state id='a'><state id='b'/><history id='h'><transition cond='x'/></history></state>", "in <history> has"),
        ("<final id='a'><transition event='e'/></final>", "<transition e>: is not supported in <final>"),
        ("<state id='a'><donedata/></state>", "<donedata>: is not supported in <state>"),
        ("<history id='a'/><state id='b'/>", "<history a>: is not supported in <scxml>"),
        ("<state id='a'><onentry><log expr='_event'/></onentry></state>", "<log>: _event is not supported in expr"),
        ("<state id='a'><onentry><send event='e' eventexpr='x'/></onentry></state>", "which exclude each other"),
        ("<state id='a'><onentry><assign location='x'><b/></assign></onentry></state>", "XML inside it (<b>)"),
        ("<a/>", "<a>: is not supported in <scxml>"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(body: str, message: str) -> None:
    with pytest.raises(InvalidMachine) as caught:
        scxml(body)
    assert any(message in problem for problem in caught.value.problems), caught.value.problems


@pytest.mark.parametrize("text", ["", "<a", "<html/>", "<!DOCTYPE x [<!ENTITY a 'b'>]><scxml/>"])
def test_what_is_not_scxml_is_refused(text: str) -> None:
    with pytest.raises(InvalidMachine):
        Machine.from_scxml(text)


def test_a_datamodel_that_is_not_known_is_refused() -> None:
    with pytest.raises(InvalidMachine, match=r"m\.scxml:1: <scxml>: the datamodel 'xpath' is not supported"):
        scxml("<state id='a'/>", HEAD.replace("python", "xpath"))


def test_blanks_inside_a_text_of_an_expression_stay() -> None:
    machine = scxml("<datamodel><data id='x' expr='\"a  b\"'/></datamodel><state id='a'/>")
    assert start(machine, None, 0).snapshot.context == {"x": "a  b"}


def test_the_word_doctype_may_stand_in_a_comment_or_a_text() -> None:
    assert scxml("<!-- no <!DOCTYPE here --><state id='a'/>").name == "m"


def test_elements_deeper_than_the_limit_are_refused_with_their_line() -> None:
    with pytest.raises(InvalidMachine, match=r"m\.scxml:1: more than 200 elements inside each other"):
        scxml("<state>" * 300 + "</state>" * 300)
