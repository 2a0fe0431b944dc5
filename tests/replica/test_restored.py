"""A relay whose store is restored from a backup: noticed, told and mended, with nothing lost and nothing doubled."""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("litestar")

from litestar.testing import TestClient

from casework.backends.sqlite import SqliteBackend
from casework.kernel.schema import TABLES
from casework.replica import Replica
from casework.streams.log import Op
from tests.relay.conftest import Serving, World, client_of
from tests.replica.test_replica import Direct


class Place:
    """A store in a file with a relay on it, which can be backed up and restored, and replicas of its stream."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "relay.db"
        self.token = ""
        self.client: TestClient[Any]

    @contextlib.contextmanager
    def relay(self, *, served: bool = False) -> Iterator[str]:
        """A run of a relay: in this process, or on a port."""
        backend = SqliteBackend(self.store, synchronous="off")
        backend.create_tables(TABLES)
        world = World(backend)
        self.token = self.token or world.token("s=read,append,admin")
        if served:
            with Serving(world) as url:
                yield url
        else:
            with client_of(world, {"Authorization": f"Bearer {self.token}"}) as self.client:
                yield ""
        backend.close()

    def back_up(self) -> None:
        shutil.copy(self.store, self.folder / "backup.db")

    def restore(self) -> None:
        for left in self.folder.glob("relay.db*"):
            left.unlink()
        shutil.copy(self.folder / "backup.db", self.store)

    def replica(self, name: str, url: str) -> Replica:
        path = self.folder / f"{name}.replica"
        if url:
            return Replica(path, stream="s", relay=url, token=self.token)
        return Replica(path, stream="s", transport=Direct(self.client))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def work(place: Place, url: str, name: str, *ids: str, rounds: int = 1) -> None:
    with place.replica(name, url) as replica:
        for id in ids:
            replica.append(id.encode(), id=id)
        for _ in range(rounds):
            replica.sync()


def collected(state: list[str], op: Op) -> list[str]:
    return [*state, op.id]


def seen(place: Place, url: str, *names: str) -> list[list[str]]:
    """What each replica's fold makes of it; every replica has synced twice before."""
    found = []
    for _ in range(2):
        for name in names:
            work(place, url, name)
    for name in names:
        with place.replica(name, url) as replica:
            assert replica.pull() == 0 and not replica.file.own("waiting", "pushed", "parked")
            read = [op.id for op in replica.read()]
            assert replica.fold("ids", collected, []) == read
            found.append(read)
    return found


@pytest.mark.parametrize("served", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_replicas_of_a_restored_relay_agree_again_and_nothing_is_lost_or_doubled(place: Place, served: bool) -> None:
    with place.relay(served=served) as url:
        work(place, url, "one", *(f"one-{n}" for n in range(30)))
        work(place, url, "two", "two-0")
        work(place, url, "three")
    place.back_up()
    with place.relay(served=served) as url:
        for n in range(1, 20):
            work(place, url, "two", f"two-{n}")
        work(place, url, "one", "one-late")
        seen(place, url, "one", "two")
    place.restore()
    with place.relay(served=served) as url:
        work(place, url, "three", *(f"three-{n}" for n in range(40)))  # the log goes past the old head
        lists = seen(place, url, "two", "one", "three")
        assert lists[0] == lists[1] == lists[2]
        expected = {"one-late", *(f"one-{n}" for n in range(30)), *(f"three-{n}" for n in range(40))}
        assert sorted(lists[0]) == sorted(expected | {f"two-{n}" for n in range(20)})
        with place.replica("one", url) as one:
            told = one.differences()
            assert [(each.op.seq, each.op.id, each.is_own) for each in told] == [
                *((31 + n, f"two-{n}", False) for n in range(1, 20)), (51, "one-late", True),
            ]  # fmt: skip
            now = {op.id: op.seq for op in one.read()}
            assert all(each.now_seq == now[each.op.id] for each in told), "and under which number it came back"
        with place.replica("three", url) as three:
            assert three.differences() == [], "it never had what the relay lost"


@pytest.mark.parametrize("lost", [1, 7])
def test_a_restore_to_which_nobody_appends_is_noticed_too(place: Place, lost: int) -> None:
    with place.relay() as url:
        work(place, url, "one", "a", "b")
    place.back_up()
    with place.relay() as url:
        work(place, url, "one", *(f"late-{n}" for n in range(lost)))
    place.restore()
    with place.relay() as url:
        assert seen(place, url, "one", "two") == [["a", "b", *(f"late-{n}" for n in range(lost))]] * 2


def test_what_was_pushed_and_not_pulled_before_the_restore_is_pushed_again(place: Place) -> None:
    with place.relay() as url:
        work(place, url, "one", "a")
    place.back_up()
    with place.relay() as url, place.replica("one", url) as one:
        one.append(b"b", id="b")
        one.push()
    place.restore()
    with place.relay() as url:
        work(place, url, "two", "c", "d")
        assert seen(place, url, "one", "two") == [["a", "c", "d", "b"]] * 2


def test_own_operations_keep_their_order_before_those_that_wait(place: Place) -> None:
    with place.relay() as url:
        work(place, url, "one", "a")
    place.back_up()
    with place.relay() as url:
        work(place, url, "one", "b", "c")
    place.restore()
    with place.relay() as url:
        with place.replica("one", url) as one:
            one.pull()
            one.append(b"d", id="d")
            assert [waiting.op.id for waiting in one.file.own("waiting")] == ["b", "c", "d"]
        assert seen(place, url, "one") == [["a", "b", "c", "d"]]


def test_a_stream_that_is_gone_altogether_is_made_again_from_its_replicas(place: Place) -> None:
    with place.relay() as url:
        pass
    place.back_up()
    with place.relay() as url:
        work(place, url, "one", "a", "b")
        work(place, url, "two", "c")
        work(place, url, "one")
    place.restore()
    with place.relay() as url:
        lists = seen(place, url, "two", "one")
        assert lists[0] == lists[1] and sorted(lists[0]) == ["a", "b", "c"]


def test_what_others_appended_and_lost_can_be_pushed_in_their_place(place: Place) -> None:
    with place.relay() as url:
        work(place, url, "one", "a")
    place.back_up()
    with place.relay() as url:
        work(place, url, "gone", "b", "c")
        work(place, url, "one")
    place.restore()
    with place.relay() as url:
        work(place, url, "one")
        with place.replica("one", url) as one:
            assert [(each.op.id, each.is_own, each.now_seq) for each in one.differences()] == [
                ("b", False, None), ("c", False, None),
            ]  # fmt: skip
            assert one.push_differences() == 2
        assert seen(place, url, "one", "gone") == [["a", "b", "c"]] * 2
        with place.replica("one", url) as one:
            assert [each.now_seq for each in one.differences()] == [2, 3]
            one.file.forget_differences()
            assert one.differences() == []


def test_the_last_position_in_common_is_found_with_few_requests(place: Place) -> None:
    with place.relay() as url:
        for n in range(12):
            work(place, url, "one", *(f"{n}-{k}" for k in range(5)))
    place.back_up()
    with place.relay() as url:
        for n in range(12, 52):
            work(place, url, "one", f"{n}")
    place.restore()
    with place.relay() as url:
        work(place, url, "two", "x")
        with place.replica("one", url) as one:
            transport, asked = one.transport, itertools.count()

            class Counting:
                def request(self, *args: object, **options: object) -> object:
                    next(asked)
                    return transport.request(*args, **options)  # type: ignore[arg-type]

                def close(self) -> None:
                    transport.close()

            one._transport = Counting()  # type: ignore[assignment]
            one.pull()
            assert one.differences()[0].op.seq == 61 and next(asked) <= 12
        assert len(seen(place, url, "one", "two")[0]) == 101


def test_a_fold_below_the_common_position_goes_on_and_one_above_it_begins_anew(place: Place) -> None:
    with place.relay() as url:
        work(place, url, "one", "a", "b")
        with place.replica("one", url) as one:
            one.fold("low", collected, [])
    place.back_up()
    with place.relay() as url:
        work(place, url, "one", "c")
        with place.replica("one", url) as one:
            one.fold("high", collected, [])
    place.restore()
    with place.relay() as url:
        work(place, url, "two", "x")
        work(place, url, "one")
        with place.replica("one", url) as one:
            assert one.file.fold("high") is None and one.file.fold("low") is not None
            assert one.fold("high", collected, []) == one.fold("low", collected, []) == ["a", "b", "x", "c"]
