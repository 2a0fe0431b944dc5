"""The contract of a stream store on every store, and stores with one fault each, which it rejects."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from casework import Op, StreamStore
from casework.streams.log import Appended
from casework.testing.stream_contract import StreamStoreContract
from tests.executions.stepping import fresh_backend
from tests.streams.stores import STORES, open_store


class TestStreamStore(StreamStoreContract):
    @pytest.fixture(name="backend", params=STORES)
    def _backend(self, request: pytest.FixtureRequest, tmp_path: Any, unique: Any) -> Iterator[Any]:
        yield from open_store(request, tmp_path, unique)

    @pytest.fixture
    def store(self, backend: Any) -> Iterator[Any]:
        return StreamStore(backend)  # type: ignore[return-value]


class ForgetsIds(StreamStore):
    """Stores a repeat again."""

    n = 0

    def append(self, stream: str, ops: Any, **options: Any) -> Any:
        ForgetsIds.n += 1
        answers = super().append(stream, [Op(f"{op.id}~{self.n}", op.data) for op in ops], **options)
        return [Appended(one.id.partition("~")[0], one.seq, one.is_duplicate) for one in answers]

    def read(self, *args: Any, **options: Any) -> Any:
        return (Op(op.id.partition("~")[0], op.data, op.seq) for op in super().read(*args, **options))


class SkipsAtTheCursor(StreamStore):
    """Leaves out what shares a segment with the cursor."""

    def read(self, stream: str, after: int = 0, limit: Any = None) -> Any:
        return (op for op in super().read(stream, after, limit) if not after % 95 or op.seq > after + 1)


class StoresBehindARefusal(StreamStore):
    """Goes on behind an operation that was refused."""

    def append(self, stream: str, ops: Any, **options: Any) -> Any:
        try:
            return super().append(stream, ops, **options)
        except Exception:
            super().append(stream, ops[-1:], **options)
            raise


class TruncatesSilently(StreamStore):
    """Begins where there is something to read."""

    def read(self, stream: str, after: int = 0, limit: Any = None) -> Any:
        return super().read(stream, max(after, self.head(stream).floor_seq), limit)


class KeepsTheLastSnapshot(StreamStore):
    """Even when it is an older one."""

    kept: Any = None

    def snapshot(self, stream: str, seq: int, data: bytes) -> None:  # type: ignore[override]
        from casework.streams.retention import Snapshot

        self.kept = Snapshot(seq, data)

    def load_snapshot(self, stream: str) -> Any:  # type: ignore[override]
        return self.kept


class Trims(StreamStore):
    """Is not careful with bytes."""

    def append(self, stream: str, ops: Any, **options: Any) -> Any:
        return super().append(stream, [Op(op.id, op.data.rstrip(b"\xff")) for op in ops], **options)


@pytest.mark.parametrize(
    "kind", [ForgetsIds, SkipsAtTheCursor, StoresBehindARefusal, TruncatesSilently, KeepsTheLastSnapshot, Trims]
)
def test_a_store_with_one_fault_is_rejected(kind: type[StreamStore]) -> None:
    failed = []
    contract = StreamStoreContract()
    for name, test in inspect.getmembers(contract, inspect.ismethod):
        if name.startswith("test_") and not getattr(test, "pytestmark", None):
            try:
                test(kind(fresh_backend()), "s")
            except BaseException:
                failed.append(name)
    assert failed, f"{kind.__name__} passed"
