"""What the DynamoDB rows of ``bench.executions`` count: calls and capacity units, as a server reports them.

Counts do not depend on the machine, so tests/bench asserts them. Every item here is below 1 KB.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from casework.app.core import Core
from casework.backends.drive import run
from casework.backends.dynamodb import DynamoDBBackend
from casework.backends.dynamodb.metering import Usage
from casework.executions import deliver
from casework.executions.advance import advance
from casework.executions.runtime import Options, Runtime
from casework.executions.state import State
from casework.executions.tasks import claim_task, finish_task
from casework.kernel.effects import All, Query, Write
from casework.kernel.items import Key, Put
from casework.kernel.schema import EXECUTIONS, TABLES
from casework.statechart import Machine

FLAT: dict[str, Any] = {
    "id": "flat", "initial": "a", "context": {"n": 0},
    "states": {
        "a": {"on": {"go": {"target": "b", "actions": {"type": "assign", "params": {"n": {"expr": "context.n + 1"}}}}}},
        "b": {"on": {"go": "a"}},
    },
}  # fmt: skip
SENDER: dict[str, Any] = {
    "id": "sender", "initial": "a",
    "states": {
        "a": {"on": {"pass": {"target": "b", "actions": {"type": "send", "params": {"to": "flat-1", "event": "go"}}}}},
        "b": {},
    },
}  # fmt: skip
TASK: dict[str, Any] = {
    "id": "task", "initial": "a",
    "states": {"a": {"on": {"go": "b"}}, "b": {"invoke": {"src": {"task": "pay"}, "onDone": "c"}}, "c": {}},
}  # fmt: skip
TIMER: dict[str, Any] = {
    "id": "timer", "initial": "a",
    "states": {
        "a": {"on": {"go": "b"}},
        "b": {"after": {"1h": "a"}, "on": {"go": {"target": "b", "reenter": True}, "stop": "a"}},
    },
}  # fmt: skip
CHILD: dict[str, Any] = {"id": "child", "initial": "a", "states": {"a": {"type": "final"}}}
FORK: dict[str, Any] = {
    "id": "fork", "initial": "a",
    "states": {
        "a": {"on": {"go": "b"}},
        "b": {
            "invoke": {
                "src": {"machine": "child"}, "each": {"expr": "context.items"}, "join": "all", "onDone": "c",
            },
        },
        "c": {"type": "final"},
    },
    "context": {"items": {"expr": "input.items"}},
}  # fmt: skip


@contextlib.contextmanager
def server() -> Iterator[str]:
    """A ministack of this run's own. Raises ``tests.servers.process.NotInstalled`` where it is missing."""
    from tests.servers import process

    with tempfile.TemporaryDirectory() as folder:
        running = process.ministack(Path(folder))
        running.start()
        try:
            yield running.url
        finally:
            running.stop()


class Counting:
    """An application on a metered store.

    Args:
        url: the server.
        prefix: of its tables.
        buckets: of its indexes.
    """

    def __init__(self, url: str, prefix: str, buckets: int = 16) -> None:
        self.backend = DynamoDBBackend(endpoint_url=url, region_name="eu-west-1", prefix=prefix, meter=True)
        self.backend.create_tables(TABLES)
        machines = [Machine.from_dict(one) for one in (FLAT, SENDER, TASK, TIMER, CHILD, FORK)]
        machines[2].task(name="pay")(lambda task: {"ok": True})
        self.core = Core(machines, Options(buckets=buckets), None)
        self.rt: Runtime = self.core.rt
        self.found: dict[str, Usage] = {}

    def __enter__(self) -> Counting:
        return self

    def __exit__(self, *_: object) -> None:
        self.backend.close()

    def run(self, program: Any) -> Any:
        return run(program, self.backend)

    def counted(self, name: str, *programs: Any) -> list[Any]:
        """Run programs one after the other, counted together under ``name``."""
        assert self.backend.meter is not None
        with self.backend.meter.label(name):
            answers = [self.run(program) for program in programs]
        self.found[name] = self.backend.meter.snapshot()[name]
        return answers

    # --- what is counted ------------------------------------------------------------------------------------------

    def events(self) -> None:
        """In line, by mailbox from outside and from inside, and their consumption."""
        self.run(deliver.start(self.rt, "flat", "flat-1", {}))
        self.run(deliver.start(self.rt, "sender", "sender-1", {}))
        ((_, state),) = self.counted("in line", deliver.handle(self.rt, "flat-1", "go", {"ref": "p-77"}))
        self.counted("in line, held", deliver.handle(self.rt, "flat-1", "go", {}, held=state))
        self.counted("send", deliver.send(self.rt, "flat-1", "go", {"ref": "p-78"}))
        self.counted("consume", advance(self.rt, "flat-1"))
        sender = self.run(deliver.read_state("sender-1"))
        self.counted("send from inside", deliver.handle(self.rt, "sender-1", "pass", {}, held=sender))
        self.counted("consume from inside", advance(self.rt, "flat-1"))

    def tasks(self) -> None:
        """A task from the transition that starts it to the one that takes its result."""
        self.run(deliver.start(self.rt, "task", "task-1", {}))
        self.counted("start of a task", deliver.handle(self.rt, "task-1", "go", {}))
        (item,) = (item for item in self.items("task-1") if str(item["sort"]).startswith("w/"))
        while self.backend.now().earliest_us <= item["rank_us"]:  # the clock is known to within a second only
            self.backend.sleep(0.05)
        (task,) = self.counted("claim", claim_task(self.rt, Key(EXECUTIONS, "task-1", item["sort"])))
        self.counted("finish", finish_task(self.rt, task, {"ok": True}))
        self.counted("take the result", advance(self.rt, "task-1"))

    def timers(self) -> None:
        self.run(deliver.start(self.rt, "timer", "timer-1", {}))
        self.counted("arm a timer", deliver.handle(self.rt, "timer-1", "go", {}))
        armed_us = self.backend.now().middle_us
        while self.backend.now().middle_us <= armed_us:  # the service's time may stand still for a moment
            self.backend.sleep(0.01)
        self.counted("move a timer", deliver.handle(self.rt, "timer-1", "go", {}))
        self.counted("cancel a timer", deliver.handle(self.rt, "timer-1", "stop", {}))

    def idle_poll(self, armed: int) -> None:
        """One look at every bucket for due timers while ``armed`` are not due."""
        later = 4_102_444_800_000_000
        states = [
            State(
                id=f"armed-{n}", version=1, status="running", machine="timer", machine_hash="00", data="{}",
                timers=f'[[{later + n},"after:0:b",1]]', created_at_us=1, updated_at_us=1, listed=False,
            )
            for n in range(armed)
        ]  # fmt: skip
        buckets = self.rt.options.buckets
        for start in range(0, armed, 500):
            puts = [Write(Put(EXECUTIONS, state.to_item(buckets))) for state in states[start : start + 500]]
            for outcome in self.backend.execute_many(puts):
                outcome.result()
        now_us = self.backend.now().earliest_us

        def poll() -> Any:
            yield All([
                Query(EXECUTIONS, f"timer/{bucket}", "pending", None, now_us, 16) for bucket in range(buckets)
            ])  # fmt: skip

        self.counted("timers, none due", poll())

    def fork(self, children: int) -> None:
        """Fork, run and join children that end at once, to the parent's end."""
        self.run(deliver.start(self.rt, "child", "first", {}))  # stores the definition, once for all
        id = f"fork-{children}"
        self.run(deliver.start(self.rt, "fork", id, {"items": [{"n": n} for n in range(children)]}))
        name = f"fork and join of {children}"
        self.counted(name, deliver.handle(self.rt, id, "go", {}))
        ids = {str(item["id"]) for bucket in range(self.rt.options.buckets) for item in self.due(bucket)} - {id}
        if len(ids) < children:
            raise SystemExit(f"{len(ids)} of {children} children stand in the index")
        (*_, last) = self.counted(name, *[advance(self.rt, child) for child in sorted(ids)], advance(self.rt, id))
        while last.has_more:
            (last,) = self.counted(name, advance(self.rt, id))
        if self.run(deliver.load(self.rt, id)).status != "done":
            raise SystemExit(f"{id} is not done")

    # --- looking ----------------------------------------------------------------------------------------------------

    def items(self, id: str) -> list[Any]:
        return list(self.backend.execute(Query(EXECUTIONS, id)).items)

    def due(self, bucket: int) -> list[Any]:
        return list(self.backend.execute(Query(EXECUTIONS, f"work/{bucket}", "pending")).items)


def all_counts(url: str, prefix: str, *, armed: int, forks: Sequence[int] = (10,)) -> dict[str, Usage]:
    """Every count, by name."""
    with Counting(url, prefix) as counting:
        counting.events()
        counting.tasks()
        counting.timers()
        for children in forks:
            counting.fork(children)
        counting.idle_poll(armed)
        return counting.found
