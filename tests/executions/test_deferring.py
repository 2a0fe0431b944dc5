"""Deferred events of durable executions: kept in the state, with their ids, until a state takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from casework.app.arguments import make_options
from casework.app.core import Core
from casework.app.sync import App, prepare
from casework.executions import deferring
from casework.executions.advance import advance
from casework.statechart import Machine
from tests.executions.watching import ByHand, data_of, items_of, machine, watched_app, work
from tests.streams.stores import STORES, open_store

ORDER = """
id: order
initial: open
context: {log: []}
states:
  open: {defer: [Paid, Ship, cancel], on: {Confirm: confirmed, Close: closed}, after: {1h: closed}}
  confirmed: {defer: Ship, on: {Paid: {target: paid, guard: fair, actions: LOG}}}
  paid: {on: {Ship: {actions: LOG}, Close: closed, cancel: closed}}
  closed: {type: final}
""".replace("LOG", '{type: assign, params: {log: {expr: "context.log + [event.n]"}}}')

broken = [False]


def order(text: str = ORDER) -> Machine:
    one = machine(text)

    @one.guard(name="fair")
    def fair(context: Any, event: Any) -> bool:
        if broken[0]:
            raise ValueError("broken")
        return True

    broken[0] = False
    return one


@pytest.fixture(params=STORES)
def app(request: pytest.FixtureRequest, tmp_path: Path, unique: Callable[[str], str]) -> Iterator[App]:
    for store in open_store(request, tmp_path, unique):
        core = Core([order()], make_options(trace_max=30), None)
        prepare(core, store, create=True)
        yield App(core, store, owns_backend=False)


def test_events_before_their_state_are_kept_and_taken_in_order_when_it_comes(app: App) -> None:
    app.start("order", id="o")
    app.send("o", "Ship", {"n": 2}, event_id="s")
    app.send("o", "Paid", {"n": 1}, event_id="p")
    app.send("o", "Ship", {"n": 3})
    work(app, "o")
    shown = app.inspect("o")
    assert [(each.type, each.data, each.id) for each in shown.deferred] == [
        ("Ship", {"n": 2}, "s"), ("Paid", {"n": 1}, "p"), ("Ship", {"n": 3}, ""),
    ]  # fmt: skip
    assert shown.messages == [] and shown.execution.configuration == ["open"]
    assert app.handle("o", "Paid", {"n": 1}, event_id="p").is_duplicate, "kept is taken, as to its id"
    after = app.handle("o", "Confirm")
    assert (after.configuration, after.context) == (["paid"], {"log": [1, 2, 3]})
    assert app.inspect("o").deferred == [] and app.dead_letters().items == []
    assert app.handle("o", "Paid", {"n": 1}, event_id="p").is_duplicate
    notes = [note for entry in app.trace("o") for note in entry["events"]]
    assert [note["event"] for note in notes if note.get("deferred")] == ["Ship", "Paid", "Ship"]


def test_what_no_state_took_by_the_end_becomes_dead_letters(app: App) -> None:
    app.start("order", id="o")
    app.handle("o", "Ship", {"n": 2}, event_id="s")
    app.handle("o", "Paid", {"n": 1})
    assert app.handle("o", "Close").status == "done"
    (letter,) = app.dead_letters().items
    assert [event["type"] for event in letter.events] == ["Ship", "Paid"] and letter.events[0]["id"] == "s"
    assert letter.reason == "the execution had ended: done; no state took it" and app.inspect("o").deferred == []


def test_terminating_and_timers_that_end_it_keep_them_as_dead_letters_too() -> None:
    app, backend = watched_app(order())
    for id in ("x", "y"):
        app.start("order", id=id)
        app.handle(id, "Ship", {"n": 2})
    app.terminate("x")
    backend.sleep(3601)
    work(app, "y")
    reasons = sorted(letter.reason for letter in app.dead_letters().items)
    assert [reason.partition(";")[0] for reason in reasons] == [
        "the execution had ended: cancelled", "the execution had ended: done",
    ]  # fmt: skip


def test_deferred_events_are_bounded_and_what_is_over_is_a_dead_letter_and_known_by_its_id() -> None:
    app, backend = watched_app(order())
    app.start("order", id="o")
    for n in range(deferring.MAX_DEFERRED + 2):
        app.send("o", "Ship", {"n": n}, event_id=f"s-{n}")
    work(app, "o")
    app.send("o", "Ship", {"n": n}, event_id=f"s-{n}")
    work(app, "o")
    assert len(app.inspect("o").deferred) == deferring.MAX_DEFERRED and app.get("o").status == "running"
    dead = [event["data"]["n"] for letter in app.dead_letters().items for event in letter.events]
    assert sorted(dead) == [deferring.MAX_DEFERRED, deferring.MAX_DEFERRED + 1]
    assert all("100 events are already" in letter.reason for letter in app.dead_letters().items)
    app.start("order", id="big")
    app.handle("big", "Ship", {"n": "x" * 40_000})
    app.handle("big", "Ship", {"n": "y" * 40_000})
    assert len(app.inspect("big").deferred) == 1 and backend is app.backend
    assert any("over 64 KB" in letter.reason for letter in app.dead_letters().items)


def test_they_survive_suspending_migrating_and_a_redrive() -> None:
    app, backend = watched_app(order(), order(ORDER.replace("id: order", "id: neworder")))
    app.start("order", id="o")
    app.send("o", "Ship", {"n": 2})
    app.send("o", "Paid", {"n": 1}, event_id="p")
    work(app, "o")
    app.suspend("o")
    app.resume("o")
    app.migrate("o", to="neworder")
    assert [each.type for each in app.inspect("o").deferred] == ["Ship", "Paid"]
    broken[0] = True
    failed = app.handle("o", "Confirm")
    assert (failed.status, failed.configuration) == ("failed", ["confirmed"]), "the event that failed is the kept one"
    shown = app.inspect("o")
    assert shown.failure is not None and (shown.failure.event["type"], shown.failure.event["id"]) == ("Paid", "p")
    assert [each.type for each in shown.deferred] == ["Ship"]
    assert app.redrive("o").status == "failed" and [each.type for each in app.inspect("o").deferred] == ["Ship"]
    broken[0] = False
    again = app.redrive("o")
    assert (again.configuration, again.context) == (["paid"], {"log": [1, 2]})
    assert app.inspect("o").deferred == [] and backend is app.backend


EARLY = ORDER.replace("open: {defer: [Paid, Ship, cancel], on: {", "open: {defer: Ship, on: {Paid: paid, ")


@pytest.mark.parametrize("status", ["running", "suspended"])
def test_a_migration_offers_what_is_deferred_to_the_new_definition(status: str) -> None:
    """A process that operates has no functions, so a worker does it, once there is one."""
    core = Core([order()], make_options(trace_max=30), None)
    backend = watched_app(order())[1]
    app = App(core, backend, owns_backend=False)
    app.start("order", id="o")
    app.send("o", "Ship", {"n": 2})
    app.send("o", "Paid", {"n": 1}, event_id="p")
    work(app, "o")
    assert [each.type for each in app.inspect("o").deferred] == ["Ship", "Paid"]
    if status == "suspended":
        app.suspend("o")
    newer = App(Core([order(EARLY)], make_options(trace_max=30), None), backend, owns_backend=False)
    newer.migrate("o")
    work(newer, "o")
    if status == "suspended":
        assert newer.get("o").configuration == ["open"]
        newer.resume("o")
        work(newer, "o")
    assert newer.get("o").configuration == ["paid"] and newer.get("o").context == {"log": [2]}
    shown = newer.inspect("o")
    assert (shown.deferred, shown.messages) == ([], [])
    assert newer.handle("o", "Paid", {"n": 1}, event_id="p").is_duplicate


LEDGER = """
id: ledger
initial: closed
context: {log: []}
states:
  closed: {defer: "*", on: {Open: open}}
  open: {on: {Pay: {guard: fair, actions: LOG}, Note: {actions: LOG}}}
""".replace("LOG", '{type: assign, params: {log: {expr: "context.log + [event.n]"}}}')


@pytest.mark.parametrize(("mends", "skip", "log", "failed_at"), [
    (True, False, [1, 2, 3, 4], []),
    (True, True, [2, 3, 4], []),
    (False, True, [2, 3], ["4"]),
    (False, False, [], ["1"]),
])  # fmt: skip
def test_a_redrive_offers_what_was_not_offered_when_one_of_them_failed(
    mends: bool, skip: bool, log: list[int], failed_at: list[str]
) -> None:
    app, _ = watched_app(order(LEDGER))
    app.start("ledger", id="o")
    for n, event in enumerate(("Pay", "Note", "Note", "Pay"), 1):
        app.handle("o", event, {"n": n}, event_id=str(n))
    broken[0] = True
    assert app.handle("o", "Open").status == "failed"
    broken[0] = not mends
    driven, shown = app.redrive("o", skip=skip), app.inspect("o")
    assert driven.context == {"log": log}
    assert ([shown.failure.event["id"]] if shown.failure is not None else []) == failed_at
    assert [each.id for each in shown.deferred] == (["2", "3", "4"] if failed_at == ["1"] else [])
    if failed_at == ["4"]:
        assert app.redrive("o", skip=True).status == "running", "each of them can be skipped by itself"


def test_an_event_that_is_deferred_is_not_lost_to_a_race() -> None:
    app, backend = watched_app(order())
    app.start("order", id="o")
    app.send("o", "Paid", {"n": 1}, event_id="p")
    deferring_it = ByHand(advance(app.core.rt, "o"), backend).up_to()
    app.handle("o", "Confirm")
    deferring_it.finish()
    work(app, "o")
    assert app.get("o").context == {"log": [1]} and app.inspect("o").deferred == []


def test_an_operators_cancel_is_never_put_off() -> None:
    app, _ = watched_app(order())
    app.start("order", id="o")
    assert app.cancel("o").status == "cancelled" and app.dead_letters().items == []
    strict, _ = watched_app(order(ORDER.replace("context:", "on_unhandled: fail\ncontext:")))
    strict.start("order", id="o")
    strict.handle("o", "Confirm")
    assert strict.cancel("o").status == "cancelled"


def test_an_unhandled_event_fails_an_execution_whose_machine_says_so_and_is_kept_for_a_redrive() -> None:
    app, backend = watched_app(order(ORDER.replace("context:", "on_unhandled: fail\ncontext:")))
    app.start("order", id="o")
    failed = app.handle("o", "Confirm")
    failed = app.handle("o", "Confirm", event_id="c")
    assert failed.status == "failed" and failed.error is not None and failed.error["type"] == "UnhandledEvent"
    assert app.inspect("o").failure.event["id"] == "c"  # type: ignore[union-attr]
    assert app.redrive("o", skip=True).status == "running"
    assert items_of(backend, "o", "e/") == []


def test_an_ignored_event_is_told_in_the_trace() -> None:
    app, _ = watched_app(order(), trace_max=10)
    app.start("order", id="o")
    assert not app.handle("o", "Confirm").is_deferred
    ignored = app.handle("o", "Close")
    assert not ignored.is_taken and not ignored.is_deferred
    assert app.handle("o", "Ship", {"n": 1}).is_deferred
    notes = [note for entry in app.trace("o") for note in entry["events"]]
    assert [note["event"] for note in notes if note.get("ignored")] == ["Close"]


def test_what_is_deferred_is_part_of_the_state_and_costs_no_item_of_its_own() -> None:
    app, backend = watched_app(order())
    app.start("order", id="o")
    app.send("o", "Ship", {"n": 1})
    work(app, "o")
    assert len(items_of(backend, "o")) == 1 and data_of(app, "o")[1].deferred[0].type == "Ship"
