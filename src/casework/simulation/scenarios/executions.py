"""Scenarios of executions: senders, workers, timers, tasks, children, control, under everything that can go wrong."""

from __future__ import annotations

import collections
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, ParamSpec, TypeVar

import msgspec

from casework.errors import Contention, OutcomeUnknown, StoreError, Throttled, Unavailable
from casework.executions import control, deliver, tasks
from casework.executions.advance import advance
from casework.executions.event_ids import id_hash, is_recent
from casework.executions.runtime import Options, Runtime
from casework.executions.state import STATE, State, decode_data, state_of
from casework.executions.worker import Worker, WorkerOptions, work
from casework.kernel.effects import Effect
from casework.kernel.items import Item, Key, Table
from casework.kernel.programs import Program, now, query, sleep
from casework.kernel.schema import EXECUTIONS, INDEX_KINDS, TABLES
from casework.simulation.carrier import Process
from casework.simulation.faults import HARSH, ROUGH
from casework.simulation.runner import Scenario
from casework.simulation.world import World
from casework.statechart import Machine

P = ParamSpec("P")
T = TypeVar("T")

LOST = (Contention, Throttled, Unavailable, OutcomeUnknown)

LEDGER = """
id: ledger
initial: open
context: {seen: []}
states:
  open: {on: {Add: {actions: [{type: assign, params: {seen: {expr: "context.seen + [event.i]"}}}]}}}
"""


class ExecutionScenario(Scenario):
    """Executions on one bucket, with workers that poll the index."""

    tables: Sequence[Table] = TABLES
    machines: tuple[str, ...] = ()
    options = Options(buckets=1, batch_max=4)
    workers = 2
    idle_s = 0.05
    """A worker that found nothing to do looks again after so long."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.left = 0
        """Clients that have not finished."""

    def runtime(self) -> Runtime:
        """What one process knows of machines."""
        machines = [_machine(text) for text in self.machines]
        return Runtime(machines, self.options)

    def begin(self) -> None:
        """Start the workers and the clients."""
        for n in range(self.workers):
            self.world.process(f"worker-{n}", self.worker)
        self.begin_clients()

    def begin_clients(self) -> None:
        """Start the clients."""

    def client(self, name: str, program: Any, *, may_crash: bool = True) -> None:
        """Start a client whose program is over when it returns; after a crash it begins again."""
        self.left += 1

        def main(process: Process) -> Generator[Effect, Any, Any]:
            yield from program(self.runtime())
            self.left -= 1

        self.world.process(name, main, may_crash=may_crash)

    def worker(self, process: Process) -> Generator[Effect, Any, Any]:
        """Advance whatever the index says is due, for ever."""
        yield from self.work(self.runtime())

    def work(self, rt: Runtime) -> Program[None]:
        """The same with what a process knows."""
        while True:
            did = 0
            try:
                did = yield from self.look(rt)
            except StoreError:
                pass
            if not did:
                yield from sleep(self.idle_s)

    def look(self, rt: Runtime) -> Program[int]:
        """One look at the index; how much was done."""
        did = 0
        moment = yield from now()
        for kind in INDEX_KINDS:
            until_us = moment.earliest_us if kind == "timer" else moment.latest_us
            page = yield from query(EXECUTIONS, f"{kind}/0", index="pending", high=until_us, limit=10)
            for id in dict.fromkeys(str(item["id"]) for item in page.items if not str(item["sort"]).startswith("w/")):
                done = yield from advance(rt, id)
                did += done.is_held
            for item in page.items:
                if str(item["sort"]).startswith("w/"):
                    did += yield from self.perform(rt, Key(EXECUTIONS, str(item["id"]), str(item["sort"])))
        return did

    def perform(self, rt: Runtime, place: Key) -> Program[int]:
        """Claim a task and finish it."""
        task = yield from tasks.claim_task(rt, place, lease_s=2.0)
        if task is None:
            return 0
        self.world.history.append(("ran", task.key, task.attempt))
        yield from tasks.finish_task(rt, task, {"key": task.key})
        return 1

    # --- what checkers look at ----------------------------------------------------------------------------------------

    def items(self, prefix: str = "") -> list[Item]:
        """All items whose sort key begins so, as they are stored."""
        stored = self.world.store.tables.stored(EXECUTIONS).items
        return [item for (_, sort), item in stored.items() if str(sort).startswith(prefix)]

    def state(self, id: str) -> State | None:
        """The stored state of an execution."""
        item = self.world.store.tables.get(Key(EXECUTIONS, id, STATE))
        return None if item is None else state_of(item)

    def context(self, id: str) -> dict[str, Any]:
        """The stored context of an execution."""
        state = self.state(id)
        return {} if state is None or not state.data else decode_data(state, state.data).snap.context

    def taken(self, id: str, event_id: str) -> Program[None]:
        """Wait until an event was taken: one in line may have been sent instead, under contention."""
        while True:
            state = self.state(id)
            if state is not None and is_recent(state.recent_ids, id_hash(event_id)):
                return
            yield from sleep(0.02)

    def configuration(self, id: str) -> list[str]:
        """The stored configuration of an execution."""
        state = self.state(id)
        return [] if state is None or not state.data else decode_data(state, state.data).snap.configuration

    def is_idle(self) -> bool:
        """Whether nothing waits: no client, no message, no task, no spill, no pending start, no transaction."""
        if self.left or self.world.store.locks:
            return False
        for item in self.items():
            sort = str(item["sort"])
            if sort.startswith(("e/", "x/", "w/")) or (sort == STATE and item["status"] == "pending"):
                return False
        return True

    def is_over(self) -> bool:
        """Nothing waits."""
        return self.is_idle()


_machines: dict[str, Machine] = {}


def _machine(text: str) -> Machine:
    """A machine by its text; compiled once, since it is immutable."""
    machine = _machines.get(text)
    if machine is None:
        machine = Machine.from_yaml(text).beside(["kid", "parent", "ledger", "sender", "worker"])
        _machines[text] = machine
    return machine


def insist(operation: Callable[P, Program[T]], *args: P.args, **kwargs: P.kwargs) -> Program[T]:
    """Try an operation again, after a pause, while the store says that it may not have been done."""
    while True:
        try:
            return (yield from operation(*args, **kwargs))
        except LOST:
            yield from sleep(0.02)


class Mailbox(ExecutionScenario):
    """Senders from outside, with ids of their own, in line and by mailbox; each event takes effect once, in order."""

    name = "mailbox"
    machines = (LEDGER,)
    senders = 2
    events = 4

    def begin_clients(self) -> None:
        """One who starts it, and those who send."""
        self.progress = collections.Counter[int]()
        self.client("starter", lambda rt: insist(deliver.start, rt, "ledger", "x", None))
        for n in range(self.senders):
            self.client(f"sender-{n}", lambda rt, n=n: self.send(rt, n))

    def send(self, rt: Runtime, n: int) -> Program[None]:
        """Send the events that were not acknowledged yet, with the same ids as before."""
        while self.state("x") is None:
            yield from sleep(0.01)
        while self.progress[n] < self.events:
            i = self.progress[n]
            event = [n, i]
            id = f"{n}-{i}"
            if n % 2:
                yield from insist(deliver.handle, rt, "x", "Add", {"i": event}, event_id=id)
            else:
                yield from insist(deliver.send, rt, "x", "Add", {"i": event}, event_id=id)
            self.progress[n] += 1

    def problems(self) -> Iterable[str]:
        """Each event once, each sender's in order, versions without a hole."""
        seen = [tuple(each) for each in self.context("x").get("seen", [])]
        wanted = [(n, i) for n in range(self.senders) for i in range(self.events)]
        if sorted(seen) != wanted:
            yield f"events taken: {seen}, sent: {wanted}"
        for n in range(0, self.senders, 2):
            own = [i for sender, i in seen if sender == n]
            if own != sorted(own):
                yield f"sender {n}'s events were taken in the order {own}"


SENDER = """
id: sender
initial: 'on'
context: {}
states:
  'on': {on: {Say: {actions: [{type: send, params: {event: Add, to: x, data: {i: {expr: "event.i"}}}}]}}}
"""


class Chain(ExecutionScenario):
    """An execution that sends to another one with each event; the receiver takes them in the order of the commits.

    Its events wait in its mailbox and go one by one into a commit, so that several workers take turns at sending.
    """

    name = "chain"
    machines = (LEDGER, SENDER)
    options = Options(buckets=1, batch_max=1)
    workers = 3
    events = 5

    def begin_clients(self) -> None:
        """Both are started, then the sender is driven by two clients in turn."""
        self.said = 0
        self.client("driver", self.drive)

    def drive(self, rt: Runtime) -> Program[None]:
        """Start both, then say one thing after the other."""
        yield from insist(deliver.start, rt, "ledger", "x", None)
        yield from insist(deliver.start, rt, "sender", "s", None)
        while self.said < self.events:
            i = self.said
            yield from insist(deliver.send, rt, "s", "Say", {"i": i}, event_id=f"say-{i}")
            self.said += 1

    def problems(self) -> Iterable[str]:
        """What the receiver saw is what was said, in order."""
        seen = self.context("x").get("seen")
        if seen != list(range(self.events)):
            yield f"said 0..{self.events - 1}, the receiver took {seen}"


WORKER = """
id: worker
initial: idle
context: {got: [], left: 0, n: 0}
states:
  idle: {on: {Begin: working}}
  working:
    entry: [{type: assign, params: {n: {expr: "context.n + 1"}}}]
    invoke:
      id: job
      src: job
      retry: {max_attempts: 100}  # workers die often here, and a death counts
      onDone: {target: idle, actions: [{type: assign, params: {got: {expr: "context.got + [[context.n, event.key]]"}}}]}
    on: {Leave: {target: idle, actions: [{type: assign, params: {left: {expr: "context.left + 1"}}}]}}
"""


class Tasks(ExecutionScenario):
    """Tasks that workers claim, lose and finish, in states that are left and entered again."""

    name = "tasks"
    machines = (WORKER,)
    rounds = 3

    def begin_clients(self) -> None:
        """One who begins and leaves."""
        self.done = 0
        self.client("driver", self.drive)

    def drive(self, rt: Runtime) -> Program[None]:
        """Begin the work again and again; now and then leave it before it is done."""
        yield from insist(deliver.start, rt, "worker", "w", None)
        while self.done < 2 * self.rounds:
            n = self.done
            event = "Leave" if n % 2 else "Begin"
            yield from insist(deliver.handle, rt, "w", event, {}, event_id=f"e-{n}")
            yield from self.taken("w", f"e-{n}")
            self.done += 1
            if not n % 2:
                for _ in range(self.world.choices.below(4)):
                    yield from sleep(0.05)

    def is_over(self) -> bool:
        """Nothing waits, and the machine is idle."""
        return self.is_idle()

    def problems(self) -> Iterable[str]:
        """Each stay's work is done once or was left; a result counts for its own stay only."""
        context = self.context("w")
        got, left = context.get("got", []), context.get("left", 0)
        for n, key in got:
            if not key.startswith(f"w/{n}/job-"):  # what follows tells lives of one id apart
                yield f"the result of {key} counted in stay {n}"
        if len({key for _, key in got}) != len(got):
            yield f"a result counted twice: {got}"
        if len(got) + left != self.rounds:
            yield f"{self.rounds} rounds: {len(got)} done ({got}), {left} left"
        runs = collections.Counter(entry[1:] for entry in self.world.history if entry[0] == "ran")
        for (key, attempt), count in runs.items():
            if count > 1:
                yield f"attempt {attempt} at {key} ran {count} times"


TIMERS = """
id: worker
initial: a
context: {fired: [], n: 0}
states:
  a:
    entry: [{type: assign, params: {n: {expr: "context.n + 1"}}}]
    after: {"1s": {target: b, actions: [{type: assign, params: {fired: {expr: "context.fired + [context.n]"}}}]}}
    on: {Again: {target: a, reenter: true}}
  b: {on: {Again: a}}
"""


class Timers(ExecutionScenario):
    """A timer that is armed, cancelled and armed again by events that race with it; clocks are right here."""

    name = "timers"
    machines = (TIMERS,)
    options = Options(buckets=1, batch_max=4, trace_max=50)
    faults = msgspec.structs.replace(ROUGH, skew_s_max=0.0, clock_error_s=0.0)
    events = 4

    def begin_clients(self) -> None:
        """One who enters the state again and again."""
        self.done = 0
        self.entered: dict[int, int] = {}
        self.client("driver", self.drive)

    def drive(self, rt: Runtime) -> Program[None]:
        """Enter the state at about the time at which its timer is due."""
        yield from insist(deliver.start, rt, "worker", "t", None)
        while self.done < self.events:
            n = self.done
            yield from sleep(0.9 + 0.05 * self.world.choices.below(5))
            yield from insist(deliver.handle, rt, "t", "Again", {}, event_id=f"again-{n}")
            self.done += 1

    def is_over(self) -> bool:
        """Nothing waits, and the last timer has fired."""
        state = self.state("t")
        return self.is_idle() and state is not None and not state.timers

    def problems(self) -> Iterable[str]:
        """No stay's timer fired twice, none that was left fired, the last one did."""
        context = self.context("t")
        fired, n = context.get("fired", []), context.get("n", 0)
        if len(set(fired)) != len(fired):
            yield f"a timer fired twice: {fired}"
        if n not in fired:
            yield f"the timer of the last stay, {n}, never fired: {fired}"
        entered_us = 0
        for item in sorted(self.items("z/"), key=lambda item: str(item["sort"])):
            entry = msgspec.json.decode(str(item["entry"]))
            for event in entry["events"]:
                early_us = entered_us + 1_000_000 - entry["at_us"]
                if str(event.get("event", "")).startswith("after:") and event.get("to") == ["b"] and early_us > 0:
                    yield f"a timer fired {early_us / 1e6:g} s before its own stay's time"
                if event.get("to") == ["a"]:
                    entered_us = entry["at_us"]


KID = """
id: kid
initial: busy
context: {i: {expr: "input.i"}}
states:
  busy: {after: {"20ms": done}}
  done: {type: final, output: {expr: "context.i"}}
"""

PARENT = """
id: parent
initial: idle
context: {got: null, rounds: 0}
states:
  idle: {on: {Go: waiting}}
  waiting:
    invoke:
      id: kids
      src: {machine: kid}
      each: {expr: "event.items"}
      input: {i: {expr: "item"}}
      join: all
      onDone:
        target: idle
        actions: [{type: assign, params: {got: {expr: "event"}}}]
    on: {Leave: idle}
"""


class Children(ExecutionScenario):
    """A fan-out with a join, left once before it completes; every child ends, and the join counts each once."""

    name = "children"
    machines = (PARENT, KID)
    children = 3

    def begin_clients(self) -> None:
        """One who starts the fan-out, leaves it, and starts it again."""
        self.done = 0
        self.client("driver", self.drive)

    def drive(self, rt: Runtime) -> Program[None]:
        """Go, Leave, Go."""
        yield from insist(deliver.start, rt, "parent", "p", None)
        for n, event in enumerate(("Go", "Leave", "Go")):
            if self.done <= n:
                items = [10 * n + i for i in range(self.children)]
                way = deliver.send if event == "Go" else deliver.handle
                yield from insist(way, rt, "p", event, {"items": items}, event_id=f"{n}")
                yield from self.taken("p", f"{n}")
                self.done = n + 1

    def is_over(self) -> bool:
        """The parent waits for nobody, and every child has ended."""
        return self.is_idle() and all(
            item["status"] in ("done", "failed", "cancelled") for item in self.items(STATE) if item["id"] != "p"
        )

    def problems(self) -> Iterable[str]:
        """The join's result is complete and in order."""
        got = self.context("p").get("got")
        state = self.state("p")
        if state is None or state.status != "running" or got != [20 + i for i in range(self.children)]:
            yield f"the parent is {state and state.status} with {got}"


class Spill(Children):
    """The same with more children than a commit takes directly."""

    name = "spill"
    options = Options(buckets=1, batch_max=4, spill_above=3, spill_part=3)
    faults = msgspec.structs.replace(ROUGH, crash=0.02)
    children = 8


class Control(ExecutionScenario):
    """Events while an execution is suspended and resumed, again and again; nothing is lost."""

    name = "control"
    machines = (LEDGER,)
    options = Options(buckets=1, batch_max=2)
    events, moves_n = 4, 4

    def begin_clients(self) -> None:
        """One who sends, and one who suspends and resumes."""
        self.sent = 0
        self.moves = 0
        self.client("sender", self.send)
        self.client("operator", self.operate)

    def send(self, rt: Runtime) -> Program[None]:
        """Send one event after the other."""
        yield from insist(deliver.start, rt, "ledger", "x", None)
        while self.sent < self.events:
            i = self.sent
            yield from insist(deliver.send, rt, "x", "Add", {"i": i}, event_id=f"{i}")
            self.sent += 1

    def operate(self, rt: Runtime) -> Program[None]:
        """Suspend and resume; the last move is a resume."""
        while self.state("x") is None:
            yield from sleep(0.01)
        while self.moves < self.moves_n:
            move = control.resume if self.moves % 2 else control.suspend
            yield from insist(move, rt, "x")
            self.moves += 1

    def problems(self) -> Iterable[str]:
        """Each event once, in order."""
        seen = self.context("x").get("seen")
        if seen != list(range(self.events)):
            yield f"sent 0..{self.events - 1}, taken {seen}"


class Shell(Tasks):
    """The worker shell itself, with its membership, its bell and its heartbeats."""

    name = "shell"
    steps_max = 120_000
    running: Shell
    """The run under way: a machine, and the function that it has, serves all runs of a process."""

    def worker(self, process: Process) -> Generator[Effect, Any, Any]:
        """The real shell."""
        Shell.running = self
        rt = self.runtime()

        def job(task: Any) -> dict[str, str]:
            Shell.running.world.history.append(("ran", task.idempotency_key, task.attempt))
            return {"key": task.idempotency_key}

        machine = rt.machines["worker"]
        if "job" not in machine.tasks:
            machine.task(name="job")(job)
        yield from work(Worker(rt, WorkerOptions(poll_s=0.1, lease_s=2.0, heartbeat_s=1.0, concurrency=2, group=8)))


class ShellHarsh(Shell):
    """The same with throttled reads, partition limits and clocks known from answers."""

    name = "shell, harsh"
    faults = HARSH


class ChildrenHarsh(Children):
    """The same with throttled reads, partition limits and clocks known from answers."""

    name = "children, harsh"
    faults = HARSH
    children = 2


ALL = (Mailbox, Chain, Tasks, Timers, Children, ChildrenHarsh, Spill, Control, Shell, ShellHarsh)
