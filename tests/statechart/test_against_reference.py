"""The engine and a plain writing of appendix D go through the same random charts in the same way."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from casework.errors import StepLimit
from casework.statechart import Event, Log, Machine, Step, start, step
from tests.statechart.reference import Reference
from tests.statechart.test_random_charts import EVENTS, machines


def traced(node: dict[str, Any], path: str = "") -> None:
    """Replace actions by entries for the log, some of them raise; and guards by those that the reference knows."""

    def log(label: str) -> list[dict[str, Any]]:
        return [{"type": "log", "params": {"label": label}}]

    def transition(each: Any, label: str) -> Any:
        if isinstance(each, dict):
            guard = each.get("guard", {}).get("expr", "True")
            each = {**each, "actions": log(label), "guard": {"expr": guard if "context" not in guard else "In('s1')"}}
        return each

    if node.get("type") == "history":
        return
    raises = [{"type": "raise", "params": {"event": "g"}}] if node.pop("entry", None) else []
    node["entry"], node["exit"] = [*log(f"+{path}"), *raises], log(f"-{path}")
    for event, each in node.get("on", {}).items():
        node["on"][event] = transition(each, f"{path}:{event}")
    if "always" in node:
        node["always"] = transition(node["always"], f"{path}:always")
    if "onDone" in node:
        node["onDone"] = transition(node["onDone"], f"{path}:done")
    for key, child in node.get("states", {}).items():
        traced(child, f"{path}.{key}" if path else key)


def labels(result: Step) -> list[str]:
    return [effect.label for effect in result.effects if isinstance(effect, Log)]


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(machines(), st.lists(st.sampled_from(EVENTS), max_size=12), st.sampled_from(["xstate", "scxml"]))
def test_engine_and_reference_agree_step_by_step(definition: dict[str, Any], script: list[str], rules: str) -> None:
    traced(definition)
    definition["rules"] = rules
    machine = Machine.from_dict(definition)
    try:
        result = start(machine, None, 0)
    except StepLimit:
        assume(False)
        raise
    reference = Reference(machine.definition)
    assert (result.snapshot.configuration, labels(result)) == (reference.configuration, reference.trace)
    for event in script:
        try:
            result = step(machine, result.snapshot, Event(event), 0)
        except StepLimit:
            return
        reference.send(event)
        assert (result.snapshot.configuration, labels(result)) == (reference.configuration, reference.trace)
        assert result.snapshot.history == reference.history
        assert (result.snapshot.status == "running") is reference.is_running
