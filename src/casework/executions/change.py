"""From the steps of a chart to the writes of one commit.

A :class:`Change` starts from a state as it was read, takes timers and mails one after the other through the pure step
function, and gathers all that they cause. :meth:`Change.writes` then is one transaction: the state on condition that it
is unchanged, each consumed message removed on condition that it is there, and everything that was caused.

The state keeps the keys that its last commit sent, and the next commit checks them, unless this process saw that commit
acknowledged: :mod:`casework.executions.sent_before` says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from casework.executions import deferring, failing, joins
from casework.executions.branches import Branch, branch_of
from casework.executions.event_ids import id_hash, is_recent, mark_put, mark_sort
from casework.executions.joins import ChildStart
from casework.executions.mailbox import Mail, Message, dead_letter, mail_sort, put_message
from casework.executions.publish import delivery_puts, entry
from casework.executions.runtime import Parked, Runtime
from casework.executions.sent_before import checks
from casework.executions.state import (
    ID_HASH_BYTES,
    RECENT_IDS,
    Data,
    Invoke,
    Kept,
    State,
    Timer,
    decode_timers,
    encode_data,
    encode_timers,
    is_id,
)
from casework.executions.task_items import task_key, task_put, task_sort
from casework.executions.telling import told
from casework.executions.trace import trace_writes
from casework.kernel.conditions import present
from casework.kernel.containment import is_interrupt
from casework.kernel.effects import Instant
from casework.kernel.items import AnyWrite, Delete, Key, Put
from casework.kernel.schema import EXECUTIONS
from casework.statechart import Machine, UnboundFunction
from casework.statechart import snapshot as chart
from casework.statechart.step import start, step

CANCEL_EVENT = "cancel"
"""The event by which ``cancel`` asks a machine to end by itself; a machine that does not know it is terminated."""

REMOVED_MAX = 12
"""More tasks than this that a step stops are removed with what may be spilled."""


class Change:
    """Everything that one commit does to one execution.

    Args:
        rt: machines and options.
        machine: the definition that the execution runs.
        state: the state as it was read.
        data: its decoded data; this change owns it.
        now: the store's time.
        held: True when this process wrote ``state`` itself and saw it acknowledged.
    """

    __slots__ = (
        "checked", "consumed", "data", "ended", "events", "fans", "fate", "given", "is_brief", "later", "left",
        "logs", "lost", "lost_why", "machine", "machine_hash", "marks", "marks_stale", "now", "now_us", "outbox",
        "priority", "published", "recalls", "refusal", "refused", "removed", "rewritten", "rt", "starts", "state",
        "status", "taken", "tasks", "timers",
    )  # fmt: skip

    def __init__(
        self, rt: Runtime, machine: Machine, state: State, data: Data, now: Instant, *, held: bool = False
    ) -> None:
        self.rt = rt
        self.machine = machine
        self.machine_hash = state.machine_hash
        """What the execution runs, empty while it is a child that was begun by nobody who knows its machine."""
        self.state = state
        self.status = "running" if state.status == "pending" else state.status
        self.data = data
        self.now = now
        self.now_us = now.middle_us
        self.timers = decode_timers(state.timers) if state.timers else []
        self.consumed: list[Message] = []
        self.rewritten: list[tuple[Message, list[Mail]]] = []
        self.outbox: dict[str, list[Mail]] = {}
        self.tasks: dict[str, Put] = {}
        self.removed: list[Key] = []
        self.starts: list[ChildStart] = []
        self.fans: list[joins.Fan] = []
        self.recalls: list[joins.Recall] = []
        self.left: list[Branch] = []
        """Children that it waits for no longer."""
        self.later: list[chart.Event] = []
        self.logs: list[chart.Log] = []
        self.events: list[dict[str, Any]] = []
        self.given: list[bytes] = []
        self.marks: list[str] = []
        self.marks_stale: Mapping[str, int] = {}
        self.is_brief = False
        """Keep as little as possible of an event at which the execution fails."""
        self.refusal: Exception | None = None
        """Why what comes of the next event cannot be stored: it fails the execution, whatever the chart says."""
        self.lost: Mail | None = None
        self.lost_why = "the execution failed on it"
        self.taken = False
        self.fate = ""
        """What became of the event that was taken last: ``defer`` or ``fail``, where no transition took it."""
        self.refused: list[tuple[list[Mail], str]] = []
        """What becomes dead letters, and why."""
        self.priority = 0
        self.published: list[Any] = []
        self.ended = state.ended
        self.checked = [] if held else data.sent

    # --- what goes in -----------------------------------------------------------------------------------------

    def begin(self, input: Any) -> None:
        """Enter the machine's initial states; where that fails, the input is kept and nothing was entered.

        A child without a definition gets this process's.
        """
        self.machine_hash = self.machine_hash or self.machine.hash
        self.data.input = input
        self._enact("start", chart.Event("start", None), start(self.machine, input, self.now_us))

    def next_due(self) -> Timer | None:
        """The earliest timer that is due for certain."""
        if not self.timers:
            return None
        first = min(self.timers, key=lambda timer: timer.due_us)
        return first if first.due_us <= self.now.earliest_us else None

    def fire(self, timer: Timer) -> None:
        """Let a due timer act: step its event, or send what was delayed."""
        self.timers.remove(timer)
        data = self.rt.decode_value(timer.data) if timer.event_type else None
        if not timer.event_type:
            self.step(chart.timer_event(timer.name, timer.stay), "timer")
        elif timer.to and timer.to != self.state.id:
            self.outbox.setdefault(timer.to, []).append(Mail(timer.event_type, data, "", self.state.id))
        else:
            self.step(chart.Event(timer.event_type, data, "", self.state.id), "delayed")

    def take(self, mail: Mail, *, known: frozenset[str] = frozenset()) -> bool:
        """Take one mail; False when it was a duplicate of an event id taken before.

        Args:
            mail: the mail.
            known: sort keys of marks in the store that say that an event id was taken.
        """
        if mail.kind == "":
            self.step(chart.Event(mail.type, mail.data, mail.id, mail.source))
        elif mail.kind == "given":
            digest = id_hash(mail.id)
            if digest in self.given or is_recent(self.state.recent_ids, digest):
                return self._note_duplicate(mail)
            if known and mark_sort(mail.id) in known:
                return self._note_duplicate(mail)
            self.given.append(digest)
            if self.rt.options.dedupe_window_s:
                self.marks.append(mail.id)
            self.step(chart.Event(mail.type, mail.data, mail.id, mail.source))
        elif mail.kind == "result":
            self._take_result(mail)
        elif mail.kind == "child":
            self._take_report(mail)
        elif mail.kind == "machine":
            self._take_for_a_child(mail)
        elif mail.kind == "offer":
            deferring.offer(self)
        elif mail.kind == "cancel":
            self.end("cancelled", {"message": "cancelled", "type": "Cancelled", "where": mail.source})
        return True

    def _note_duplicate(self, mail: Mail) -> bool:
        self._note({"event": mail.type, "id": mail.id, "duplicate": True})
        return False

    def _note(self, what: dict[str, Any]) -> None:
        """Put something into the trace that was taken without a step of the chart."""
        if self.rt.options.trace_max:
            self.events.append(what)

    def _take_result(self, mail: Mail) -> None:
        if self._is_waited_for(mail):
            del self.data.invokes[mail.invoke]
            self.step(chart.Event(mail.type, mail.data, "", mail.source, mail.stay, mail.invoke), "result")

    def _is_waited_for(self, mail: Mail) -> bool:
        """Whether what ended a task is of one that this execution waits for."""
        waiting = self.data.invokes.get(mail.invoke)
        if waiting is None or waiting.stay != mail.stay:
            return False  # of an earlier stay, or a stray one: its state was left
        # else of an earlier life of this id, still on its way when that was purged
        return mail.id == task_key(self.state, mail.stay, mail.invoke, self.data.redrives)

    def _take_for_a_child(self, mail: Mail) -> None:
        """What was begun as a task, where nobody knew its name, is a machine: a worker that has it says so."""
        if not self._is_waited_for(mail):
            return
        self._note({"event": f"{mail.type} is a machine", "stay": mail.stay})
        del self.data.invokes[mail.invoke]
        self._start_children(chart.StartChildren(mail.invoke, "", mail.stay, mail.type, [mail.data], False, "all", {}))

    def _take_report(self, mail: Mail) -> None:
        waiting = self.data.invokes.get(mail.invoke)
        if waiting is None or waiting.stay != mail.stay or waiting.task:
            return
        if mail.source != self._child(mail.invoke, mail.stay, mail.ordinal):
            return  # of an execution that had this id before, and was purged
        verdict = joins.count(waiting, mail)
        if verdict is None:
            self._note({"event": f"report of {mail.source}", "counted": waiting.done, "of": waiting.need})
            return
        del self.data.invokes[mail.invoke]
        self._cancel_children(mail.invoke, waiting)
        if verdict.is_done:
            self.step(chart.done_invoke(mail.invoke, waiting.stay, verdict.value), "report")
        else:
            self.step(chart.error_invoke(mail.invoke, waiting.stay, verdict.value), "report")

    def step(
        self, event: chart.Event, kind: str = "event", deferred: int | None = None, *, offers: bool = True
    ) -> bool:
        """Take an event through the chart, and all that it brings up at once; what fails fails the execution.

        Args:
            event: the event.
            kind: what it is, as :class:`~casework.executions.state.Kept` says.
            deferred: its place among the deferred ones, where it is one: it stays there unless it does something now.
            offers: offer what is deferred where it changed the configuration; False: the caller does that.

        Returns whether it was dealt with.
        """
        if self.ended:
            return False
        before, waits_at = self.data.snap.configuration, deferred
        try:
            if self.refusal is not None:
                raise self.refusal
            result = step(self.machine, self.data.snap, event, self.now_us)
            if deferred is not None and not chart.does_something(result):
                return False
            deferring.forget(self.data, deferred)
            waits_at = None
            self.fate = result.fate
            if result.fate == "defer" and kind in ("event", "delayed"):
                deferring.put_off(self, event)
            else:
                self._enact(kind, event, result)
        except (UnboundFunction, Parked):
            raise  # this process is at fault, not the event
        except BaseException as error:
            if is_interrupt(error):
                raise
            deferring.forget(self.data, waits_at)
            told_of = failing.error_of(error, event.type[: failing.MAX_TYPE], is_brief=self.is_brief)
            self._fail(failing.kept_event(kind, event, is_taken_again=True), told_of)
        if offers and deferred is None and self.data.deferred and self.data.snap.configuration != before:
            deferring.offer(self)
        return True

    def rearm(self, result: chart.Step) -> None:
        """Begin the timers and tasks of the active states again, as new stays; delayed sends go on."""
        self.timers = [timer for timer in self.timers if timer.event_type]
        self._enact("redrive", chart.Event("redrive", None), result)

    def _enact(self, kind: str, event: chart.Event, result: chart.Step) -> None:
        """Do what came of a step and of all that follows from it; or nothing of it, where any of that failed."""
        before = self.data.snap
        point = failing.point_of(self) if result.effects else None
        try:
            taken = event
            while result.snapshot.status != "failed":
                self._apply(result, taken)
                if self.ended or not self.later:
                    return
                # What this process itself answered: targets and machines that it does not know, empty lists.
                taken = self.later.pop(0)
                result = step(self.machine, self.data.snap, taken, self.now_us)
        except BaseException:
            self.data.snap = before
            if point is not None:
                failing.go_back(self, point)
            raise
        if point is not None:
            failing.go_back(self, point)
        is_unhandled = result.is_unhandled and taken is event
        kept = failing.kept_event(kind, event, is_taken_again=not is_unhandled)
        self._fail(kept, result.snapshot.error or {})

    # --- what comes out ---------------------------------------------------------------------------------------

    def _apply(self, result: chart.Step, event: chart.Event) -> None:
        self.taken = self.taken or result.taken
        if event.type == CANCEL_EVENT and result.taken:
            self.data.cancel = self.data.cancel or "taken"
        before, self.data.snap = self.data.snap, result.snapshot
        publish = self.machine.publish
        if publish is not None:
            found = entry(publish, event.type, event.data, before.configuration, result.snapshot, result.taken)
            self.published += [] if found is None else [found]
        if self.rt.options.trace_max:
            error = event.data if event.type.startswith("error.") else None
            self.note_step(event, before.configuration, result.snapshot.configuration, error)
            if not result.taken and not event.stay and result.snapshot.status == "running":
                self.events[-1]["ignored"] = True
        for effect in result.effects:
            _APPLY[type(effect)](self, effect)
        if result.snapshot.status != "running":
            self.end(result.snapshot.status, result.snapshot.error)

    def note_step(self, event: chart.Event | Kept, before: Sequence[str], after: Sequence[str], error: Any) -> None:
        note: dict[str, Any] = {"event": event.type, "from": before, "to": after}
        if event.id:
            note["id"] = event.id
        if event.stay:
            note["stay"] = event.stay
        if error is not None and self.rt.codec is None:
            note["error"] = told(error)  # with a codec no data may be stored in clear
        self.events.append(note)

    def _arm(self, effect: chart.ArmTimer) -> None:
        self.timers.append(Timer(effect.due_us, effect.name, effect.stay))

    def _disarm(self, effect: chart.CancelTimer) -> None:
        self.timers = [t for t in self.timers if t.name != effect.name or t.stay != effect.stay or t.event_type]

    def _start_task(self, effect: chart.StartTask) -> None:
        self.data.invokes[effect.invoke_id] = Invoke(effect.stay, task=True)
        sort = task_sort(effect.stay, effect.invoke_id)
        is_open = self._is_open(effect)
        self.tasks[sort] = task_put(self.rt, self.state, effect, self.now_us, self.data.redrives, is_open=is_open)

    def _is_open(self, effect: chart.StartTask) -> bool:
        """Whether a worker that knows more may find a machine where this process took the name for a task's."""
        if effect.src in self.machine.tasks:
            return False
        node = self.machine.tables.by_path.get(effect.state)
        return node is not None and any(
            invoke.id == effect.invoke_id and invoke.kind == "name" for invoke in node.invokes
        )

    def _start_children(self, effect: chart.StartChildren) -> None:
        if not effect.inputs:
            self.later.append(chart.done_invoke(effect.invoke_id, effect.stay, []))
            return
        machine = self.rt.machines.get(effect.src)  # None: they wait for a process that has it
        waiting, fan = joins.plan_children(effect, machine, self.state)
        self.data.invokes[effect.invoke_id] = waiting
        if len(fan.inputs) > self.rt.options.spill_above:
            self.fans.append(fan)
        else:
            self.starts += fan.starts(0, len(fan.inputs))

    def _stop(self, effect: chart.StopInvoke) -> None:
        waiting = self.data.invokes.get(effect.invoke_id)
        if waiting is None or waiting.stay != effect.stay:
            return
        del self.data.invokes[effect.invoke_id]
        if waiting.task:
            sort = task_sort(effect.stay, effect.invoke_id)
            if self.tasks.pop(sort, None) is None:
                self.removed.append(Key(EXECUTIONS, self.state.id, sort))
        else:
            self._cancel_children(effect.invoke_id, waiting)

    def _cancel_children(self, invoke_id: str, waiting: Invoke) -> None:
        """Tell children that have not reported to end; those begun in this very change are not begun at all."""
        planned = len(self.starts) + len(self.fans)
        self.starts = [s for s in self.starts if s.invoke != invoke_id or s.stay != waiting.stay]
        self.fans = [f for f in self.fans if f.invoke != invoke_id or f.stay != waiting.stay]
        if len(self.starts) + len(self.fans) < planned:
            return
        self.left.append(branch_of(self.state, invoke_id, waiting, is_open=False))
        born_us = self.state.created_at_us
        recall = joins.Recall(self.state.id, invoke_id, waiting.stay, born_us, waiting.total, waiting.seen)
        ordinals = recall.ordinals()
        if len(ordinals) > self.rt.options.spill_above:
            recall.version = self.state.version + 1
            self.recalls.append(recall)
            return
        for ordinal in ordinals:
            self.outbox.setdefault(recall.target(ordinal), []).append(recall.mail())

    def _send(self, effect: chart.Send) -> None:
        target = self._resolve(effect)
        if target is None or not is_id(target):
            error = {
                "message": f"there is no {effect.to!r:.200} to send to",
                "type": "NoTarget",
                "where": effect.event_type,
            }
            self.later.append(chart.Event("error.communication", error))
        elif effect.delay_us > 0:
            due = self.now_us + effect.delay_us
            data = self.rt.encode_value(effect.data)
            self.timers.append(Timer(due, effect.send_id, 0, target, effect.event_type, data))
        else:
            self.outbox.setdefault(target, []).append(Mail(effect.event_type, effect.data, "", self.state.id))

    def _resolve(self, effect: chart.Send) -> str | None:
        if not effect.to:
            return self.state.id
        if effect.to == "parent":
            return self.data.parent.id if self.data.parent else None
        if effect.to.startswith("child:"):
            invoke_id = effect.to.removeprefix("child:")
            waiting = self.data.invokes.get(invoke_id)
            if waiting is None or waiting.task or waiting.each:
                return None
            return self._child(invoke_id, waiting.stay, 0)
        return effect.to

    def _child(self, invoke_id: str, stay: int, ordinal: int) -> str:
        return joins.child_id(self.state.id, invoke_id, stay, ordinal, self.state.created_at_us)

    def _cancel_send(self, effect: chart.CancelSend) -> None:
        self.timers = [t for t in self.timers if not t.event_type or t.name != effect.send_id]

    def _log(self, effect: chart.Log) -> None:
        self.logs.append(effect)

    def end(self, status: str, error: Any = None) -> None:
        """End the execution: stop what it waits for, disarm its timers, report to its parent."""
        if self.ended:
            return
        self.ended = True
        self.taken = True
        snap = self.data.snap
        if snap.status == "running":
            snap = self.data.snap = failing.failed_snapshot(snap, error)
        for invoke_id, waiting in list(self.data.invokes.items()):
            self._stop(chart.StopInvoke(invoke_id, waiting.stay))
        if status != "failed" or self.is_brief:
            self.timers = []  # one that failed may be driven again, and keeps them
        if status != "failed" and self.data.deferred:
            why = f"the execution had ended: {status}; no state took it"
            self.refused.append(([deferring.mail_of(kept) for kept in self.data.deferred], why))
            self.data.deferred = []
        self.status = status
        parent = self.data.parent
        if parent is not None:
            body = {"ok": status == "done", "value": snap.output if status == "done" else error}
            mail = Mail(
                "child", body, "", self.state.id, parent.stay, parent.invoke, kind="child", ordinal=parent.ordinal
            )
            self.outbox.setdefault(parent.id, []).append(mail)

    def poison(self, error: BaseException, kept: Kept) -> None:
        """End as failed because of an event of which the chart did not even hear."""
        self._fail(kept, failing.error_of(error, kept.type[: failing.MAX_TYPE], is_brief=self.is_brief))

    def _fail(self, kept: Kept, error: dict[str, Any]) -> None:
        """End as failed; the event, the error and the state before the event's step are kept."""
        kept, self.lost = failing.put_aside(kept, is_brief=self.is_brief)
        self.data.failure = failing.failure_of(kept, error, self.data.invokes)
        if self.rt.options.trace_max:
            where = self.data.snap.configuration
            self.note_step(kept, where, where, error)
        self.end("failed", error)

    # --- the transaction --------------------------------------------------------------------------------------

    def new_state(self) -> State:
        """The state after this change, one version on."""
        before, data = self.state, self.data
        new = State(
            bucket=before.bucket,
            id=before.id,
            version=before.version + 1,
            status=self.status,
            machine=before.machine,
            machine_hash=self.machine_hash,
            parent_id=before.parent_id,
            timers=encode_timers(self.timers),
            recent_ids=before.recent_ids,
            trace_n=before.trace_n,
            trace_low=before.trace_low,
            last_sent_us=before.last_sent_us,
            created_at_us=before.created_at_us,
            updated_at_us=self.now_us,
            listed=before.listed or self.status == "failed",
            resume_status=before.resume_status,
        )
        if self.given:
            new.recent_ids = (before.recent_ids + b"".join(self.given))[-RECENT_IDS * ID_HASH_BYTES :]
        if self.outbox:
            new.last_sent_us = max(self.now_us, before.last_sent_us + 1)
        if data.snap.configuration:
            data.input = None  # else it never began: a redrive begins it with this input
        return new

    def messages(self, new: State) -> list[Put]:
        """The messages that this change sends, one item for each target."""
        buckets = self.rt.options.buckets
        sort = mail_sort(new.last_sent_us, new.id, new.version)
        return [
            put_message(
                target, sort, mails, buckets,
                sent_at_us=new.last_sent_us, now_us=self.now_us, priority=self.priority, rt=self.rt,
            )
            for target, mails in self.outbox.items()
        ]  # fmt: skip

    def finish(self) -> tuple[State, list[AnyWrite], list[AnyWrite]]:
        """The new state, the writes that must go with it, and those that may be spilled."""
        new = self.new_state()
        buckets = self.rt.options.buckets
        messages = self.messages(new) if self.outbox else []
        self.data.sent = [(put.item["id"], put.item["sort"]) for put in messages]  # type: ignore[misc]
        with_it: list[AnyWrite] = []
        for message in self.consumed:
            with_it.append(Delete(message.key, present()))
        for message, rest in self.rewritten:
            put = put_message(
                message.key.partition, str(message.key.sort), rest, buckets,
                sent_at_us=message.sent_at_us, now_us=self.now_us, priority=message.priority, rt=self.rt,
            )  # fmt: skip
            with_it.append(Put(put.table, put.item, present()))
        if self.lost is not None:
            n = f"{new.version}-poison"
            letter = dead_letter(new.id, self.now_us, n, self.lost_why, [self.lost], buckets, self.rt)
            with_it.append(letter)
            if self.data.failure is not None:
                self.data.failure.letter = str(letter.item["sort"])
                self.data.failure.is_lost = letter.item["reason"] != self.lost_why
        for number, (mails, why) in enumerate(self.refused):
            name = f"{new.version}-deferred-{number}"
            with_it.append(dead_letter(new.id, self.now_us, name, why, mails, buckets, self.rt))
        with_it += checks(self.checked, with_it)
        removed: list[AnyWrite] = [Delete(key) for key in self.removed]
        if len(removed) <= REMOVED_MAX:
            with_it += removed
        window_s, stale = self.rt.options.dedupe_window_s or 0, self.marks_stale
        with_it += [mark_put(new.id, event_id, self.now, window_s, stale) for event_id in self.marks]
        notes = [branch.note(self.state.bucket_in(buckets)) for branch in self.left]
        self.data.sent += [(new.id, str(put.item["sort"])) for put in notes]
        with_it += notes
        if self.rt.options.trace_max:  # every commit, so that a version without an entry shows a fault
            with_it += trace_writes(new, self.events, self.now_us, self.rt.options.trace_max)
        deliveries = self._deliveries(new)
        with_it += deliveries
        caused: list[AnyWrite] = [*self.tasks.values(), *messages]
        if len(removed) > REMOVED_MAX:
            caused += removed  # one that still runs is told by its stay that it counts no more
        caused += [start.put(self.rt, self.now_us) for start in self.starts]
        new.data = self.rt.encode(encode_data(self.data))
        return new, with_it, caused

    def _deliveries(self, new: State) -> list[Put]:
        """What this change publishes; the next commit makes sure that it is visible first, as with messages."""
        publish = self.machine.publish
        if not self.published or publish is None:
            return []
        buckets = self.rt.options.buckets
        puts = delivery_puts(publish, new, self.machine.name, self.now_us, self.published, buckets)
        self.data.sent += [(new.id, str(put.item["sort"])) for put in puts]
        return puts

    def machines_to_store(self) -> set[str]:
        """Names of the machines whose definitions this execution or its children begin with: they must outlive a
        deploy. Not those that this process does not know.
        """
        begun: list[ChildStart | joins.Fan] = [*self.starts, *self.fans]
        names = {child.machine for child in begun if child.machine_hash}
        return names | {self.machine.name} if self.machine_hash != self.state.machine_hash else names

    def size(self) -> int:
        """Writes that must go with the state, so far."""
        parts: list[Any] = [self.consumed, self.removed, self.marks, self.checked, self.left, self.refused]
        return sum(map(len, parts))


_APPLY: dict[type, Any] = {
    chart.ArmTimer: Change._arm,
    chart.CancelTimer: Change._disarm,
    chart.StartTask: Change._start_task,
    chart.StartChildren: Change._start_children,
    chart.StopInvoke: Change._stop,
    chart.Send: Change._send,
    chart.CancelSend: Change._cancel_send,
    chart.Log: Change._log,
}
