"""Random interleavings from a seed, on the weakest store: what holds in each, and that no guard can be taken away.

Writers die at any effect and push again; readers look in between; answers are lost; items become visible one by one.
A failure names its seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from casework.backends.drive import run
from casework.errors import CaseworkError
from casework.kernel.effects import Transact
from casework.kernel.items import Check, Put, Update
from casework.kernel.programs import Program, query_all
from casework.kernel.schema import STREAM_CLAIMS, STREAMS
from casework.streams.append import append
from casework.streams.log import Log, Op, segment_of
from casework.streams.read import read_page
from tests.streams.stores import log as process
from tests.streams.stores import naive_append
from tests.streams.weak import Actor, Mutation, Weak, play

SEEDS = 150
"""Interleavings of each scenario."""

FAULT_SEEDS = 2000
"""A planted fault must be found within as many; most are within ten."""

Read = Callable[[Log, list[Op]], Program[None]]


def careful_reader(log: Log, seen: list[Op]) -> Program[None]:
    """Ours: what it has is the cursor."""
    page = yield from read_page(log, "s", seen[-1].seq if seen else 0, 3)
    seen += page.ops


def naive_reader(log: Log, seen: list[Op]) -> Program[None]:
    """One without the contiguity check: whatever stands above its cursor."""
    items = yield from query_all(STREAMS, "s", low=(seen[-1].seq if seen else 0) + 1)
    seen += [op for item in items for op in segment_of(item).ops()]


def interleave(
    seed: int, *, read: Read = careful_reader, mutation: Mutation | None = None, foreign: int = 0, **options: Any
) -> None:
    """One interleaving; AssertionError or a loud error of ours when a promise does not hold."""
    dice = random.Random(seed)
    backend = Weak(dice, mutation, loses=dice.choice([0.0, 0.2]))
    settings = process(jitter_s=0.001, lost_rounds_max=500, **{"grace_s": 10.0, **options}).options
    common = Op("both", b"both")
    pushes: list[list[Op]] = []
    writers = []
    for writer in range(3):
        log = Log(settings)
        own = [Op(f"{writer}-{n}", b"%d" % n) for n in range(dice.randint(1, 4))]
        own.insert(dice.randint(0, len(own)), common)
        pushes += [own[:2], own[2:]]
        writers.append(Actor(f"writer {writer}", lambda log=log, own=own: _push_twice(log, own), dies=0.02))
    older = [Actor(f"older {n}", lambda n=n: naive_append(f"old-{n}")) for n in range(foreign)]
    seen: list[list[Op]] = [[], []]
    reading = Log(settings)
    readers = [Actor("reader", lambda mine=mine: read(reading, mine), again=True) for mine in seen]
    play([*writers, *older, *readers], backend, dice)
    backend.settle()
    for actor, mine in zip(readers, seen, strict=True):
        for _ in range(200):  # beyond the end, so that whatever is left to be read is
            actor.step(backend, dice)
        assert actor.error is None, f"{actor.error} at {len(mine)}"
    _check(backend, writers, older, pushes, seen)


def _push_twice(log: Log, own: list[Op]) -> Program[Any]:
    first = yield from append(log, "s", own[:2])
    second = yield from append(log, "s", own[2:])
    return [*first, *second]


def _check(backend: Weak, writers: list[Actor], older: list[Actor], pushes: list[list[Op]], seen: Any) -> None:
    stored = run(_everything(), backend)  # type: ignore[arg-type]
    wanted = {op.id for push in pushes for op in push} | {f"old-{n}" for n in range(len(older))}
    assert sorted(op.id for op in stored) == sorted(wanted), "an operation is lost or doubled"
    place = {op.id: op.seq for op in stored}
    for writer in writers:
        for answer in writer.results[-1]:
            assert place[answer.id] == answer.seq, "a writer was told another number"
    for mine in seen:
        assert [(op.seq, op.id) for op in mine] == [(op.seq, op.id) for op in stored], "a reader saw something else"


def _everything() -> Program[list[Op]]:
    """All operations by their items, which may neither overlap nor leave a hole."""
    items = yield from query_all(STREAMS, "s", low=1)
    position, found = 0, []
    for item in items:
        segment = segment_of(item)
        assert segment.first == position + 1, f"{segment.first} follows on {position}"
        position = segment.last
        found += segment.ops()
    return found


def without(kind: type, table: Any = None) -> Mutation:
    """Takes the condition from every write of a kind; a check goes altogether."""

    def mutate(effect: Transact) -> Transact:
        writes = []
        for write in effect.writes:
            hit = isinstance(write, kind) and (table is None or write.key.table is table)
            if hit and isinstance(write, Check):
                continue
            writes.append(msgspec.structs.replace(write, when=None) if hit else write)
        return Transact(writes)

    return mutate


def both(one: Mutation, other: Mutation) -> Mutation:
    return lambda effect: other(one(effect))


HEAD, SEGMENT, CLAIM, PREDECESSOR = without(Update), without(Put, STREAMS), without(Put, STREAM_CLAIMS), without(Check)


@pytest.mark.parametrize(
    ("options"),
    [
        {},
        {"foreign_readers": True},
        {"foreign_readers": True, "read": naive_reader},
        {"foreign_writers": True, "foreign": 2, "grace_s": -1.0},
    ],
    ids=["plain", "foreign readers", "foreign readers without a check", "older writers"],
)
def test_in_every_interleaving_nothing_is_lost_doubled_skipped_or_wedged(options: dict[str, Any]) -> None:
    for seed in range(SEEDS):
        try:
            interleave(seed, **options)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error


@pytest.mark.parametrize(
    ("mutation", "options"),
    [
        (HEAD, {}),
        (CLAIM, {}),
        (both(HEAD, SEGMENT), {}),
        (SEGMENT, {"foreign_writers": True, "foreign": 3, "grace_s": -1.0}),
        (PREDECESSOR, {"foreign_readers": True, "read": naive_reader}),
        (both(HEAD, PREDECESSOR), {"foreign_readers": True, "read": naive_reader}),
        (None, {"read": naive_reader}),
    ],
    ids=[
        "head unconditional",
        "claim unconditional",
        "head and segment unconditional",
        "segment unconditional, older writers",
        "no predecessor check, reader without contiguity",
        "neither head nor predecessor",
        "reader without contiguity",
    ],
)
def test_a_guard_that_is_taken_away_is_missed(mutation: Mutation | None, options: dict[str, Any]) -> None:
    for seed in range(FAULT_SEEDS):
        try:
            interleave(seed, mutation=mutation, **options)
        except (AssertionError, CaseworkError):
            return
    pytest.fail(f"the fault was not found within {FAULT_SEEDS} seeds")
