"""Executions that end, fail, are driven again, purged and started anew, and what they publish, on the real shell."""

from __future__ import annotations

import collections
from collections.abc import Generator, Iterable
from typing import Any

import msgspec

from casework.errors import CaseworkError, ExecutionExists, Misuse, NoSuchExecution
from casework.executions import control, deliver
from casework.executions.runtime import Options, Runtime
from casework.executions.state import STATE
from casework.executions.worker import Worker, WorkerOptions, work
from casework.kernel.effects import Effect
from casework.kernel.items import Item, Key
from casework.kernel.programs import Program, sleep
from casework.kernel.schema import EXECUTIONS
from casework.simulation.carrier import Process
from casework.simulation.faults import ROUGH
from casework.simulation.scenarios.executions import LEDGER, LOST, SENDER, ExecutionScenario, insist
from casework.streams.log import Log, Op
from casework.streams.read import read_page


class OnTheShell(ExecutionScenario):
    """Workers are the real shell, with its bell, its membership and its tasks."""

    steps_max = 120_000
    poll_s = 0.1

    def worker(self, process: Process) -> Generator[Effect, Any, Any]:
        """The real shell."""
        options = WorkerOptions(poll_s=self.poll_s, lease_s=2.0, heartbeat_s=1.0, concurrency=2, group=8)
        yield from work(Worker(self.runtime(), options))


LIFE = """
id: life
initial: open
context: {life: {expr: "input.life"}, seen: [], got: [], ticks: 0}
states:
  open:
    type: parallel
    states:
      work:
        initial: busy
        states:
          busy:
            invoke:
              id: job
              src: job
              input: {life: {expr: "context.life"}}
              retry: {max_attempts: 100}
              onDone: {target: idle, actions: [{type: assign, params: {got: {expr: "context.got + [event.life]"}}}]}
          idle: {}
      clock:
        initial: early
        states:
          early:
            after: {"500ms": {target: late, actions: [{type: assign, params: {ticks: {expr: "context.ticks + 1"}}}]}}
          late: {}
      book:
        on: {Add: {actions: [{type: assign, params: {seen: {expr: "context.seen + [event.i]"}}}]}}
"""


class Lives(OnTheShell):
    """One id that is started, terminated, purged and started again, while others send to it.

    Whatever is on its way when a life ends (a task, its result, a timer, a commit) has no effect on the next one.
    """

    name = "lives"
    faults = msgspec.structs.replace(ROUGH, pause=0.02, pause_s_max=1.0)
    machines = (LIFE,)
    lives, events, intrusions = 4, 2, 12

    def runtime(self) -> Runtime:
        """With the task that tells which life it was started for."""
        rt = super().runtime()
        machine = rt.machines["life"]
        if "job" not in machine.tasks:
            machine.task(name="job")(lambda task, life: {"life": life})
        return rt

    def begin_clients(self) -> None:
        """The owner of the id, and a stranger who sends to it whenever it is there."""
        self.life = 0
        self.added = 0
        self.is_purging = False
        self.strange = 0
        self.client("owner", self.own)
        self.client("stranger", self.intrude)

    def own(self, rt: Runtime) -> Program[None]:
        """Live, and leave the last life standing."""
        while True:
            life = self.life
            if not self.is_purging:
                yield from insist(self.start, rt, life)
                while self.added < self.events:
                    event = [life, self.added]
                    way = deliver.handle if self.added % 2 else deliver.send
                    yield from insist(way, rt, "x", "Add", {"i": event}, event_id=f"{life}-{self.added}")
                    self.added += 1
                if life == self.lives - 1:
                    return
                yield from sleep(0.02 * self.world.choices.below(8))
                self.is_purging = True
            yield from insist(self.end, rt)
            self.life, self.added, self.is_purging = life + 1, 0, False

    def start(self, rt: Runtime, life: int) -> Program[None]:
        """Start the id's next life."""
        try:
            yield from deliver.start(rt, "life", "x", {"life": life})
        except ExecutionExists:
            state = self.state("x")
            if state is None or state.status != "purging":
                raise

    def end(self, rt: Runtime) -> Program[None]:
        """Terminate and purge. One that is not there was purged before its caller died."""
        try:
            yield from control.terminate(rt, "x")
        except (NoSuchExecution, Misuse):
            pass
        try:
            yield from control.purge(rt, "x")
        except NoSuchExecution:
            pass

    def intrude(self, rt: Runtime) -> Program[None]:
        """Send events to whatever life there is."""
        while self.strange < self.intrusions:
            i = self.strange
            way = deliver.handle if self.world.choices.below(2) else deliver.send
            try:
                yield from way(rt, "x", "Add", {"i": ["stranger", i]}, event_id=f"stranger-{i}")
                self.strange += 1
            except (*LOST, CaseworkError):
                pass
            yield from sleep(0.02)

    def is_over(self) -> bool:
        """Nothing waits, and the last life's task and timer are done."""
        if not self.is_idle():
            return False
        context = self.context("x")
        return bool(context) and bool(context["got"]) and bool(context["ticks"])

    def problems(self) -> Iterable[str]:
        """The last life has its own events once and in order, its own task's result, and one tick of its clock."""
        context, last = self.context("x"), self.lives - 1
        if context["life"] != last:
            yield f"the execution that stands was started for life {context['life']}, not {last}"
        if context["got"] != [last]:
            yield f"results counted: {context['got']}, of life {last} there is one"
        if context["ticks"] != 1:
            yield f"the timer fired {context['ticks']} times"
        seen = [tuple(each) for each in context["seen"]]
        if len(set(seen)) != len(seen):
            yield f"an event was taken twice in one life: {seen}"
        own = {each for each in seen if each[0] == last}
        if own != {(last, i) for i in range(self.events)}:
            yield f"of its own events the last life took {sorted(own)}"


class LivesPublished(Lives):
    """The lives of an id that publishes, while an operator purges it as well: all that each life did is in the stream,
    one life after the other.
    """

    name = "lives, published"
    machines = (LIFE + "publish: {stream: s, events: [Add]}\n",)
    options = Options(buckets=1, batch_max=2)
    lives, events, intrusions = 3, 2, 5
    poll_s = 0.3

    def begin_clients(self) -> None:
        """The owner, the stranger, a second one who purges, and a reader of the stream."""
        self.took: dict[int, list[Any]] = {}
        self.read: list[Op] = []
        self.place = EXECUTIONS.key("x", STATE)
        self.world.store.watch = self.see
        super().begin_clients()
        self.client("operator", self.purge)
        self.world.process("reader", lambda process: read_on(self.read), may_crash=False)

    def see(self, key: Key, before: Item | None, after: Item | None) -> None:
        """Note what each life has taken, whenever its state becomes visible."""
        if after is not None and key == self.place and (context := self.context("x")):
            self.took[context["life"]] = context["seen"]

    def purge(self, rt: Runtime) -> Program[None]:
        """Purge it whenever it has ended, beside the owner."""
        while self.life < self.lives - 1:
            try:
                yield from control.purge(rt, "x")
            except (*LOST, NoSuchExecution, Misuse):
                pass
            yield from sleep(0.02)

    def expected(self) -> list[Any]:
        """What was taken, life after life."""
        return [i for life in sorted(self.took) for i in self.took[life]]

    def is_over(self) -> bool:
        """What was published has been read, too."""
        return super().is_over() and not self.items("o/") and len(self.read) >= len(self.expected())

    def waits_for(self) -> str:
        """What is missing."""
        return f"{len(self.expected())} entries in the stream, there are {len(self.read)}"

    def problems(self) -> Iterable[str]:
        """The stream has what was taken, in its order, and nothing twice."""
        yield from super().problems()
        entries = [msgspec.json.decode(op.data)["data"]["i"] for op in self.read]
        if entries != self.expected():
            yield f"published: {entries}, taken: {self.expected()}"


def read_on(read: list[Op]) -> Generator[Effect, Any, Any]:
    """Read the stream "s" for ever."""
    log = Log()
    while True:
        try:
            page = yield from read_page(log, "s", read[-1].seq if read else 0)
            read += page.ops
        except LOST:
            pass
        yield from sleep(0.1)


class Published(OnTheShell):
    """Two executions publish their transitions to one stream: each once, in the order of its commits, none missing."""

    name = "published"
    machines = (LEDGER + "publish: s\n", SENDER + "publish: s\n")
    options = Options(buckets=1, batch_max=2)
    events = 4

    def begin_clients(self) -> None:
        """A driver of both, and a reader of the stream."""
        self.said = 0
        self.read: list[Op] = []
        self.client("driver", self.drive)
        self.world.process("reader", lambda process: read_on(self.read), may_crash=False)

    def drive(self, rt: Runtime) -> Program[None]:
        """Start both, and say one thing after the other."""
        yield from insist(deliver.start, rt, "ledger", "x", None)
        yield from insist(deliver.start, rt, "sender", "s", None)
        while self.said < self.events:
            i = self.said
            way = deliver.handle if i % 2 else deliver.send
            yield from insist(way, rt, "s", "Say", {"i": i}, event_id=f"say-{i}")
            self.said += 1

    def taken_n(self) -> int:
        """How many transitions there were: two starts, and each event once on both sides."""
        return 2 + 2 * self.events

    def is_over(self) -> bool:
        """Nothing waits, nothing is to be published, and all of it was read."""
        return self.is_idle() and not self.items("o/") and len(self.read) >= self.taken_n()

    def waits_for(self) -> str:
        """What is missing."""
        return f"{self.taken_n()} entries in the stream, there are {len(self.read)}"

    def problems(self) -> Iterable[str]:
        """Entries of each execution, by version and position, ascend without a repeat."""
        entries = [msgspec.json.decode(op.data) for op in self.read]
        if len(entries) != self.taken_n():
            yield f"{len(entries)} transitions were published, there were {self.taken_n()}"
        ids = collections.Counter(op.id for op in self.read)
        if repeated := [id for id, count in ids.items() if count > 1]:
            yield f"published twice: {repeated}"
        for id in ("x", "s"):
            versions = [entry["version"] for entry in entries if entry["execution"] == id]
            if versions != sorted(versions):
                yield f"execution {id!r} was published in the order of versions {versions}"
        said = [entry["data"]["i"] for entry in entries if entry["execution"] == "x" and entry["event"] == "Add"]
        if said != self.context("x")["seen"]:
            yield f"the receiver took {self.context('x')['seen']} and published {said}"


ALL = (Lives, LivesPublished, Published)
