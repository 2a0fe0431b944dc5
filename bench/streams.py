"""What streams cost: ``python -m bench.streams [--json] [--quick]``.

- **simulated**: appends a second to one stream at 10 ms a round trip with the limit of a partition enforced, in virtual
  time, beside the design that stores one operation in a transaction. From one writer in batches of 95, and from 16
  writers with 20 callers waiting in each; the longest that one caller waited, and the rounds that were lost.
- **write units** of an operation, alone and batched, at 100 bytes and 1 KB.
- **relay**: 50 clients on loopback that push one operation at a time.
- **wall clock** on SQLite, and on roto and ministack where they are installed: one at a time, in batches of 95, and 64
  threads with one operation each; reading it all back.

Every measurement checks at its end that the stream holds each operation once, without a hole.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.peers.one_per_transaction import OnePerTransaction
from bench.simulated import FarStore, simulate
from casework.app.streams import StreamStore
from casework.backends.drive import run
from casework.backends.drive_async import run_async
from casework.backends.dynamodb.units import write_units
from casework.backends.memory import MemoryBackend
from casework.backends.sqlite import SqliteBackend
from casework.kernel.effects import Transact
from casework.kernel.schema import TABLES
from casework.streams.append import append
from casework.streams.log import Log, Op
from casework.streams.read import read_page
from casework.streams.writer import Writer

WRITERS, WAITING, BATCH = 16, 20, 95


def data(n: int, size: int = 100) -> bytes:
    """A compressible operation, as JSON is."""
    text = json.dumps({"type": "ItemAdded", "list": "groceries", "item": n, "by": f"user-{n % 7}", "note": ""})
    return text.encode().ljust(size, b" ")[:size]


def check(backend: Any, stream: str, count: int) -> None:
    """SystemExit unless the stream holds so many operations, each once, without a hole."""
    after, seen = 0, set()
    while True:
        page = run(read_page(Log(), stream, after, 10_000), backend)
        if not page.ops:
            break
        if [op.seq for op in page.ops] != list(range(after + 1, after + 1 + len(page.ops))):
            raise SystemExit(f"{stream}: a hole after {after}")
        seen |= {op.id for op in page.ops}
        after = page.next_after
    if (after, len(seen)) != (count, count):
        raise SystemExit(f"{stream}: {after} numbers, {len(seen)} operations, {count} were appended")


# --- simulated --------------------------------------------------------------------------------------------------------


def one_writer(seconds: float) -> dict[str, float]:
    """One writer that appends whole batches."""
    store, count = FarStore(TABLES), 0

    async def main() -> None:
        nonlocal count
        log = Log()
        while asyncio.get_running_loop().time() < seconds:
            ops = [Op(f"op-{count + n}", data(count + n)) for n in range(BATCH)]
            await run_async(append(log, "s", ops), store)
            count += BATCH

    simulate(main)
    check(store.memory, "s", count)
    return {"per_s": count / seconds, "throttled": store.throttled}


def many_writers(seconds: float, writers: int = WRITERS, waiting: int = WAITING) -> dict[str, float]:
    """Processes that contend, in each of which callers wait for one operation at a time."""
    store, waits, lost, rounds = FarStore(TABLES), [], 0, 0

    async def caller(writer: Writer, name: str) -> None:
        loop, n = asyncio.get_running_loop(), 0
        while (begun := loop.time()) < seconds:
            await run_async(writer.append("s", [Op(f"{name}-{n}", data(n))]), store)
            waits.append(loop.time() - begun)
            n += 1

    async def main() -> None:
        nonlocal lost, rounds
        processes = [Writer(Log()) for _ in range(writers)]
        await asyncio.gather(*(caller(one, f"{w}-{c}") for w, one in enumerate(processes) for c in range(waiting)))
        lost = sum(one.log.counts.lost_rounds_n for one in processes)
        rounds = sum(one.log.counts.rounds_n for one in processes)

    simulate(main)
    check(store.memory, "s", len(waits))
    return {"per_s": len(waits) / seconds, "longest_s": max(waits), "lost": lost / rounds, "throttled": store.throttled}


def one_per_transaction(seconds: float, writers: int) -> dict[str, float]:
    """The design that streams replace, from one writer or from many."""
    store, waits = FarStore(TABLES), []

    async def writer(name: str) -> None:
        loop, one, n = asyncio.get_running_loop(), OnePerTransaction(), 0
        while (begun := loop.time()) < seconds:
            await run_async(one.append("s", f"{name}-{n}", data(n)), store)
            waits.append(loop.time() - begun)
            n += 1

    async def main() -> None:
        await asyncio.gather(*(writer(str(n)) for n in range(writers)))

    simulate(main)
    return {"per_s": len(waits) / seconds, "longest_s": max(waits)}


# --- units ------------------------------------------------------------------------------------------------------------


class Metering(MemoryBackend):
    """Counts write units as the service would."""

    units = 0.0

    def execute(self, effect: Any) -> Any:
        if isinstance(effect, Transact):
            self.units += sum(
                write_units(write, self.tables.get(write.key), transactional=True).total for write in effect.writes
            )
        return super().execute(effect)


def units_per_op(size: int, batch: int) -> float:
    """Write units of one operation of ``size`` bytes, in batches."""
    backend, log = Metering(seed=1), Log()
    backend.create_tables(TABLES)
    run(append(log, "s", [Op("first", b"")]), backend)
    backend.units = 0.0
    for n in range(10):
        run(append(log, "s", [Op(f"{n}-{m}", data(n * batch + m, size)) for m in range(batch)]), backend)
    return backend.units / (10 * batch)


def units_one_per_transaction(size: int) -> float:
    """The same of the design that streams replace."""
    backend, one = Metering(seed=1), OnePerTransaction()
    backend.create_tables(TABLES)
    run(one.append("s", "first", b""), backend)
    backend.units = 0.0
    for n in range(10):
        run(one.append("s", f"{n}", data(n, size)), backend)
    return backend.units / 10


# --- wall clock -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def stores() -> Iterator[dict[str, Any]]:
    """The stores that are here, by name."""
    with tempfile.TemporaryDirectory(dir=".") as folder, contextlib.ExitStack() as closing:
        found: dict[str, Any] = {"SQLite": SqliteBackend(f"{folder}/bench.db")}
        for name in ("roto", "ministack"):
            with contextlib.suppress(Exception):
                found[name] = closing.enter_context(_server(name, Path(folder)))
        for backend in found.values():
            backend.create_tables(TABLES)
        try:
            yield found
        finally:
            for backend in found.values():
                backend.close()


@contextlib.contextmanager
def _server(name: str, folder: Path) -> Iterator[Any]:
    from casework.backends.dynamodb import DynamoDBBackend
    from tests.servers import process
    from tests.servers.clients import dynamodb

    server = getattr(process, name)(folder)
    server.start()
    try:
        client = dynamodb(server.url, max_attempts=1, max_pool_connections=80)
        yield DynamoDBBackend(client, prefix=f"bench-{uuid.uuid4().hex[:8]}")
    finally:
        server.stop()


def wall_clock(name: str, backend: Any, seconds: float) -> list[tuple[str, str, float]]:
    """Appends and reads a second on a real store."""
    store = StreamStore(backend)
    alone = _repeat(seconds, lambda n: store.append("alone", [Op(f"{n}", data(n))]))
    batched = _repeat(seconds, lambda n: store.append("batched", [Op(f"{n}-{m}", data(m)) for m in range(BATCH)]))
    counts = [0] * 64
    ends = time.perf_counter() + seconds

    def caller(c: int) -> None:
        while time.perf_counter() < ends:
            store.append("threads", [Op(f"{c}-{counts[c]}", data(c))])
            counts[c] += 1

    threads = [threading.Thread(target=caller, args=(c,)) for c in range(64)]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    threaded = sum(counts) / (time.perf_counter() - begun)
    check(backend, "threads", sum(counts))
    begun = time.perf_counter()
    read = sum(1 for _ in store.read("batched"))
    reading = read / (time.perf_counter() - begun)
    return [
        (f"{name}: appends, one at a time", "ops/s", alone),
        (f"{name}: appends in batches of {BATCH}", "ops/s", batched * BATCH),
        (f"{name}: appends by 64 threads, one at a time each", "ops/s", threaded),
        (f"{name}: read", "ops/s", reading),
    ]


def relay_clients(seconds: float, clients: int = 50) -> list[tuple[str, str, float]]:
    """Pushes of one operation each by many clients of a relay on loopback, over SQLite."""
    from casework.backends.threaded import ThreadedBackend
    from casework.relay.serve import RelayServer, make_relay
    from casework.replica.transport import HttpTransport
    from casework.streams.tokens import create_token, read_grant

    with tempfile.TemporaryDirectory(dir=".") as folder:
        backend = SqliteBackend(f"{folder}/relay.db")
        backend.create_tables(TABLES)
        token, _ = run(create_token([read_grant("*=read,append")]), backend)
        server = RelayServer(make_relay(ThreadedBackend(backend)), host="127.0.0.1", port=0)
        serving = threading.Thread(target=server.run, daemon=True)
        serving.start()
        while not server.started:
            time.sleep(0.01)
        url, waits = f"http://127.0.0.1:{server.port}", []
        ends = time.perf_counter() + seconds

        def client(c: int) -> None:
            transport, n = HttpTransport(url, token), 0
            while (begun := time.perf_counter()) < ends:
                body = {"ops": [{"id": f"{c}-{n}", "data": data(n)}]}
                answer = transport.request("POST", "/v1/streams/s/ops", body=body)
                if answer.status != 200:
                    raise SystemExit(f"the relay answered {answer}")
                waits.append(time.perf_counter() - begun)
                n += 1
            transport.close()

        threads = [threading.Thread(target=client, args=(c,)) for c in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        server.leave()
        serving.join()
        check(backend, "s", len(waits))
        rounds = server.relay.store.log.counts.rounds_n
        backend.close()
    waits.sort()
    return [
        (f"relay on loopback, SQLite: {clients} clients, one operation a push", "ops/s", len(waits) / seconds),
        (f"relay on loopback, SQLite: {clients} clients, p99", "ms", waits[int(len(waits) * 0.99)] * 1000),
        (f"relay on loopback, SQLite: {clients} clients, operations a transaction", "ops", len(waits) / rounds),
    ]


def _repeat(seconds: float, work: Any) -> float:
    begun, n = time.perf_counter(), 0
    while (passed := time.perf_counter() - begun) < seconds:
        work(n)
        n += 1
    return n / passed


# --- rows -------------------------------------------------------------------------------------------------------------


def rows(*, quick: bool = False) -> list[dict[str, Any]]:
    """One row for each measurement."""
    simulated_s, real_s = (5.0, 0.5) if quick else (30.0, 3.0)
    peer = "one operation a transaction"
    found: list[dict[str, Any]] = []

    def row(name: str, unit: str, ours: float, theirs: float | None = None) -> None:
        ratio = None if theirs is None else round(ours / theirs, 2)
        found.append(
            {"name": name, "unit": unit, "ours": round(ours, 2), "peer": None if theirs is None else round(theirs, 2),
             "peer_name": None if theirs is None else peer, "ratio": ratio}
        )  # fmt: skip

    one, many = one_writer(simulated_s), many_writers(simulated_s)
    old_one, old_many = one_per_transaction(simulated_s, 1), one_per_transaction(simulated_s, WRITERS * WAITING)
    row(f"simulated 10 ms: one writer, batches of {BATCH}", "ops/s", one["per_s"], old_one["per_s"])
    row(f"simulated 10 ms: {WRITERS} writers, {WAITING} waiting each", "ops/s", many["per_s"], old_many["per_s"])
    row(f"simulated 10 ms: {WRITERS} writers, longest wait", "s", many["longest_s"], old_many["longest_s"])
    row(f"simulated 10 ms: {WRITERS} writers, rounds lost", "of all rounds", many["lost"])
    for size in (100, 1024):
        old = units_one_per_transaction(size)
        row(f"write units, {size} bytes, alone", "units/op", units_per_op(size, 1), old)
        row(f"write units, {size} bytes, batches of {BATCH}", "units/op", units_per_op(size, BATCH), old)
    with stores() as here:
        for name, backend in here.items():
            for measured in wall_clock(name, backend, real_s):
                row(*measured)
    with contextlib.suppress(ModuleNotFoundError):  # without the web extra
        for measured in relay_clients(real_s):
            row(*measured)
    return found


def main(arguments: list[str] | None = None) -> int:
    """Print the rows as a table, or as JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.streams", description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--quick", action="store_true", help="a sixth of the time")
    given = parser.parse_args(arguments)
    found = rows(quick=given.quick)
    if given.json:
        print(json.dumps({"rows": found}))
        return 0
    for one in found:
        beside = "" if one["peer"] is None else f"{one['peer']:>12,.2f} ({one['ratio']:g}x)"
        print(f"{one['name']:52} {one['ours']:>12,.2f} {one['unit']:14}{beside}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
