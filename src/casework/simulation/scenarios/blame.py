"""Whether a guess of the simulator's is behind a failure, and how to give what is real instead.

A payload, result or input that the user did not give is made up from what expressions read. Where functions read it,
or the guess is simply wrong, an execution fails that would not have in earnest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from casework.executions.deliver import Execution
from casework.simulation.guesses import RESULT, Guess, Guesses
from casework.simulation.invariants import History
from casework.simulation.standins import StandIn
from casework.simulation.story import payload
from casework.statechart import Machine
from casework.statechart.names import states_in

DATA_ERRORS = ("KeyError", "TypeError", "IndexError", "AttributeError", "ValueError", "ZeroDivisionError", "NotJson")
"""Types of errors that data of the wrong shape gives."""


class Blame:
    """Knows what of a run was guessed."""

    def __init__(
        self, machines: Sequence[Machine], guesses: Mapping[str, Guesses],
        stand_ins: Mapping[tuple[str, str], StandIn], *, has_input: bool,
    ) -> None:  # fmt: skip
        self.guesses = guesses
        self.stand_ins = stand_ins
        self.has_input = has_input
        self._tasks = {
            machine.name: {
                invoke["id"]: next(iter(invoke["src"].values()))
                for state in states_in(machine.definition["root"])
                for invoke in state.get("invoke", [])
            }
            for machine in machines
        }

    def why(self, execution: Execution, history: History, error: Mapping[str, Any], said: str) -> str:
        """The problem in words, where a guess is or may be behind it; empty where none can be."""
        if error.get("type") not in DATA_ERRORS or not history.commits:
            return ""
        found = re.search(r"there is no key '(.*?)'", str(error.get("message", "")))
        key = found[1] if found else ""
        machine = execution.machine
        taken = [str(event.get("event", "")) for event in history.events if not event.get("duplicate")]
        last = taken[-1] if taken else ""
        direct = self._guess_of(machine, history, last)
        is_missing = bool(key) and self.guesses[machine].is_of_context(key) and key not in execution.context
        if direct is not None and (key in direct.reads or (not is_missing and (key or direct.reads or direct.calls))):
            whose = f"{execution.id} failed on a guess of the simulator's, not the chart's fault"
            return f"{whose}: {said}. {_give(*self._told(machine, history, last, key))}"
        if is_missing:
            return ""
        before = [(name, self._guess_of(machine, history, name)) for name in dict.fromkeys(taken)]
        spoken = [
            self._told(machine, history, name, "")[0]
            for name, guess in before
            if guess is not None and (guess.reads or guess.calls or guess.template)
        ]
        if not self.has_input and not execution.parent_id and self.guesses[machine].input().template:
            spoken.insert(0, "the input")
        if not spoken:
            return ""
        return (
            f"{execution.id} failed, perhaps on a guess of the simulator's: {said}. Guessed: {'; '.join(spoken[:3])}. "
            "To be sure, give real ones, with events, input and tasks in the file of --events (options in Python)"
        )

    def of_input(self, id: str, error: Exception) -> str:
        """An execution could not begin with the input that was guessed."""
        return (
            f"{id} failed on a guess of the simulator's, not the chart's fault: {error}. "
            f"{_give('the input', 'input: {...}')}"
        )

    def _guess_of(self, machine: str, history: History, event_type: str) -> Guess | None:
        """What an event's payload was guessed from; None where it was not."""
        if event_type.startswith(RESULT):
            task = self._tasks[machine].get(event_type.removeprefix(RESULT), "")
            stand_in = self.stand_ins.get((machine, task))
            return stand_in.guess if stand_in is not None else None
        if any(sent.type == event_type and sent.is_guessed for sent in history.sent):
            return self.guesses[machine].payload(event_type)
        return None

    def _told(self, machine: str, history: History, event_type: str, key: str) -> tuple[str, str]:
        """What was guessed, and how to give a real one."""
        real = f"{{{key}: ...}}" if key else "{...}"
        if event_type.startswith(RESULT):
            task = self._tasks[machine][event_type.removeprefix(RESULT)]
            results = [call.result for call in history.calls(task) if not call.error]
            gave = payload(results[-1] if results else None) or " null"
            return (
                f"the result of {task},{gave}",
                f"tasks: {{{task}: {{returns: {real}}}}}",
            )
        datas = [sent.data for sent in history.sent if sent.type == event_type]
        return (
            f"the payload of {event_type},{payload(datas[-1]) or ' {}'}",
            f"events: [{{{event_type}: {real}}}]",
        )


def _give(what: str, how: str) -> str:
    option = how.partition(":")[0]
    return f"Guessed: {what}. Give a real one: {how} in the file of --events, {option}=... in Python"
