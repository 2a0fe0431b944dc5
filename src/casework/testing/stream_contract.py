"""The contract of a stream store, for whoever writes one.

Subclass it in a test module and say how a store is made; pytest does the rest::

    class TestMyStore(StreamStoreContract):
        @pytest.fixture
        def store(self):
            with MyStore(...) as store:
                yield store

``store`` has the operations of :class:`casework.StreamStore`: ``append``, ``read``, ``head``, ``truncate``,
``snapshot`` and ``load_snapshot``. The fixture may have any scope: every test has streams of its own.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from casework.errors import CursorTooOld, Misuse, OpIdReused
from casework.streams.log import Op


class StreamStoreContract:
    """What every stream store promises. Override ``store``."""

    @pytest.fixture
    def store(self) -> Iterator[Any]:
        """The store under test."""
        raise NotImplementedError("override the fixture `store` in your subclass")

    @pytest.fixture
    def stream(self) -> str:
        """A stream that no other test has."""
        return f"contract-{secrets.token_hex(8)}"

    @staticmethod
    def ops(*ids: str) -> list[Op]:
        """Operations whose data is their id."""
        return [Op(id, id.encode()) for id in ids]

    @staticmethod
    def seen(store: Any, stream: str, after: int = 0) -> Sequence[tuple[int, str, bytes]]:
        """What a reader gets."""
        return [(op.seq, op.id, op.data) for op in store.read(stream, after)]

    def test_operations_are_numbered_from_one_without_a_hole_and_read_in_order(self, store: Any, stream: str) -> None:
        """The numbers of several appends go on from each other."""
        first = store.append(stream, self.ops("a", "b"))
        second = store.append(stream, self.ops("c"))
        assert [(one.id, one.seq, one.is_duplicate) for one in (*first, *second)] == [
            ("a", 1, False), ("b", 2, False), ("c", 3, False),
        ]  # fmt: skip
        assert self.seen(store, stream) == [(1, "a", b"a"), (2, "b", b"b"), (3, "c", b"c")]
        assert store.head(stream).last_seq == 3

    def test_a_reader_goes_on_behind_its_cursor(self, store: Any, stream: str) -> None:
        """From every place, within a batch too."""
        names = [f"{n:03}" for n in range(120)]
        store.append(stream, self.ops(*names))
        for after in (0, 1, 50, 94, 95, 96, 119, 120):
            assert [id for _, id, _ in self.seen(store, stream, after)] == names[after:]
        assert [op.seq for op in store.read(stream, 10, 5)] == [11, 12, 13, 14, 15]

    def test_an_empty_stream_reads_as_nothing_and_an_empty_append_stores_nothing(self, store: Any, stream: str) -> None:
        """A stream begins to exist with its first operation."""
        assert self.seen(store, stream) == [] and store.head(stream).last_seq == 0
        assert list(store.append(stream, [])) == [] and store.head(stream).last_seq == 0

    def test_thousands_of_operations_in_one_append_are_all_stored_in_order(self, store: Any, stream: str) -> None:
        """However they are split."""
        names = [f"{n:04}" for n in range(2000)]
        assert [one.seq for one in store.append(stream, self.ops(*names))] == list(range(1, 2001))
        assert [id for _, id, _ in self.seen(store, stream)] == names

    def test_any_bytes_come_back_as_they_were(self, store: Any, stream: str) -> None:
        """Small, large, empty, and all values of a byte."""
        given = [
            Op("all", bytes(range(256))),
            Op("none", b""),
            Op("large", secrets.token_bytes(300_000)),
            Op("ü ✓", b"x"),
        ]
        store.append(stream, given)
        assert [(op.id, op.data) for op in store.read(stream)] == [(op.id, op.data) for op in given]

    def test_an_id_is_stored_once_and_its_repeat_is_answered_with_its_number(self, store: Any, stream: str) -> None:
        """Within an append, and in a later one."""
        store.append(stream, self.ops("a", "b"))
        answers = store.append(stream, self.ops("x", "b", "y", "x"))
        assert [(one.id, one.seq) for one in answers] == [("x", 3), ("b", 2), ("y", 4), ("x", 3)]
        assert answers[1].is_duplicate and not answers[0].is_duplicate
        assert [id for _, id, _ in self.seen(store, stream)] == ["a", "b", "x", "y"]

    def test_the_same_id_with_other_content_is_refused_by_name(self, store: Any, stream: str) -> None:
        """And what stands behind it in the append is not stored."""
        store.append(stream, self.ops("a"))
        with pytest.raises(OpIdReused) as raised:
            store.append(stream, [Op("b", b"b"), Op("a", b"other"), Op("c", b"c")])
        assert (raised.value.id, raised.value.seq) == ("a", 1)
        assert [id for _, id, _ in self.seen(store, stream)] == ["a", "b"]
        assert self.seen(store, stream)[0] == (1, "a", b"a")

    def test_streams_are_apart(self, store: Any, stream: str) -> None:
        """In numbers, ids and content."""
        store.append(stream, self.ops("a"))
        assert [one.seq for one in store.append(stream + "-2", [Op("a", b"other")])] == [1]
        assert self.seen(store, stream) == [(1, "a", b"a")]

    @pytest.mark.parametrize("stream", ["", "a/b", "@a", "a b", "x" * 201])
    def test_a_stream_id_that_cannot_be_one_is_refused(self, store: Any, stream: str) -> None:
        """Before anything is written."""
        with pytest.raises(Misuse):
            store.append(stream, self.ops("a"))

    def test_writers_that_contend_lose_nothing_and_readers_never_see_a_hole(self, store: Any, stream: str) -> None:
        """Each reader is handed a prefix at every moment; each writer's own order holds."""
        wrong: list[BaseException] = []
        done = threading.Event()
        read: list[int] = []

        def write(name: str) -> None:
            try:
                for n in range(8):
                    store.append(stream, self.ops(f"{name}-{n}"))
            except BaseException as error:  # noqa: BLE001 - shown by the test
                wrong.append(error)

        def follow() -> None:
            try:
                while not done.is_set():
                    read.extend(op.seq for op in store.read(stream, len(read)))
            except BaseException as error:  # noqa: BLE001 - shown by the test
                wrong.append(error)

        threads = [threading.Thread(target=write, args=(name,)) for name in "abcdef"]
        reader = threading.Thread(target=follow)
        for thread in (reader, *threads):
            thread.start()
        for thread in threads:
            thread.join()
        done.set()
        reader.join()
        assert wrong == [] and read == list(range(1, len(read) + 1))
        stored = self.seen(store, stream)
        assert [seq for seq, _, _ in stored] == list(range(1, 49))
        for name in "abcdef":
            assert [id for _, id, _ in stored if id[0] == name] == [f"{name}-{n}" for n in range(8)]

    def test_a_snapshot_is_the_newest_one(self, store: Any, stream: str) -> None:
        """An older one does not replace it."""
        store.append(stream, self.ops("a", "b", "c"))
        assert store.load_snapshot(stream) is None
        for seq, data in ((2, b"two"), (1, b"one"), (3, secrets.token_bytes(800_000)), (2, b"again")):
            store.snapshot(stream, seq, data)
            if seq == 3:
                large = data
        found = store.load_snapshot(stream)
        assert (found.seq, found.data) == (3, large)
        with pytest.raises(Misuse):
            store.snapshot(stream, 4, b"above the head")

    def truncated(self, store: Any, stream: str, upto: int) -> Any:
        """Truncate, again until the store's clock says for certain that what goes is old enough."""
        while (done := store.truncate(stream, upto, repush_window_s=0)).kept_ops:
            continue
        return done

    def test_what_was_truncated_is_never_silently_left_out(self, store: Any, stream: str) -> None:
        """A cursor below the floor is told so, and where to go on; numbers go on from the head."""
        for name in "abcd":
            store.append(stream, self.ops(name))
        store.snapshot(stream, 2, b"ab")
        assert self.truncated(store, stream, 2).floor_seq == 2
        with pytest.raises(CursorTooOld) as raised:
            self.seen(store, stream)
        assert (raised.value.floor_seq, raised.value.snapshot_seq) == (2, 2)
        assert [id for _, id, _ in self.seen(store, stream, 2)] == ["c", "d"]
        self.truncated(store, stream, 4)
        assert [one.seq for one in store.append(stream, self.ops("e"))] == [5]
        assert [id for _, id, _ in self.seen(store, stream, 4)] == ["e"]
        with pytest.raises(Misuse):
            store.truncate(stream, 6)
