"""What ``casework new`` writes: a small machine that runs as it is."""

from __future__ import annotations

DEFINITION = """\
# The machine NAME. `casework check NAME.yaml` finds what is wrong with it.
id: NAME
version: "1"
context:
  who: {expr: 'get(input, "who", "world")'}
  greeting: null
initial: greeting
states:
  greeting:
    invoke:
      src: {task: greet}
      input: {expr: '{"who": context.who}'}
      retry: {max_attempts: 5, initial: 1s}
      timeout: 30s
      onDone: {target: waiting, actions: {type: assign, params: {greeting: {expr: event.output}}}}
      onError: failed
  waiting:
    on:
      Thanks: {target: finished, actions: note_thanks}
    after:
      7d: finished
  finished:
    type: final
    output: {expr: context.greeting}
  failed:
    type: final
"""

FUNCTIONS = '''\
"""The functions of the machine NAME. Run them with: casework worker NAME:machine"""

from pathlib import Path
from typing import Any

import casework

machine = casework.Machine.load(Path(__file__).with_name("NAME.yaml"))


@machine.task
def greet(task: casework.TaskContext, *, who: str) -> str:
    """A side effect: run at least once, so pass task.idempotency_key to whatever it calls."""
    return f"Hello, {who}!"


@machine.action
def note_thanks(context: dict[str, Any], event: Any) -> dict[str, Any]:
    """Pure: returns what changes in the context."""
    return {"greeting": context["greeting"] + " You are welcome."}
'''

TEST = '''\
"""Runs with: python -m pytest test_NAME.py. In virtual time: seven days pass at once."""

from NAME import machine


def test_it_greets_and_says_goodbye_when_thanked(casework_app):
    app = casework_app(machine)
    app.start("NAME", id="1", input={"who": "Ada"})
    app.advance("1s")
    app.send("1", "Thanks")
    assert app.wait("1").output == "Hello, Ada! You are welcome."


def test_it_does_not_wait_for_ever(casework_app):
    app = casework_app(machine)
    app.start("NAME", id="1", input={"who": "Ada"})
    app.advance("6d")
    assert app.get("1").is_in("waiting")
    app.advance("2d")
    assert app.get("1").status == "done"


def test_a_failing_task_is_tried_again_under_the_same_key(casework_app):
    app = casework_app(machine)
    app.fake("greet", RuntimeError("not today"), "Hello again!")
    app.start("NAME", id="1")
    app.advance("1m")
    assert app.get("1").context["greeting"] == "Hello again!"
    assert [call.attempt for call in app.calls("greet")] == [1, 2]
    assert len({call.idempotency_key for call in app.calls("greet")}) == 1
'''


def files(name: str) -> dict[str, str]:
    """The files of a new machine, by name."""
    texts = {f"{name}.yaml": DEFINITION, f"{name}.py": FUNCTIONS, f"test_{name}.py": TEST}
    return {path: text.replace("NAME", name) for path, text in texts.items()}
