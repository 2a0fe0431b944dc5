"""The scenario of a user's charts: senders, workers, their tasks' stand-ins, and everything that can go wrong.

A run makes a few executions, sends them events that their machines know, most of them such as the active states await,
and goes on until nothing is due. Every commit is looked at as it becomes visible; what must hold then is in
:mod:`casework.simulation.watching`. Pauses and the durations of tasks are drawn from a few times that include those
just before and just after each timer of the charts, since that is where races are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from casework.errors import Contention, Misuse, OutcomeUnknown, StoreError, TaskNotClaimed, Throttled, Unavailable
from casework.executions import deliver, tasks
from casework.executions.advance import advance
from casework.executions.run_task import Later, TaskRunner, keyword_arguments, settle_outcome
from casework.executions.runtime import Options, Runtime
from casework.executions.task_items import Task as ClaimedTask
from casework.executions.worker import Worker, WorkerOptions, work
from casework.kernel.containment import in_words
from casework.kernel.effects import Effect, Flag, Handle, Outcome
from casework.kernel.items import Key
from casework.kernel.programs import Program, call_blocking, now, query, race, sleep, spawn
from casework.kernel.schema import EXECUTIONS, INDEX_KINDS, TABLES
from casework.simulation.carrier import Process
from casework.simulation.faults import Faults
from casework.simulation.guesses import Guesses
from casework.simulation.invariants import Invariant, Sent, TaskCall
from casework.simulation.payloads import EventSpec, draw, known_events
from casework.simulation.reached import Counted
from casework.simulation.runner import Scenario
from casework.simulation.scenarios.blame import Blame
from casework.simulation.scenarios.watching import Watch
from casework.simulation.standins import StandIn
from casework.simulation.story import Story, payload
from casework.simulation.world import World
from casework.statechart import Machine, awaited_events
from casework.statechart.names import states_in

LOST = (Contention, Throttled, Unavailable, OutcomeUnknown)
LEASE_S = 30.0
TRACE_MAX = 10_000
SHELL_S = (20.0, 200.0)
"""So long the worker shell itself runs, in a quarter of the runs. It polls and beats all the time, and a month of that
takes too many steps: it is told to stop, and its process goes on with a loop that sleeps until something is due."""
REST_COMMITS = 40
"""So many commits after the last event from outside, an execution whose timers only go in a circle is at rest."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What is simulated; see :func:`casework.simulate`."""

    machines: tuple[Machine, ...]
    roots: tuple[Machine, ...]
    """Those that are started from outside."""
    counted: tuple[Counted, ...]
    """The machines, counting what they enter and take."""
    guesses: Mapping[str, Guesses]
    """By machine: what is sent, given and returned where the user says nothing."""
    stand_ins: Mapping[tuple[str, str], StandIn]
    events: tuple[EventSpec, ...] = ()
    script: tuple[EventSpec, ...] = ()
    input: Any = None
    invariants: Mapping[str, tuple[Invariant, ...]] = {}
    """By machine; those of ``""`` are asked of every execution."""
    faults: Faults
    duplicates: bool
    may_fail: bool
    workers: int = 2
    prepare: Callable[[], Any] | None = None
    """Called before each run."""


def delays_of(machines: Iterable[Machine]) -> list[float]:
    """Seconds at which something may be late or in time: a moment before and after each timer of the charts."""
    found = {0.01, 1.0}
    for machine in machines:
        for state in states_in(machine.definition["root"]):
            for timer in state.get("after", []):
                if isinstance(timer["delay"], int):
                    found |= {max(0.0, timer["delay"] / 1e6 - 0.05), timer["delay"] / 1e6 + 0.05}
    return sorted(found)


class UsersCharts(Scenario):
    """One run of a user's charts."""

    name = "charts"
    tables = TABLES
    steps_max = 100_000

    def __init__(self, world: World, setting: Setting) -> None:
        super().__init__(world)
        self.setting = setting
        if world.timeline is not None:
            world.timeline = Story()
        draw_number = world.choices.below
        self.options = Options(
            buckets=1, trace_max=TRACE_MAX, batch_max=(64, 4, 1)[draw_number(3)], spill_above=(60, 3)[draw_number(2)]
        )
        self.machines = {machine.name: machine for machine in setting.machines}
        self.blame = Blame(
            setting.machines, setting.guesses, setting.stand_ins, has_input=setting.input is not None
        )  # fmt: skip
        self.watch = Watch(
            world, setting.machines, self.options, setting.invariants, self.blame, may_fail=setting.may_fail
        )  # fmt: skip
        self.delays = delays_of(setting.machines)
        # A user's own stand-in may do more than the shell allows for: be completed from outside, for one.
        is_plain = all(each.function is None for each in setting.stand_ins.values())
        self.shell_s = SHELL_S[draw_number(2)] if is_plain and draw_number(4) == 3 else 0.0
        self.bells: dict[str, Flag] = {}
        self.senders = 0
        self.post = Flag()
        """Set when an event is to be delivered again, and when the last sender has finished."""
        self.again: list[tuple[str, EventSpec, str | None, Any]] = []
        self.rest_from: int | None = None

    # --- the run ------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start workers, and one or two executions of each root machine with their senders."""
        if self.setting.prepare is not None:
            self.setting.prepare()
        crashes = bool(self.setting.faults.crash)
        for n in range(self.setting.workers):
            self.world.process(f"worker-{n + 1}", self.worker, may_crash=crashes)
        for machine in self.setting.roots:
            for n in range(1 + self.world.choices.below(2)):
                self._begin_execution(machine, f"{machine.name}-{n + 1}", crashes)
        if self.setting.duplicates:
            self.world.process("network", self.repeat, may_crash=False)

    def _begin_execution(self, machine: Machine, id: str, crashes: bool) -> None:
        guesses = self.setting.guesses[machine.name]
        template = self.setting.input if self.setting.input is not None else guesses.input().template
        given = draw(template, self.world.choices.below)
        history = self.watch.expect(id, machine)
        parts: list[Sequence[EventSpec | None]] = []
        if self.setting.script:
            parts.append(self.setting.script)
        if self.setting.events or not self.setting.script:
            is_silent = not any(machine.accepts(kind) for kind in machine.event_types)
            most = 1 if is_silent else 5  # one more is not drawn: a machine that takes no event is only started
            parts += [[None] * self.world.choices.below(most), [None] * self.world.choices.below(most)]
        for n, part in enumerate(parts):
            if n and not part:
                continue
            self.senders += 1
            sender = Sender(self, machine, id, given, part, history.sent, f"{id}.{n}")
            name = "client" if not n else f"client-{n + 1}"
            self.world.process(name, sender.main, may_crash=crashes)

    def say(self, who: str, what: str) -> None:
        """A line of the timeline."""
        if self.world.timeline is not None:
            self.world.timeline.event(self.world, who, what)

    def ring(self) -> None:
        """Tell every worker that there is something to do; one that is away when it rings finds it later."""
        for bell in self.bells.values():
            bell.set()

    def pause(self) -> float:
        """Seconds to wait: mostly none, else around one of the chart's timers."""
        n = self.world.choices.below(2 * len(self.delays) + 2) - len(self.delays) - 2
        return self.delays[n] if n >= 0 else 0.0

    # --- senders ------------------------------------------------------------------------------------------------------

    def repeat(self, process: Process) -> Generator[Effect, Any, Any]:
        """Send acknowledged events once more, some time later."""
        rt = Runtime(self.setting.machines, self.options)
        while self.senders or self.again:
            if not self.again:
                self.post.clear()
                yield from race(self.post)
                continue
            id, spec, event_id, data = self.again.pop(0)
            yield from sleep(self.pause())
            guessed = spec.data is None
            sent = Sent(spec.type, data, event_id, self.watch.at_s(), is_again=True, is_guessed=guessed)
            self.watch.histories[id].sent.append(sent)
            self.say("network", f"delivers {spec.type}{payload(data)} to {id} once more{_with_id(event_id)}")
            try:
                yield from deliver.send(rt, id, spec.type, data, event_id=event_id)
                sent.is_acknowledged = True
            except StoreError as error:
                self.say("network", f"gets {type(error).__name__}, and gives up")
            self.ring()

    # --- workers ------------------------------------------------------------------------------------------------------

    def worker(self, process: Process) -> Generator[Effect, Any, Any]:
        """Advance executions and run tasks, for ever; asleep until something is due, rings or may have been missed."""
        rt = Runtime(self.setting.machines, self.options)
        if self.shell_s:
            yield from self.shell(rt, process)
        bell = self.bells[process.name] = Flag()
        running: dict[str, Handle] = {}
        looks = 0
        while True:
            bell.clear()
            did, next_us = 0, None
            try:
                did, next_us = yield from self.look(rt, process, running)
            except StoreError:
                pass
            looks = 0 if did else looks + 1
            if not did:
                pause_s = min(0.05 * 2 ** min(looks, 30), 40 * 86_400.0)
                if next_us is not None:
                    moment = yield from now()
                    due_s = max(0.001, (next_us - moment.earliest_us) / 1e6)
                    pause_s = due_s if looks > 8 else min(pause_s, due_s)
                yield from race(bell, timeout_s=pause_s)
                looks = 0 if bell.is_set else looks

    def shell(self, rt: Runtime, process: Process) -> Program[None]:
        """The worker shell itself, with its membership, heartbeats, alarms and drain; only tasks are stood in for."""
        options = WorkerOptions(poll_s=2.0, lease_s=LEASE_S, concurrency=8)
        worker = Worker(rt, options, perform=lambda runner: self.stand_in(process, runner))
        self.bells[process.name] = worker.bell.flag
        working = yield from spawn(work(worker), "worker")
        yield from race(working, timeout_s=self.shell_s)
        worker.stop.set()
        while working.outcome is None:
            yield from race(working)
        working.outcome.result()

    def stand_in(self, process: Process, runner: TaskRunner) -> Program[Any]:
        """What a task's function does in a shell: its stand-in's result, after a while."""
        with self._begun(process, runner) as called:
            called.result, error = yield from self._called(runner, called)
            yield from sleep(self._duration(runner.task))
        self._hands_in(process, runner.task, called)
        if error is not None:
            raise error
        return called.result

    def look(self, rt: Runtime, process: Process, running: dict[str, Handle]) -> Program[tuple[int, int | None]]:
        """One look at the index: how much was done, and when the next thing is due."""
        did = 0
        next_us: int | None = None
        seen: set[str] = set()
        for kind in INDEX_KINDS:
            moment = yield from now()
            page = yield from query(EXECUTIONS, f"{kind}/0", index="pending", limit=20)
            for item in page.items:
                id, sort, rank_us = str(item["id"]), str(item["sort"]), int(item["rank_us"])
                if rank_us > moment.earliest_us:
                    next_us = rank_us if next_us is None else min(next_us, rank_us)
                elif sort.startswith("w/"):
                    did += yield from self.take_task(rt, process, Key(EXECUTIONS, id, sort), running)
                elif id not in seen:
                    seen.add(id)
                    done = yield from advance(rt, id)
                    did += done.is_held or done.has_more
        return did, next_us

    def take_task(self, rt: Runtime, process: Process, place: Key, running: dict[str, Handle]) -> Program[int]:
        """Claim a task and run it beside everything else, in this process."""
        if str(place) in running:
            return 0
        task = yield from tasks.claim_task(rt, place, lease_s=LEASE_S)
        if task is None:
            return 0

        def carry() -> Program[None]:
            try:
                yield from self.perform(rt, process, task)
            except StoreError:
                pass  # its lease runs out, and it is found again
            except Exception as error:  # noqa: BLE001 - a fault of the library, which must not pass unseen
                self.watch.fail(f"task {task.key} raised {type(error).__name__}: {error}")
                self.watch.close()
            running.pop(str(place), None)
            self.bells[process.name].set()

        running[str(place)] = yield from spawn(carry(), f"task {task.key}")
        return 1

    @contextlib.contextmanager
    def _begun(self, process: Process, runner: TaskRunner) -> Iterator[TaskCall]:
        """One call of a task, from its beginning to its end, as the history and the timeline have it."""
        task = runner.task
        what = f"{task.src} of {task.id}"
        kwargs = dict(keyword_arguments(runner.rt, task))
        story = self.world.timeline
        why = self.watch.attempts.begins(task.key, task.attempt, story) if isinstance(story, Story) else ""
        self.say(process.name, f"runs {what}, attempt {task.attempt} (key {task.key}){why and f', since {why}'}")
        called = TaskCall(task.src, task.id, task.key, task.attempt, kwargs, self.watch.at_s())
        self.watch.calls.append(called)
        with self._doing(process, f"runs {what}"):
            yield called

    @contextlib.contextmanager
    def _doing(self, process: Process, what: str) -> Iterator[None]:
        """What a process does for a while, so that the timeline can say in what it died."""
        story = self.world.timeline if isinstance(self.world.timeline, Story) else None
        doing = story.doing.setdefault(process.name, []) if story is not None else []
        doing.append(what)
        try:
            yield
        finally:
            doing.remove(what)

    def _hands_in(self, process: Process, task: ClaimedTask, called: TaskCall) -> None:
        """A line of the timeline: what came of a call is about to be stored."""
        ends = f"failed: {called.error}" if called.error else f"gave{payload(called.result) or ' null'}"
        self.watch.attempts.handed_in(task.key, task.attempt)
        self.say(process.name, f"hands in that {task.src} of {task.id} {ends}")

    def _outcome_of(self, process: Process, task: ClaimedTask) -> None:
        """A line of the timeline where what was handed in was not stored."""
        if self.world.timeline is None:
            return
        item = self.world.store.tables.stored(EXECUTIONS).items.get((task.id, task.sort))
        if item is None or item.get("is_external") or str(item["key"]) != task.key:
            return
        what = f"{task.src} of {task.id}"
        if item.get("token") == task.token:
            self.say(process.name, f"could not store what came of {what}: it runs again when its lease ends")
        elif int(item.get("attempt", 0)) > task.attempt:
            self.say(process.name, f"comes too late with {what}: another attempt has it")

    def _called(self, runner: TaskRunner, called: TaskCall) -> Program[tuple[Any, Exception | None]]:
        """What a task's stand-in returns, or raises."""
        stand_in = self.setting.stand_ins[runner.task.machine, runner.task.src]
        below = self.world.choices.below
        try:
            return (yield from call_blocking(stand_in.call, runner.context, below, **called.kwargs)), None
        except Exception as error:  # noqa: BLE001 - a task's error is an event of its execution
            called.error = in_words(error)
            return None, error

    def _duration(self, task: ClaimedTask) -> float:
        """How long a call takes."""
        takes = self.setting.stand_ins[task.machine, task.src].takes
        return self.pause() if takes is None else takes[self._below(len(takes))]

    def perform(self, rt: Runtime, process: Process, task: ClaimedTask) -> Program[None]:
        """Call a task's function, take a while over it, and store what came of it."""
        runner = TaskRunner(rt, task, lambda id: None)
        what = f"{task.src} of {task.id}"
        with self._begun(process, runner) as called:
            called.result, error = yield from self._called(runner, called)
            outcome: Outcome[Any] = Outcome(called.result) if error is None else Outcome(error=error)
            takes_s = self._duration(task)
            kept = yield from self._wait(task, takes_s)
        if not kept:
            self.say(process.name, f"lost {what} to another worker meanwhile, or its state was left")
            return
        limit_us = task.options.timeout_us
        if limit_us and takes_s * 1e6 >= limit_us:
            self.say(process.name, f"gives up on {what}: no result within {limit_us / 1e6:g} s")
            late = {"message": f"no result within {limit_us / 1e6:g} s", "type": "Timeout"}
            yield from tasks.attempt_failed(rt, task, late)
            return
        self._hands_in(process, task, called)
        with self._doing(process, f"hands in what came of {what}"):
            try:
                yield from settle_outcome(runner, outcome)
            except StoreError:
                self._outcome_of(process, task)
                raise
            self._outcome_of(process, task)
        yield from self._after(rt, process, runner, outcome)

    def _below(self, bound: int) -> int:
        return self.world.choices.below(bound)

    def _wait(self, task: ClaimedTask, seconds: float) -> Program[bool]:
        """Let a task take its time, its lease kept as long as that; whether the claim still stands."""
        if task.options.timeout_us:
            seconds = min(seconds, task.options.timeout_us / 1e6)
        if seconds > LEASE_S / 3:
            task.lease_us = int((seconds + LEASE_S) * 1e6)
            if not (yield from tasks.renew_task(task)):
                return False
        yield from sleep(seconds)
        return True

    def _after(self, rt: Runtime, process: Process, runner: TaskRunner, outcome: Outcome[Any]) -> Program[None]:
        """Complete a task that is to be completed from outside; now and then hand in a result twice."""
        task = runner.task
        if isinstance(outcome.value, Later):
            yield from sleep(self.pause())
            self.say("outside", f"completes {task.src} of {task.id}")
            try:
                yield from tasks.complete_from_outside(rt, runner.context.token, None)
            except TaskNotClaimed:
                self.say("outside", f"comes too late for {task.src} of {task.id}")
        elif outcome.error is None and self.setting.duplicates and self._below(4) == 3:
            self.say(process.name, f"hands in the result of {task.src} of {task.id} once more")
            yield from tasks.finish_task(rt, task, outcome.value)

    # --- the end ------------------------------------------------------------------------------------------------------

    def is_over(self) -> bool:
        """Something does not hold; or nobody sends any more, and everything has ended or come to rest."""
        watch = self.watch
        if watch.found:
            return True
        if self.senders or self.again or self.world.store.locks:
            return False
        if self.rest_from is None:
            self.rest_from = watch.commits_n
        since = watch.commits_n - self.rest_from
        if since > 10 * REST_COMMITS:
            return True
        return not watch.waiting() and (since > REST_COMMITS or not watch.has_timers())

    def waits_for(self) -> str:
        """What a run that is stuck waits for."""
        return "; ".join(self.watch.waiting()[:5]) or "a timer that does not fire"

    def problems(self) -> Iterable[str]:
        """What did not hold."""
        is_quiet = self.rest_from is not None and self.watch.commits_n - self.rest_from <= 10 * REST_COMMITS
        return self.watch.problems(is_quiet=is_quiet)


class Sender:
    """Who starts an execution and sends it events; a crash does not make it forget which were acknowledged."""

    def __init__(
        self, scenario: UsersCharts, machine: Machine, id: str, input: Any, events: Sequence[EventSpec | None],
        sent: list[Sent], prefix: str,
    ) -> None:  # fmt: skip
        self.scenario = scenario
        self.machine = machine
        self.id = id
        self.input = input
        self.sent = sent
        self.events = events
        self.prefix = prefix
        self.done = 0
        self.chosen: tuple[EventSpec, Any] | None = None

    def main(self, process: Process) -> Generator[Effect, Any, Any]:
        """Start the execution, then send one event after the other."""
        scenario = self.scenario
        rt = Runtime(scenario.setting.machines, scenario.options)
        try:
            yield from self._insist(process, f"starts {self.id}{payload(self.input)}", lambda: self._start(rt))
        except Misuse as error:
            if scenario.setting.input is not None:
                raise
            scenario.watch.fail(scenario.blame.of_input(self.id, error))
            scenario.watch.close()
            return
        while self.done < len(self.events):
            if self.chosen is None:
                self.chosen = self._choose(self.events[self.done])
                if self.chosen is None:
                    break
            yield from self._send(rt, process, *self.chosen)
            self.chosen = None
            self.done += 1
        scenario.senders -= 1
        scenario.post.set()

    def _start(self, rt: Runtime) -> Program[Any]:
        yield from deliver.start(rt, self.machine.name, self.id, self.input)

    def _send(self, rt: Runtime, process: Process, spec: EventSpec, data: Any) -> Program[None]:
        scenario = self.scenario
        choices = scenario.world.choices
        yield from sleep(scenario.pause() if spec.after_s is None else spec.after_s)
        event_id = f"{self.prefix}.{self.done + 1}" if spec.has_id else None
        is_inline = choices.below(3) == 2
        verb = "sends and waits for" if is_inline else "sends"

        def attempt() -> Program[Any]:
            sent = Sent(spec.type, data, event_id, scenario.watch.at_s(), is_guessed=spec.data is None)
            sent.is_again = any(other.id == event_id is not None for other in self.sent)
            self.sent.append(sent)
            way: Any = deliver.handle if is_inline else deliver.send
            yield from way(rt, self.id, spec.type, data, event_id=event_id)
            sent.is_acknowledged = True

        said = f"{verb} {spec.type}{payload(data)} to {self.id}{_with_id(event_id)}"
        yield from self._insist(process, said, attempt)
        scenario.ring()
        if scenario.setting.duplicates and choices.below(3) == 2:
            scenario.again.append((self.id, spec, event_id, data))
            scenario.post.set()

    def _insist(self, process: Process, what: str, attempt: Callable[[], Program[Any]]) -> Program[None]:
        """Do something until it is acknowledged."""
        say = self.scenario.say
        say(process.name, what)
        while True:
            try:
                yield from attempt()
                return
            except LOST as error:
                is_lost = isinstance(error, OutcomeUnknown)
                say(process.name, f"{'gets no answer' if is_lost else 'is told to try again'}, and {what}, again")
                yield from sleep(0.02)

    def _choose(self, spec: EventSpec | None) -> tuple[EventSpec, Any] | None:
        """The next event and its payload; None when the execution has ended and nothing is scripted."""
        scenario = self.scenario
        below = scenario.world.choices.below
        if spec is None:
            execution = scenario.watch.executions.get(self.id)
            if execution is not None and execution.has_ended and below(4) < 3:
                return None
            pool = self._awaited() if below(5) < 4 else self._all()
            if not pool:
                return None
            spec = pool[below(len(pool))]
        guesses = scenario.setting.guesses[self.machine.name]
        data = spec.data if spec.data is not None else guesses.payload(spec.type).template
        return spec, draw(data, below)

    def _all(self) -> list[EventSpec]:
        own = [spec for spec in self.scenario.setting.events if self.machine.accepts(spec.type)]
        return own or [EventSpec(kind) for kind in known_events(self.machine)]

    def _awaited(self) -> list[EventSpec]:
        """Events that an active state has a transition for; all of them when there are none."""
        snapshot = self.scenario.watch.snapshots.get(self.id)
        every = self._all()
        if snapshot is None:
            return every
        active = awaited_events(self.machine, snapshot)
        wanted = [s for s in every if any(s.type == d or s.type.startswith(d.rstrip(".*") + ".") for d in active)]
        return wanted or every


def _with_id(event_id: str | None) -> str:
    return f" (id {event_id})" if event_id is not None else " (no id)"
