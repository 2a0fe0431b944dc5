"""Diagrams: every state and transition is drawn, the active states are marked, labels cannot break the syntax."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from casework.statechart import Machine
from casework.statechart.diagram import mermaid, plantuml

RICH = Machine.load(Path(__file__).with_name("rich.yaml"))

SMALL = Machine.from_yaml("""
id: small
initial: a
states:
  a: {on: {go: {target: b, guard: {expr: "context.n > 1"}, actions: tidy}, stay: {actions: tidy}}}
  b: {type: final}
""")


def test_a_small_machine_in_mermaid() -> None:
    assert (
        mermaid(SMALL, ["a"])
        == """stateDiagram-v2
    state "a" as a
    state "b" as b
    b --> [*]
    [*] --> a
    a --> b : go [context.n #62; 1] / tidy
    a : stay / tidy
    classDef active fill:#ffd54f,stroke:#e65100,color:#000
    class a active
"""
    )


def test_a_small_machine_in_plantuml() -> None:
    assert (
        plantuml(SMALL, ["a"])
        == """@startuml
title small
    state "a" as a #ffd54f
    state "b" as b
    b --> [*]
    [*] --> a
    a --> b : go [context.n <U+003E> 1] / tidy
    a : stay / tidy
@enduml
"""
    )


def test_every_state_is_drawn_once_and_regions_are_separated() -> None:
    for drawn in (mermaid(RICH), plantuml(RICH)):
        names = re.findall(r'state ".*?" as (\w+)', drawn)
        assert len(names) == len(set(names)) == len(RICH.tables.states) - 1
        assert drawn.count("    --\n") == 1
        assert drawn.count("{\n") == drawn.count("}\n") == 3


def test_edges_name_what_triggers_them() -> None:
    drawn = mermaid(RICH)
    for label in ("after 30s", "charge_card done", "charge_card failed", "after context.deadline", "invoice invoiced"):
        assert label in drawn


def test_unknown_active_states_are_ignored() -> None:
    assert mermaid(SMALL, ["gone"]) == mermaid(SMALL)


def test_names_that_collide_after_cleaning_stay_apart() -> None:
    machine = Machine.from_yaml('{id: m, initial: "a-b", states: {"a-b": {on: {go: a_b}}, a_b: {}}}')
    assert "a_b --> a_b_ : go" in mermaid(machine)


WORDS = [
    "note", "notes", "state", "class", "classDef", "default", "style", "click", "scale", "end", "endnote", "direction",
    "title", "hide", "as", "fork", "join", "choice", "history", "left", "right", "root", "start", "accTitle",
    "accDescr", "stateDiagram", "href", "constructor", "__proto__", "1", "a b", "a-b", "a/b", 'say "hi"',
    "a:b", "a;b", "a#b",
    "{x}", "<<fork>>", "[*]", "--", "-->", "%%", "%%{init}%%", "`x`", "a|b", "\u00e9tat", "\u72b6\u614b", "\U0001f600",
]  # fmt: skip
MODULES = os.environ.get("CASEWORK_NODE_MODULES", "")
NODE = shutil.which("node") or ""
PARSE = """
import { createRequire } from "module";
import { pathToFileURL } from "url";
import fs from "fs";
const folder = process.argv[1];
const { JSDOM } = createRequire(folder + "/")("jsdom");
const dom = new JSDOM("<!DOCTYPE html><body></body>");
globalThis.window = dom.window;
globalThis.document = dom.window.document;
const { default: mermaid } = await import(pathToFileURL(folder + "/mermaid/dist/mermaid.core.mjs"));
const problems = [];
for (const text of JSON.parse(fs.readFileSync(0, "utf8"))) {
  try { await mermaid.parse(text); } catch (error) { problems.push([text, String(error.message || error)]); }
}
console.log(JSON.stringify(problems));
"""


def drawings() -> list[str]:
    """Each word as the name of a flat state, and of one with states inside, entry, exit, invoke and a note."""
    found = [mermaid(RICH), mermaid(SMALL, ["a"])]
    for word in WORDS:
        inside: dict[str, Any] = {
            "entry": "f", "exit": "f", "invoke": {"src": "t"}, "initial": word,
            "on": {"go": "z", word.replace("*", "x"): {"actions": "f"}},
            "states": {word: {"on": {"go": "y"}, "entry": "f"}, "y": {}},
        }  # fmt: skip
        for state in ({"on": {"go": "z"}, "entry": "f"}, inside):
            states = {word: state, "z": {"on": {"go": word}}}
            machine = Machine.from_dict({"id": "m", "initial": word, "states": states, "on": {"stop": f".{word}"}})
            found.append(mermaid(machine, [word]))
    return found


def test_no_name_in_a_diagram_begins_with_a_word_of_mermaid() -> None:
    for drawn in drawings():
        for name in re.findall(r'state ".*?" as (\w+)', drawn):
            assert not re.match(r"(note|state|class|default|style|click|scale|acc|end|[0-9])", name, re.IGNORECASE), (
                name
            )


def test_a_state_with_states_inside_has_a_note_for_what_a_box_would_say() -> None:
    machine = Machine.from_yaml("{id: m, initial: c, states: {c: {entry: f, exit: g, initial: a, states: {a: {}}}}}")
    assert "note right of c : entry / f<br/>exit / g\n" in mermaid(machine)
    assert "c : entry / f\n" in plantuml(machine)


@pytest.mark.skipif(
    not (NODE and MODULES and (Path(MODULES) / "mermaid").is_dir() and (Path(MODULES) / "jsdom").is_dir()),
    reason="set CASEWORK_NODE_MODULES to a node_modules folder with mermaid and jsdom, and install node",
)
def test_every_diagram_is_read_by_mermaid_itself() -> None:
    run = subprocess.run(
        [NODE, "--input-type=module", "-e", PARSE, MODULES], input=json.dumps(drawings()), capture_output=True,
        text=True, check=True, timeout=120,
    )  # fmt: skip
    assert json.loads(run.stdout) == []
