"""Starting, sending, handling, waiting: what the ten lines of the README promise, on both faces."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Iterator
from typing import Any

import pytest

import casework
from casework.app.aio import AsyncApp
from casework.app.arguments import make_options
from casework.app.core import Core
from casework.app.sync import prepare
from casework.backends.drive import run
from casework.backends.surroundings import VirtualClock
from casework.backends.threaded import ThreadedBackend
from casework.errors import (
    ExecutionExists,
    ItemTooLarge,
    Misuse,
    NoSuchExecution,
    NotJson,
    OutcomeUnknown,
    UnknownEvent,
    UnknownMachine,
    WaitTimeout,
)
from casework.executions import deliver
from casework.executions.state import RECENT_IDS
from casework.kernel.effects import Transact, Write
from casework.kernel.items import Put
from casework.kernel.schema import DEFAULT_BUCKETS
from casework.statechart import Machine
from tests.executions.watching import (
    ByHand,
    WatchedBackend,
    app_on,
    items_of,
    machine,
    state_item,
    watched_app,
    work,
    work_once,
)

ORDER = """
id: order
initial: open
context: {amount: {expr: "get(input, 'amount', 0)"}, seen: []}
states:
  open:
    on:
      add: {actions: {type: assign, params: {seen: {expr: "context.seen + [event.n]"}}}}
      pay: paid
      wait: later
  later: {after: {10s: open}, on: {pay: paid}}
  paid: {type: final}
output: {n: {expr: "len(context.seen)"}}
"""


def order(text: str = ORDER) -> Machine:
    return machine(text)


class Face:
    """The same calls on the blocking application, or on the one with ``await``."""

    def __init__(self, kind: str, *machines: Machine, **options: Any) -> None:
        self.backend = WatchedBackend(clock=VirtualClock())
        self.blocking = app_on(self.backend, *machines, **options)
        self.app: Any = self.blocking
        self._runner = asyncio.Runner()
        if kind == "async":
            core = Core(machines, make_options(**options), None)
            prepare(core, self.backend, create=True)
            self.app = AsyncApp(core, ThreadedBackend(self.backend), owns_backend=True, create=False)
            self._runner.run(self.app.__aenter__())
            self.backend.forget()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.app, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            answer = method(*args, **kwargs)
            return self._runner.run(answer) if inspect.iscoroutine(answer) else answer

        return call

    def work(self, id: str) -> None:
        work(self.blocking, id)

    def close_all(self) -> None:
        if self.app is not self.blocking:
            self._runner.run(self.app.close())
        self._runner.close()


@pytest.fixture(params=["sync", "async"])
def face(request: pytest.FixtureRequest) -> Iterator[Face]:
    made = Face(request.param, order())
    yield made
    made.close_all()


# --- start ------------------------------------------------------------------------------------------------------------


def test_start_gives_the_execution_after_its_first_step(face: Face) -> None:
    started = face.start("order", id="o-1", input={"amount": 5})
    assert (started.id, started.status, started.configuration) == ("o-1", "running", ["open"])
    assert started.context == {"amount": 5, "seen": []} and started.version == 1
    assert face.get("o-1") == started


def test_starting_again_with_the_same_machine_and_input_returns_what_there_is(face: Face) -> None:
    first = face.start("order", id="o-1", input={"amount": 5, "b": [1, {"c": None}]})
    face.handle("o-1", "add", {"n": 1})
    face.backend.forget()
    again = face.start("order", id="o-1", input={"b": [1, {"c": None}], "amount": 5})
    assert again.context["seen"] == [1] and again.created_at_us == first.created_at_us
    assert face.backend.written == []


def test_starting_again_after_the_end_returns_the_ended_one(face: Face) -> None:
    face.start("order", id="o-1")
    face.handle("o-1", "pay")
    assert face.start("order", id="o-1").status == "done"


@pytest.mark.parametrize("input", [{"amount": 6}, {"amount": 5.0}, {}, None, {"amount": True}])
def test_the_same_id_with_other_input_is_refused(face: Face, input: Any) -> None:
    face.start("order", id="o-1", input={"amount": 5})
    with pytest.raises(ExecutionExists, match="with other input"):
        face.start("order", id="o-1", input=input)
    assert face.get("o-1").version == 1


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_the_same_id_with_another_machine_is_refused(kind: str) -> None:
    face = Face(kind, order(), order(ORDER.replace("id: order", "id: other")))
    face.start("order", id="o-1")
    with pytest.raises(ExecutionExists, match="with machine 'order'"):
        face.start("other", id="o-1")
    face.close_all()


def test_starts_without_an_id_get_one_of_their_own(face: Face) -> None:
    ids = {face.start("order").id for _ in range(5)}
    assert len(ids) == 5 and all(face.get(id).status == "running" for id in ids)


@pytest.mark.parametrize("id", ["", "a\nb", "a\0b", "x" * 513, "ä" * 257, "\ud800", 5, b"x", ["a"]])
def test_what_cannot_be_an_id_is_refused_before_anything_is_written(face: Face, id: Any) -> None:
    face.backend.forget()
    with pytest.raises(Misuse, match="not an execution id"):
        face.start("order", id=id)
    with pytest.raises(Misuse, match="not an execution id"):
        face.send(id, "pay")
    with pytest.raises(Misuse, match="not an execution id"):
        face.handle(id, "pay")
    assert face.backend.written == []


@pytest.mark.parametrize("id", [" ", " o-1", "o-1 ", "\u3000"])
def test_no_execution_is_started_under_an_id_with_white_space_at_an_end(face: Face, id: str) -> None:
    face.backend.forget()
    with pytest.raises(Misuse, match=r"not an execution id|white space"):
        face.start("order", id=id)
    assert face.backend.written == []


def test_looking_for_what_is_no_id_says_so(face: Face) -> None:
    for call in (face.get, face.inspect, face.wait, face.trace, face.cancel, face.purge):
        with pytest.raises(Misuse, match="'' is not an execution id"):
            call("")


@pytest.mark.parametrize("id", ["x" * 512, "ä" * 256, "a/b.1.0", "~", "o 1", "0", "漢字"])
def test_any_other_id_works(face: Face, id: str) -> None:
    face.start("order", id=id)
    face.send(id, "add", {"n": 1})
    face.work(id)
    assert face.handle(id, "pay").output == {"n": 1}
    assert [execution.id for execution in face.list(machine="order", status="done").items] == [id]


def test_unknown_machines_and_executions_are_named(face: Face) -> None:
    with pytest.raises(UnknownMachine, match="known: order"):
        face.start("ordre", id="o-1")
    for call in (face.get, face.wait, face.cancel, face.terminate, face.suspend, face.resume, face.retry, face.redrive,
                 face.migrate, face.purge, face.trace):  # fmt: skip
        with pytest.raises(NoSuchExecution, match="'nobody'"):
            call("nobody")
    for call in (face.send, face.handle):
        with pytest.raises(NoSuchExecution, match="'nobody'"):
            call("nobody", "pay")
    assert face.backend.written[1:] == []


def test_a_start_whose_answer_is_lost_is_found_or_done_again() -> None:
    for applied in (True, False):
        app, backend = watched_app(order())
        start = ByHand(deliver.start(app.core.rt, "order", "o-1", {"amount": 1}), backend)
        start.up_to(lambda effect: isinstance(effect, Write) and "status" in effect.write.item)  # type: ignore[union-attr]
        start.lose_answer(OutcomeUnknown("lost"), applied=applied)
        assert start.finish().context == {"amount": 1, "seen": []}
        assert app.get("o-1").version == 1


def test_of_two_that_start_one_id_at_once_both_get_the_one_execution() -> None:
    app, backend = watched_app(order())
    other = app_on(backend, order())
    start = ByHand(deliver.start(app.core.rt, "order", "o-1", {"amount": 1}), backend)
    start.up_to(lambda effect: isinstance(effect, Write) and "status" in effect.write.item)  # type: ignore[union-attr]
    first = other.start("order", id="o-1", input={"amount": 1})
    assert start.finish() == first


def test_a_machine_that_ends_at_once_is_done_when_start_returns(face: Face) -> None:
    made = Face("sync", machine("id: m\ninitial: a\nstates: {a: {type: final}}\noutput: {expr: \"{'x': 1}\"}"))
    assert made.start("m", id="x").output == {"x": 1} and made.get("x").has_ended
    made.close_all()


# --- what is not JSON -------------------------------------------------------------------------------------------------

BAD = [
    (math.nan, "NaN|nan"),
    (-math.inf, "inf"),
    ({1, 2}, "sorted list"),
    ((1, 2), "use a list"),
    ({1: "a"}, "key 1 is not a string"),
    (b"abc", "base64"),
    (2**63, "64 bits"),
    (-(2**63) - 1, "64 bits"),
    ("\ud800", "lone surrogate"),
    (object(), "not JSON"),
]


@pytest.mark.parametrize(("value", "said"), BAD, ids=lambda value: type(value).__name__)
def test_what_json_cannot_hold_is_refused_with_its_path_and_nothing_is_written(
    face: Face, value: Any, said: str
) -> None:
    face.start("order", id="o-1")
    face.backend.forget()
    deep = {"list": [0, {"at": value}]}
    place = r"list\[1\]\.at"
    for call, where in (
        (lambda: face.start("order", id="o-2", input=deep), "input"),
        (lambda: face.send("o-1", "add", deep), "data"),
        (lambda: face.handle("o-1", "add", deep), "data"),
    ):
        with pytest.raises(NotJson, match=rf"^{where}\.{place}: .*({said})"):
            call()
    assert face.backend.written == [] and face.get("o-1").version == 1


@pytest.mark.parametrize(("value", "said"), BAD, ids=lambda value: type(value).__name__)
def test_an_action_cannot_bring_it_into_the_context_either(value: Any, said: str) -> None:
    m = machine(
        "id: m\ninitial: a\nstates: {a: {on: {go: {actions: spoil, target: b}}}, b: {on: {error.execution: c}}, c: {}}"
    )

    @m.action
    def spoil(context: Any, event: Any) -> Any:
        return {"deep": [value]}

    app, _ = watched_app(m)
    app.start("m", id="x")
    assert app.handle("x", "go").configuration == ["c"] and app.get("x").context == {}


def test_what_json_can_hold_comes_back_unchanged(face: Face) -> None:
    value = {"a": [1, 1.5, True, None, "ä\u0000\n", {}], "big": 2**63 - 1, "small": -(2**63), "z": 1e300}
    face.start("order", id="o-1", input={"amount": value})
    assert face.get("o-1").context["amount"] == value
    face.send("o-1", "add", {"n": value})
    face.work("o-1")
    assert face.handle("o-1", "add", {"n": value}).context["seen"] == [value, value]


def test_a_context_that_is_too_large_is_refused_and_nothing_is_written(face: Face) -> None:
    with pytest.raises(ItemTooLarge, match="the limit is 4"):
        face.start("order", id="o-1", input={"amount": "x" * 410_000})
    with pytest.raises(NoSuchExecution):
        face.get("o-1")
    face.start("order", id="o-2", input={"amount": "x" * 300_000})
    face.backend.forget()
    with pytest.raises(ItemTooLarge):
        face.handle("o-2", "add", {"n": "y" * 200_000})
    with pytest.raises(ItemTooLarge):
        face.send("o-2", "add", {"n": "y" * 410_000})
    assert face.backend.written == [] and face.get("o-2").version == 1


@pytest.mark.parametrize("size", range(399_000, 400_000, 100))
def test_an_execution_of_any_size_can_be_ended(size: int) -> None:
    app, _ = watched_app(order())
    try:
        app.start("order", id="o-1", input={"amount": "x" * size})
    except ItemTooLarge:
        assert size > 399_300
    else:
        app.suspend("o-1")
        app.resume("o-1")
        assert app.terminate("o-1").status == "cancelled"


# --- send and handle --------------------------------------------------------------------------------------------------


def test_a_sent_event_waits_until_it_is_worked_on(face: Face) -> None:
    face.start("order", id="o-1")
    assert face.send("o-1", "add", {"n": 1}) is None
    assert face.get("o-1").context["seen"] == []
    face.work("o-1")
    assert face.get("o-1").context["seen"] == [1] and items_of(face.backend, "o-1", "e/") == []


def test_events_of_one_sender_are_taken_in_order(face: Face) -> None:
    face.start("order", id="o-1")
    for n in range(150):
        face.send("o-1", "add", {"n": n}, priority=n % 5)
    face.work("o-1")
    assert face.get("o-1").context["seen"] == list(range(150))


def test_a_payload_of_none_is_an_empty_mapping_and_other_json_is_kept(face: Face) -> None:
    m = machine("""
id: m
initial: a
context: {got: null}
states: {a: {on: {go: {actions: {type: assign, params: {got: {expr: event.data}}}}}}}
""")
    made = Face("sync", m)
    made.start("m", id="x")
    for given, got in ((None, {}), ([1], [1]), ("text", "text"), (0, 0), (False, False)):
        assert made.handle("x", "go", given).context == {"got": got}
        made.send("x", "go", given)
        made.work("x")
        assert made.get("x").context == {"got": got}
    made.close_all()


def test_handle_returns_the_state_after_the_event_and_overtakes_the_mailbox(face: Face) -> None:
    face.start("order", id="o-1")
    face.send("o-1", "add", {"n": 1})
    assert face.handle("o-1", "add", {"n": 2}).context["seen"] == [2]
    face.work("o-1")
    assert face.get("o-1").context["seen"] == [2, 1]


def test_an_event_that_nothing_matches_now_says_so(face: Face) -> None:
    face.start("order", id="o-1")
    face.handle("o-1", "wait")
    answer = face.handle("o-1", "add", {"n": 1})
    assert not answer.is_taken and not answer.is_duplicate and answer.configuration == ["later"]


def test_handle_fires_due_timers_first(face: Face) -> None:
    face.start("order", id="o-1")
    face.handle("o-1", "wait")
    face.backend.sleep(11)
    assert face.handle("o-1", "add", {"n": 1}).context["seen"] == [1]


@pytest.mark.parametrize(
    "event", ["nothing", "", None, 5, "pay ", "\ud800", "x" * 1100, "after:0:later", "done.invoke.x"]
)
def test_an_event_that_the_machine_does_not_know_is_refused(face: Face, event: Any) -> None:
    face.start("order", id="o-1")
    face.backend.forget()
    with pytest.raises(Misuse) as caught:
        face.send("o-1", event)
    with pytest.raises(Misuse):
        face.handle("o-1", event)
    assert not isinstance(event, str) or isinstance(caught.value, UnknownEvent) or event in ("", "\ud800", "x" * 1100)
    assert face.backend.written == []


@pytest.mark.parametrize("priority", [-1, 5, 1.0, "1", None, True])
def test_a_priority_is_a_whole_number_from_0_to_4(face: Face, priority: Any) -> None:
    face.start("order", id="o-1")
    face.backend.forget()
    for call in (face.send, face.handle):
        with pytest.raises(Misuse, match="0 to 4"):
            call("o-1", "pay", priority=priority)
    assert face.backend.written == []


@pytest.mark.parametrize("event_id", ["", 5, b"x", "\ud800", "x" * 1025])
def test_what_cannot_be_an_event_id_is_refused(face: Face, event_id: Any) -> None:
    face.start("order", id="o-1")
    face.backend.forget()
    for call in (face.send, face.handle):
        with pytest.raises(Misuse, match="event_id"):
            call("o-1", "pay", event_id=event_id)
    assert face.backend.written == []


def test_a_higher_priority_stands_before_what_was_due_up_to_a_minute_earlier() -> None:
    app, backend = watched_app(order())
    for id in ("a", "b"):
        app.start("order", id=id)
    app.send("a", "pay")
    backend.sleep(30)
    app.send("b", "pay", priority=1)
    ranks = {id: items_of(backend, id, "e/")[0]["rank_us"] for id in ("a", "b")}
    assert ranks["b"] < ranks["a"]


# --- duplicates -------------------------------------------------------------------------------------------------------


def test_an_event_id_takes_effect_once_however_it_comes(face: Face) -> None:
    face.start("order", id="o-1")
    face.send("o-1", "add", {"n": 1}, event_id="e")
    face.send("o-1", "add", {"n": 2}, event_id="e")
    face.work("o-1")
    answer = face.handle("o-1", "add", {"n": 3}, event_id="e")
    assert answer.is_duplicate and not answer.is_taken and answer.context["seen"] == [1]
    face.send("o-1", "add", {"n": 4}, event_id="e")
    face.work("o-1")
    assert face.get("o-1").context["seen"] == [1]
    assert items_of(face.backend, "o-1", "e/") == []


def test_an_event_id_belongs_to_its_execution(face: Face) -> None:
    for id in ("o-1", "o-2"):
        face.start("order", id=id)
        assert not face.handle(id, "add", {"n": 1}, event_id="e").is_duplicate


def test_the_last_32_ids_are_remembered_and_no_more(face: Face) -> None:
    face.start("order", id="o-1")
    for n in range(RECENT_IDS):
        face.handle("o-1", "add", {"n": n}, event_id=f"e{n}")
    assert face.handle("o-1", "add", {"n": 99}, event_id="e0").is_duplicate
    face.handle("o-1", "add", {"n": 32}, event_id="e32")
    assert not face.handle("o-1", "add", {"n": 0}, event_id="e0").is_duplicate
    assert face.handle("o-1", "add", {"n": 0}, event_id="e2").is_duplicate
    assert RECENT_IDS == 32 and len(state_item(face.backend, "o-1")["recent_ids"]) == 32 * 8


def test_an_event_that_matched_nothing_counts_as_taken_all_the_same(face: Face) -> None:
    face.start("order", id="o-1")
    face.handle("o-1", "wait")
    face.handle("o-1", "add", {"n": 1}, event_id="e")
    face.backend.sleep(11)
    assert face.handle("o-1", "add", {"n": 1}, event_id="e").is_duplicate


def test_a_duplicate_in_one_batch_does_not_end_it(face: Face) -> None:
    face.start("order", id="o-1")
    for n in range(3):
        face.send("o-1", "add", {"n": n}, event_id="same")
    face.send("o-1", "add", {"n": 9}, event_id="other")
    work_once(face.blocking, "o-1")
    assert face.get("o-1").context["seen"] == [0, 9]


@pytest.fixture(params=["sync", "async"])
def marking(request: pytest.FixtureRequest) -> Iterator[Face]:
    made = Face(request.param, order(), dedupe_window_s=3600)
    yield made
    made.close_all()


def test_with_a_window_an_id_is_remembered_beyond_the_last_32(marking: Face) -> None:
    face = marking
    face.start("order", id="o-1")
    for n in range(50):
        face.send("o-1", "add", {"n": n}, event_id=f"e{n}")
    face.work("o-1")
    assert face.handle("o-1", "add", {"n": 99}, event_id="e0").is_duplicate
    face.send("o-1", "add", {"n": 99}, event_id="e1")
    face.send("o-1", "add", {"n": 50}, event_id="e50")
    face.work("o-1")
    assert face.get("o-1").context["seen"] == list(range(51))
    assert items_of(face.backend, "o-1", "e/") == [] and len(items_of(face.backend, "o-1", "s/")) == 51


def test_a_mark_that_has_run_out_but_was_not_reaped_counts_no_more(marking: Face) -> None:
    face = marking
    face.start("order", id="o-1")
    for n in range(40):
        face.handle("o-1", "add", {"n": n}, event_id=f"e{n}")
    face.backend.sleep(3602)
    assert not face.handle("o-1", "add", {"n": 100}, event_id="e0").is_duplicate
    face.send("o-1", "add", {"n": 101}, event_id="e1")
    face.work("o-1")
    assert face.get("o-1").context["seen"][-2:] == [100, 101]
    assert len(items_of(face.backend, "o-1", "s/")) == 40
    for n in range(40, 80):
        face.handle("o-1", "add", {"n": n}, event_id=f"e{n}")
    assert face.handle("o-1", "add", {"n": 0}, event_id="e0").is_duplicate


def test_an_event_without_an_id_pays_no_mark(marking: Face) -> None:
    face = marking
    face.start("order", id="o-1")
    face.handle("o-1", "add", {"n": 1})
    face.send("o-1", "add", {"n": 2})
    face.work("o-1")
    assert items_of(face.backend, "o-1", "s/") == []


def test_a_handled_event_whose_answer_was_lost_is_taken_once() -> None:
    for event_id in (None, "e"):
        for applied in (True, False):
            app, backend = watched_app(order())
            app.start("order", id="o-1")
            handle = ByHand(deliver.handle(app.core.rt, "o-1", "add", {"n": 1}, event_id=event_id), backend)
            handle.up_to().lose_answer(OutcomeUnknown("lost"), applied=applied)
            answer, held = handle.finish()
            assert answer.context["seen"] == [1] and app.get("o-1").context["seen"] == [1]
            assert answer.is_taken or event_id is not None
            assert (held is None) == applied


def test_a_retried_send_whose_first_attempt_was_stored_is_taken_once() -> None:
    app, backend = watched_app(order())
    app.start("order", id="o-1")
    send = ByHand(deliver.send(app.core.rt, "o-1", "add", {"n": 1}, event_id="e"), backend)
    send.up_to().lose_answer  # noqa: B018 - the message below is the first attempt's
    with pytest.raises(OutcomeUnknown):
        send.lose_answer(OutcomeUnknown("lost"), applied=True)
    app.send("o-1", "add", {"n": 1}, event_id="e")
    work(app, "o-1")
    assert app.get("o-1").context["seen"] == [1]


# --- ended, suspended, pending ----------------------------------------------------------------------------------------


def test_events_for_an_ended_execution_become_dead_letters(face: Face) -> None:
    face.start("order", id="o-1")
    face.handle("o-1", "pay")
    face.send("o-1", "add", {"n": 1}, event_id="late")
    answer = face.handle("o-1", "add", {"n": 2})
    assert answer.status == "done" and not answer.is_taken
    face.work("o-1")
    dead = face.dead_letters().items
    assert [(d.execution_id, d.events[0]["data"]) for d in dead] == [("o-1", {"n": 1}), ("o-1", {"n": 2})]
    assert all("had ended: done" in d.reason for d in dead)
    assert face.get("o-1").version == 2 and items_of(face.backend, "o-1", "e/") == []


def test_a_repeat_of_the_event_that_ended_it_is_a_duplicate_and_no_dead_letter(face: Face) -> None:
    face.start("order", id="o-1")
    assert face.handle("o-1", "pay", event_id="p").status == "done"
    answer = face.handle("o-1", "pay", event_id="p")
    assert answer.is_duplicate and answer.status == "done" and answer.output == {"n": 0}
    face.work("o-1")
    assert face.dead_letters().items == []


def test_an_event_whose_turn_comes_after_a_due_timer_has_ended_the_execution_is_not_swallowed() -> None:
    app, backend = watched_app(
        machine("id: m\ninitial: a\nstates: {a: {after: {1s: b}, on: {go: a}}, b: {type: final}}")
    )
    app.start("m", id="x")
    backend.sleep(2)
    answer = app.handle("x", "go", {"n": 1}, event_id="e")
    assert answer.status == "done" and not answer.is_taken and not answer.is_duplicate
    work(app, "x")
    (dead,) = app.dead_letters().items
    assert dead.events[0]["data"] == {"n": 1}


def test_events_that_wait_when_an_execution_ends_become_dead_letters(face: Face) -> None:
    face.start("order", id="o-1")
    for event in ("add", "pay", "add", "add"):
        face.send("o-1", event, {"n": 1})
    face.work("o-1")
    assert face.get("o-1").output == {"n": 1} and len(face.dead_letters().items) == 2


def test_a_suspended_execution_keeps_its_events_and_takes_them_in_order_when_it_goes_on(face: Face) -> None:
    face.start("order", id="o-1")
    face.send("o-1", "add", {"n": 1})
    face.suspend("o-1")
    face.send("o-1", "add", {"n": 2})
    answer = face.handle("o-1", "add", {"n": 3})
    assert answer.status == "suspended" and not answer.is_taken
    face.work("o-1")
    assert face.get("o-1").context["seen"] == [] and len(items_of(face.backend, "o-1", "e/")) == 3
    face.resume("o-1")
    face.work("o-1")
    assert face.get("o-1").context["seen"] == [1, 2, 3]


def test_a_pending_execution_begins_when_it_handles_its_first_event() -> None:
    parent = machine("id: p\ninitial: a\nstates: {a: {invoke: {id: kid, src: {machine: order}, input: {amount: 7}}}}")
    app, backend = watched_app(parent, order())
    app.start("p", id="p")
    kid = next(key for key in backend.tables.stored(state_key().table).items if key[0].startswith("p/"))[0]
    assert app.get(kid).status == "pending"
    assert app.handle(kid, "add", {"n": 1}).context == {"amount": 7, "seen": [1]}
    assert app.get(kid).status == "running"


def state_key() -> Any:
    from casework.kernel.schema import EXECUTIONS

    return EXECUTIONS.key("x", "0")


# --- wait -------------------------------------------------------------------------------------------------------------


def test_wait_returns_an_ended_execution_with_its_output_or_error(face: Face) -> None:
    face.start("order", id="o-1")
    face.handle("o-1", "pay")
    assert face.wait("o-1").output == {"n": 0}
    face.start("order", id="o-2")
    face.terminate("o-2")
    ended = face.wait("o-2", timeout_s=0)
    assert ended.status == "cancelled" and ended.error is not None and ended.output is None


def test_wait_raises_only_when_its_time_is_over(face: Face) -> None:
    face.start("order", id="o-1")
    with pytest.raises(WaitTimeout, match="within 3 s; it is in open"):
        face.wait("o-1", timeout_s=3)
    with pytest.raises(TimeoutError):
        face.wait("o-1", timeout_s=0)


# --- the held state ---------------------------------------------------------------------------------------------------


def test_an_event_in_line_is_one_read_and_one_write_and_the_next_one_the_write_alone(face: Face) -> None:
    face.start("order", id="o-1")
    face.backend.forget()
    face.handle("o-1", "add", {"n": 1}, event_id="a")
    assert face.backend.calls() == ["Get", "Write"] and face.backend.units.base == 1
    face.backend.forget()
    face.handle("o-1", "add", {"n": 2}, event_id="b")
    assert face.backend.calls() == ["Write"] and face.backend.units.total == 1
    assert face.get("o-1").context["seen"] == [1, 2]


def test_a_held_state_that_is_stale_is_read_again(face: Face) -> None:
    other = app_on(face.backend, order())
    face.start("order", id="o-1")
    face.handle("o-1", "add", {"n": 1})
    other.handle("o-1", "add", {"n": 2})
    assert face.handle("o-1", "add", {"n": 3}).context["seen"] == [1, 2, 3]


def test_only_a_state_that_this_process_wrote_is_held(face: Face) -> None:
    face.start("order", id="o-1")
    other = app_on(face.backend, order())
    other.handle("o-1", "add", {"n": 1}, event_id="e")
    face.handle("o-1", "add", {"n": 1}, event_id="e")
    face.backend.forget()
    face.handle("o-1", "add", {"n": 2})
    assert face.backend.calls() == ["Get", "Write"]


def test_a_held_state_that_was_suspended_is_read_again(face: Face) -> None:
    other = app_on(face.backend, order())
    face.start("order", id="o-1")
    face.handle("o-1", "add", {"n": 1})
    other.suspend("o-1")
    assert not face.handle("o-1", "add", {"n": 2}).is_taken
    other.resume("o-1")
    assert face.handle("o-1", "add", {"n": 3}).context["seen"] == [1, 3]


def test_a_held_state_of_a_purged_execution_never_comes_back(face: Face) -> None:
    other = app_on(face.backend, order())
    face.start("order", id="o-1", input={"amount": 1})
    face.handle("o-1", "add", {"n": 1})
    other.purge("o-1", force=True)
    with pytest.raises(NoSuchExecution):
        face.handle("o-1", "add", {"n": 2})
    other.start("order", id="o-1", input={"amount": 2})
    other.handle("o-1", "add", {"n": 3})
    face.start("order", id="o-1", input={"amount": 2})
    assert face.handle("o-1", "add", {"n": 4}).context == {"amount": 2, "seen": [3, 4]}


def test_a_stale_copy_of_an_earlier_life_of_an_id_changes_nothing() -> None:
    app, backend = watched_app(order())
    other = app_on(backend, order())
    app.start("order", id="o-1", input={"amount": 1})
    app.handle("o-1", "add", {"n": 1})
    other.purge("o-1", force=True)
    backend.sleep(0.000_001)
    other.start("order", id="o-1", input={"amount": 2})
    other.handle("o-1", "add", {"n": 2})
    assert other.get("o-1").version == app.core.held("o-1").version  # type: ignore[union-attr]
    assert app.handle("o-1", "add", {"n": 3}).context == {"amount": 2, "seen": [2, 3]}


def test_an_event_that_loses_three_rounds_is_sent() -> None:
    app, backend = watched_app(order())
    other = app_on(backend, order())
    app.start("order", id="o-1")
    handle = ByHand(deliver.handle(app.core.rt, "o-1", "add", {"n": 0}), backend)
    for n in range(1, 4):
        handle.up_to()
        other.handle("o-1", "add", {"n": n})
        handle.perform()
    handle.up_to()
    assert isinstance(handle.waiting, Transact) and isinstance(handle.waiting.writes[0], Put)
    answer, held = handle.finish()
    assert answer.context["seen"] == [1, 2, 3] and held is None
    work(app, "o-1")
    assert app.get("o-1").context["seen"] == [1, 2, 3, 0]


# --- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{"batch_max": 0}, {"buckets": 0}, {"buckets": "16"}, {"trace_max": -1}, {"dedupe_window_s": 1.5}],
)
def test_settings_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(Misuse, match=next(iter(options))):
        watched_app(order(), **options)


def test_the_store_keeps_the_number_of_buckets_that_it_was_made_with() -> None:
    _, backend = watched_app(order(), buckets=3)
    assert app_on(backend, order(), buckets=8).core.rt.options.buckets == 3 != DEFAULT_BUCKETS


def test_two_machines_of_one_name_are_refused() -> None:
    with pytest.raises(Misuse, match="two machines are named 'order'"):
        watched_app(order(), order())


def test_a_batch_is_bounded_and_the_rest_follows() -> None:
    app, backend = watched_app(order(), batch_max=10)
    app.start("order", id="o-1")
    for n in range(25):
        app.send("o-1", "add", {"n": n})
    assert work_once(app, "o-1").has_more
    assert len(app.get("o-1").context["seen"]) == 10 and len(items_of(backend, "o-1", "e/")) == 15
    work(app, "o-1")
    assert app.get("o-1").context["seen"] == list(range(25)) and app.get("o-1").version == 4


def test_an_execution_that_was_sent_to_many_others_goes_on() -> None:
    m = machine("""
id: m
initial: a
context: {n: 0}
states:
  a:
    on:
      tell: {actions: {type: foreach, params: {items: {expr: event.ids}, item: each, actions: [
        {type: send, params: {event: add, to: {expr: context.each}, data: {n: 1}}}]}}}
      count: {actions: {type: assign, params: {n: {expr: context.n + 1}}}}
""")
    for many in (59, 60, 61, 85, 98, 99, 250):
        app, backend = watched_app(m, order())
        app.start("m", id="x")
        targets = [f"o-{n}" for n in range(many)]
        for id in targets:
            app.start("order", id=id)
        app.send("x", "tell", {"ids": targets})
        work(app, "x")
        app.send("x", "count")
        work(app, "x")
        assert app.get("x").context["n"] == 1, many
        for id in targets:
            work(app, id)
        assert all(app.get(id).context["seen"] == [1] for id in targets)
        assert items_of(backend, "x", "x/") == []


def test_every_operation_is_on_both_faces_with_one_signature() -> None:
    from casework.app.sync import App

    names = [name for name in vars(App) if not name.startswith("_")]
    for name in names:
        mine, theirs = inspect.signature(getattr(App, name)), inspect.signature(getattr(AsyncApp, name))
        assert [*mine.parameters][1:] == [*theirs.parameters][1:], name
    assert run is not None


@pytest.mark.parametrize("machines", ["order.yaml", ["order.yaml"], [None], casework, {"a": 1}])
def test_what_is_no_list_of_machines_is_misuse(machines: Any) -> None:
    with pytest.raises(casework.Misuse, match="machine"):
        casework.open("memory:", machines=machines)


def test_what_is_no_store_is_misuse() -> None:
    with pytest.raises(casework.Misuse, match="is no store"):
        casework.open(5)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"poll_s": -1}, {"poll_s": "x"}, {"concurrency": 0}, {"lease_s": float("nan")}])
def test_a_worker_option_out_of_bounds_is_misuse_before_anything_starts(wrong: dict[str, Any]) -> None:
    with casework.open("memory:") as app, pytest.raises(casework.Misuse, match=next(iter(wrong))):
        app.worker(**wrong)
