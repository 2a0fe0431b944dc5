"""The JSON Schema of the authoring format, for editors; ``machine.schema.json`` beside this file is its published form.

It is built from the key lists that the loader itself uses, and a test compares it with the file. The loader checks
more than a schema can (targets, expressions, functions) and has better messages; nothing here is used at run time.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from casework.kernel.schema import STREAM_ID
from casework.statechart.budget import LIMIT_MAX, LIMIT_MIN, Limits
from casework.statechart.deferring import FATES
from casework.statechart.load.normalise import FINAL_KEYS, HISTORY_KEYS, ROOT_KEYS, RULES, STATE_KEYS
from casework.statechart.load.parts import BUILT_INS, INVOKE_KEYS, RETRY_KEYS, TRANSITION_KEYS
from casework.statechart.load.publish import PUBLISH_KEYS

FILE = Path(__file__).with_name("machine.schema.json")

_TEXT = {"type": "string"}
_DELAY_TEXT = {"type": "string", "pattern": r"^\s*(\d*\.?\d+(us|ms|s|m|h|d))+\s*$|^\d+(\.\d+)?$"}
_STREAM = {"type": "string", "pattern": "^" + STREAM_ID.pattern.replace(r"\Z", "$")}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/$defs/{name}"}


def _one_or_more(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "array", "items": schema}]}


_ANY = {
    "$schema": _TEXT, "id": {"type": "string", "minLength": 1}, "version": {"type": ["string", "number"]},
    "context": {"type": "object", "description": "the first context; {expr} sees `input`"},
    "limits": _ref("limits"), "rules": {"enum": list(RULES)}, "ignore_errors": {"type": "boolean"},
    "publish": _ref("publish"),
    "initial": _ref("initial"),
    "type": {"enum": ["atomic", "compound", "parallel", "final", "history"]}, "states": _ref("states"),
    "on": _ref("on"), "always": _ref("transitions"), "after": _ref("after"), "entry": _ref("actions"),
    "exit": _ref("actions"), "invoke": _one_or_more(_ref("invoke")), "onDone": _ref("transitions"), "output": True,
    "defer": _one_or_more(_TEXT), "on_unhandled": {"enum": list(FATES)},
    "tags": _one_or_more(_TEXT), "meta": True, "description": _TEXT, "history": {"enum": ["shallow", "deep"]},
    "target": _ref("targets"), "actions": _ref("actions"), "guard": _ref("guard"), "reenter": {"type": "boolean"},
    "src": _ref("src"), "input": True, "onError": _ref("transitions"), "retry": _ref("retry"), "timeout": _ref("delay"),
    "heartbeat": _ref("delay"), "each": {"anyOf": [{"type": "array"}, _ref("expression")]},
    "join": {"anyOf": [{"enum": ["all", "any"]}, {"type": "integer", "minimum": 1}]},
    "max_attempts": {"type": "integer", "minimum": 1}, "factor": {"type": "number", "minimum": 1},
    "max": _ref("delay"), "jitter": {"anyOf": [{"type": "boolean"}, {"type": "number", "minimum": 0, "maximum": 1}]},
}  # fmt: skip


def _object(keys: tuple[str, ...], required: tuple[str, ...] = (), **own: Any) -> dict[str, Any]:
    properties = {key: own.get(key, _ANY.get(key, True)) for key in keys}
    result: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    if required:
        result["required"] = list(required)
    return result


def _action() -> dict[str, Any]:
    forms: list[dict[str, Any]] = [{"type": "string", "description": "the name of a Python function"}]
    for name, (required, optional) in BUILT_INS.items():
        params: dict[str, Any] = {"type": "object"}
        if name != "assign":
            params = {
                "type": "object", "required": list(required), "additionalProperties": False,
                "properties": {key: _ref("actions") if key == "actions" else True for key in (*required, *optional)},
            }  # fmt: skip
        shape = {"type": {"const": name}, "params": params}
        forms.append({"type": "object", "required": ["type"], "additionalProperties": False, "properties": shape})
    own = {"type": {"type": "string", "not": {"enum": list(BUILT_INS)}}, "params": {"type": "object"}}
    forms.append({"type": "object", "required": ["type"], "additionalProperties": False, "properties": own})
    return {"anyOf": forms}


def json_schema() -> dict[str, Any]:
    """The schema as a mapping (JSON Schema 2020-12)."""
    final = _object(FINAL_KEYS, ("type",), type={"const": "final"})
    history = _object(HISTORY_KEYS, ("type",), type={"const": "history"})
    ordinary = _object(STATE_KEYS, type={"enum": ["atomic", "compound", "parallel"]})
    transition = {"anyOf": [_TEXT, _object(TRANSITION_KEYS)]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "casework machine",
        **_object(ROOT_KEYS, ("id", "states"), type={"enum": ["compound", "parallel"]}),
        "$defs": {
            "states": {
                "type": "object", "additionalProperties": _ref("state"), "propertyNames": {"pattern": r"^[^.#][^.]*$"},
            },
            "state": {"anyOf": [{"type": "null"}, ordinary, final, history]},
            "initial": {"anyOf": [_TEXT, _object(("target", "actions"), ("target",))]},
            "transition": transition,
            "transitions": _one_or_more(_ref("transition")),
            "on": {
                "anyOf": [
                    {"type": "object", "additionalProperties": _ref("transitions")},
                    {"type": "array", "items": _object(("event", *TRANSITION_KEYS), ("event",), event=_one_or_more({
                        "type": "string", "minLength": 1
                    }))},
                ]
            },
            "after": {
                "anyOf": [
                    {"type": "object", "additionalProperties": _ref("transitions"), "propertyNames": _DELAY_TEXT},
                    {"type": "array", "items": _object(("delay", *TRANSITION_KEYS), ("delay",), delay={
                        "anyOf": [_ref("delay"), _ref("expression")]
                    })},
                ]
            },
            "targets": {"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "minItems": 1}, {"type": "null"}]},
            "expression": {
                "type": "object", "required": ["expr"], "additionalProperties": False, "properties": {"expr": _TEXT},
            },
            "guard": {"anyOf": [_TEXT, _ref("expression"), _object(("type", "params"), ("type",), type=_TEXT)]},
            "action": _action(),
            "actions": _one_or_more(_ref("action")),
            "delay": {"anyOf": [{"type": "number", "minimum": 0, "description": "milliseconds"}, _DELAY_TEXT]},
            "src": {
                "anyOf": [
                    _TEXT,
                    _object(("task",), ("task",), task=_TEXT),
                    _object(("machine",), ("machine",), machine=_TEXT),
                ]
            },
            "limits": _object(Limits._fields, (), **{
                name: {"type": "integer", "minimum": LIMIT_MIN, "maximum": LIMIT_MAX, "default": default}
                for name, default in Limits()._asdict().items()
            }),
            "publish": {
                "description": "the stream to which transitions are published",
                "anyOf": [_STREAM, _object(PUBLISH_KEYS, ("stream",), stream=_STREAM, data={"type": "boolean"}, events={
                    "anyOf": [_TEXT, {"type": "array", "items": _TEXT, "minItems": 1}]
                })],
            },
            "retry": _object(RETRY_KEYS, initial=_ref("delay")),
            "invoke": _object(INVOKE_KEYS, ("src",)),
        },
    }  # fmt: skip


def text() -> str:
    """The content of the published file."""
    return json.dumps(json_schema(), indent=2) + "\n"
