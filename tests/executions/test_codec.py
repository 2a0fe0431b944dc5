"""With a codec, nothing of the user's stands in the store as it is."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from casework.app.arguments import make_options
from casework.app.core import Core
from casework.app.sync import App, prepare
from casework.backends.drive import run
from casework.backends.surroundings import VirtualClock
from casework.errors import CorruptItem, TaskFailed
from casework.executions.run_task import TaskRunner, settle_outcome
from casework.executions.tasks import claim_task, renew_task
from casework.kernel.effects import Outcome
from casework.kernel.schema import EXECUTIONS
from tests.executions.watching import WatchedBackend, items_of, machine, work, work_once

MACHINE = """
id: m
initial: a
context: {word: {expr: "get(input, 'word', '')"}, got: []}
states:
  a:
    on:
      note: {actions: {type: assign, params: {got: {expr: "context.got + [event.word]"}}}}
      tell: {actions: {type: send, params: {event: note, to: {expr: event.to}, data: {word: {expr: event.word}}}}}
      later: {actions: {type: send, params: {event: note, delay: 10s, data: {word: {expr: event.word}}}}}
      work: b
      fork: c
      end: d
  b: {invoke: {id: do, src: {task: do_it}, input: {word: {expr: event.word}}, onDone: a, onError: a}}
  c: {invoke: {id: kid, src: {machine: m}, each: {expr: "[event.word]"}, input: {word: {expr: item}}, onDone: a}}
  d: {type: final}
"""


class Mask:
    def encode(self, text: str) -> str:
        return "masked:" + base64.b64encode(text.encode()[::-1]).decode()

    def decode(self, text: str) -> str:
        assert text.startswith("masked:")
        return base64.b64decode(text.removeprefix("masked:"))[::-1].decode()


def app_with(codec: Any, backend: WatchedBackend | None = None) -> App:
    backend = backend or WatchedBackend(clock=VirtualClock())
    core = Core([machine(MACHINE)], make_options(trace_max=10), codec)
    prepare(core, backend, create=True)
    return App(core, backend, owns_backend=False)


def test_context_messages_timers_inputs_results_details_and_dead_letters_are_encoded() -> None:
    app = app_with(Mask())
    backend: Any = app.backend
    stored: list[str] = []

    def look() -> None:
        stored.extend(repr(item) for item in backend.tables.stored(EXECUTIONS).items.values())

    for id in ("x", "y"):
        app.start("m", id=id, input={"word": "secret"})
    app.send("x", "note", {"word": "secret"})
    app.send("x", "tell", {"to": "y", "word": "secret"})
    app.handle("x", "later", {"word": "secret"})
    look()
    work(app, "x")
    look()
    work(app, "y")
    backend.sleep(11)
    work(app, "x")
    assert app.get("x").context["got"] == ["secret", "secret"] and app.get("y").context["got"] == ["secret"]
    app.handle("x", "work", {"word": "secret"})
    (item,) = items_of(backend, "x", "w/")
    task = run(claim_task(app.core.rt, EXECUTIONS.key_of(item)), backend)
    assert task is not None
    run(renew_task(task, details={"word": "secret"}, rt=app.core.rt), backend)
    assert TaskRunner(app.core.rt, task, lambda id: None).context.details == {"word": "secret"}
    look()
    run(settle_outcome(TaskRunner(app.core.rt, task, lambda id: None), Outcome(error=TaskFailed("secret"))), backend)
    look()
    work(app, "x")
    app.handle("x", "fork", {"word": "secret"})
    look()
    app.handle("y", "end")
    app.send("y", "note", {"word": "secret"})
    work(app, "y")
    look()
    assert app.dead_letters().items[0].events[0]["data"] == {"word": "secret"}
    assert stored and not [text for text in stored if "secret" in text]


def test_a_process_whose_codec_fails_parks_what_it_cannot_read_and_says_so() -> None:
    class Failing(Mask):
        name = "Mask"
        fails = False

        def decode(self, text: str) -> str:
            if self.fails:
                raise ValueError("wrong key")
            return super().decode(text)

    app = app_with(Mask())
    app.start("m", id="x", input={"word": "secret"})
    app.send("x", "note", {"word": "secret"})
    codec = Failing()
    other = app_with(codec, app.backend)  # type: ignore[arg-type]
    codec.fails = True
    assert "wrong key" in work_once(other, "x").parked
    with pytest.raises(CorruptItem, match="wrong key"):
        other.get("x")
    work(app, "x")
    assert app.get("x").context["got"] == ["secret"]
