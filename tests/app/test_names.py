"""Names of people's own making, on every store and in every call and command: they work, or are refused where written.

``tests/statechart/test_names.py`` has the loaders and diagrams; here every kind of name goes through what takes or
shows one. ``KINDS`` is the table: a kind is a place of the definition below.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import casework
from casework.errors import InvalidMachine, Misuse
from tests.statechart.test_names import NAMES

KINDS = ("machine", "state", "event", "task", "action", "guard", "tag", "send", "sent", "invoke", "stream", "output")
FEWEST = {"machine": 7, "task": 3, "action": 3, "guard": 3, "stream": 1}
"""Of ``NAMES``, at least so many are taken: functions are named as in Python, machines without what a path has."""

EVERYTHING = "Größe \u72b6\u614b \U0001f600 \"50 %\" 'x' [*] (y) {z} <b> `t`, a;b & c | d = e ? f ! g $HOME \\n ~"
"""A name with everything in it that a shell, a diagram or a database could stumble over."""


def definition(kind: str, name: str, number: int) -> dict[str, Any]:
    """A machine in which one kind of name is ``name``."""
    n = {each: f"{each}{number}" for each in KINDS} | {kind: name}
    sends = [{"type": "send", "params": {"event": n["sent"], "id": n["send"], "delay": "1h"}}]
    move = {"target": n["state"], "guard": n["guard"], "actions": [n["action"]]}
    invoke = {"id": n["invoke"], "src": {"task": n["task"]}, "onDone": "over"}
    return {
        "id": n["machine"], "initial": "first", "context": {},
        "states": {
            "first": {"tags": [n["tag"]], "entry": sends, "on": {n["event"]: move, n["sent"]: {}}},
            n["state"]: {"invoke": invoke, "on": {"stop": "over"}},
            "over": {"type": "final", "output": {n["output"]: 1}},
        },
        "publish": {"stream": name if kind == "stream" else f"s{number}"},
    }  # fmt: skip


def made(kind: str, name: str, number: int) -> casework.Machine | None:
    """The machine with its functions; None where the name is refused with a sentence."""
    try:
        machine = casework.Machine.from_dict(definition(kind, name, number))
    except InvalidMachine as error:
        problems = error.problems
        machine = None
    if machine is None:
        assert all("(" in problem for problem in problems), problems
        return None
    for task in machine.names.tasks:
        machine.task(name=task)(lambda task: None)
    for action in machine.names.actions:
        machine.action(name=action)(lambda context, event: {})
    for guard in machine.names.guards:
        machine.guard(name=guard)(lambda context, event: True)
    return machine


@pytest.fixture(params=["memory", "sqlite", pytest.param("ministack", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest, tmp_path: Path, unique: Callable[[str], str]) -> Any:
    if request.param == "memory":
        return "memory:"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/names.db"
    from casework.backends.dynamodb import DynamoDBBackend

    return DynamoDBBackend(endpoint_url=request.getfixturevalue("ministack_url"), prefix=unique("names"))


def pages(ask: Callable[..., Any], **filters: Any) -> Iterator[Any]:
    """Everything that a listing has, three a page."""
    cursor = None
    while True:
        page = ask(limit=3, cursor=cursor, **filters)
        yield from page.items
        cursor = page.next
        if cursor is None:
            return


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_that_is_taken_works_in_every_call_and_on_every_store(kind: str, store: Any) -> None:
    names = [*NAMES, EVERYTHING] if isinstance(store, str) else [*NAMES[::12], EVERYTHING]
    machines = {n: machine for n, name in enumerate(names) if (machine := made(kind, name, n)) is not None}
    assert not isinstance(store, str) or len(machines) >= FEWEST.get(kind, 30)
    with casework.open(store, machines=list(machines.values()), create=True, trace_max=50) as app:
        for n, machine in machines.items():
            there = {each: names[n] if kind == each else f"{each}{n}" for each in KINDS}
            event = there["event"].removesuffix(".*").replace("*", "any") if kind == "event" else there["event"]
            for id in (f"x{n}", f"y{n}"):
                app.start(machine.name, id=id)
                assert app.inspect(id).timers[0].name.endswith(there["send"])
                assert app.inspect(id).timers[0].event == there["sent"]
            moved = app.handle(f"x{n}", event)
            assert moved.configuration == [there["state"]] and moved.machine == there["machine"], names[n]
            assert moved.waiting_for == [there["invoke"]]
            (task,) = app.inspect(f"x{n}").tasks
            assert (task.name, task.src) == (there["invoke"], there["task"])
            assert json.dumps(app.trace(f"x{n}")).count(json.dumps(event)[1:-1])
            app.send(f"y{n}", event)
            assert [each.type for each in app.inspect(f"y{n}").messages] == [event]
            app.handle(f"x{n}", "stop")
            assert app.wait(f"x{n}").output == {there["output"]: 1}
            app.terminate(f"y{n}")
            assert {each.id for each in pages(app.list, machine=machine.name)} == {f"x{n}", f"y{n}"}
        assert len(list(pages(app.list))) == 2 * len(machines)
        assert app.purge(f"x{next(iter(machines))}") >= 1


@pytest.mark.parametrize("kind", KINDS)
def test_what_nobody_can_see_or_address_is_refused_where_it_is_written(kind: str) -> None:
    for name in ("", " a", "a ", "a\nb", "a\x00b", "\x1b[31m", "a\u2028b", "x" * 201):
        if kind != "output":  # the key of an output is data
            assert made(kind, name, 0) is None, (kind, name)


IDS = [*NAMES, EVERYTHING, "x" * 512, "x" * 513, "\u72b6" * 171, "\ud800", "o/1", "../x", "a%2Fb", "-", "--id"]


def test_an_execution_id_works_in_every_call_or_is_refused_before_anything_is_written(store: Any) -> None:
    ids = IDS if isinstance(store, str) else [*IDS[::12], EVERYTHING]
    machine = made("machine", "m", 0)
    assert machine is not None
    with casework.open(store, machines=[machine], create=True, trace_max=50) as app:
        taken = []
        for id in ids:
            try:
                app.start("m", id=id)
                said = "taken"
            except Misuse as error:
                said = str(error)
            if said != "taken":
                assert "id" in said and said.isprintable(), id
                for ask in (app.get, app.trace, app.inspect, app.cancel, app.purge):
                    with pytest.raises(casework.CaseworkError):
                        ask(id)
                continue
            taken.append(id)
            assert app.get(id).id == id == app.inspect(id).execution.id
            assert not app.handle(id, "event0", event_id=id).is_duplicate
            assert app.handle(id, "event0", event_id=id).is_duplicate
            app.send(id, "stop", event_id=f"{id[:100]} again")
            assert app.inspect(id).messages[0].id == f"{id[:100]} again"
            assert app.trace(id)[0]
            app.terminate(id)
            assert app.wait(id).status == "cancelled"
        assert sorted(each.id for each in pages(app.list)) == sorted(set(taken))
        assert len(taken) >= (50 if isinstance(store, str) else 3)
        assert all(app.purge(id) >= 1 for id in set(taken))
        assert list(pages(app.list)) == []


def test_a_stream_and_a_group_work_or_are_refused_with_what_may_stand_there(store: Any) -> None:
    with casework.open(store, create=True) as app:
        for name in IDS if isinstance(store, str) else IDS[::12]:
            try:
                app.streams.append(name, [casework.Op("1", b"x")])
                said = "taken"
            except Misuse as error:
                said = str(error)
            if said != "taken":
                assert "is not a stream id; use" in said and said.isprintable()
                for ask in (lambda: list(app.streams.read(name)), lambda: app.streams.cursor(name, "s")):  # noqa: B023
                    with pytest.raises(Misuse, match="id; use"):
                        ask()
                continue
            assert [op.id for op in app.streams.read(name)] == ["1"]
            assert app.streams.cursor(name, name) == app.streams.cursor(name, name)
