"""The worker shell on threads of which some do not come back for long: what has no room waits, all else goes on."""

from __future__ import annotations

import collections
from collections.abc import Generator, Iterable
from typing import Any

from casework.executions import deliver
from casework.executions.run_task import TaskRunner
from casework.executions.runtime import Runtime
from casework.executions.worker import Bell, Worker, WorkerOptions, work
from casework.kernel.effects import Cancelled, Effect
from casework.kernel.programs import Program, sleep
from casework.simulation.carrier import Process
from casework.simulation.faults import Faults
from casework.simulation.scenarios.executions import ExecutionScenario, insist
from casework.simulation.world import World

SLOW = """
id: slow
initial: a
context: {}
states:
  a:
    invoke: {id: do, src: {task: job}, timeout: 300ms, retry: {max_attempts: 2, initial: 10ms, jitter: false},
      onDone: {target: b, actions: [{type: assign, params: {end: done}}]},
      onError: {target: b, actions: [{type: assign, params: {end: {expr: event.type}, why: {expr: event.error.type}}}]}}
  b: {type: final}
"""
QUICK = """
id: quick
initial: a
states: {a: {on: {go: b}}, b: {after: {50ms: c}}, c: {type: final}}
"""

CONCURRENCY = 2
AWAY_S = 2.0
"""A function that does not return in time comes back after so long."""


class Threads:
    """The threads of one process, as a worker knows them."""

    is_loop_free = True

    def __init__(self, world: World) -> None:
        self.inside = 0
        self.away: list[int] = []
        """When functions come back that nobody waits for."""
        self._world = world

    @property
    def threads_left(self) -> int:
        """Threads whose function nobody waits for."""
        return sum(due_us > self._world.now_us for due_us in self.away)

    @property
    def threads_used(self) -> int:
        """Threads that run a function."""
        return self.inside + self.threads_left

    @property
    def coroutines_left(self) -> int:
        """As many as threads: there are no coroutines here."""
        return self.threads_left

    @property
    def names_left(self) -> list[str]:
        """Which functions have not returned."""
        return ["job"] * self.threads_left


class EndlessBell(Bell):
    """A bell that has always been rung again by the time that one looks: somebody of this process sends without end."""

    def rung(self, most: int) -> list[str]:
        """What was rung, and one execution that there is not."""
        return [*super().rung(most), "nobody"]


class Returning(ExecutionScenario):
    """Tasks whose functions outlive them, beside events, timers, and a bell that never stops."""

    name = "threads that do not come back"
    machines = (SLOW, QUICK)
    faults = Faults(unknown=0.02, crash=0.0002)
    steps_max = 60_000
    jobs = 5
    worker_options = WorkerOptions(
        poll_s=0.2, lease_s=3.0, heartbeat_s=1.0, concurrency=CONCURRENCY, group=4, drain_s=0.2
    )

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.wrongs: list[str] = []
        self.hangs: dict[str, list[bool]] = collections.defaultdict(list)
        self.quick_done_us = 0

    def runtime(self) -> Runtime:
        """What a process knows; its tasks have functions by name, which are stood in for."""
        rt = super().runtime()
        machine = rt.machines["slow"]
        if "job" not in machine.tasks:
            machine.task(name="job")(lambda task: None)
        return rt

    def begin_clients(self) -> None:
        """One who starts it all."""
        self.client("starter", self.start)

    def start(self, rt: Runtime) -> Program[None]:
        """Tasks first, so that they stand in front of everything else."""
        for n in range(self.jobs):
            yield from insist(deliver.start, rt, "slow", f"slow-{n}", None)
        for n in range(2):
            yield from insist(deliver.start, rt, "quick", f"quick-{n}", None)
            yield from insist(deliver.send, rt, f"quick-{n}", "go", {}, event_id="go")

    def worker(self, process: Process) -> Generator[Effect, Any, Any]:
        """The real shell, whose functions are programs that may stay away, and a bell that rings all the time."""
        threads = Threads(self.world)
        bell = EndlessBell()
        worker = Worker(self.runtime(), self.worker_options, bell, perform=lambda runner: self.job(runner, threads))
        worker.calls = threads
        yield from work(worker)

    def job(self, runner: TaskRunner, threads: Threads) -> Program[Any]:
        """A function on a thread: it comes back at once, or long after its task is over."""
        task = runner.task
        if threads.threads_used >= CONCURRENCY:
            self.wrongs.append(f"{task.key} was begun, and all of {CONCURRENCY} threads are in use")
        hangs = self.world.choices.below(2) == 1
        self.hangs[task.id].append(hangs)
        return self.call(threads, hangs=hangs)

    def call(self, threads: Threads, *, hangs: bool) -> Program[Any]:
        """The call itself. It cannot be stopped: cancelled, it keeps its thread."""
        threads.inside += 1
        try:
            yield from sleep(AWAY_S if hangs else 0.02)
        except Cancelled:
            threads.away.append(self.world.now_us + int(AWAY_S * 1e6))
            raise
        finally:
            threads.inside -= 1
        return None

    # --- what must hold -----------------------------------------------------------------------------------------------

    def ids(self) -> list[str]:
        """All that must end."""
        return [*(f"slow-{n}" for n in range(self.jobs)), *(f"quick-{n}" for n in range(2))]

    def is_over(self) -> bool:
        """All have ended."""
        states = [self.state(id) for id in self.ids()]
        return all(state is not None and state.ended for state in states)

    def problems(self) -> Iterable[str]:
        """No more functions than threads; each task ended as its function did."""
        yield from dict.fromkeys(self.wrongs)
        for id in self.ids():
            state = self.state(id)
            if state is None or state.status != "done":
                yield f"{id} is {state and state.status}"
        for id, hangs in self.hangs.items():
            end = self.context(id).get("end")
            if end == "done" and all(hangs):
                yield f"{id} ended as done, and its function never returned in time"
            if end != "done" and self.context(id).get("why") not in ("Timeout", "Crashed"):
                yield f"{id} ended with {self.context(id)}"


ALL = (Returning,)
