"""The published JSON Schema is the generated one, and accepts what the loader accepts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from casework.statechart import Machine, schema, start
from casework.statechart.load.yaml import parse

RICH = Path(__file__).with_name("rich.yaml")


def test_the_published_file_is_the_generated_schema() -> None:
    assert schema.FILE.read_text("utf-8") == schema.text(), "write schema.text() to machine.schema.json"


def test_every_reference_has_a_definition() -> None:
    text = schema.text()
    known = set(schema.json_schema()["$defs"])
    used = {part.split('"')[0] for part in text.split("#/$defs/")[1:]}
    assert used <= known and known <= used | {"transition"}


def test_the_example_with_every_key_loads_and_starts() -> None:
    machine = Machine.load(RICH)
    assert start(machine, {"amount": 5}, 0).snapshot.configuration == ["cart"]
    assert not [problem for problem in machine.check() if problem.severity == "warning"]


def test_the_schema_accepts_the_example_and_refuses_mistakes() -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    validator = jsonschema.Draft202012Validator(schema.json_schema())
    raw, _ = parse(RICH.read_text("utf-8"))
    assert [error.message for error in validator.iter_errors(raw)] == []
    for mistake in (
        {"id": "m"},
        {"id": "m", "states": {"a": {"onn": {}}}},
        {"id": "m", "states": {"a": {"type": "final", "on": {"go": "a"}}}},
        {"id": "m", "states": {"a": {"on": {"go": {"targt": "a"}}}}},
        {"id": "m", "states": {"a": {"entry": {"type": "raise"}, "invoke": {}}}},
        {"id": "m", "states": {"a.b": {}}},
    ):
        assert list(validator.iter_errors(json.loads(json.dumps(mistake)))), mistake
