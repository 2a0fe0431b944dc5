"""What each option of ``casework.simulate`` changes, and of what an invariant is shown."""

from __future__ import annotations

from typing import Any

import casework
from casework.simulation.world import World
from tests.options.table import SOMETHING, Rows, row

LIGHT: dict[str, Any] = {
    "id": "light",
    "context": {"n": {"expr": "get(input, 'n', 0)"}, "got": None},
    "initial": "off",
    "on": {"Stop": ".over"},
    "states": {
        "off": {"on": {
            "Go": "on", "Bad": {"actions": {"type": "assign", "params": {"n": {"expr": "event['nothing']"}}}},
        }},
        "on": {"invoke": {"src": {"task": "shine"}, "retry": {"max_attempts": 9, "initial": "1ms"}, "onDone": {
            "target": "over", "actions": {"type": "assign", "params": {"got": {"expr": "event"}}},
        }}},
        "over": {"type": "final"},
    },
}  # fmt: skip

CALM: dict[str, Any] = {"crashes": False, "duplicates": False, "runs": 1, "seed": 1, "script": ["Go"]}


def light(name: str = "light") -> casework.Machine:
    """A machine, with an invariant of none but its own."""
    return casework.Machine.from_dict({**LIGHT, "id": name})


def simulated(look: Any = None, machine: Any = None, **options: Any) -> Any:
    """The report of a simulation, and what ``look`` found in the history of each execution that had come to its end."""
    seen: list[Any] = []

    def note(execution: Any, history: Any) -> None:
        if history.is_over and look is not None:
            seen.append(look(execution, history))

    given = {**CALM, **options}
    report = casework.simulate(machine or light(), **{"invariants": [note], **given})
    return report, seen


def seen_in(look: Any, **options: Any) -> Any:
    report, seen = simulated(look, **options)
    assert report.ok, str(report)
    return seen


def sent(execution: Any, history: Any) -> list[str]:
    return [each.type for each in history.sent if not each.is_again]


def attempts(**options: Any) -> bool:
    """Whether a task was tried again in some run."""
    return max(seen_in(lambda execution, history: max([0, *(call.attempt for call in history.calls())]), **options)) > 1


def again(**options: Any) -> bool:
    """Whether an event was sent again in some run."""
    return any(seen_in(lambda execution, history: any(each.is_again for each in history.sent), **options))


def never(execution: Any, history: Any) -> bool:
    return False


def called_for_real(real_tasks: bool) -> bool:
    calls: list[Any] = []
    machine = light()
    machine.task(name="shine")(calls.append)
    simulated(machine=machine, real_tasks=real_tasks)
    return bool(calls)


def processes(workers: int) -> int:
    """How many processes a run has beside those that send."""
    names: list[str] = []
    process = World.process

    def noted(world: World, name: str, *arguments: Any, **options: Any) -> Any:
        names.append(name)
        return process(world, name, *arguments, **options)

    World.process = noted  # type: ignore[method-assign, assignment]
    try:
        simulated(workers=workers)
    finally:
        World.process = process  # type: ignore[method-assign]
    return sum(name.startswith("worker") for name in names)


def prepared(prepare: bool) -> int:
    calls: list[Any] = []
    simulated(runs=3, prepare=(lambda: calls.append(1)) if prepare else None)
    return len(calls)


def progress(on_progress: bool) -> list[int]:
    told: list[int] = []
    simulated(runs=8, on_progress=(lambda runs, steps: told.append(runs)) if on_progress else None)
    return told


def replay(command: str) -> bool:
    report, _ = simulated(invariants=[never], command=command)
    return report.failure.command.startswith("run it")


def ended(seconds: float | None) -> int:
    return int(simulated(runs=3, seconds=seconds)[0].runs)


def invariant(of_machine: bool) -> bool:
    """Whether a machine's runs keep an invariant that was registered for it, or for one with the same definition."""
    machine, same = light(), light()
    casework.invariant(machine if of_machine else same)(never)
    return bool(simulated(machine=machine)[0].ok)


SIMULATION: Rows = {
    "simulate": {
        "machines": row(
            lambda names: simulated(machine=[light(name) for name in names])[0].machines,
            (["light"], ["light"]),
            (["light", "other"], ["light", "other"]),
        ),
        "runs": row(lambda runs: simulated(runs=runs)[0].runs, (2, 2), (4, 4)),
        "crashes": row(lambda crashes: attempts(crashes=crashes, runs=8), (False, False), (True, True)),
        "duplicates": row(lambda twice: again(duplicates=twice, runs=4), (False, False), (True, True)),
        "events": row(
            lambda events: {type for types in seen_in(sent, events=events, script=None, runs=3) for type in types},
            (["Go"], {"Go"}),
            (["Stop"], {"Stop"}),
        ),
        "script": row(
            lambda script: seen_in(sent, script=script)[0], (["Go"], ["Go"]), (["Stop", "Go"], ["Stop", "Go"])
        ),
        "input": row(
            lambda n: seen_in(lambda execution, history: execution.context["n"], input={"n": n})[0], (1, 1), (2, 2)
        ),
        "invariants": row(lambda checks: simulated(invariants=checks)[0].ok, ([], True), ([never], False)),
        "tasks": row(
            lambda result: seen_in(lambda execution, history: execution.context["got"], tasks={"shine": result})[0],
            (1, 1),
            (2, 2),
        ),
        "real_tasks": row(called_for_real, (False, False), (True, True)),
        "may_fail": row(lambda may: simulated(script=[("Bad", {})], may_fail=may)[0].ok, (False, False), (True, True)),
        "workers": row(processes, (1, 1), (3, 3)),
        "prepare": row(prepared, (False, 0), (True, SOMETHING)),
        "seed": row(lambda seed: simulated(seed=seed)[0].first_seed, (3, 3), (4, 4)),
        "seconds": row(ended, (0, 1), (None, 3)),
        "on_progress": row(progress, (False, []), (True, [8])),
        "command": row(replay, ("", False), ("run it", True)),
    },
    "invariant": {"what": row(invariant, (False, True), (True, False))},
    "History.calls": {
        "task": row(
            lambda task: seen_in(lambda execution, history: len(history.calls(task)))[0], ("shine", 1), ("other", 0)
        ),
    },
    "History.visited": {
        "state": row(
            lambda state: seen_in(lambda execution, history: history.visited(state))[0],
            ("on", True),
            ("none", SOMETHING),
        ),
    },
}
