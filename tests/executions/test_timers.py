"""Timers and delayed sends: armed, moved and cancelled with their state, and due at their own time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from casework.backends.drive import run
from casework.executions.state import decode_timers
from casework.executions.worker import Worker, WorkerOptions, sweep
from casework.testing import VirtualApp
from tests.executions.watching import items_of, machine, state_item, watched_app, work, work_once

Maker = Callable[..., VirtualApp]

DOOR = """
id: door
initial: shut
context: {rings: 0}
states:
  shut: {on: {open: open}}
  open:
    after: {10s: shut}
    on:
      open: {target: open, reenter: true}
      ring: {actions: {type: assign, params: {rings: {expr: context.rings + 1}}}}
      close: shut
"""


def timers_of(app: Any, id: str) -> list[tuple[str, int, int]]:
    text = str(state_item(app.backend, id).get("timers", ""))
    return [(timer.name, timer.stay, timer.due_us) for timer in decode_timers(text)]


def test_a_timer_fires_at_its_time_and_not_before(casework_app: Maker) -> None:
    app = casework_app(machine(DOOR))
    app.start("door", id="d")
    app.handle("d", "open")
    app.advance("9.999s")
    assert app.get("d").configuration == ["open"]
    app.advance("1ms")
    assert app.get("d").configuration == ["shut"] and timers_of(app, "d") == []


def test_leaving_a_state_disarms_its_timer(casework_app: Maker) -> None:
    app = casework_app(machine(DOOR))
    app.start("door", id="d")
    app.handle("d", "open")
    version = app.handle("d", "close").version
    app.advance("1d")
    assert app.get("d").version == version and app._next_due_us() is None


def test_cancelling_and_arming_again_in_one_step_is_one_write(casework_app: Maker) -> None:
    app, backend = watched_app(machine(DOOR))
    app.start("door", id="d")
    app.handle("d", "open")
    ((name, stay, due_us),) = timers_of(app, "d")
    backend.sleep(6)
    backend.forget()
    app.handle("d", "open")
    assert backend.calls() == ["Write"]
    assert (backend.units.base, backend.units.index) == (1, 2)
    assert timers_of(app, "d") == [(name, stay + 1, due_us + 6_000_000)]
    backend.sleep(5)
    work(app, "d")
    assert app.get("d").configuration == ["open"], "the timer of the earlier stay must not fire"
    backend.sleep(5)
    work(app, "d")
    assert app.get("d").configuration == ["shut"]


def test_a_timer_of_an_earlier_stay_never_acts_on_a_later_one(casework_app: Maker) -> None:
    app, backend = watched_app(machine(DOOR))
    app.start("door", id="d")
    app.send("d", "open")
    work(app, "d")
    backend.sleep(10)
    app.send("d", "close")
    app.send("d", "open")
    work(app, "d")
    assert app.get("d").configuration == ["open"], "the first stay's timer fired first, and shut it; then it opened"
    ((_, stay, _),) = timers_of(app, "d")
    assert stay == 2
    backend.sleep(9)
    work(app, "d")
    assert app.get("d").configuration == ["open"]


RACE = """
id: order
initial: open
states:
  open: {after: {30s: expired}, on: {pay: paid}}
  expired: {}
  paid: {}
"""


@pytest.mark.parametrize(("paid_after_s", "ends_in"), [(29, "paid"), (30, "expired"), (31, "expired")])
def test_a_payment_and_a_timeout_that_are_both_late_are_taken_by_their_own_times(
    paid_after_s: int, ends_in: str
) -> None:
    app, backend = watched_app(machine(RACE))
    app.start("order", id="o")
    backend.sleep(paid_after_s)
    app.send("o", "pay")
    backend.sleep(3600)
    work(app, "o")
    assert app.get("o").configuration == [ends_in]


def test_many_timers_due_at_once_fire_in_the_order_of_their_times(casework_app: Maker) -> None:
    delays = [7, 3, 9, 1, 5, 8, 2, 6, 4, 10]
    timers = ", ".join(
        f"{s}s: {{actions: {{type: assign, params: {{seen: {{expr: 'context.seen + [{s}]'}}}}}}}}" for s in delays
    )
    app, backend = watched_app(
        machine(f"id: m\ninitial: a\ncontext: {{seen: []}}\nstates: {{a: {{after: {{{timers}}}}}}}")
    )
    app.start("m", id="x")
    assert len(timers_of(app, "x")) == 10
    backend.sleep(20)
    backend.forget()
    work_once(app, "x")
    assert app.get("x").context["seen"] == sorted(delays) and timers_of(app, "x") == []
    assert backend.calls().count("Write") == 1


def test_more_due_timers_than_a_batch_takes_all_fire() -> None:
    parts = "\n".join(f"  r{n}: {{initial: a, states: {{a: {{after: {{1s: b}}}}, b: {{}}}}}}" for n in range(30))
    app, backend = watched_app(machine(f"id: m\ntype: parallel\nstates:\n{parts}"), batch_max=8)
    app.start("m", id="x")
    backend.sleep(2)
    assert work_once(app, "x").has_more
    work(app, "x")
    assert app.get("x").configuration == [f"r{n}.b" for n in range(30)]


REMINDER = """
id: reminder
initial: a
context: {got: []}
states:
  a:
    on:
      remind: {actions: {type: send, params: {event: ping, id: mine, delay: 10s, data: {n: {expr: event.n}}}}}
      tell: {actions: {type: send, params: {event: ping, to: {expr: event.to}, delay: 5s, data: {n: 9}}}}
      forget: {actions: {type: cancel, params: {id: mine}}}
      ping: {actions: {type: assign, params: {got: {expr: "context.got + [event.n]"}}}}
      move: b
  b: {on: {ping: {actions: {type: assign, params: {got: {expr: "context.got + [event.n]"}}}}}}
"""


def test_a_delayed_send_arrives_at_its_time_even_when_its_state_was_left(casework_app: Maker) -> None:
    app = casework_app(machine(REMINDER))
    app.start("reminder", id="r")
    app.handle("r", "remind", {"n": 1})
    app.handle("r", "move")
    app.advance("9s")
    assert app.get("r").context["got"] == []
    app.advance("1s")
    assert app.get("r").context["got"] == [1] and timers_of(app, "r") == []


def test_a_delayed_send_reaches_another_execution_and_is_lost_when_there_is_none(casework_app: Maker) -> None:
    app = casework_app(machine(REMINDER))
    for id in ("r", "s"):
        app.start("reminder", id=id)
    app.handle("r", "tell", {"to": "s"})
    app.advance("5s")
    assert app.get("s").context["got"] == [9] and app.get("r").context["got"] == []


def test_cancel_takes_back_every_delayed_send_of_its_id_and_no_other(casework_app: Maker) -> None:
    app = casework_app(machine(REMINDER))
    app.start("reminder", id="r")
    app.handle("r", "remind", {"n": 1})
    app.handle("r", "remind", {"n": 2})
    app.handle("r", "tell", {"to": "r"})
    app.handle("r", "forget")
    app.handle("r", "forget")
    app.advance("1m")
    assert app.get("r").context["got"] == [9]


def test_a_delayed_send_that_is_due_cannot_be_cancelled_by_a_later_event() -> None:
    app, backend = watched_app(machine(REMINDER))
    app.start("reminder", id="r")
    app.handle("r", "remind", {"n": 1})
    backend.sleep(11)
    app.handle("r", "forget")
    assert app.get("r").context["got"] == [1]


def test_ending_disarms_all_timers(casework_app: Maker) -> None:
    app = casework_app(machine(REMINDER))
    app.start("reminder", id="r")
    app.handle("r", "remind", {"n": 1})
    app.terminate("r")
    assert timers_of(app, "r") == [] and app._next_due_us() is None


def test_a_timer_that_arms_itself_again_runs_at_its_pace(casework_app: Maker) -> None:
    app = casework_app(
        machine("""
id: tick
initial: a
context: {n: 0}
states:
  a: {after: {1m: {target: a, reenter: true, actions: {type: assign, params: {n: {expr: context.n + 1}}}}}}
""")
    )
    app.start("tick", id="t")
    app.advance("1h")
    assert app.get("t").context["n"] == 60


def test_timers_of_others_fire_before_a_backlog_of_messages_is_worked_off() -> None:
    """A sweep looks at timers first, and again between the pages of a backlog."""
    app, backend = watched_app(machine(DOOR), machine(RACE))
    app.start("door", id="d")
    app.handle("d", "open")
    for n in range(400):
        app.start("order", id=f"o{n}")
        app.send(f"o{n}", "pay")
    backend.sleep(11)
    worker = Worker(app.core.rt, WorkerOptions(group=16))
    run(sweep(worker), backend)
    assert app.get("d").configuration == ["shut"]
    left = [n for n in range(400) if app.get(f"o{n}").configuration == ["open"]]
    assert left, "the backlog is not worked off in one go"
    while run(sweep(worker), backend):
        pass
    assert {app.get(f"o{n}").configuration[0] for n in range(400)} == {"paid"}


def test_the_index_entry_of_a_state_is_its_earliest_timer(casework_app: Maker) -> None:
    app, backend = watched_app(machine(REMINDER))
    app.start("reminder", id="r")
    assert "pending" not in state_item(backend, "r")
    app.handle("r", "remind", {"n": 1})
    app.handle("r", "tell", {"to": "r"})
    item = state_item(backend, "r")
    assert item["rank_us"] == min(due for _, _, due in timers_of(app, "r"))
    assert str(item["pending"]).startswith("timer/")
    backend.sleep(6)
    work(app, "r")
    assert state_item(backend, "r")["rank_us"] == timers_of(app, "r")[0][2]
    app.handle("r", "forget")
    assert "pending" not in state_item(backend, "r") and items_of(backend, "r") == [state_item(backend, "r")]


@pytest.mark.parametrize("delay", [-1, "nonsense", 10**30, None])
def test_a_delay_that_cannot_be_is_an_error_of_the_chart(casework_app: Maker, delay: Any) -> None:
    app = casework_app(
        machine("""
id: m
initial: a
states:
  a: {on: {go: {actions: {type: send, params: {event: x, delay: {expr: event.delay}}}}, error.execution: b, x: c}}
  b: {}
  c: {}
""")
    )
    app.start("m", id="x")
    app.send("x", "go", {"delay": delay if delay != 10**30 else 2**62})
    app.settle()
    assert app.get("x").configuration == ["b"]


def test_a_timer_does_not_overtake_messages_beyond_the_first_page_of_the_mailbox() -> None:
    app, backend = watched_app(
        machine("""
id: m
initial: a
context: {seen: []}
states:
  a: {after: {60s: late}, on: {note: {actions: {type: assign, params: {seen: {expr: "context.seen + [event.n]"}}}}}}
  late: {on: {note: {}}}
""")
    )
    app.start("m", id="x")
    for n in range(20):
        app.send("x", "note", {"n": n, "padding": "x" * 100_000})
    backend.sleep(100)
    work(app, "x")
    assert app.get("x").context["seen"] == list(range(20)) and app.get("x").configuration == ["late"]
