"""What each option of an application's methods changes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import casework
from casework.backends.drive import run
from casework.executions.buckets import SETTINGS
from casework.kernel.programs import get
from casework.kernel.schema import EXECUTIONS
from tests.options.applications import World
from tests.options.table import SOMETHING, Row, refusal, row

OTHER = {"id": "other", "initial": "a", "states": {"a": {}}}


def of_id(method: str, before: Callable[[World], Any] = lambda w: None, after: Any = World.statuses) -> Row:
    """The execution of that id is the one that it is about."""

    def see(w: World, id: str) -> Any:
        before(w.started())
        getattr(w.app, method)(id)
        return after(w)

    return row(see, ("x", SOMETHING), ("y", SOMETHING))


def both(action: Callable[[World, str], Any]) -> Callable[[World], Any]:
    """Do it to both executions."""
    return lambda w: [action(w, id) for id in ("x", "y")]


def answered(method: str, field: Callable[[Any], Any]) -> Row:
    """The execution of that id is the one in the answer."""
    return row(lambda w, id: field(getattr(w.started().app, method)(id)), ("x", "x"), ("y", "y"))


def ended(w: World, *, seconds: float = 0) -> World:
    """``x`` is done; ``y``, some seconds later, is cancelled."""
    w.started().virtual.handle("x", "End")
    w.virtual.clock.advance(seconds)
    w.virtual.terminate("y")
    w.virtual.advance("1s")
    return w


# --- starting, sending ------------------------------------------------------------------------------------------------


def waiting(w: World, id: str = "x", event: str = "Add", data: Any = None, **options: Any) -> Any:
    w.started().app.send(id, event, data, **options)
    return [(of, [(m.type, m.data, m.id) for m in w.virtual.inspect(of).messages]) for of in ("x", "y")]


def of_two(method: str, w: World, priority: int) -> Any:
    """Whose event is looked at first, where another one of priority 0 came before it."""
    w.started().virtual.send("x", "Add")
    if method == "handle":
        w.virtual.suspend("y")  # an event for it waits, although it is handled
    getattr(w.app, method)("y", "Add", priority=priority)
    found = w.backend.tables.stored(EXECUTIONS).items.values()
    queued = [each for each in found if str(each["sort"]).startswith("e/")]
    return [str(each["id"]) for each in sorted(queued, key=lambda each: each["rank_us"])]


def taken_twice(w: World, event_id: str) -> Any:
    w.started().virtual.handle("x", "Add", event_id="first")
    return w.app.handle("x", "Add", event_id=event_id).is_duplicate


START = {
    "machine": row(lambda w, name: w.app.start(name).machine, ("lamp", "lamp"), ("second", "second")),
    "id": row(lambda w, id: w.app.start("lamp", id=id).id, ("a", "a"), (None, SOMETHING)),
    "input": row(lambda w, input: w.app.start("lamp", input=input).context["n"], (None, 0), ({"n": 5}, 5)),
}

SEND = {
    "id": row(
        lambda w, id: [len(found) for _, found in waiting(w, id)], ("x", [1, 0]), ("y", [0, 1])
    ),
    "event": row(lambda w, event: waiting(w, event=event)[0][1][0][0], ("Add", "Add"), ("On", "On")),
    "data": row(lambda w, data: waiting(w, data=data)[0][1][0][1], (None, {}), ({"by": 2}, {"by": 2})),
    "event_id": row(lambda w, id: waiting(w, event_id=id)[0][1][0][2], ("e", "e"), (None, SOMETHING)),
    "priority": row(lambda w, priority: of_two("send", w, priority), (0, ["x", "y"]), (4, ["y", "x"])),
}  # fmt: skip

HANDLE = {
    "id": row(lambda w, id: w.started().app.handle(id, "Add").id, ("x", "x"), ("y", "y")),
    "event": row(
        lambda w, event: w.started().app.handle("x", event).configuration, ("Add", ["off"]), ("Later", ["later"])
    ),
    "data": row(lambda w, data: w.started().app.handle("x", "Add", data).context["n"], (None, 1), ({"by": 2}, 2)),
    "event_id": row(taken_twice, ("first", True), ("second", False), ),
    "priority": row(lambda w, priority: of_two("handle", w, priority), (0, ["x", "y"]), (4, ["y", "x"])),
}  # fmt: skip


# --- looking ----------------------------------------------------------------------------------------------------------


def results(w: World, id: str = "x", **options: Any) -> Any:
    """What the three children of ``x`` came to."""
    for each, event in (("x", "Fan"), ("y", "Fan")):
        w.started().virtual.handle(each, event)
    w.virtual.settle()
    return w.app.child_results(id, **{"reference": w.virtual.get(id).context["out"], **options})


def results_after(w: World, skipped: int) -> Any:
    """The first results of a page that begins behind the first one, or at the beginning."""
    first = results(w, limit=1)
    reference = w.virtual.get("x").context["out"]
    found = w.app.child_results("x", reference, cursor=first.next if skipped else None)
    return [each.ordinal for each in found.items]


def results_of(w: World, invoke: str) -> Any:
    reference = {"invoke": invoke, "stay": 1, "total": 3, "done": 3, "each": True}
    return {each.status for each in results(w, reference=reference).items}


def letters(w: World, **options: Any) -> Any:
    """The dead letters of two executions that ended with an event in their mailboxes."""
    w.started()
    for id in ("x", "y"):
        w.virtual.send(id, "Add")
        w.virtual.terminate(id)
    w.virtual.settle()
    return w.app.dead_letters(**options)


def letters_after(w: World, skipped: int) -> Any:
    first = letters(w, limit=1)
    return len(w.app.dead_letters(cursor=first.next if skipped else None).items)


def family(w: World) -> World:
    """``x``, which has ended and has three children, ``y``, which runs, and ``z`` of another machine."""
    w.started().virtual.handle("x", "Fan")
    w.virtual.settle()
    w.virtual.terminate("x")
    w.virtual.start("second", id="z")
    return w


def all_of(app: Any, **options: Any) -> list[str]:
    """The ids on every page of a listing."""
    found, cursor = [], None
    while True:
        page = app.list(**options, cursor=cursor)
        found += [each.id for each in page.items]
        cursor = page.next
        if cursor is None:
            return sorted(found)


def listed(w: World, **options: Any) -> Any:
    return all_of(family(w).app, **options)


def listed_after(w: World, skipped: int) -> Any:
    page = family(w).app.list(limit=1, machine="lamp")
    while skipped and not page.items:
        page = w.app.list(limit=1, machine="lamp", cursor=page.next)
    return len(w.app.list(machine="lamp", cursor=page.next if skipped else None).items)


def waited(w: World, timeout_s: float) -> Any:
    """How long it waits, where each look at the clock takes a second."""
    clock = w.started().virtual.clock
    began_us, look = clock.now().middle_us, clock.now
    clock.now = lambda: clock.advance(1) or look()  # type: ignore[func-returns-value]
    said = refusal(lambda: w.app.wait("x", timeout_s=timeout_s))
    return said, (look().middle_us - began_us) / 1e6 >= 5


def traced(w: World, id: str) -> Any:
    w.started().virtual.handle("x", "Add")
    return len(w.app.trace(id))


LIST = {
    "status": row(lambda w, status: listed(w, status=status), ("running", ["y", "z"]), ("cancelled", ["x"])),
    "machine": row(lambda w, machine: listed(w, machine=machine), ("lamp", ["x", "y"]), ("second", ["z"])),
    "parent": row(lambda w, parent: len(listed(w, parent=parent)), ("x", 3), ("y", 0), (None, 6)),
    "limit": row(lambda w, limit: len(family(w).app.list(limit=limit, machine="lamp").items), (1, 1), (2, 2)),
    "cursor": row(listed_after, (0, 2), (1, 1)),
}


# --- operating --------------------------------------------------------------------------------------------------------


def migrated(w: World, to: str | None) -> Any:
    w.virtual.start("second", id="z")
    machines = [casework.Machine.from_dict({**OTHER, "id": name, "states": {"off": {}}, "initial": "off"})
                for name in ("second", "third")]  # fmt: skip
    for machine in machines:
        w.app.core.rt.machines[machine.name] = machine
    return w.app.migrate("z", to=to).machine


def force(w: World, force: bool) -> Any:
    return refusal(lambda: w.started().app.purge("x", force=force)), sorted(w.statuses())


def tree(w: World, tree: bool) -> Any:
    family(w).app.purge("x", tree=tree)
    return len({place for place, _ in w.backend.tables.stored(EXECUTIONS).items})


def purged(w: World, **options: Any) -> Any:
    page = ended(w, seconds=7200).app.purge_ended(**{"before": "0s", **options})
    return sorted(each.id for each in page.items), sorted(w.statuses())


def purged_after(w: World, skipped: int) -> Any:
    page = ended(w).app.purge_ended(before="0s", limit=1, dry_run=True)
    seen = len(page.items)
    while skipped and not seen:
        page = w.app.purge_ended(before="0s", limit=1, dry_run=True, cursor=page.next)
        seen += len(page.items)
    return len(w.app.purge_ended(before="0s", dry_run=True, cursor=page.next if skipped else None).items)


def of_other_machine(w: World, machine: str) -> Any:
    w.virtual.start("second", id="z")
    w.virtual.terminate("z")
    return purged(w, machine=machine)[0]


def raised(w: World, number: int) -> Any:
    w.started().app.raise_buckets(number)
    found = run(get(SETTINGS), w.backend)
    assert found is not None
    return found["buckets"]


def failed(w: World) -> World:
    """``x`` and ``y`` have failed at an event."""
    for id in ("x", "y"):
        w.started().virtual.handle(id, "Bad")
    return w


def driven_again(w: World, skip: bool) -> Any:
    failed(w).app.redrive("x", skip=skip)
    w.virtual.settle()
    return w.virtual.get("x").status


def later(w: World, call: Callable[[str], Any], of: str = "x") -> Any:
    """``x`` and ``y`` wait for somebody to complete their tasks; what they end with."""
    w.started().virtual.fake("shine", casework.LATER)
    for id in ("x", "y"):
        w.virtual.handle(id, "On")
    w.virtual.settle()
    call({each.execution_id: each.token for each in w.virtual.calls("shine")}[of])
    w.virtual.settle()
    return [w.virtual.get(id).context["out"] for id in ("x", "y")]


APP = {
    "app.start": START,
    "app.send": SEND,
    "app.handle": HANDLE,
    "app.get": {"id": answered("get", lambda found: found.id)},
    "app.inspect": {"id": answered("inspect", lambda found: found.execution.id)},
    "app.child_results": {
        "id": row(lambda w, id: results(w, id).items[0].id.split("/")[0], ("x", "x"), ("y", "y")),
        "reference": row(results_of, ("sparks", {"done"}), ("others", {"purged"})),
        "limit": row(lambda w, limit: len(results(w, limit=limit).items), (1, 1), (2, 2)),
        "cursor": row(results_after, (0, [0, 1, 2]), (1, [1, 2])),
    },
    "app.wait": {
        "id": row(lambda w, id: ended(w).app.wait(id).status, ("x", "done"), ("y", "cancelled")),
        "timeout_s": row(waited, (0.5, ("WaitTimeout", False)), (5.0, ("WaitTimeout", True))),
    },
    "app.list": LIST,
    "app.dead_letters": {
        "limit": row(lambda w, limit: len(letters(w, limit=limit).items), (1, 1), (2, 2)),
        "cursor": row(letters_after, (0, 2), (1, 1)),
    },
    "app.trace": {"id": row(traced, ("x", 2), ("y", 1))},
    "app.cancel": {"id": of_id("cancel")},
    "app.terminate": {"id": of_id("terminate")},
    "app.suspend": {"id": of_id("suspend")},
    "app.resume": {"id": of_id("resume", both(lambda w, id: w.virtual.suspend(id)))},
    "app.retry": {"id": answered("retry", lambda found: found.id)},
    "app.redrive": {
        "id": of_id("redrive", failed, lambda w: [w.virtual.inspect(id).redrives for id in "xy"]),
        "skip": row(driven_again, (False, "failed"), (True, "running")),
    },
    "app.migrate": {
        "id": row(lambda w, id: w.started().app.migrate(id).id, ("x", "x"), ("y", "y")),
        "to": row(migrated, (None, "second"), ("third", "third")),
    },
    "app.purge": {
        "id": of_id("purge", ended),
        "force": row(force, (False, ("Misuse", ["x", "y"])), (True, ("", ["y"]))),
        "tree": row(tree, (False, 5), (True, 2)),
    },
    "app.purge_ended": {
        "before": row(
            lambda w, before: purged(w, before=before)[0],
            ("0s", ["x", "y"]), ("1h", ["x"]), (datetime(2020, 1, 1, tzinfo=UTC), []),
        ),
        "status": row(lambda w, status: purged(w, status=status)[0], ("done", ["x"]), ("cancelled", ["y"])),
        "machine": row(of_other_machine, ("lamp", ["x", "y"]), ("second", ["z"])),
        "dry_run": row(lambda w, dry: purged(w, dry_run=dry)[1], (True, ["x", "y"]), (False, [])),
        "limit": row(lambda w, limit: ended(w).app.purge_ended(before="0s", limit=limit).looked, (1, 1), (2, 2)),
        "cursor": row(purged_after, (0, 2), (1, 1)),
    },
    "app.raise_buckets": {"number": row(raised, (16, 16), (32, 32))},
    "app.complete_task": {
        "token": row(
            lambda w, of: [out is None for out in later(w, lambda token: w.app.complete_task(token, 5), of)],
            ("x", [False, True]), ("y", [True, False]),
        ),
        "result": row(
            lambda w, result: later(w, lambda token: w.app.complete_task(token, result))[0], (1, 1), (2, 2)
        ),
    },
    "app.fail_task": {
        "token": row(
            lambda w, of: [out is None for out in later(w, lambda token: w.app.fail_task(token, "no"), of)],
            ("x", [False, True]), ("y", [True, False]),
        ),
        "message": row(
            lambda w, text: later(w, lambda token: w.app.fail_task(token, text))[0]["message"],
            ("no", "no"), ("not now", "not now"),
        ),
    },
}  # fmt: skip
