"""The worker: a shell that does what is due.

It looks at the ``pending`` index of its buckets, timers first, then messages, then tasks, and advances every execution
that it finds there once in a sweep; it claims due tasks while it has room for them, and runs their functions beside the
sweep. A bell shortens the wait: it only says "look at this execution", so losing or repeating a ring is harmless. Each
round takes a bounded part of each, so that none of them starves the others. No error of the store, none of an execution
and no function of the user's ends it or holds it up.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence

from casework.errors import CaseworkError, ConditionFailed, OutcomeUnknown, StoreError, WrongCursor
from casework.executions.advance import Advanced, advance
from casework.executions.holding import claim_all, drain_tasks, has_room, place_of
from casework.executions.membership import keep_membership, leave
from casework.executions.parked import LATELY_US, LOOK_FIRST_US, LOOK_US, can_go_on, due_now
from casework.executions.publish import deliver
from casework.executions.shares import Share
from casework.executions.state import STATE
from casework.executions.worker_state import Alarms, Bell, Worker, WorkerOptions, WorkerStatus
from casework.kernel.containment import in_words
from casework.kernel.effects import Instant, Outcome, Query, Unfinished
from casework.kernel.items import Item, Key
from casework.kernel.paging import Walk
from casework.kernel.programs import Program, get_many, now, race, run_together, spawn, write
from casework.kernel.schema import EXECUTIONS

__all__ = ["Alarms", "Bell", "Worker", "WorkerOptions", "WorkerStatus", "sweep", "work"]

log = logging.getLogger("casework.worker")


def work(worker: Worker) -> Program[None]:
    """Do what is due until ``worker.stop`` is set, then finish what is held."""
    beats = keep_membership(worker.membership, worker.options.heartbeat_s, worker.answered)
    yield from spawn(beats, "membership")
    try:
        yield from _sweep_until_stopped(worker)
        yield from leave(worker.membership)  # before the drain, in which nobody would look at its buckets
        yield from drain_tasks(worker, _answer_bell_last)
    except Exception:
        with contextlib.suppress(CaseworkError):  # others take its buckets at once; what went wrong is the news
            yield from leave(worker.membership)
        raise
    yield from leave(worker.membership)  # again, where the store did not hear of it


def _sweep_until_stopped(worker: Worker) -> Program[None]:
    """Sweep and wait. Only what is wrong from the first look on ends it: no time would cure that."""
    trouble = 0
    has_looked = False
    while not worker.stop.is_set:
        did = 0
        try:
            did = yield from sweep(worker)
            trouble, has_looked = 0, True
        except Exception as error:
            is_known = isinstance(error, StoreError | WrongCursor)  # the next sweep begins with pages of its own
            if not is_known and not has_looked:
                raise
            trouble += 1
            worker.trouble_n += 1
            log.log(
                logging.WARNING if is_known else logging.ERROR, "sweep: %s", in_words(error),
                exc_info=None if is_known else error,
            )  # fmt: skip
            yield from _pause(worker, min(30.0, 0.1 * 2 ** min(trouble, 9)))
        if not did and not worker.stop.is_set:
            moment = yield from now()
            pause_s = worker.alarms.seconds_until(moment.earliest_us, worker.options.poll_s)
            yield from race(worker.bell.flag, worker.stop, timeout_s=pause_s)


def _pause(worker: Worker, at_most_s: float) -> Program[None]:
    """Wait after trouble with the store; no longer than until there is a sign that it answers again.

    That is a ring, which follows a commit of somebody's, or an answer that another program of this worker's got.
    """
    yield from race(worker.stop, timeout_s=0.1)
    worker.bell.flag.clear()  # what was rung is not forgotten: the next sweep begins with it
    worker.answered.clear()
    if at_most_s > 0.1 and not worker.stop.is_set:
        yield from race(worker.stop, worker.bell.flag, worker.answered, timeout_s=at_most_s - 0.1)


def sweep(worker: Worker) -> Program[int]:
    """Do all that is due now; how much was done. An execution is taken once in a sweep, so none starves others."""
    _let_go(worker)
    did = yield from _answer_bell(worker)
    seen: set[str] = set()
    for kind in ("timer", "work"):
        share = worker.share()
        walk = yield from _look_at(worker, share, kind)
        while walk.left and not worker.stop.is_set:
            items = yield from walk.next_pages(max(16, worker.options.group // len(walk.left)))
            found = 0
            own = [item for item in items if share.takes(item)]
            if own:
                found = yield from _do(worker, own, seen)
            # What was rung is answered between pages: a backlog of others does not delay it.
            did += found + (yield from _answer_bell(worker))
            if found and kind == "work":
                break  # back to the timers first: a backlog of messages must not delay them
    did += yield from _look_at_parked(worker)
    return did + (yield from _look_for_tasks(worker))


def _look_at_parked(worker: Worker) -> Program[int]:
    """Now and then: what is parked. What is due and this worker's, and what it can go on with, whosever that is."""
    moment = yield from now()
    if moment.middle_us < worker.parked_look_us:
        return 0
    until_us = moment.latest_us + LATELY_US if worker.parked_look_us else None
    share, buckets = worker.share(), range(worker.rt.read_buckets)
    walk = Walk([Query(EXECUTIONS, f"parked/{bucket}", "pending", None, until_us) for bucket in buckets])
    did = 0
    while walk.left and not worker.stop.is_set:
        items = yield from walk.next_pages(16)
        if items:
            did += yield from _take_parked(worker, share, items, moment)
        did += yield from _answer_bell(worker)
    # Who took something will find more: an execution that one worker cannot go on with meets it again at its next step.
    worker.parked_pause_us = LOOK_FIRST_US if did else min(LOOK_US, 2 * worker.parked_pause_us or LOOK_US)
    worker.parked_look_us = moment.middle_us + worker.parked_pause_us
    return did


def _take_parked(worker: Worker, share: Share, entries: Sequence[Item], moment: Instant) -> Program[int]:
    keys = [EXECUTIONS.key(str(entry["id"]), str(entry["sort"])) for entry in entries]
    keys += [EXECUTIONS.key(str(entry["id"]), STATE) for entry in entries]
    found = yield from get_many(keys)
    executions: dict[str, None] = {}
    places: list[Key] = []
    for entry, item, state in zip(entries, found, found[len(entries) :], strict=False):
        if item is None or "pending" not in item:
            continue
        is_due = int(item["rank_us"]) <= moment.latest_us and share.looks_at(entry)
        if not is_due and not (yield from can_go_on(worker.rt, item, state)):
            continue
        if str(item["sort"]).startswith("w/"):
            places += yield from _made_due(item, moment)
        else:
            executions[str(item["id"])] = None
    did = yield from _advance_all(worker, list(executions)) if executions else _nothing()
    return did + (yield from claim_all(worker, places))


def _made_due(item: Item, moment: Instant) -> Program[list[Key]]:
    """The place of a parked task, for whoever claims it at once; none when somebody else moved it."""
    if int(item["rank_us"]) > moment.latest_us:
        try:
            yield from write(due_now(item, moment))
        except (ConditionFailed, OutcomeUnknown):
            return []
    return [EXECUTIONS.key_of(item)]


def _nothing() -> Program[int]:
    yield from ()
    return 0


def _look_for_tasks(worker: Worker) -> Program[int]:
    """Claim due tasks while there is room for them. They stand apart, so that they hide nothing that needs no room."""
    worker.waiting_n = 0
    if not has_room(worker):
        return 0
    did = 0
    share = worker.share()
    walk = yield from _look_at(worker, share, "task")
    while walk.left and not worker.stop.is_set and has_room(worker):
        items = yield from walk.next_pages(max(16, worker.options.concurrency // len(walk.left)))
        places = [Key(EXECUTIONS, str(item["id"]), str(item["sort"])) for item in items if share.takes(item)]
        due = [place for place in places if place_of(place) not in worker.running]
        claimed = yield from claim_all(worker, due)
        worker.waiting_n += len(due) - claimed
        did += claimed + (yield from _answer_bell(worker))
        if claimed:
            break  # back to what needs no room
    return did


def _let_go(worker: Worker) -> None:
    """Look again at executions whose function has come back after all."""
    for id, handle in list(worker.held_up.items()):
        if not handle.done:
            continue
        del worker.held_up[id]
        log.warning("execution %r goes on: %s has returned", id, handle.name)
        if handle.outcome is not None and handle.outcome.error is not None:
            worker.report(f"execution {id!r:.200}", handle.outcome.error)
        worker.bell.ring(id)


def _look_at(worker: Worker, share: Share, kind: str) -> Program[Walk]:
    """A look at what is due by now; what comes due meanwhile is for the next one."""
    moment = yield from now()
    worker.last_look_us = moment.middle_us
    # A look at work is harmless when it is early; a timer that is not certainly due would be looked at in vain.
    until_us = moment.earliest_us if kind == "timer" else moment.latest_us
    return Walk([Query(EXECUTIONS, f"{kind}/{bucket}", "pending", None, until_us) for bucket in share.buckets])


def _answer_bell(worker: Worker) -> Program[int]:
    """Look at what was rung, one group of it: the bell is one input among others, and goes on ringing for the rest."""
    ids = worker.bell.rung(worker.options.group)
    return (yield from _advance_all(worker, ids)) if ids else 0


def _do(worker: Worker, items: Sequence[Item], seen: set[str]) -> Program[int]:
    """Advance the executions among the items of an index page, and deliver what they publish."""
    executions: dict[str, None] = {}
    deliveries: dict[str, None] = {}
    for item in items:
        id, sort = str(item["id"]), str(item["sort"])
        if sort.startswith("o/"):
            deliveries[id] = None
        elif id not in seen:
            executions[id] = None
            seen.add(id)
    did = 0
    for group in _chunks(list(executions), worker.options.group):
        did += yield from _advance_all(worker, group)
    for group in _chunks(list(deliveries), worker.options.group):
        did += yield from _deliver(worker, group)
    return did


def _deliver(worker: Worker, ids: Sequence[str]) -> Program[int]:
    """Append what executions publish to their streams."""
    try:
        return (yield from deliver(worker.log, worker.rt, ids))
    except StoreError as error:
        worker.report(f"what {len(ids)} executions publish", error)
        return 0


def _advance_all(worker: Worker, ids: Sequence[str]) -> Program[int]:
    if worker.held_up:
        ids = [id for id in ids if id not in worker.held_up]
    outcomes: list[Outcome[Advanced]] = yield from run_together([advance(worker.rt, id) for id in ids])
    did = 0
    published: list[str] = []
    for id, outcome in zip(ids, outcomes, strict=True):
        if isinstance(outcome.error, Unfinished):
            worker.held_up[id] = outcome.error.handle
            worker.trouble_n += 1
            log.error("execution %r is held up: %s; all others go on", id, outcome.error)
        elif outcome.error is not None:
            worker.report(f"execution {id!r:.200}", outcome.error)
        elif outcome.value is not None and outcome.value.is_held:
            did += 1
            if outcome.value.failed:
                log.warning("execution %r failed: %s", id, outcome.value.failed)
            if outcome.value.state is not None and worker.rt.publishes(outcome.value.state):
                published.append(id)
            wakes = outcome.value.state.wakes_at() if outcome.value.state is not None else None
            if wakes is not None:
                worker.alarms.add(wakes[1])
            if outcome.value.has_more:
                worker.bell.ring(id)
        elif outcome.value is not None and outcome.value.parked:
            level = logging.WARNING if outcome.value.is_news else logging.INFO
            log.log(level, "execution %r is parked: %s", id, outcome.value.parked)
    worker.advanced_n += did
    if published:
        yield from _deliver(worker, published)
    return did


def _answer_bell_last(worker: Worker) -> Program[None]:
    """While the worker drains: look at what its own tasks have rung."""
    try:
        yield from _answer_bell(worker)
    except StoreError as error:
        worker.report("drain", error)


def _chunks(values: list[str], size: int) -> Iterator[list[str]]:
    for begin in range(0, len(values), size):
        yield values[begin : begin + size]
