"""The proof: what the database says, held against what the ledger says, order by order.

Pure: evidence and ledger in, checks out. Each check names every order that fails it. Import :func:`prove`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from casework.demo.evidence import Evidence
from casework.demo.ledger import BEGAN, EFFECT, ENDED, FAILED, Entry
from casework.demo.orders import ENDS, Order


class Check(msgspec.Struct):
    """One statement, and whether it holds."""

    name: str
    detail: str
    problems: list[str]
    ok: bool = True

    def __post_init__(self) -> None:
        self.ok = not self.problems


class KeyRuns(msgspec.Struct):
    """What happened under one idempotency key."""

    task: str
    order: str
    runs: int = 0
    failed: int = 0
    effects: int = 0
    """How often the outside was asked to do it; it did so once, since the key is the same."""
    cut_off: int = 0
    """Runs that a kill, or the end of their state, left without an end."""
    pids: list[int] = []


class TaskRuns(msgspec.Struct):
    """What happened to all runs of one task function."""

    keys: int = 0
    runs: int = 0
    failed: int = 0
    twice: int = 0
    """Keys whose effect was asked for more than once."""
    by_runs: dict[int, int] = {}
    """How many keys had one run, two runs, ..."""


class Kill(msgspec.Struct):
    """The worker that was killed."""

    worker: int
    pid: int
    at_s: float
    at_us: int
    held: list[str]
    """Keys of the tasks that it was running."""


class Proof(msgspec.Struct):
    """All checks, and the numbers beside them."""

    ok: bool
    store: str
    orders: int
    seconds: float
    checks: list[Check]
    ends: dict[str, int]
    tasks: dict[str, TaskRuns]
    kill: Kill | None
    webhooks: dict[str, int]
    commits: int
    keys: dict[str, KeyRuns]


class Case(msgspec.Struct):
    """What the checks look at."""

    orders: Sequence[Order]
    evidence: Evidence
    entries: Sequence[Entry]
    keys: Mapping[str, KeyRuns]
    webhooks: Mapping[str, int]
    """Webhook deliveries for each order, repeats included."""
    kill: Kill | None


def prove(
    orders: Sequence[Order],
    evidence: Evidence,
    entries: Sequence[Entry],
    webhooks: Mapping[str, int],
    kill: Kill | None,
    *,
    store: str = "",
    seconds: float = 0.0,
) -> Proof:
    """Hold the evidence against the ledger.

    Args:
        orders: what was ordered.
        evidence: the database.
        entries: the ledger.
        webhooks: how often each order's webhook was delivered.
        kill: the worker that was killed, if any.
        store: for the report.
        seconds: for the report.
    """
    keys = runs_by_key(entries)
    case = Case(orders, evidence, entries, keys, webhooks, kill)
    checks = [check(case) for check in CHECKS]
    deliveries = sum(webhooks.values())
    commits = sum(execution.version for execution in evidence.orders.values())
    commits += sum(child.execution.version for children in evidence.children.values() for child in children)
    ends = Counter(_end(evidence, order.id) for order in orders)
    return Proof(
        ok=all(check.ok for check in checks),
        store=store,
        orders=len(orders),
        seconds=round(seconds, 2),
        checks=checks,
        ends=dict(sorted(ends.items())),
        tasks=runs_by_task(keys.values()),
        kill=kill,
        webhooks={"delivered": deliveries, "repeats": deliveries - len(webhooks)},
        commits=commits,
        keys=dict(sorted(keys.items())),
    )


def runs_by_key(entries: Iterable[Entry]) -> dict[str, KeyRuns]:
    """The ledger, grouped by idempotency key."""
    found: dict[str, KeyRuns] = {}
    ended: Counter[str] = Counter()
    for entry in entries:
        runs = found.setdefault(entry.key, KeyRuns(entry.task, entry.order, pids=[]))
        if entry.what == BEGAN:
            runs.runs += 1
            runs.pids.append(entry.pid)
        elif entry.what == EFFECT:
            runs.effects += 1
        else:
            ended[entry.key] += 1
            runs.failed += entry.what == FAILED
    for key, runs in found.items():
        runs.cut_off = runs.runs - ended[key]
    return found


def runs_by_task(keys: Iterable[KeyRuns]) -> dict[str, TaskRuns]:
    """The same, by task function."""
    found: dict[str, TaskRuns] = {}
    for key in keys:
        task = found.setdefault(key.task, TaskRuns(by_runs={}))
        task.keys += 1
        task.runs += key.runs
        task.failed += key.failed
        task.twice += key.effects > 1
        task.by_runs[key.runs] = task.by_runs.get(key.runs, 0) + 1
    return dict(sorted(found.items()))


def _end(evidence: Evidence, id: str) -> str:
    execution = evidence.orders.get(id)
    if execution is None:
        return "missing"
    return ", ".join(execution.configuration) if execution.status == "done" else execution.status


# --- the checks ---------------------------------------------------------------------------------------------------


def every_order_ended(case: Case) -> Check:
    """Each order is listed once, and is done."""
    listed = Counter(case.evidence.listed)
    problems = [f"{order.id} is listed {listed[order.id]} times" for order in case.orders if listed[order.id] != 1]
    problems += [f"{id} is listed and was never ordered" for id in listed if id not in {o.id for o in case.orders}]
    for order in case.orders:
        execution = case.evidence.orders.get(order.id)
        if execution is None or execution.status != "done":
            problems.append(f"{order.id} is {'missing' if execution is None else execution.status}")
    return Check("every order ended", f"{len(case.orders) - len(problems)} of {len(case.orders)} done", problems)


def every_order_ended_as_it_should(case: Case) -> Check:
    """The final state is the one that the order's story leads to."""
    problems = []
    for order in case.orders:
        end = _end(case.evidence, order.id)
        if end != ENDS[order.story]:
            problems.append(f"{order.id} ({order.story}) ended in {end}, not in {ENDS[order.story]}")
    counts = Counter(_end(case.evidence, order.id) for order in case.orders)
    detail = ", ".join(f"{count} {end}" for end, count in counts.most_common())
    return Check("each where its story leads", detail, problems)


def every_state_change_happened_once(case: Case) -> Check:
    """The trace has one entry for each version, without gap or repetition, each beginning where the last one ended."""
    problems: list[str] = []
    entries = 0
    for id, execution in case.evidence.orders.items():
        trace = case.evidence.traces[id]
        entries += len(trace)
        problems += chain_problems(id, trace, 1, execution.version, execution.configuration)
    for children in case.evidence.children.values():
        for child in children:
            entries += len(child.trace)
            execution = child.execution
            # Version 1 is the child's birth, which is in its parent's commit.
            problems += chain_problems(execution.id, child.trace, 2, execution.version, execution.configuration)
    return Check("every state change happened once", f"{entries:,} commits, versions without gap or repeat", problems)


def chain_problems(
    id: str, trace: Sequence[Mapping[str, Any]], first: int, last: int, configuration: Sequence[str]
) -> list[str]:
    """What is wrong with a trace that should run from version ``first`` to ``last`` and end in ``configuration``."""
    versions = [entry["version"] for entry in trace]
    if versions != list(range(first, last + 1)):
        return [f"{id}: versions {versions} instead of {first} to {last}"]
    if [entry["index"] for entry in trace] != list(range(1, len(trace) + 1)):
        return [f"{id}: entries {[entry['index'] for entry in trace]} are not numbered 1 to {len(trace)}"]
    problems = []
    where: Sequence[str] | None = None
    for entry in trace:
        for event in entry["events"]:
            if "to" not in event:
                continue
            if where is not None and event["from"] != where:
                problems.append(f"{id}: version {entry['version']} goes on from {event['from']}, not from {where}")
            where = event["to"] or where
    if where is not None and list(where) != list(configuration):
        problems.append(f"{id}: its trace ends in {where}, its state in {list(configuration)}")
    return problems


def every_webhook_counted_once(case: Case) -> Check:
    """The counter in the context, the steps in the trace and the distinct event ids delivered are the same number."""
    problems = []
    deliveries = sum(case.webhooks.values())
    for order in case.orders:
        execution = case.evidence.orders.get(order.id)
        if execution is None:
            continue
        ids = 1 if order.id in case.webhooks else 0
        counted = execution.context["approvals"]
        steps = sum(
            event["event"] == "PaymentApproved" and "duplicate" not in event
            for entry in case.evidence.traces[order.id]
            for event in entry["events"]
        )
        if not counted == steps == ids:
            problems.append(f"{order.id}: {ids} webhooks, counted {counted}, {steps} steps")
    repeats = deliveries - len(case.webhooks)
    return Check("repeated webhooks had no effect", f"{deliveries} delivered, {repeats} of them repeats", problems)


def every_charge_has_one_key(case: Case) -> Check:
    """The orders that count as paid are exactly those that the bank charged, each under one key."""
    keys: dict[str, list[str]] = defaultdict(list)
    for key, runs in case.keys.items():
        if runs.task == "charge_card":
            keys[runs.order].append(key)
    problems = [f"{id} was charged under {len(found)} keys: {found}" for id, found in keys.items() if len(found) != 1]
    charged = {id for id, found in keys.items() if any(case.keys[key].effects for key in found)}
    paid = {id for id, execution in case.evidence.orders.items() if execution.context["paid"]}
    expected = {order.id for order in case.orders if order.is_charged}
    problems += [f"{id} counts as paid, and the bank has no charge" for id in sorted(paid - charged)]
    problems += [f"{id} was charged and does not count as paid" for id in sorted(charged - paid)]
    problems += [f"{id} was charged against its story" for id in sorted(charged - expected)]
    problems += [f"{id} was not charged" for id in sorted(expected - charged)]
    return Check("each charge once, under one key", f"{len(charged)} charges, {len(paid)} paid orders", problems)


def every_refund_once(case: Case) -> Check:
    """The orders that were cancelled after the charge are exactly those whose charge was given back, under one key."""
    keys = Counter(runs.order for runs in case.keys.values() if runs.task == "refund_card" and runs.effects)
    problems = [f"{id} was refunded under {count} keys" for id, count in keys.items() if count != 1]
    expected = {order.id for order in case.orders if order.story == "cancels"}
    said = {id for id, execution in case.evidence.orders.items() if execution.context["refunded"]}
    problems += [
        f"{id}: story, order and bank differ on its refund"
        for id in sorted((expected ^ set(keys)) | (said ^ set(keys)))
    ]
    return Check("each refund once, under one key", f"{len(keys)} orders cancelled after the charge", problems)


def every_item_is_a_shipment(case: Case) -> Check:
    """There are as many children as items; those of completed orders are delivered, each fetched under one key."""
    problems = []
    total = 0
    couriers = Counter(runs.task for runs in case.keys.values() if runs.effects)["book_courier"]
    by_child = Counter(
        key.rpartition("/")[0].rpartition("/")[0] for key, r in case.keys.items() if r.task == "book_courier"
    )
    problems += [f"{child}: {count} couriers" for child, count in by_child.items() if count != 1]
    for order in case.orders:
        if not order.is_charged:
            continue
        children = case.evidence.children.get(order.id, [])
        total += len(children)
        if len(children) != len(order.items):
            problems.append(f"{order.id}: {len(order.items)} items, {len(children)} shipments")
        for child in children:
            execution = child.execution
            wanted = ("done",) if order.story == "pays" else ("done", "cancelled")
            if execution.status not in wanted:
                problems.append(f"{execution.id} is {execution.status}")
        if order.story == "pays":
            outputs = [child.execution.output for child in children]
            parent = case.evidence.orders.get(order.id)
            if parent is None or parent.context["tracking"] != outputs:
                problems.append(f"{order.id}: its tracking numbers are not those of its shipments")
    return Check("a shipment for each item", f"{total} shipments as children, {couriers} couriers", problems)


def no_run_was_doubled(case: Case) -> Check:
    """No two runs had the same key and attempt: a claim has one holder."""
    began = Counter((entry.key, entry.attempt) for entry in case.entries if entry.what == BEGAN)
    problems = [f"{key}: attempt {attempt} began {count} times" for (key, attempt), count in began.items() if count > 1]
    failed = sum(entry.what == FAILED for entry in case.entries)
    detail = f"{sum(began.values())} runs, {failed} failed attempts tried again"
    return Check("each attempt had one holder", detail, problems)


def the_killed_workers_tasks_were_taken_over(case: Case) -> Check:
    """What the killed worker was running was ended by others, under the same key."""
    if case.kill is None:
        return Check("a killed worker's tasks went on", "no worker was killed", ["no worker was killed"])
    problems = []
    twice = 0
    for key in case.kill.held:
        later = [e for e in case.entries if e.key == key and e.pid != case.kill.pid and e.what in (ENDED, FAILED)]
        if not later:
            order = next(o for o in case.orders if o.id == case.keys[key].order)
            if order.story != "cancels":  # leaving the state stops its tasks
                problems.append(f"{key} was not taken over")
        twice += case.keys[key].effects > 1
    detail = f"{len(case.kill.held)} tasks in its hands, {twice} had their effect asked for twice, same key"
    if not case.kill.held:
        problems.append("it had no task in its hands")
    return Check("a killed worker's tasks went on", detail, problems)


def nothing_is_left_behind(case: Case) -> Check:
    """No task, timer or message waits, and there is no dead letter."""
    problems = [f"{id}: {', '.join(left)}" for id, left in case.evidence.left.items() if left]
    problems += [f"a dead letter of {letter.execution_id}: {letter.reason}" for letter in case.evidence.dead]
    return Check("nothing is left behind", "no task, timer, message or dead letter", problems)


CHECKS: tuple[Callable[[Case], Check], ...] = (
    every_order_ended,
    every_order_ended_as_it_should,
    every_state_change_happened_once,
    every_webhook_counted_once,
    every_charge_has_one_key,
    every_refund_once,
    every_item_is_a_shipment,
    no_run_was_doubled,
    the_killed_workers_tasks_were_taken_over,
    nothing_is_left_behind,
)
