"""Replicas: offline, over crashes and lost answers, until all of them agree."""

from __future__ import annotations

import random
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("litestar")

from litestar.testing import TestClient

from casework.backends.drive import run
from casework.errors import CursorTooOld, Misuse, NewerFormat, StreamDamaged, Unavailable
from casework.replica import Replica
from casework.replica.answers import RelayBusy, RelayRefused
from casework.replica.transport import Answer, HttpTransport
from casework.streams.log import Log, Op
from casework.streams.retention import put_snapshot, truncate
from tests.executions.stepping import fresh_backend
from tests.relay.conftest import Serving, World, client_of


class Direct:
    """A transport without a network, that can lose requests and answers, or answer by itself."""

    def __init__(self, client: TestClient[Any]) -> None:
        self.client = client
        self.requests: list[tuple[str, int]] = []
        self.lose_request = self.lose_answer = False
        self.answers: list[Answer] = []

    def request(self, method: str, path: str, *, query: Mapping[str, Any] | None = None, body: Any = None) -> Answer:
        self.requests.append((method, len(body["ops"]) if body else 0))
        if self.lose_request:
            raise Unavailable("offline")
        if self.answers:
            return self.answers.pop(0)
        content = None if body is None else msgspec.json.encode(body)
        answer = self.client.request(method, path, params=dict(query or {}), content=content)
        if self.lose_answer:
            raise Unavailable("the answer was lost")
        return Answer(answer.status_code, answer.json() if answer.content else {})

    def close(self) -> None:
        pass


@pytest.fixture
def world() -> World:
    return World(fresh_backend())


@pytest.fixture
def client(world: World) -> Iterator[TestClient[Any]]:
    with client_of(world, {**world.headers("s=read,append,admin"), "Content-Type": "application/json"}) as client:
        yield client


@pytest.fixture
def replica_at(tmp_path: Path, client: TestClient[Any]) -> Iterator[Callable[..., tuple[Replica, Direct]]]:
    opened: list[Replica] = []

    def make(name: str = "one") -> tuple[Replica, Direct]:
        transport = Direct(client)
        replica = Replica(tmp_path / f"{name}.replica", stream="s", transport=transport)
        opened.append(replica)
        return replica, transport

    yield make
    for replica in opened:
        replica.close()


def ids(replica: Replica) -> list[str]:
    return [op.id for op in replica.read()]


Make = Callable[..., tuple[Replica, Direct]]


def test_what_was_appended_offline_is_there_after_a_restart_and_pushed_in_order(replica_at: Make) -> None:
    replica, transport = replica_at()
    transport.lose_request = True
    for n in range(3):
        replica.append(b"x", id=f"op-{n}")
    with pytest.raises(Unavailable):
        replica.sync()
    replica.close()
    replica, _ = replica_at()
    report = replica.sync()
    assert (report.pushed, report.left) == (3, 0)
    assert ids(replica) == ["op-0", "op-1", "op-2"] and replica.file.own("waiting", "pushed", "parked") == []


def test_a_lost_answer_to_a_push_costs_a_push_and_doubles_nothing(replica_at: Make) -> None:
    replica, transport = replica_at()
    replica.append(b"x", id="a")
    transport.lose_answer = True
    with pytest.raises(Unavailable):
        replica.push()
    assert [waiting.state for waiting in replica.file.own("waiting", "pushed")] == ["waiting"]
    transport.lose_answer = False
    replica.append(b"x", id="b")
    assert replica.sync().pushed == 2 and ids(replica) == ["a", "b"]


class Died(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("place", ["mark_pushed", "store_page"])
def test_a_crash_between_an_answer_and_its_note_loses_and_doubles_nothing(
    replica_at: Make, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica, _ = replica_at()
    replica.append(b"x", id="a")
    replica.append(b"x", id="b")

    def die(*_: Any, **__: Any) -> None:
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(replica.file, place, die)
        with pytest.raises(Died):
            replica.sync()
    replica.close()
    replica, _ = replica_at()
    replica.append(b"x", id="c")
    replica.sync()
    assert ids(replica) == ["a", "b", "c"] and replica.file.cursor == 3


def test_a_crash_inside_a_change_of_the_file_leaves_it_as_it_was(replica_at: Make) -> None:
    replica, _ = replica_at()
    replica.append(b"x", id="a")
    replica.push()
    before = replica.file.cursor

    def die(*args: Any) -> None:
        raise Died

    replica.file._settle = die  # type: ignore[method-assign]
    with pytest.raises(Died):
        replica.pull()
    assert replica.file.cursor == before and ids(replica) == []
    del replica.file._settle
    replica.pull()
    assert ids(replica) == ["a"]


@pytest.mark.parametrize("status", [201, 204, 301, 400, 401, 404, 422, 429, 500, 502, 503, 504])
def test_nothing_is_noted_as_pushed_on_any_answer_but_success(replica_at: Make, status: int) -> None:
    replica, transport = replica_at()
    replica.append(b"x", id="a")
    transport.answers = [Answer(status, {"results": [{"id": "a", "seq": 1}], "stored": [{"id": "a", "seq": 1}]}, 3.0)]
    with pytest.raises((RelayRefused, Unavailable)) as raised:
        replica.push()
    assert [waiting.state for waiting in replica.file.own("waiting", "pushed", "parked")] == ["waiting"]
    if status in (429, 502, 503, 504):
        assert isinstance(raised.value, RelayBusy) and raised.value.retry_after_s == 3.0


@pytest.mark.parametrize("results", [[], [{"id": "other", "seq": 1}], [{"id": "a", "seq": 1}, {"id": "b", "seq": 2}]])
def test_an_answer_about_other_operations_is_not_believed(replica_at: Make, results: Any) -> None:
    replica, transport = replica_at()
    replica.append(b"x", id="a")
    transport.answers = [Answer(200, {"results": results})]
    with pytest.raises(Unavailable, match="not about"):
        replica.push()
    assert replica.file.own("waiting")[0].op.id == "a"


def test_a_push_that_is_too_large_is_halved_and_the_operation_that_is_gets_parked(tmp_path: Path) -> None:
    world = World(fresh_backend(), max_body_bytes=4000)
    with client_of(world, {**world.headers("s=read,append"), "Content-Type": "application/json"}) as client:
        transport = Direct(client)
        with Replica(tmp_path / "r", stream="s", transport=transport) as replica:
            for n in range(16):
                replica.append(b"x" * (5000 if n == 5 else 500), id=f"op-{n:02}")
            report = replica.sync()
            assert (report.pushed, report.parked, report.left) == (15, 1, 0)
            assert ids(replica) == [f"op-{n:02}" for n in range(16) if n != 5]
            (parked,) = replica.parked()
            assert parked.op.id == "op-05" and "too large" in parked.error
            sizes = [count for method, count in transport.requests if method == "POST"]
            assert sizes[:4] == [16, 8, 4, 4] or sizes[0] == 16
            assert replica.unpark("op-05", drop=True) and replica.parked() == []
            assert not replica.unpark("op-05")


def test_an_id_that_is_taken_by_other_content_is_parked_and_the_others_go_on(replica_at: Make) -> None:
    one, _ = replica_at("one")
    two, _ = replica_at("two")
    one.append(b"first", id="x")
    one.push()
    for id in ("a", "x", "b"):
        two.append(b"second", id=id)
    report = two.sync()
    assert (report.pushed, report.parked) == (2, 1) and two.parked()[0].op.id == "x"
    assert ids(two) == ["x", "a", "b"] and next(op.data for op in two.read()) == b"first"


def test_ten_replicas_that_edit_at_once_converge_to_the_same_sequence(tmp_path: Path) -> None:
    world = World(fresh_backend())
    token = world.token("s=read,append")
    wrong: list[BaseException] = []
    with Serving(world) as url:

        def edit(n: int) -> None:
            dice = random.Random(n)
            try:
                with Replica(tmp_path / f"{n}.replica", stream="s", relay=url, token=token) as replica:
                    for edits in range(20):
                        replica.append(f"{n}/{edits}".encode(), id=f"{n}-{edits:02}")
                        if dice.random() < 0.4:
                            replica.sync()
                    replica.sync()
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=edit, args=(n,)) for n in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert wrong == []
        seen = []
        for n in range(10):
            with Replica(tmp_path / f"{n}.replica", token=token) as replica:
                replica.pull()
                seen.append([(op.seq, op.id, op.data) for op in replica.read()])
                assert replica.file.own("waiting", "pushed", "parked") == []
    assert len(seen[0]) == 200 and all(one == seen[0] for one in seen)
    for n in range(10):
        assert [id for _, id, _ in seen[0] if id.startswith(f"{n}-")] == [f"{n}-{edits:02}" for edits in range(20)]


def test_two_processes_on_one_file_push_and_pull_without_harm(replica_at: Make) -> None:
    one, _ = replica_at("same")
    two, _ = replica_at("same")
    one.append(b"x", id="a")
    two.append(b"x", id="b")
    one.push()
    two.push()
    one.pull()
    two.pull()
    assert ids(one) == ids(two) == ["a", "b"]


# --- folding ------------------------------------------------------------------------------------------------


def collect(state: list[str], op: Op) -> list[str]:
    return [*state, op.id]


def test_a_fold_goes_on_where_it_stopped_and_a_view_adds_what_has_not_come_back(replica_at: Make) -> None:
    replica, _ = replica_at()
    calls: list[str] = []

    def counted(state: list[str], op: Op) -> list[str]:
        calls.append(op.id)
        return collect(state, op)

    replica.append(b"", id="a")
    assert replica.view("ids", counted, []) == ["a"] and replica.fold("ids", counted, []) == []
    replica.sync()
    calls.clear()
    assert replica.fold("ids", counted, []) == ["a"]
    replica.append(b"", id="b")
    replica.sync()
    assert replica.fold("ids", counted, []) == ["a", "b"] and calls == ["a", "b"], "each operation is folded once"
    replica.append(b"", id="c")
    assert replica.view("ids", counted, []) == ["a", "b", "c"]


def test_a_watermark_never_passes_an_operation_that_was_not_seen(replica_at: Make) -> None:
    """An own operation that was pushed as 2 does not lift the watermark above 1, which another replica wrote."""
    mine, _ = replica_at("mine")
    other, _ = replica_at("other")
    other.append(b"", id="theirs")
    other.push()
    mine.append(b"", id="mine")
    mine.push()
    assert mine.file.own("pushed")[0].op.seq == 2
    assert mine.fold("ids", collect, []) == [] and mine.view("ids", collect, []) == ["mine"]
    mine.pull()
    assert mine.fold("ids", collect, []) == ["theirs", "mine"] == mine.view("ids", collect, [])


def test_a_replica_whose_stream_was_truncated_goes_on_from_the_snapshot(replica_at: Make, world: World) -> None:
    writer, _ = replica_at("writer")
    for id in "abcd":
        writer.append(b"", id=id)
        writer.push()
    run(put_snapshot(Log(), "s", 3, msgspec.json.encode(["a", "b", "c"])), world.blocking)
    run(truncate(Log(), "s", 2, repush_window_s=-10), world.blocking)
    late, _ = replica_at("late")
    with pytest.raises(CursorTooOld):
        late.pull()
    assert late.begin_at_snapshot()[0] == 3
    late.pull()
    assert late.fold("ids", collect, []) == ["a", "b", "c", "d"] and ids(late) == ["d"]


# --- what is not believed -----------------------------------------------------------------------------------


@pytest.mark.parametrize("numbers", [[2, 1], [1, 1], [0], [3]])
def test_a_page_whose_numbers_do_not_go_up_is_not_stored(replica_at: Make, numbers: list[int]) -> None:
    replica, transport = replica_at()
    page = [{"seq": n, "id": f"{i}", "data": "", "at_us": 0} for i, n in enumerate(numbers)]
    transport.answers = [Answer(200, {"ops": page, "next_after": 2})]
    with pytest.raises(StreamDamaged):
        replica.pull()
    assert replica.file.cursor == 0 and ids(replica) == []


def test_a_file_of_another_program_or_format_or_stream_is_left_alone(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE t (x)")
    other.close()
    (tmp_path / "text").write_text("not a database, but long enough to be looked at" * 40)
    for name in ("other.db", "text"):
        with pytest.raises(Misuse):
            Replica(tmp_path / name, stream="s")
    with Replica(tmp_path / "r", stream="s") as replica:
        replica.append(b"x")
        with pytest.raises(Misuse, match="cannot be synced"):
            replica.push()
    with pytest.raises(Misuse, match="not of 't'"):
        Replica(tmp_path / "r", stream="t")
    newer = sqlite3.connect(tmp_path / "r")
    newer.execute("PRAGMA user_version=99")
    newer.close()
    with pytest.raises(NewerFormat):
        Replica(tmp_path / "r")


def test_an_operation_that_no_stream_takes_is_refused_when_it_is_appended(replica_at: Make) -> None:
    replica, _ = replica_at()
    replica.append(b"one", id="a")
    for data, id in ((b"two", "a"), ("text", "b"), (b"x", "a\nb"), (bytes(400_000), "c")):
        with pytest.raises(Misuse):
            replica.append(data, id=id)  # type: ignore[arg-type]
    replica.append(b"one", id="a")
    assert [waiting.op.id for waiting in replica.file.own("waiting")] == ["a"]


def test_a_relay_that_is_not_there_is_unavailable_and_an_address_that_is_none_is_refused(tmp_path: Path) -> None:
    with Replica(tmp_path / "r", stream="s", relay="http://127.0.0.1:9", token="x") as replica:
        replica.append(b"x")
        with pytest.raises(Unavailable, match="did not answer"):
            replica.push()
    with pytest.raises(Misuse, match="address of a relay"):
        HttpTransport("ftp://x", "t")


def test_a_tail_gives_what_is_there_and_then_what_comes(replica_at: Make) -> None:
    replica, _ = replica_at()
    replica.append(b"", id="a")
    replica.sync()
    other, _ = replica_at("other")
    seen = []
    for op in replica.tail(0, wait_s=0.01):
        seen.append(op.id)
        if op.id == "a":
            other.append(b"", id="b")
            other.push()
        else:
            break
    assert seen == ["a", "b"]


# --- ids that meet, snapshots that contain one's own, relays that are away ------------------------------------------


def own_ids(found: Any) -> list[str]:
    return [waiting.op.id for waiting in found]


@pytest.mark.parametrize("comes", ["before the push", "while the answer of the push is lost"])
def test_an_own_operation_whose_id_somebody_else_took_is_parked_and_goes_on_under_a_new_one(
    replica_at: Make, comes: str
) -> None:
    (mine, transport), (other, _) = replica_at("mine"), replica_at("other")
    mine.append(b"mine", id="x")
    other.append(b"theirs", id="x")
    other.push()
    if comes != "before the push":
        transport.lose_answer = True
        with pytest.raises(Unavailable):
            mine.push()
        transport.lose_answer = False
    mine.pull()
    assert own_ids(mine.parked()) == ["x"] and "another operation" in mine.parked()[0].error
    assert mine.parked()[0].op.data == b"mine"
    assert mine.sync().pushed == 0
    with pytest.raises(Misuse, match="one of the two"):
        mine.unpark("x", new_id="y", drop=True)
    assert mine.unpark("x", new_id="y") and not mine.unpark("x", new_id="z")
    mine.sync()
    other.pull()
    assert [(op.id, op.data) for op in other.read()] == [("x", b"theirs"), ("y", b"mine")]
    assert own_ids(mine.file.own("waiting", "pushed", "parked")) == []


def test_an_own_operation_that_came_back_is_known_by_its_content(replica_at: Make) -> None:
    mine, transport = replica_at()
    mine.append(b"a", id="a")
    transport.lose_answer = True
    with pytest.raises(Unavailable):
        mine.push()
    transport.lose_answer = False
    mine.pull()
    assert own_ids(mine.file.own("waiting", "pushed", "parked")) == [] and mine.push().pushed == 0


def test_a_new_id_that_waits_already_is_refused_and_nothing_is_lost(replica_at: Make) -> None:
    mine, _ = replica_at()
    mine.append(b"1", id="x")
    mine.append(b"2", id="y")
    mine.file.park("x", "taken")
    with pytest.raises(Misuse, match="'y'"):
        mine.unpark("x", new_id="y")
    assert own_ids(mine.parked()) == ["x"]
    with pytest.raises(Misuse):
        mine.unpark("x", new_id="")


def test_what_a_snapshot_contains_of_ones_own_is_counted_once(replica_at: Make, world: World) -> None:
    mine, transport = replica_at()
    mine.append(b"a")
    mine.push()
    mine.append(b"b")
    transport.lose_answer = True
    with pytest.raises(Unavailable):
        mine.push()
    transport.lose_answer = False
    run(put_snapshot(Log(), "s", 2, b"2"), world.blocking)
    mine.begin_at_snapshot()
    mine.sync()

    def count(state: int, op: Op) -> int:
        return state + 1

    assert mine.view("n", count, 0) == 2
    assert own_ids(mine.file.own("waiting", "pushed", "parked")) == []


def test_the_log_of_a_replica_shrinks_behind_a_snapshot(replica_at: Make, world: World) -> None:
    mine, _ = replica_at()
    for n in range(5):
        mine.append(b"%d" % n)
    mine.sync()
    run(put_snapshot(Log(), "s", 3, b"3"), world.blocking)
    assert mine.begin_at_snapshot() == (3, b"3")
    assert [op.seq for op in mine.read()] == [4, 5] and mine.file.cursor == 5
    assert mine.fold("n", lambda state, op: state + 1, 0) == 5
    assert mine.begin_at_snapshot() == (3, b"3") and [op.seq for op in mine.read()] == [4, 5]


def test_a_replica_that_a_truncation_left_behind_has_a_way_on(replica_at: Make, world: World) -> None:
    (mine, _), (other, _) = replica_at("mine"), replica_at("other")
    other.append(b"1")
    other.sync()
    mine.sync()
    for n in range(2, 5):
        other.append(b"%d" % n)
        other.push()
    run(truncate(Log(), "s", 3, repush_window_s=-10), world.blocking)
    with pytest.raises(CursorTooOld):
        mine.pull()
    with pytest.raises(CursorTooOld):
        mine.rebase()
    assert mine.rebase(skip_lost=True) == 3
    mine.pull()
    assert [op.seq for op in mine.read()] == [1, 4]
    assert mine.rebase() == 4, "nothing is lost, so nothing changes"
    run(put_snapshot(Log(), "s", 4, b"4"), world.blocking)


def test_a_tail_waits_for_a_stream_that_is_not_there_and_asks_again_where_nobody_answers(
    tmp_path: Path, client: TestClient[Any]
) -> None:
    transport, pauses = Direct(client), []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            transport.lose_request = True
        if len(pauses) == 6:
            transport.lose_request = False
            with Replica(tmp_path / "other", stream="s", transport=Direct(client)) as other:
                other.append(b"now")
                other.push()

    with Replica(tmp_path / "mine", stream="s", transport=transport, sleep=sleep) as mine:
        assert next(mine.tail()).data == b"now"
    assert pauses[:3] == [2.0] * 3 and pauses[3:6] == [0.2, 0.4, 0.8]


@pytest.mark.parametrize("status", [200, 302, 511])
def test_an_answer_that_is_no_relays_is_told_apart(replica_at: Make, status: int) -> None:
    mine, transport = replica_at()
    mine.append(b"a")
    page = Answer(status, {"detail": "<html>Please log in"}, 0.0, False)
    for ask in (mine.push, mine.pull, mine.begin_at_snapshot):
        transport.answers = [page]
        with pytest.raises(Unavailable):
            ask()
    transport.answers = [Answer(200, {"hello": "world"})]
    with pytest.raises(Unavailable, match="no page"):
        mine.pull()
    assert mine.push().pushed == 1


def test_a_file_that_cannot_be_written_is_unavailable_and_unchanged(replica_at: Make) -> None:
    mine, _ = replica_at()
    mine.append(b"a", id="a")
    mine.file._db.execute("PRAGMA max_page_count=1")
    with pytest.raises(Unavailable, match="cannot be changed now"):
        mine.append(b"x" * 300_000, id="b")
    mine.file._db.execute("PRAGMA max_page_count=1000000")
    mine.append(b"c", id="c")
    assert own_ids(mine.file.own("waiting")) == ["a", "c"]


@pytest.mark.parametrize(
    "address",
    ["nonsense", "", " ", "ftp://x", "http://", "https:///v1", "http://x:port", "http://x:99999", "http://[::1"],
)
def test_what_is_no_address_of_a_relay_is_refused_before_there_is_a_file(tmp_path: Path, address: str) -> None:
    with pytest.raises(Misuse, match="relay"):
        Replica(tmp_path / "r.db", stream="s", relay=address)
    assert list(tmp_path.iterdir()) == []
