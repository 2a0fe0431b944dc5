"""What can be found in a definition, and where: the codes of ``casework check``.

A code never changes its meaning; messages may.
"""

from __future__ import annotations

from typing import Any, NamedTuple

SEVERITIES = ("error", "warning", "note")
"""The gravest first."""

CODES: dict[str, str] = {
    # found while the definition is read: always errors
    "definition": "something is wrong that has no code of its own; the message says what",
    "syntax": "the text is no YAML, JSON or XML",
    "duplicate-key": "a key stands twice in one mapping",
    "unknown-key": "a key that nothing reads, misspelt perhaps",
    "expression": "an expression that cannot be compiled",
    "target": "a transition, an initial state or a history leads to no state",
    "delay": "no delay, or one out of range",
    "retry": "numbers of `retry`, `timeout` and `heartbeat` that are wrong, or that contradict each other",
    # found once the machine is there
    "action-missing": "an action is named and no function registered",
    "guard-missing": "a guard is named and no function registered",
    "task-missing": "a task is named and no function registered",
    "source": "`src` is neither a task nor a machine that is known, or both",
    "machine-missing": "a machine is invoked that is not open here",
    "each-on-task": "`each` on a task: it starts machines",
    "arguments": "a function does not take what `input` or `params` give it, or needs more",
    "endless": "eventless transitions go round for ever",
    "built-in": "an action that is nearly named as a built-in one",
    "endless-timers": "timers without delay go round without end",
    "heartbeat": "a heartbeat on a machine, which has none",
    "unreachable": "no transition leads to a state",
    "dead-end": "a state that is not final takes no event and is never left",
    "shadowed": "a transition is never taken: one before it takes everything",
    "repeated": "a transition is never taken: one before it has the same event and guard",
    "timer": "a timer has no effect: it does nothing, or the state is always left before",
    "text": "a text that looks like an expression",
    "in-unknown": "`In()` asks for a state that there is not",
    "context-unknown": "a key of the context is read and never set",
    "done-never": "`onDone` of a state that has no final state",
    "done-unknown": "an event of a state or an invocation that there is not",
    "error-untaken": "an invocation whose error nothing takes: it fails the execution",
    "event-untaken": "an event is raised, or sent to the execution itself, that no transition takes",
    "child-unknown": "an event is sent to a child that nothing invokes",
    "cancel-unknown": "a send is cancelled that nothing sends",
    "publish-untaken": "an event is to be published that no transition takes",
    "defer-untaken": "an event is to be kept for a later state, and none takes it",
}
"""What each code says."""


class Place(NamedTuple):
    """Where something stands. Lines and columns count from 1, 0 where they are not known."""

    file: str = "machine"
    line: int = 0
    column: int = 0
    path: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {self.path}" if self.path else place


class Problem(NamedTuple):
    """One finding of a check."""

    severity: str
    """``error``: the machine cannot run here as it is. ``warning``: it can, and will hardly do what was meant.
    ``note``: it may well be meant; it is told because it is easily forgotten."""
    code: str
    """One of the documented codes, which stay the same; messages may change."""
    message: str
    suggestion: str
    """How to mend it, perhaps empty."""
    place: Place
    needs_functions: bool = False
    """It is so in this process, with what is registered and open here; the definition may be right."""

    @property
    def text(self) -> str:
        """Place, message and suggestion in one line."""
        return f"{self.place}: {self.message}{f' ({self.suggestion})' if self.suggestion else ''}"

    def fields(self) -> dict[str, Any]:
        """For ``--json``."""
        file, line, column, path = self.place
        return {
            "severity": self.severity, "code": self.code, "file": file, "line": line or None,
            "column": column or None, "path": path, "message": self.message, "suggestion": self.suggestion or None,
            "text": self.text,
        }  # fmt: skip

    def __str__(self) -> str:
        return f"{self.severity}: {self.text}"


class Located(str):
    """The text of a problem, with the problem itself: what ``InvalidMachine.problems`` holds."""

    problem: Problem

    @classmethod
    def of(cls, problem: Problem) -> Located:
        """The text of ``problem``."""
        text = cls(problem.text)
        text.problem = problem
        return text


def problem_of(text: str) -> Problem:
    """The problem behind a text of ``InvalidMachine.problems``."""
    found = getattr(text, "problem", None)
    if isinstance(found, Problem):
        return found
    file, _, message = text.partition(": ")
    name, _, line = file.rpartition(":")
    known = line.isdigit()
    place = Place(name if known else file, int(line) if known else 0) if message else Place()
    return Problem("error", "definition", message or text, "", place)
