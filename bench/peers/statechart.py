"""The same two charts on other libraries: ``python bench/peers/statechart.py PEER CHART EVENTS``, prints events/s.

Runs in the peers' environment and imports nothing of casework. Each chart counts its transitions in the context; the
count is checked, so that a peer that skips work cannot win.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

Drive = Callable[[int], int]
"""Take so many events; return what the context counted."""


def harel_flat() -> Drive:
    from harel import Event, Execution, definition_from_dsl
    from harel.engine import core

    keys = "ABCD"
    edges = "\n".join(
        f"from {key} to {keys[(i + 1) % 4]} on Go set context.n = context.n + 1" for i, key in enumerate(keys)
    )
    states = "\n".join(f"state {key} {{}}" for key in keys)
    source = f"event Go {{}}\nmachine flat {{\ninitial A\ncontext {{ n: int = 0 }}\n{states}\n{edges}\n}}"
    definition = definition_from_dsl(source, "flat")
    execution = Execution(definition_id=definition.id, root_path=definition.root.full_path, context={"n": 0})
    for _ in core.start(definition, execution):
        pass
    event = Event(kind="Go")

    def drive(count: int) -> int:
        for _ in range(count):
            for _ in core.process(definition, execution, event):
                pass
        return int(execution.context["n"])

    return drive


def xstate_config(chart: str) -> dict[str, Any]:
    edge = {"actions": "count"}
    if chart == "flat":
        states = {key: {"on": {"GO": {"target": "abcd"[(i + 1) % 4], **edge}}} for i, key in enumerate("abcd")}
        return {"id": "m", "initial": "a", "context": {"n": 0}, "states": states}
    leaf = {"x": {"on": {"GO": {"target": "y", **edge}}}, "y": {"on": {"GO": {"target": "x", **edge}}}}
    region = {"initial": "m", "states": {"m": {"initial": "x", "states": leaf}}}
    return {"id": "m", "type": "parallel", "context": {"n": 0}, "states": {"l": region, "r": region}}


def xstate(chart: str, is_pure: bool) -> Drive:
    import logging

    from xstate_statemachine import MachineLogic, SyncInterpreter, create_machine
    from xstate_statemachine.helpers import get_initial_snapshot, transition

    logging.disable(logging.CRITICAL)

    def count(interpreter: Any, context: dict[str, Any], event: Any, action: Any) -> None:
        context["n"] += 1

    machine = create_machine(xstate_config(chart), logic=MachineLogic(actions={"count": count}))
    if is_pure:
        snapshot = get_initial_snapshot(machine)

        def drive_pure(events: int) -> int:
            current = snapshot
            taken = 0
            for _ in range(events):
                current, actions = transition(machine, current, "GO")
                taken += len(actions)
            return taken

        return drive_pure
    live = SyncInterpreter(machine).start()

    def drive(events: int) -> int:
        for _ in range(events):
            live.send("GO")
        return int(live.context["n"])

    return drive


SISMIC_HEAD = "statechart:\n  name: m\n  preamble: n = 0\n  root state:\n    name: root\n"


def sismic(chart: str) -> Drive:
    from sismic.interpreter import Interpreter
    from sismic.io import import_from_yaml

    if chart == "flat":
        body = "".join(
            f"""
      - name: {key}
        transitions: [{{event: go, target: {"abcd"[(i + 1) % 4]}, action: n = n + 1}}]"""
            for i, key in enumerate("abcd")
        )
        text = f"{SISMIC_HEAD}    initial: a\n    states:{body}\n"
    else:
        regions = "".join(
            f"""
      - name: {region}
        initial: {region}m
        states:
          - name: {region}m
            initial: {region}x
            states:
              - name: {region}x
                transitions: [{{event: go, target: {region}y, action: n = n + 1}}]
              - name: {region}y
                transitions: [{{event: go, target: {region}x, action: n = n + 1}}]"""
            for region in "lr"
        )
        text = f"{SISMIC_HEAD}    parallel states:{regions}\n"
    interpreter = Interpreter(import_from_yaml(text), initial_context={"n": 0})
    interpreter.execute()

    def drive(events: int) -> int:
        for _ in range(events):
            interpreter.queue("go").execute_once()
        return int(interpreter.context["n"])

    return drive


PEERS: dict[tuple[str, str], Callable[[], Drive]] = {
    ("harel", "flat"): harel_flat,
    ("xstate-statemachine, pure", "flat"): lambda: xstate("flat", is_pure=True),
    ("xstate-statemachine, live", "flat"): lambda: xstate("flat", is_pure=False),
    ("xstate-statemachine, pure", "regions"): lambda: xstate("regions", is_pure=True),
    ("xstate-statemachine, live", "regions"): lambda: xstate("regions", is_pure=False),
    ("sismic", "flat"): lambda: sismic("flat"),
    ("sismic", "regions"): lambda: sismic("regions"),
}


def measure(peer: str, chart: str, events: int, rounds: int = 3) -> float:
    best = 0.0
    drive = PEERS[peer, chart]()
    drive(100)
    before = drive(0) if "pure" not in peer else 0
    for _ in range(rounds):
        started = time.perf_counter()
        counted = drive(events)
        best = max(best, events / (time.perf_counter() - started))
        per_event = 2 if chart == "regions" else 1
        if counted - before != events * per_event:
            raise SystemExit(f"{peer} counted {counted - before} transitions for {events} events")
        before = counted if "pure" not in peer else 0
    return best


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
