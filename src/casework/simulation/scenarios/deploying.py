"""Two versions of the code side by side: web processes and workers of both, while executions of the newer one go on."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from functools import partial
from typing import Any

from casework.executions import deliver
from casework.executions.runtime import Options, Runtime
from casework.executions.worker import Worker, WorkerOptions, work
from casework.kernel.effects import Effect
from casework.kernel.programs import Program, sleep
from casework.simulation.carrier import Process
from casework.simulation.scenarios.executions import ExecutionScenario, insist
from casework.statechart import Machine

OLDER = """
id: order
initial: open
context: {seen: []}
states:
  open: {on: {Add: {actions: [{type: assign, params: {seen: {expr: "context.seen + [event.i]"}}}]}, Go: paying}}
  paying: {invoke: {id: pay, src: {task: pay}, input: {amount: 1}, onDone: closed, onError: wrong}}
  closed: {}
  wrong: {}
"""

NEWER = """
id: order
initial: open
context: {seen: []}
on: {Add: {actions: [note]}}
states:
  open: {on: {Go: packing}}
  packing: {invoke: {id: kid, src: {machine: kid}, onDone: sending, onError: wrong}}
  sending: {invoke: {id: courier, src: courier, onDone: sharing, onError: wrong}}
  sharing:
    invoke: {id: many, src: {machine: kid}, each: {expr: "['a', 'b']"}, input: {}, onDone: paying, onError: wrong}
  paying: {invoke: {id: pay, src: {task: pay}, input: {amount: 1, currency: EUR}, onDone: closed, onError: wrong}}
  closed: {}
  wrong: {}
"""

KID = """
id: NAME
initial: busy
states:
  busy: {after: {"50ms": ready}}
  ready: {type: final}
"""


def _older() -> list[Machine]:
    order = Machine.from_yaml(OLDER)
    order.task(name="pay")(lambda task, amount: {})
    return [order]


def _newer() -> list[Machine]:
    order = Machine.from_yaml(NEWER)
    order.action(name="note")(lambda context, event: {"seen": [*context["seen"], event["i"]]})
    order.task(name="pay")(lambda task, amount, currency: {})
    return [order, *(Machine.from_yaml(KID.replace("NAME", name)) for name in ("kid", "courier"))]


_versions: dict[str, list[Machine]] = {}


def version(name: str) -> list[Machine]:
    """The machines of a version; compiled once, since they are immutable."""
    if name not in _versions:
        _versions[name] = _older() if name == "older" else _newer()
    return _versions[name]


class TwoVersions(ExecutionScenario):
    """An execution of the newer version, whose events come to web processes of both, and whose work falls to workers of
    both, in whatever order. It invokes machines, a name that is a machine's, and a task with other arguments, none of
    which the older version knows. Nothing is decided by who lacks something.
    """

    name = "two versions"
    steps_max = 200_000
    options = Options(buckets=1, batch_max=2)
    events = 3

    def runtime(self) -> Runtime:
        """What a process of the newer version knows."""
        return Runtime(version("newer"), self.options)

    def older(self) -> Runtime:
        """What one of the older version knows."""
        return Runtime(version("older"), self.options)

    def begin(self) -> None:
        """A worker of each, in whichever order; clients of each."""
        self.late_s = [2.0 * self.world.choices.below(3) for _ in range(2)]
        for n, name in enumerate(("older", "newer")):
            self.world.process(f"worker-{name}", partial(self.shell, n, name))
        self.begin_clients()

    def shell(self, n: int, name: str, process: Process) -> Generator[Effect, Any, Any]:
        """The real shell, some time after the beginning."""
        yield from sleep(self.late_s[n])
        options = WorkerOptions(poll_s=0.5, lease_s=2.0, heartbeat_s=1.0, concurrency=2, group=8)
        yield from work(Worker(Runtime(version(name), self.options), options))

    def begin_clients(self) -> None:
        """One who starts it, and one of each version who sends to it."""
        self.said = {"older": 0, "newer": 0}
        self.client("starter", lambda rt: insist(deliver.start, rt, "order", "x", None))
        self.client("web-older", lambda rt: self.send(self.older(), "older"))
        self.client("web-newer", lambda rt: self.send(rt, "newer"))

    def send(self, rt: Runtime, name: str) -> Program[None]:
        """Tell it some things, and to go, as if nobody else did."""
        while self.state("x") is None:
            yield from sleep(0.02)
        while self.said[name] <= self.events:
            i = self.said[name]
            kind, data = ("Add", {"i": f"{name}-{i}"}) if i < self.events else ("Go", {})
            way = deliver.handle if self.world.choices.below(2) else deliver.send
            yield from insist(way, rt, "x", kind, data, event_id=f"{name}-{i}")
            self.said[name] += 1
            yield from sleep(0.05 * self.world.choices.below(3))

    def is_over(self) -> bool:
        """It has come to its end, or to one that is wrong."""
        state = self.state("x")
        ended = state is not None and (state.ended or self.configuration("x") in (["closed"], ["wrong"]))
        return ended and self.is_idle()

    def waits_for(self) -> str:
        """What is missing."""
        return f"it is in {self.configuration('x')}, parked: {[i['parked'] for i in self.items() if i.get('parked')]}"

    def problems(self) -> Iterable[str]:
        """It is where its version leads, has each event once, and its children ran the newer definition."""
        state = self.state("x")
        if state is None or self.configuration("x") != ["closed"] or state.status != "running":
            yield f"it is {state and state.status}, in {self.configuration('x')}: {self.context('x')}"
        seen = self.context("x").get("seen", [])
        wanted = sorted(f"{name}-{i}" for name in self.said for i in range(self.events))
        if sorted(seen) != wanted:
            yield f"events taken: {seen}, sent: {wanted}"
        known = {machine.name: machine.hash for machine in version("newer")}
        kids = [item for item in self.items() if item["sort"] == "0" and item.get("parent_id")]
        if len(kids) != 4:
            yield f"{len(kids)} children were started, there are four to start"
        for kid in kids:
            if kid["status"] != "done" or kid["machine_hash"] != known.get(str(kid["machine"])):
                yield f"the child {kid['id']!r} is {kid['status']!r}, with definition {str(kid['machine_hash'])[:12]!r}"


ALL: tuple[type[ExecutionScenario], ...] = (TwoVersions,)
