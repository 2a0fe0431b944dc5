"""How workers share the buckets: evenly, stably, and the same in every worker's reckoning."""

from __future__ import annotations

import random

import pytest

from casework.backends.drive import run
from casework.backends.memory import MemoryBackend
from casework.backends.surroundings import VirtualClock
from casework.executions.buckets import SETTINGS, WORKERS
from casework.executions.membership import Membership, beat, leave
from casework.executions.runtime import Options, Runtime
from casework.executions.shares import Share, part_of, parts_of, share_out
from casework.kernel.effects import Get, Query, Write
from casework.kernel.items import Put
from casework.kernel.schema import FORMAT, REGISTRY, TABLES, bucket_of

BUCKETS = (1, 5, 16, 64)
FEW, MANY = 0.5, 0.25
"""What moves beside what has to: at most so much of the buckets, where there are fewer than 16, and from there on."""


def names_of(count: int, seed: int) -> list[str]:
    dice = random.Random(seed)
    return [f"{dice.getrandbits(128):032x}" for _ in range(count)]


def owners(shares: dict[str, Share]) -> dict[int, str]:
    return {unit: name for name, share in shares.items() for unit in share.units}


@pytest.mark.parametrize("buckets", BUCKETS)
def test_shares_of_1_to_64_workers_are_even_whole_and_stable(buckets: int) -> None:
    allowed = FEW if buckets < 16 else MANY
    for workers in range(1, 65):
        names = names_of(workers, workers)
        shares = share_out(buckets, names)
        parts = parts_of(buckets, workers)
        sizes = [len(share.units) for share in shares.values()]
        assert min(sizes) >= 1
        assert max(sizes) - min(sizes) <= 1
        assert sum(sizes) == buckets * parts
        before = owners(shares)
        assert set(before) == set(range(buckets * parts)), "every part of every bucket is somebody's"
        random.Random(workers).shuffle(names)
        assert owners(share_out(buckets, names)) == before, "in whatever order a worker hears of the others"
        for changed in ([*names, "new"], names[1:]):
            if not changed or parts_of(buckets, len(changed)) != parts:
                continue  # the parts change, and all may move
            after_shares = share_out(buckets, changed)
            after = owners(after_shares)
            must = len(after_shares["new"].units) if len(changed) > workers else len(shares[names[0]].units)
            moved = sum(before[unit] != after[unit] for unit in before)
            assert must <= moved <= must + allowed * len(before)


def test_where_there_are_more_workers_than_buckets_each_entry_is_taken_by_exactly_one() -> None:
    for buckets, workers in ((1, 3), (4, 9), (16, 17), (16, 64)):
        shares = share_out(buckets, names_of(workers, 7)).values()
        taken = [0] * workers
        for n in range(2000):
            id = f"order-{n}"
            bucket = bucket_of(id, buckets)
            entry = {"id": id, "sort": "0", "pending": f"work/{bucket}", "rank_us": n}
            takers = [k for k, share in enumerate(shares) if bucket in share.buckets and share.takes(entry)]
            assert len(takers) == 1
            taken[takers[0]] += 1
        assert min(taken) > 0, "nobody is idle"


def test_the_part_of_an_execution_does_not_follow_from_its_bucket() -> None:
    ids = [f"order-{n}" for n in range(4000)]
    for bucket in range(16):
        parts = [part_of(id, 4) for id in ids if bucket_of(id, 16) == bucket]
        assert all(parts.count(part) > len(parts) / 8 for part in range(4))


def test_one_worker_alone_has_everything() -> None:
    assert Membership(Runtime()).share().buckets == list(range(16))


def four() -> Runtime:
    """Of a process that opened a store with four buckets."""
    return Runtime(options=Options(buckets=4))


# --- what workers know of each other ----------------------------------------------------------------------------------


@pytest.fixture
def backend() -> MemoryBackend:
    backend = MemoryBackend(seed=1, clock=VirtualClock())
    backend.create_tables(TABLES)
    return backend


def store_buckets(backend: MemoryBackend, buckets: int, read_buckets: int | None = None) -> None:
    item = {"kind": "settings", "name": "store", "format": FORMAT, "buckets": buckets}
    backend.execute(Write(Put(REGISTRY, item if read_buckets is None else {**item, "read_buckets": read_buckets})))


def test_workers_that_know_each_other_share_out_all_buckets(backend: MemoryBackend) -> None:
    store_buckets(backend, 16)
    members = [Membership(Runtime()) for _ in range(5)]
    for _ in range(2):
        for member in members:
            run(beat(member, 5.0), backend)
    looked_at = sorted(bucket for member in members for bucket in member.share().buckets)
    assert looked_at == list(range(16))


def test_a_worker_with_a_slow_heart_is_not_taken_for_dead_by_one_with_a_quick_one(backend: MemoryBackend) -> None:
    slow, quick = Membership(Runtime()), Membership(Runtime())
    run(beat(slow, 60.0), backend)
    backend.sleep(100)
    run(beat(quick, 1.0), backend)
    assert list(quick.others) == [slow.name]
    backend.sleep(81)  # three of its own heartbeats
    run(beat(quick, 1.0), backend)
    assert quick.others == {}


def test_who_leaves_gives_its_share_back_at_once(backend: MemoryBackend) -> None:
    one, other = Membership(Runtime()), Membership(Runtime())
    run(beat(one, 5.0), backend)
    run(beat(other, 5.0), backend)
    assert list(other.others) == [one.name]
    run(leave(one), backend)
    run(beat(other, 5.0), backend)
    assert other.others == {}
    assert other.share().buckets == list(range(16))


def test_new_buckets_are_put_into_when_every_living_worker_knows_them(backend: MemoryBackend) -> None:
    store_buckets(backend, 4)
    one, other = Membership(four()), Membership(four())
    for member in (one, other, one):
        run(beat(member, 5.0), backend)
    store_buckets(backend, 4, read_buckets=9)
    run(beat(one, 5.0), backend)
    assert (one.rt.read_buckets, backend.execute(Get(SETTINGS))["buckets"]) == (9, 4)
    # the other still shares out four: both must reckon with the same, and who knows of more looks at all of them
    both = [*one.share().buckets, *other.share().buckets]
    assert sorted(bucket for bucket in both if bucket < 4) == [0, 1, 2, 3]
    assert {4, 5, 6, 7, 8} <= set(one.share().buckets)
    run(beat(other, 5.0), backend)
    assert (other.rt.read_buckets, other.rt.options.buckets, backend.execute(Get(SETTINGS))["buckets"]) == (9, 9, 9)
    run(beat(one, 5.0), backend)
    assert one.rt.options.buckets == 9
    assert sorted([*one.share().buckets, *other.share().buckets]) == list(range(9))


def test_a_worker_that_died_does_not_keep_the_new_buckets_empty(backend: MemoryBackend) -> None:
    store_buckets(backend, 4)
    dead, living = Membership(four()), Membership(four())
    run(beat(dead, 5.0), backend)
    store_buckets(backend, 4, read_buckets=9)
    run(beat(living, 5.0), backend)
    assert living.rt.options.buckets == backend.execute(Get(SETTINGS))["buckets"] == 4
    backend.sleep(15.1)
    run(beat(living, 5.0), backend)
    assert living.rt.options.buckets == 9
    assert len(backend.execute(Query(REGISTRY, WORKERS)).items) == 2
