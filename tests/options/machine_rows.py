"""What each option of machines, of charts without a store, and of what AWS needs changes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import casework
from casework import Machine, Table
from casework.aws import cloudformation, iam_policy
from casework.statechart import (
    ArmTimer,
    Event,
    Snapshot,
    StartTask,
    done_invoke,
    error_invoke,
    rearm,
    start,
    step,
    timer_event,
)
from tests.options.table import SOMETHING, Rows, refusal, row

LIGHT: dict[str, Any] = {
    "id": "light",
    "context": {"n": {"expr": "input"}, "got": None},
    "initial": "off",
    "states": {
        "off": {
            "on": {
                "Go": {"target": "on", "actions": {"type": "assign", "params": {"got": {"expr": "event"}}}},
                "Note": {"actions": "note"},
                "May": {"target": "on", "guard": "may"},
            },
        },
        "on": {"after": {"1h": "off"}, "invoke": {"src": {"task": "shine"}, "id": "lamp", "onDone": "off"}},
    },
}


def light(**more: Any) -> Machine:
    return Machine.from_dict({**LIGHT, **more})


# --- making one -------------------------------------------------------------------------------------------------------

BROKEN = {"id": "light", "initial": "nowhere", "states": {"on": {}}}
SCXML = '<scxml xmlns="http://www.w3.org/2005/07/scxml" version="1.0" name="{}"><state id="s">{}</state></scxml>'
INLINE = "<invoke type='scxml'><content>{}</content></invoke>"


def told(make: Callable[..., Any], given: Any, source: str) -> bool:
    """Whether the problems of a machine name the file ``a``."""
    try:
        make(given, source=source)
    except casework.InvalidMachine as error:
        return "a: " in str(error) or "a:" in str(error).split(" ", 1)[0]
    raise AssertionError("it is valid")


def loaded(name: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        for each in ("one", "two"):
            Path(folder, f"{each}.yaml").write_text(f"id: {each}\ninitial: on\nstates: {{on: {{}}}}\n", "utf-8")
        return Machine.load(Path(folder, f"{name}.yaml")).name


NAMES = (("one", "one"), ("two", "two"))
SOURCE = (("a", True), ("b", False))

MAKING: Rows = {
    "Machine.load": {"path": row(loaded, *NAMES)},
    "Machine.from_yaml": {
        "text": row(lambda name: Machine.from_yaml(f"{{id: {name}, initial: s, states: {{s: {{}}}}}}").name, *NAMES),
        "source": row(lambda source: told(Machine.from_yaml, "id: light\nstates: 5", source), *SOURCE),
    },
    "Machine.from_dict": {
        "definition": row(lambda name: light(id=name).name, *NAMES),
        "source": row(lambda source: told(Machine.from_dict, BROKEN, source), *SOURCE),
    },
    "Machine.from_scxml": {
        "text": row(lambda name: Machine.from_scxml(SCXML.format(name, "")).name, *NAMES),
        "source": row(lambda source: told(Machine.from_scxml, "<html/>", source), *SOURCE),
    },
    "Machine.all_from_scxml": {
        "text": row(
            lambda inside: len(Machine.all_from_scxml(SCXML.format("one", inside))),
            ("", 1),
            (INLINE.format(SCXML.format("two", "")), 2),
        ),
        "source": row(lambda source: told(Machine.all_from_scxml, "<html/>", source), *SOURCE),
    },
    "Machine.accepts": {"event_type": row(lambda name: light().accepts(name), ("Go", True), ("Gone", False))},
}


# --- functions --------------------------------------------------------------------------------------------------------


def registered(kind: str, names: tuple[str, str], **options: Any) -> list[str]:
    """What a machine knows after a function of that name was registered."""
    machine = light()

    def function(*arguments: Any) -> None: ...

    function.__name__ = names[0]
    getattr(machine, kind)(**options)(function)
    return list(getattr(machine, f"{kind}s"))


def used(kind: str, name: str, value: Any, event: str, see: Callable[[Any], Any]) -> Any:
    """What comes of an event where that function was registered."""
    machine = light()

    def function(*arguments: Any) -> Any:
        return value

    function.__name__ = name
    getattr(machine, kind)(function)
    if kind == "task":
        return machine.tasks[name]()
    return see(step(machine, start(machine, 1, 0).snapshot, Event(event), 0).snapshot)


def functions(
    kind: str, name: str, values: tuple[Any, Any], event: str, see: Callable[[Any], Any]
) -> Mapping[str, Any]:
    return {
        "function": row(lambda value: used(kind, name, value, event, see), *[(value, SOMETHING) for value in values]),
        "name": row(
            lambda given: refusal(lambda: registered(kind, ("own", name), name=given)), (None, "Misuse"), (name, "")
        ),
        "version": row(
            lambda version: registered(kind, (name, name), version=version), (None, [name]), (2, [f"{name}@2"])
        ),
    }


FUNCTIONS: Rows = {
    "Machine.task": functions("task", "shine", (1, 2), "", lambda snapshot: None),
    "Machine.action": functions("action", "note", ({"got": 1}, {"got": 2}), "Note", lambda found: found.context["got"]),
    "Machine.guard": functions("guard", "may", (False, True), "May", lambda found: found.configuration),
}


# --- a chart without a store ------------------------------------------------------------------------------------------

OTHER = light(id="other", initial="on")
PLAIN = light()
ON = start(OTHER, 1, 0)
"""In the state ``on``, with its timer and its task."""

STAY = ON.snapshot.stays["on"]
HOUR_US = 3_600_000_000


def timers(given: Any) -> list[int]:
    return [each.due_us for each in given.effects if isinstance(each, ArmTimer)]


def stepped(event: Event, snapshot: Any = None, machine: Machine = OTHER, now_us: int = 0) -> Any:
    return step(machine, ON.snapshot if snapshot is None else snapshot, event, now_us)


def with_note(see: Callable[[Any], Any]) -> Callable[..., Any]:
    """What a function is told of an event."""

    def look(**fields: Any) -> Any:
        machine, seen = light(), []
        machine.action(name="note")(lambda context, event: seen.append(see(event)))
        step(machine, start(machine, 1, 0).snapshot, Event("Note", **fields), 0)
        return seen[0]

    return look


def began_again(**options: Any) -> Any:
    given = {"timers": {"after:1h"}, "invokes": {"lamp"}, "machine": OTHER, "snapshot": ON.snapshot, "now_us": 0}
    return rearm(**{**given, **options})


NAME = next(each.name for each in ON.effects if isinstance(each, ArmTimer))

CHARTS: Rows = {
    "start": {
        "machine": row(lambda machine: start(machine, 1, 0).snapshot.configuration, (PLAIN, ["off"]), (OTHER, ["on"])),
        "input": row(lambda input: start(PLAIN, input, 0).snapshot.context["n"], (1, 1), (2, 2)),
        "now_us": row(lambda now_us: timers(start(OTHER, 1, now_us)), (0, [HOUR_US]), (5, [HOUR_US + 5])),
    },
    "step": {
        "machine": row(
            lambda machine: stepped(Event("Stop"), machine=machine).taken,
            (OTHER, False),
            (light(on={"Stop": ".off"}), True),
        ),
        "snapshot": row(
            lambda snapshot: stepped(Event("Go"), snapshot).taken,
            (ON.snapshot, False),
            (start(PLAIN, 1, 0).snapshot, True),
        ),
        "event": row(lambda name: stepped(Event(name), start(PLAIN, 1, 0).snapshot).taken, ("Go", True), ("No", False)),
        "now_us": row(
            lambda now_us: timers(stepped(Event("Go"), start(PLAIN, 1, 0).snapshot, now_us=now_us)),
            (0, [HOUR_US]),
            (5, [HOUR_US + 5]),
        ),
    },
    "rearm": {
        "machine": row(
            lambda machine: timers(began_again(machine=machine, timers={NAME})),
            (OTHER, [HOUR_US]),
            (light(states={**LIGHT["states"], "on": {"invoke": {"src": {"task": "shine"}, "id": "lamp"}}}), []),
        ),
        "snapshot": row(
            lambda snapshot: len(began_again(snapshot=snapshot, timers={NAME}).effects),
            (ON.snapshot, 2),
            (Snapshot(["off"], {"n": 1}), 0),
        ),
        "now_us": row(
            lambda now_us: timers(began_again(now_us=now_us, timers={NAME})), (0, [HOUR_US]), (5, [HOUR_US + 5])
        ),
        "timers": row(lambda names: timers(began_again(timers=names)), ({NAME}, [HOUR_US]), (set(), [])),
        "invokes": row(
            lambda names: sum(isinstance(each, StartTask) for each in began_again(invokes=names).effects),
            ({"lamp"}, 1),
            (set(), 0),
        ),
    },
    "Event": {
        "type": row(lambda name: stepped(Event(name), start(PLAIN, 1, 0).snapshot).taken, ("Go", True), ("No", False)),
        "data": row(
            lambda data: stepped(Event("Go", data), start(PLAIN, 1, 0).snapshot).snapshot.context["got"], (1, 1), (2, 2)
        ),
        "id": row(lambda id: with_note(lambda event: event.id)(id=id), ("a", "a"), ("b", "b")),
        "source": row(lambda id: with_note(lambda event: event.source)(source=id), ("a", "a"), ("b", "b")),
        "stay": row(lambda stay: stepped(Event(NAME, stay=stay)).taken, (STAY, True), (STAY + 1, False)),
        "invoke": row(
            lambda id: stepped(Event("error.invoke.lamp", {"message": "no"}, stay=STAY, invoke=id)).snapshot.status,
            ("lamp", "failed"),
            ("", "running"),
        ),
    },
    "done_invoke": {
        "invoke_id": row(lambda id: stepped(done_invoke(id, STAY)).taken, ("lamp", True), ("other", False)),
        "stay": row(lambda stay: stepped(done_invoke("lamp", stay)).taken, (STAY, True), (STAY + 1, False)),
        "output": row(lambda output: done_invoke("lamp", STAY, output).data, (1, 1), (2, 2)),
    },
    "error_invoke": {
        "invoke_id": row(
            lambda id: stepped(error_invoke(id, STAY, {"message": "no"})).snapshot.status,
            ("lamp", "failed"),
            ("other", "running"),
        ),
        "stay": row(
            lambda stay: stepped(error_invoke("lamp", stay, {"message": "no"})).snapshot.status,
            (STAY, "failed"),
            (STAY + 1, "running"),
        ),
        "error": row(
            lambda text: stepped(error_invoke("lamp", STAY, {"message": text})).snapshot.error["message"],
            ("no", SOMETHING),
            ("never", SOMETHING),
        ),
    },
    "timer_event": {
        "name": row(lambda name: stepped(timer_event(name, STAY)).taken, (NAME, True), ("other", False)),
        "stay": row(lambda stay: stepped(timer_event(NAME, stay)).taken, (STAY, True), (STAY + 1, False)),
    },
    "Execution.is_in": {"state": row(lambda state: execution().is_in(state), ("off", True), ("on", False))},
}


def execution() -> Any:
    with casework.open("memory:", machines=[light()]) as app:
        return app.start("light", input=1)


# --- AWS --------------------------------------------------------------------------------------------------------------

NOTES = (Table(name="notes", partition="id"),)


def named(**options: Any) -> str:
    """The first resource that a policy names."""
    return str(iam_policy(**{"tables": NOTES, **options})["Statement"][0]["Resource"][0])


AWS: Rows = {
    "cloudformation": {
        "prefix": row(lambda prefix: cloudformation(prefix)["Parameters"]["Prefix"]["Default"], ("a", "a"), ("b", "b")),
        "tables": row(
            lambda tables: list(cloudformation(tables=tables)["Resources"]), ((), []), (NOTES, ["NotesTable"])
        ),
    },
    "iam_policy": {
        "prefix": row(
            lambda prefix: named(prefix=prefix),
            ("a", "arn:aws:dynamodb:*:*:table/a_notes"),
            ("b", "arn:aws:dynamodb:*:*:table/b_notes"),
        ),
        "role": row(
            lambda role: len(iam_policy(role=role, tables=NOTES)["Statement"]),
            ("app", 1),
            ("admin", 2),
        ),
        "tables": row(
            lambda tables: iam_policy(tables=tables)["Statement"][0]["Resource"], ((), []), (NOTES, SOMETHING)
        ),
        "region": row(
            lambda region: named(region=region), ("*", SOMETHING), ("r", "arn:aws:dynamodb:r:*:table/casework_notes")
        ),
        "account": row(
            lambda account: named(account=account), ("*", SOMETHING), ("1", "arn:aws:dynamodb:*:1:table/casework_notes")
        ),
        "partition": row(
            lambda name: named(partition=name),
            ("aws", SOMETHING),
            ("aws-cn", "arn:aws-cn:dynamodb:*:*:table/casework_notes"),
        ),
    },
}

MACHINES: Rows = {**MAKING, **FUNCTIONS, **CHARTS, **AWS}
