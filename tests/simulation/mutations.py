"""Planted faults in executions: our own programs with one guard taken out, and the scenario that must notice it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import msgspec

from casework.errors import ConditionFailed
from casework.executions import advance, change, deliver, joins, mailbox, spill, tasks
from casework.executions.change import Change
from casework.executions.mailbox import Mail
from casework.executions.state import State
from casework.kernel.items import Delete, Put
from casework.kernel.programs import transact
from casework.simulation.scenarios import executions as scenarios
from casework.statechart import snapshot as chart
from tests.simulation.planting import ALWAYS, Fault, patched, together

# --- the state's version ------------------------------------------------------------------------------------


def _anything(self: State) -> Any:
    return ALWAYS


def _version_at_most(self: State) -> Any:
    from casework.kernel.conditions import at_least

    return at_least("version", self.version)


# --- messages -----------------------------------------------------------------------------------------------


def _without_presence(original: Callable[..., Any]) -> Callable[..., Any]:
    """Consumed messages are removed without asking whether they are there; the version alone guards."""

    def finish(self: Change) -> Any:
        new, with_it, caused = original(self)
        return new, [w for w in with_it if not (isinstance(w, Delete) and str(w.key.sort).startswith("e/"))], caused

    return finish


def _consumed_after(original: Callable[..., Any]) -> Callable[..., Any]:
    """The classic: store the new state first, remove the messages afterwards."""

    def commit(rt: Any, change: Change, condition: Any) -> Any:
        consumed, change.consumed = change.consumed, []
        new = yield from original(rt, change, condition)
        if consumed:
            yield from transact([Delete(message.key) for message in consumed])
        return new

    return commit


def _sent_after(original: Callable[..., Any]) -> Callable[..., Any]:
    """The classic outbox without an outbox: store the new state first, send the messages afterwards."""

    def commit(rt: Any, change: Change, condition: Any) -> Any:
        messages: list[Put] = []
        finish = Change.finish

        def finish_without(self: Change) -> Any:
            new, with_it, caused = finish(self)
            messages[:] = [w for w in caused if isinstance(w, Put) and str(w.item["sort"]).startswith("e/")]
            return new, with_it, [w for w in caused if w not in messages]

        with mock.patch.object(Change, "finish", finish_without):
            steps = original(rt, change, condition)
            effect = next(steps)
        new = yield from _going_on(steps, effect)
        if messages:
            yield from transact(messages)
        return new

    return commit


def _going_on(steps: Any, effect: Any) -> Any:
    """A program that was carried to its first effect, carried on."""
    while True:
        try:
            answer = yield effect
        except Exception as error:
            try:
                effect = steps.throw(error)
            except StopIteration as stop:
                return stop.value
            continue
        try:
            effect = steps.send(answer)
        except StopIteration as stop:
            return stop.value


def _own_clock(sent_at_us: int, source: str, n: int) -> str:
    """Keys of messages in the order of their senders' names, not of time."""
    return f"e/{0:017d}/{mailbox.short(source)}/{1_000_000 - n}"


# --- leases -------------------------------------------------------------------------------------------------


def _result_of_any_stay(self: Change, mail: Mail) -> None:
    """Results are matched by the invocation's name alone."""
    waiting = self.data.invokes.get(mail.invoke)
    if waiting is None:
        return
    del self.data.invokes[mail.invoke]

    self.step(chart.Event(mail.type, mail.data, "", mail.source, waiting.stay, mail.invoke))


def _keeps_tasks(self: Change, effect: Any) -> None:
    """A state that is left forgets its task without removing it."""
    waiting = self.data.invokes.get(effect.invoke_id)
    if waiting is not None and waiting.stay == effect.stay and waiting.task:
        del self.data.invokes[effect.invoke_id]
        return
    _stop(self, effect)


_stop = Change._stop


def _never_disarms(self: Change, effect: Any) -> None:
    """Timers stay armed when their state is left."""


def _report_counted_twice(waiting: Any, report: Mail) -> Any:
    """A join that counts reports, not children."""
    waiting.done += 1
    waiting.results[str(len(waiting.results))] = report.data.get("value")
    if waiting.done >= waiting.need:
        return joins.Verdict(True, [waiting.results[key] for key in sorted(waiting.results, key=int)])
    return None


def _report_of_any_stay(self: Change, mail: Mail) -> None:
    """Reports are matched by the invocation's name alone."""
    waiting = self.data.invokes.get(mail.invoke)
    if waiting is None or waiting.task:
        return
    verdict = joins.count(waiting, mail)
    if verdict is not None:
        del self.data.invokes[mail.invoke]
        self._cancel_children(mail.invoke, waiting)
        event = chart.done_invoke if verdict.is_done else chart.error_invoke
        self.step(event(mail.invoke, waiting.stay, verdict.value))


def _no_report(original: Callable[..., Any]) -> Callable[..., Any]:
    """A child that is cancelled or fails tells nobody; here: every second child."""

    def end(self: Change, status: str, error: Any = None) -> None:
        parent = self.data.parent
        if parent is not None and parent.ordinal % 2:
            self.data.parent = None
        original(self, status, error)
        self.data.parent = parent

    return end


# --- spill --------------------------------------------------------------------------------------------------


def _unconditional_drain(rt: Any, before: State, after: State, writes: Any, deletes: Any) -> Any:
    """A drain that does not ask whether somebody else was faster."""
    put = Put(spill.EXECUTIONS, after.to_item(rt.options.buckets))
    try:
        yield from transact([put, *deletes, *writes])
    except ConditionFailed:
        yield from transact([put, *deletes])


def _spill_without_wake(self: State) -> Any:
    """A spill that nobody is told of."""
    if self.spill:
        return None
    return _wakes_at(self)


_wakes_at = State.wakes_at


def _forgets_the_rest(rt: Any, state: State, caused: Sequence[Any], fans: Sequence[Any], recalls: Sequence[Any]) -> Any:
    """Of what does not fit, only the first part is kept."""
    cut = [msgspec.structs.replace(fan, inputs=fan.inputs[: rt.options.spill_part]) for fan in fans]
    return _spill_writes(rt, state, caused, cut, recalls)


_spill_writes = spill.spill_writes


# --- control, index -----------------------------------------------------------------------------------------


def _suspended_forgets(state: Any, items: Any, has_next: bool) -> Any:
    """Messages of a suspended execution are thrown away."""
    writes = [Delete(advance.EXECUTIONS.key_of(item)) for item in items]
    if writes:
        yield from transact(writes)
    return advance.Advanced(state)


def _timer_without_wake(self: State) -> Any:
    wake = _wakes_at(self)
    return None if wake is not None and wake[0] == "timer" else wake


def _dedupe_read(recent: bytes, digest: bytes) -> bool:
    return False


def _give_up_on_doubt(original: Callable[..., Any]) -> Callable[..., Any]:
    """An unknown outcome is taken for a success."""

    def commit(rt: Any, change: Change, condition: Any) -> Any:
        from casework.errors import OutcomeUnknown

        try:
            return (yield from original(rt, change, condition))
        except OutcomeUnknown:
            return change.new_state()

    return commit


@contextlib.contextmanager
def _commit_patched(wrap: Callable[..., Any]) -> Iterator[None]:
    wrapped = wrap(advance.commit)
    with (
        mock.patch.object(advance, "commit", wrapped),
        mock.patch.object(deliver, "commit", wrapped),
    ):
        yield


def _unconditional_claim(task: Any) -> Any:
    return ALWAYS


FAULTS = (
    Fault("state stored without asking for its version", scenarios.Mailbox, patched(State, "unchanged", _anything)),
    Fault("a newer state is overwritten", scenarios.Mailbox, patched(State, "unchanged", _version_at_most)),
    Fault("messages removed after the state was stored", scenarios.Chain, lambda: _commit_patched(_consumed_after)),
    Fault("messages sent after the state was stored", scenarios.Chain, lambda: _commit_patched(_sent_after)),
    Fault("an unknown outcome is taken for a success", scenarios.Chain, lambda: _commit_patched(_give_up_on_doubt)),
    Fault(
        "consumed messages are not removed",
        scenarios.Chain,
        lambda: mock.patch.object(Change, "finish", _without_presence(Change.finish)),
    ),
    Fault("event ids are not remembered", scenarios.Mailbox, patched(change, "is_recent", _dedupe_read)),
    Fault(
        "no check of the last commit's messages", scenarios.Chain, patched(change, "checks", lambda places, taken: [])
    ),
    Fault("message keys do not ascend", scenarios.Chain, patched(change, "mail_sort", _own_clock)),
    Fault("a claim without a condition", scenarios.Tasks, patched(tasks, "_unclaimed", _unconditional_claim)),
    Fault("results of any stay count", scenarios.Tasks, patched(Change, "_take_result", _result_of_any_stay)),
    Fault(
        "timers of a state that was left stay armed",
        scenarios.Timers,
        lambda: together(mock.patch.dict(change._APPLY, {chart.CancelTimer: _never_disarms}), _any_stay()),
    ),
    Fault("a timer does not wake anybody", scenarios.Timers, patched(State, "wakes_at", _timer_without_wake)),
    Fault("a join counts reports, not children", scenarios.Children, patched(joins, "count", _report_counted_twice)),
    Fault("reports of any stay count", scenarios.Children, patched(Change, "_take_report", _report_of_any_stay)),
    Fault(
        "some children tell nobody of their end",
        scenarios.Children,
        lambda: mock.patch.object(Change, "end", _no_report(Change.end)),
    ),
    Fault("a drain does not ask who else drains", scenarios.Spill, patched(spill, "_perform", _unconditional_drain)),
    Fault("a spill wakes nobody", scenarios.Spill, patched(State, "wakes_at", _spill_without_wake)),
    Fault("what does not fit is cut", scenarios.Spill, patched(advance, "spill_writes", _forgets_the_rest)),
    Fault("a suspended mailbox is emptied", scenarios.Control, patched(advance, "_set_aside", _suspended_forgets)),
)


def _any_stay() -> contextlib.AbstractContextManager[Any]:
    """Timers act on whatever stay is current."""
    original = Change.fire

    def fire(self: Change, timer: Any) -> None:
        for path, stay in self.data.snap.stays.items():
            if timer.name.endswith(path):
                self.timers.append(msgspec.structs.replace(timer, stay=stay))
                self.timers.remove(timer)
                timer = self.timers[-1]
                break
        original(self, timer)

    return mock.patch.object(Change, "fire", fire)
