"""What is seen of a run of a user's charts, commit by commit, and what must hold of it.

Built in: versions without a hole; an acknowledged event takes effect exactly once; a task's result is taken once for
each stay; every child reports; nothing is left undone; no execution fails unless its machine says so.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from casework.executions.deliver import Execution, view
from casework.executions.runtime import Options, Runtime
from casework.executions.state import STATE, Data, State, decode_data, decode_timers, state_of
from casework.kernel.items import Item, Key
from casework.kernel.schema import EXECUTIONS
from casework.simulation.carrier import Process
from casework.simulation.invariants import Commit, History, Invariant, TaskCall, broken
from casework.simulation.scenarios.attempts import Attempts
from casework.simulation.scenarios.blame import Blame
from casework.simulation.story import Story, step_of
from casework.simulation.world import START_US, World
from casework.statechart import Machine, Snapshot
from casework.statechart.names import states_in

_decode_trace = msgspec.json.Decoder(dict[str, Any]).decode
_decode_mails = msgspec.json.Decoder(list[list[Any]]).decode


class Watch:
    """Sees every item that becomes visible, keeps each execution's history, and asks the invariants."""

    def __init__(
        self, world: World, machines: Sequence[Machine], options: Options,
        invariants: Mapping[str, Sequence[Invariant]], blame: Blame, *, may_fail: bool,
    ) -> None:  # fmt: skip
        self.world = world
        self.rt = Runtime(machines, options)
        self.invariants = invariants
        self.blame = blame
        self.may_fail = may_fail
        self.found: list[str] = []
        """What does not hold; the run ends with the first."""
        self.calls: list[TaskCall] = []
        self.histories: dict[str, History] = {}
        self.executions: dict[str, Execution] = {}
        self.snapshots: dict[str, Snapshot] = {}
        self.states: dict[str, State] = {}
        self.data: dict[str, Data] = {}
        self.commits_n = 0
        self.attempts = Attempts()
        """Claims of tasks; kept where there is a timeline."""
        self._open: dict[str, set[str]] = {}
        self._waiting: dict[str, collections.deque[tuple[State, bool, float, str]]] = {}
        self._traces: dict[tuple[str, int], list[dict[str, Any]]] = {}
        self._on_purpose = {machine.name: raised_errors(machine) for machine in machines}
        world.store.watch = self.see

    def at_s(self) -> float:
        """Virtual seconds since the run began."""
        return (self.world.now_us - START_US) / 1e6

    def expect(self, id: str, machine: Machine) -> History:
        """The history of an execution that is to be started from outside."""
        return self._history(id, machine.name)

    def _history(self, id: str, machine: str) -> History:
        history = self.histories.get(id)
        if history is None:
            history = self.histories[id] = History(id, machine, self.executions, self.calls)
        return history

    def fail(self, why: str) -> None:
        """Something does not hold."""
        self.found.append(why)

    # --- every item ---------------------------------------------------------------------------------------------------

    def see(self, key: Key, before: Item | None, after: Item | None) -> None:
        """An item became visible; the timeline ends with the first commit that breaks something."""
        if key.table is EXECUTIONS:
            self._see(key, before, after)
            if self.found:
                self.close()

    def close(self) -> None:
        """End the timeline: what did not hold has happened."""
        if isinstance(self.world.timeline, Story):
            self.world.timeline.is_closed = True

    def _see(self, key: Key, before: Item | None, after: Item | None) -> None:
        id, sort = key.partition, str(key.sort)
        if sort == STATE:
            if after is not None:
                self._see_state(id, before, state_of(after))
        elif sort.startswith("z/"):
            if after is not None:
                entry = _decode_trace(str(after["entry"]))
                self._traces[id, entry["version"]] = entry["events"]
                self._settle(id)
        elif sort[0] in "ewx":
            there = self._open.setdefault(id, set())
            if after is None:
                there.discard(sort)
            else:
                there.add(sort)
                if sort[0] == "w" and isinstance(self.world.timeline, Story):
                    self.attempts.see(before, after, self._process(), self.world.timeline)

    def _see_state(self, id: str, before: Item | None, state: State) -> None:
        version = 0 if before is None else int(before["version"])
        if state.version == version:
            return
        if state.version != version + 1 and before is not None:
            self.fail(f"{id}: version {state.version} follows version {version}: a step was lost")
        self.states[id] = state
        data = self.data[id] = decode_data(state, self.rt.decode(state.data)) if state.machine else Data(Snapshot([]))
        self.snapshots[id] = data.snap
        self.executions[id] = view(self.rt, state)
        is_traced = state.trace_n != (0 if before is None else int(before.get("trace_n", 0)))
        waiting = self._waiting.setdefault(id, collections.deque())
        waiting.append((state, is_traced, self.at_s(), self._who()))
        self._settle(id)

    def _process(self) -> Process | None:
        """Whose write it is that becomes visible."""
        actor = self.world.actor
        process = getattr(getattr(actor, "owner", actor), "process", None)
        return process if isinstance(process, Process) else None

    def _who(self) -> str:
        process = self._process()
        return process.name if process is not None else "(store)"

    def _settle(self, id: str) -> None:
        """Take the commits whose state and trace are both visible, in order."""
        waiting = self._waiting.get(id)
        while waiting:
            state, is_traced, at_s, who = waiting[0]
            events = self._traces.get((id, state.version)) if is_traced else []
            if events is None:
                return
            waiting.popleft()
            self._commit(state, events, at_s, who)

    def _commit(self, state: State, events: list[dict[str, Any]], at_s: float, who: str) -> None:
        self.commits_n += 1
        history = self._history(state.id, state.machine)
        execution = view(self.rt, state)
        history.commits.append(Commit(state.version, at_s, execution, events))
        timeline = self.world.timeline
        if timeline is not None:
            for event in events:
                timeline.event(self.world, who, f"{state.id}: {step_of(event)}")
            if execution.has_ended:
                why = (execution.error or {}).get("message") or (execution.error or {}).get("type")
                timeline.event(self.world, who, f"{state.id} is {state.status}{f': {why}' if why else ''}")
        self._ask(execution, history)

    def _ask(self, execution: Execution, history: History) -> None:
        if self.found:
            return
        for check in (*self.invariants.get("", ()), *self.invariants.get(execution.machine, ())):
            why = broken(check, execution, history)
            if why:
                at = "at the end" if history.is_over else f"at version {execution.version}"
                self.fail(f"{why} ({at})")
                return

    # --- what is left -------------------------------------------------------------------------------------------------

    def waiting(self) -> list[str]:
        """What is stored to be done and is not done yet, each in a few words."""
        kinds = {"e": "a message", "w": "a task", "x": "a spilled write"}
        found = [f"{id} has {kinds[sort[0]]} ({sort})" for id, there in self._open.items() for sort in sorted(there)]
        found += [f"{id} was never begun" for id, state in self.states.items() if state.status == "pending"]
        return found + [f"{id} has a note of spilled writes" for id, state in self.states.items() if state.spill]

    def has_timers(self) -> bool:
        """Whether a timer of an execution that has not ended is armed."""
        return any(state.timers and not state.ended for state in self.states.values())

    # --- the end ------------------------------------------------------------------------------------------------------

    def problems(self, *, is_quiet: bool) -> Iterator[str]:
        """What does not hold: what was found on the way, else what is seen at the end.

        Args:
            is_quiet: nothing is due any more, so that what was to be done must have been done.
        """
        if not self.found:
            for id, history in sorted(self.histories.items()):
                self._check_history(id, history, is_quiet=is_quiet)
        if not self.found and is_quiet:
            self.found += self._children_that_did_not_report()
        if not self.found:
            for id, history in sorted(self.histories.items()):
                history.is_over = True
                if id in self.executions:
                    self._ask(self.executions[id], history)
        yield from self.found[:1]

    def _check_history(self, id: str, history: History, *, is_quiet: bool) -> None:
        execution = self.executions.get(id)
        if execution is None:
            return self.fail(f"{id} was started, and is not there")
        versions = [commit.version for commit in history.commits]
        if is_quiet and versions != list(range(1, len(versions) + 1)):
            self.fail(f"{id}: its versions have a hole: {versions}")
        self.found += _taken_more_than_once(id, history)
        if is_quiet:
            self.found += self._lost_events(id, history)
            state = self.states[id]
            first_us = decode_timers(state.timers)[0].due_us if state.timers and not state.ended else None
            if first_us is not None and first_us < self.world.now_us - 600_000_000 and not self.has_moved_lately():
                self.fail(
                    f"{id}: a timer has been due for {(self.world.now_us - first_us) / 1e6:.0f} s, and nobody fires it"
                )
        if execution.status == "failed" and not execution.parent_id and not self.may_fail:
            error = execution.error or {}
            if error.get("type") not in self._on_purpose.get(execution.machine, ()):
                said = _error(error)
                guessed = self.blame.why(execution, history, error, said)
                self.fail(guessed or f"{id} failed, and its machine did not mean to: {said}")
        return None

    def has_moved_lately(self) -> bool:
        """Whether the run ended while things still happened."""
        return any(h.commits and self.at_s() - h.commits[-1].at_s < 600 for h in self.histories.values())

    def _lost_events(self, id: str, history: History) -> Iterator[str]:
        taken = {event["id"] for event in history.events if "id" in event} | self._dead_ids(id)
        failure = self.data[id].failure
        if failure:
            taken.add(failure.event.id)
        for sent in history.sent:
            if sent.is_acknowledged and sent.id is not None and sent.id not in taken:
                yield f"{id}: {sent.type} (id {sent.id}) was acknowledged, and never taken"
                return

    def _dead_ids(self, id: str) -> set[str]:
        """Ids of events that stand among the dead letters: they came after the end."""
        stored = self.world.store.tables.stored(EXECUTIONS).items
        letters = [item for (owner, sort), item in stored.items() if owner == id and str(sort).startswith("l/")]
        return {
            mail[2] for item in letters for mail in _decode_mails(self.rt.decode(str(item["mails"]))) if len(mail) > 2
        }

    def _children_that_did_not_report(self) -> Iterable[str]:
        for id, data in sorted(self.data.items()):
            parent = data.parent
            if parent is None or not self.states[id].ended or parent.id not in self.data:
                continue
            waiting = self.data[parent.id].invokes.get(parent.invoke)
            if waiting is None or waiting.stay != parent.stay or self.states[parent.id].ended:
                continue
            if not int(waiting.seen or "0", 16) >> parent.ordinal & 1:
                yield f"{id} ended, and {parent.id} was never told"


def _taken_more_than_once(id: str, history: History) -> Iterator[str]:
    events = [event for event in history.events if not event.get("duplicate")]
    ids = collections.Counter(event["id"] for event in events if event.get("id"))
    for event_id, count in ids.items():
        if count > 1:
            yield f"{id}: the event with id {event_id} took effect {count} times"
    results = collections.Counter(
        (event["event"].split(".", 2)[2], event["stay"])
        for event in events
        if event.get("stay") and event["event"].startswith(("done.invoke.", "error.invoke."))
    )
    for (name, stay), count in results.items():
        if count > 1:
            yield f"{id}: the result of {name} was taken {count} times in stay {stay}"


def _error(error: Mapping[str, Any]) -> str:
    where = f" in {error['where']}" if error.get("where") else ""
    return f"{error.get('type', 'error')}{where}: {error.get('message', '')}".removesuffix(": ")


def raised_errors(machine: Machine) -> frozenset[str]:
    """Error events that a machine raises by itself: to fail by one of them is what it is meant to do."""
    return frozenset(_raised(states_in(machine.definition["root"])))


def _raised(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        event = value.get("params", {}).get("event") if value.get("type") == "raise" else None
        if isinstance(event, str) and event.startswith("error"):
            yield event
        for each in value.values():
            yield from _raised(each)
    elif isinstance(value, Iterable) and not isinstance(value, str):
        for each in value:
            yield from _raised(each)
