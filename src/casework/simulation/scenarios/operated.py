"""One execution under two operators who do all that operators can, twice and at every point."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any

import msgspec

from casework.errors import Misuse, NoSuchExecution
from casework.executions import control, deliver, retrying
from casework.executions.buckets import WORKERS
from casework.executions.runtime import Options, Runtime
from casework.executions.state import STATE, State, decode_data, state_of
from casework.executions.worker import Worker, WorkerOptions, work
from casework.kernel.effects import Effect
from casework.kernel.items import Item, Key
from casework.kernel.programs import Program, sleep
from casework.kernel.schema import EXECUTIONS, REGISTRY
from casework.simulation.carrier import Process
from casework.simulation.faults import ROUGH
from casework.simulation.scenarios.executions import LEDGER, LOST, ExecutionScenario, insist
from casework.statechart import Machine

JOB = """
id: NAME
initial: open
context: {seen: [], got: 0, ticks: 0, kids: 0, refunds: 0}
states:
  open:
    type: parallel
    on: {cancel: refunding}
    states:
      work:
        initial: busy
        states:
          busy:
            invoke:
              id: job
              src: {task: job}
              retry: {max_attempts: 100, initial: 3s, max: 3s}
              onDone: {target: idle, actions: {type: assign, params: {got: {expr: context.got + 1}}}}
          idle: {}
      clock:
        initial: early
        states:
          early: {after: {400ms: {target: late, actions: {type: assign, params: {ticks: {expr: context.ticks + 1}}}}}}
          late: {}
      family:
        initial: waiting
        states:
          waiting:
            invoke:
              id: kids
              src: {machine: kid}
              each: {expr: "[1, 2]"}
              join: all
              onDone: {target: home, actions: {type: assign, params: {kids: {expr: context.kids + 1}}}}
          home: {}
      book:
        on: {Add: {actions: [{type: assign, params: {seen: {expr: "context.seen + [event.i]"}}}, check]}}
  refunding:
    entry: {type: assign, params: {refunds: {expr: context.refunds + 1}}}
    after: {150ms: refunded}
    on: {Add: {actions: {type: assign, params: {seen: {expr: "context.seen + [event.i]"}}}}}
  refunded: {type: final}
"""

KID = "{id: kid, context: {}, initial: busy, states: {busy: {after: {300ms: done}}, done: {type: final}}}"

BOSS = """
id: boss
initial: waiting
context: {told: 0}
states:
  waiting:
    invoke:
      id: it
      src: {machine: job}
      onDone: {target: free, actions: {type: assign, params: {told: {expr: context.told + 1}}}}
      onError: {target: free, actions: {type: assign, params: {told: {expr: context.told + 1}}}}
  free: {}
"""

_broken: set[int] = set()
"""Events on which the function fails until it is mended."""

_machines: list[Machine] = []


def _job(name: str) -> Machine:
    made = Machine.from_yaml(JOB.replace("NAME", name)).beside(["job", "later", "kid"])

    @made.task(name="job")
    def job(task: Any) -> None:
        if task.attempt % 2:
            raise ValueError("not yet")

    @made.action(name="check")
    def check(context: Any, event: Any) -> None:
        if event["i"] in _broken:
            raise ValueError("broken")

    return made


def machines() -> list[Machine]:
    """All machines; made once. ``later`` is what ``job`` is migrated to."""
    if not _machines:
        texts = [Machine.from_yaml(text).beside(["job", "later", "kid"]) for text in (BOSS, KID, LEDGER)]
        _machines.extend([_job("job"), _job("later"), *texts])
    return _machines


GENTLE = ("suspend", "resume", "redrive", "skip", "retry", "migrate")
OPERATIONS = (*GENTLE, "cancel", "terminate")


class Operated(ExecutionScenario):
    """A child with a task, a timer, children and events; two operators do what they like, then bring it to its end.

    Its parent is told once, whatever they do. What has ended stays as it ended; what is suspended does nothing and
    loses nothing; a clean-up runs once, to its end. Last, both purge the tree, and the id lives again.
    """

    name = "operated"
    options = Options(buckets=1, batch_max=2)
    steps_max = 150_000
    events, operators, turns = 4, 2, 5
    faults = msgspec.structs.replace(ROUGH, skew_s_max=0.2, clock_error_s=0.05, pause_s_max=3.0)

    def runtime(self) -> Runtime:
        """What every process knows."""
        return Runtime(machines(), self.options)

    def begin_clients(self) -> None:
        """One who sends, and two operators."""
        choices = self.world.choices
        _broken.clear()
        _broken.update(i for i in range(self.events) if not choices.below(3))
        self.is_rough = bool(choices.below(2))
        """Whether they cancel and terminate before all is done."""
        self.world.store.watch = self.see
        self.sent = 0
        self.x = ""
        self.tree: set[str] = set()
        self.turn = [0] * self.operators
        self.phase = [0] * self.operators
        """0: as they like; 1: to its end; 2: purged; 3: alive again."""
        self.skipped: set[int] = set()
        self.was_terminated = self.is_renamed = self.was_asked = False
        self.still_since = 0
        """Version of the suspended state for which a suspend was acknowledged; 0: it goes on."""
        self.renewed_us: dict[str, int] = {}
        """When each claim was made or renewed last."""
        self.end: tuple[State, dict[str, Any], list[Any], int] | None = None
        self.wrongs: list[str] = []
        self.client("sender", self.send)
        for n in range(self.operators):
            self.client(f"operator-{n}", lambda rt, n=n: self.operate(rt, n))

    def worker(self, process: Process) -> Generator[Effect, Any, Any]:
        """The real shell."""
        options = WorkerOptions(poll_s=0.2, lease_s=6.0, heartbeat_s=0.5, concurrency=2, group=8)
        yield from work(Worker(self.runtime(), options))

    # --- who acts -----------------------------------------------------------------------------------------------------

    def send(self, rt: Runtime) -> Program[None]:
        """Start the parent, and send to its child, each event twice."""
        if not self.x:
            yield from insist(deliver.start, rt, "boss", "p", None)
        while not self.x:
            yield from sleep(0.02)
        while self.sent < 2 * self.events:
            i = self.sent // 2
            way = deliver.handle if not self.world.choices.below(3) else deliver.send
            yield from insist(way, rt, self.x, "Add", {"i": i}, event_id=f"{i}")
            self.sent += 1
            yield from sleep(0.05 * self.world.choices.below(4))

    def operate(self, rt: Runtime, n: int) -> Program[None]:
        """As they like; then to its end; then purge, and start the id again."""
        while not self.x:
            yield from sleep(0.02)
        while self.turn[n] < self.turns:
            what = OPERATIONS if self.is_rough else GENTLE
            operation = what[self.world.choices.below(len(what))]
            for _ in range(1 + self.world.choices.below(2)):
                yield from self.act(rt, operation)
            self.turn[n] += 1
            yield from sleep(0.1 * self.world.choices.below(5))
        while self.end is None:
            yield from self.bring_to_its_end(rt)
            yield from sleep(0.1)
        self.phase[n] = max(self.phase[n], 2)
        while min(self.phase) < 3:
            yield from self.purge(rt, n)
            yield from sleep(0.05 * self.world.choices.below(3))

    def act(self, rt: Runtime, operation: str) -> Program[None]:
        """One operation on the child; refused where it makes no sense."""
        try:
            yield from insist(getattr(self, operation), rt)
        except (Misuse, NoSuchExecution):
            pass

    def suspend(self, rt: Runtime) -> Program[None]:
        """Suspend it; from then on it stands still."""
        done = yield from control.suspend(rt, self.x)
        state = self.state(self.x)
        if state is not None and state.status == "suspended" and done.version == state.version:
            self.still_since = state.version

    def resume(self, rt: Runtime) -> Program[None]:
        """Resume it."""
        yield from control.resume(rt, self.x)

    def redrive(self, rt: Runtime) -> Program[None]:
        """Drive it on, mended or not."""
        if self.world.choices.below(2):
            _broken.clear()
        yield from control.redrive(rt, self.x)

    def skip(self, rt: Runtime) -> Program[None]:
        """Drive it on without the event."""
        state = self.state(self.x)
        if state is None or state.status != "failed":
            return
        failure = decode_data(state, state.data).failure
        if failure is not None and failure.event.kind == "event":
            self.skipped.add(failure.event.data["i"])
        yield from control.redrive(rt, self.x, skip=True)

    def retry(self, rt: Runtime) -> Program[None]:
        """What is in its pause is due then, unless somebody took it or set it aside."""
        paused = {item["sort"]: item for item in self.of(self.x, "w/") if not item.get("token") and "pending" in item}
        yield from retrying.retry(rt, self.x)
        for item in self.of(self.x, "w/"):
            before = paused.get(item["sort"])
            same = before is not None and all(
                item.get(name) == before.get(name) for name in ("attempt", "key", "pending")
            )
            if same and not item.get("token") and int(item["rank_us"]) > self.world.now_us + 1_000_000:
                self.wrongs.append(f"after a retry its task waits {(int(item['rank_us']) - self.world.now_us) / 1e6} s")

    def migrate(self, rt: Runtime) -> Program[None]:
        """Migrate it to the machine of another name."""
        yield from control.migrate(rt, self.x, machines()[1])
        self.is_renamed = True

    def cancel(self, rt: Runtime) -> Program[None]:
        """Cancel it; its clean-up runs then."""
        done = yield from control.cancel(rt, self.x)
        self.was_asked = self.was_asked or done.is_in("refunding")

    def terminate(self, rt: Runtime) -> Program[None]:
        """End it."""
        self.was_terminated = True
        yield from control.terminate(rt, self.x)

    def bring_to_its_end(self, rt: Runtime) -> Program[None]:
        """Let it go on, and cancel it when all is done."""
        state = self.state(self.x)
        if state is None or self.sent < 2 * self.events or min(self.turn) < self.turns:
            return
        if state.status == "suspended":
            yield from self.act(rt, "resume")
        elif state.status == "failed":
            _broken.clear()
            yield from self.act(rt, "redrive")
        elif not state.ended:
            context = self.context(self.x)
            if context and context["got"] and context["ticks"] and context["kids"] and not self.of(self.x, "e/"):
                yield from self.act(rt, "cancel")
        elif not (boss := self.state("p")) or not boss.ended:
            if self.context("p")["told"]:
                try:
                    yield from insist(control.terminate, rt, "p")
                except (Misuse, NoSuchExecution):
                    return  # the other operator is further
        elif not self.of(self.x, "e/") and not self.world.store.locks and self.end is None:
            dead = [mail for item in self.of(self.x, "l/") for mail in msgspec.json.decode(str(item["mails"]))]
            self.end = state, self.context(self.x), [mail[1].get("i") for mail in dead], self.context("p")["told"]

    def purge(self, rt: Runtime, n: int) -> Program[None]:
        """Purge the parent with its tree, beside the other operator; then its id lives again."""
        boss = self.state("p")
        if boss is None or boss.machine != "boss":
            if min(self.phase) < 2:
                return
            if boss is None:
                yield from insist(deliver.start, rt, "ledger", "p", None)
            yield from insist(deliver.send, rt, "p", "Add", {"i": n}, event_id=f"again-{n}")
            self.phase[n] = 3
            return
        try:
            yield from control.purge(rt, "p", tree=True)
        except (*LOST, Misuse, NoSuchExecution):
            pass

    # --- what must hold -----------------------------------------------------------------------------------------------

    def of(self, id: str, prefix: str = "") -> list[Item]:
        """The items of an execution."""
        return [item for item in self.items(prefix) if item["id"] == id]

    def see(self, key: Key, before: Item | None, after: Item | None) -> None:
        """Note who is who, and what must not happen."""
        if key.table is not EXECUTIONS or after is None:
            return
        if key.sort == STATE:
            self.tree.add(str(key.partition))
            if after.get("parent_id") == "p":
                self.x = str(key.partition)
            if before is not None:
                self.check_state(state_of(before), state_of(after))
        elif str(key.sort).startswith("w/") and before is not None and after.get("token"):
            if before.get("token") != after["token"]:
                self.check_claim(before, after)
            if after.get("beats") != before.get("beats") or before.get("token") != after["token"]:
                self.renewed_us[str(after["token"])] = self.world.now_us

    def check_state(self, was: State, now: State) -> None:
        """What has ended stays as it ended, what is suspended as it is."""
        if was.created_at_us != now.created_at_us:
            return
        if was.status in ("done", "cancelled") and now.status not in (was.status, "purging"):
            self.wrongs.append(f"{was.id} had ended as {was.status}, and is {now.status}")
        if was.status in ("done", "cancelled") and now.status == was.status and not (was.spill or was.resume_status):
            self.wrongs.append(f"{was.id} had ended as {was.status}, and acts in version {now.version}")
        if was.id == self.x and was.status == "suspended":
            if now.status == "suspended":
                one, other = decode_data(was, was.data).snap, decode_data(now, now.data).snap
                if (one.context, one.configuration) != (other.context, other.configuration):
                    self.wrongs.append(f"{was.id} moved while it was suspended")
                self.still_since = now.version if self.still_since else 0
            else:
                self.still_since = 0

    def check_claim(self, before: Item, after: Item) -> None:
        """A claim is of what is due and nobody's, by the machine that it has, and never of what stands still."""
        state = self.state(str(after["id"]))
        if state is not None and state.status == "suspended" and self.still_since == state.version:
            self.wrongs.append("a task started while its execution was suspended")
        if self.is_renamed and after["machine"] != "later":
            self.wrongs.append("a task was given to the machine that it was migrated from")
        if before.get("token"):
            lease_us, renewed_us = int(before["lease_us"]), self.renewed_us.get(str(before["token"]), 0)
            row = self.world.store.tables.get(REGISTRY.key(WORKERS, str(before.get("owner"))))
            is_gone = row is not None and 0 < int(row["until_us"]) < self.world.now_us
            if renewed_us + lease_us > self.world.now_us + 500_000 and not is_gone:
                self.wrongs.append("a task was taken from a worker that may live")

    def is_over(self) -> bool:
        """The id lives again, and nothing waits."""
        if self.left or self.world.store.locks or self.end is None:
            return False
        return len(self.context("p").get("seen", ())) == self.operators and not self.of("p", "e/")

    def waits_for(self) -> str:
        """What goes on."""
        return f"phases {self.phase}, {self.x and self.state(self.x)}, {self.context('p')}, end {self.end}"

    def problems(self) -> Iterable[str]:
        """One end, told once; each event once; one clean-up; nothing left of the tree."""
        yield from dict.fromkeys(self.wrongs)
        assert self.end is not None
        state, context, dead, told = self.end
        if not context:  # it was ended before it began
            context = {"seen": [], "got": 0, "ticks": 0, "kids": 0, "refunds": 0}
        seen = context["seen"]
        if told != 1:
            yield f"the parent was told {told} times"
        if (
            len(set(seen)) != len(seen)
            or set(seen) | set(dead) | self.skipped != set(range(self.events)) | self.skipped
        ):
            yield f"taken {seen}, dead {dead}, skipped {self.skipped}"
        if max(context["got"], context["ticks"], context["kids"]) > 1 or context["refunds"] > 1:
            yield f"something was done twice: {context}"
        if state.status == "done" and context["refunds"] != 1:
            yield f"it is done, and cleaned up {context['refunds']} times"
        if state.status == "cancelled" and not self.was_terminated:
            yield "a cancel ended it without its clean-up"
        left = [
            item
            for item in self.items()
            if item["id"] in self.tree - {"p"} and str(item["sort"])[:2] not in ("e/", "l/")
        ]
        left += [item for item in self.of("p") if "boss" in str(item.get("machine", ""))]
        if left:
            yield f"left of the tree: {[(item['id'], item['sort'], item.get('status')) for item in left]}"
        if sorted(self.context("p")["seen"]) != list(range(self.operators)):
            yield f"the next life took {self.context('p')['seen']}"


ALL: tuple[type[ExecutionScenario], ...] = (Operated,)
