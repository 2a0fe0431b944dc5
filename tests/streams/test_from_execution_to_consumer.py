"""From an execution to the effects of a consumer, on each store: workers publish, consumers share the stream."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import casework
from casework.backends.drive import run
from casework.kernel.conditions import absent
from casework.kernel.items import Table
from casework.kernel.programs import get
from casework.streams.consumer import HandlerWrites
from casework.streams.log import Op
from tests.streams.stores import STORES, open_store

SEEN = Table(name="seen", partition="entry")
IDS = ("a", "b", "c")
EVENTS = 6

LEDGER = casework.Machine.from_yaml(
    """
id: ledger
publish: audit
initial: open
context: {n: 0}
states:
  open: {on: {Add: {actions: {type: assign, params: {n: {expr: "context.n + 1"}}}}}}
"""
)


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path, unique: Callable[[str], str]) -> Iterator[Any]:
    """The test runs once on each store."""
    yield from open_store(request, tmp_path, unique)


def test_each_transition_has_its_effect_once_and_in_the_order_of_its_execution(store: Any) -> None:
    store.create_tables([SEEN])
    wanted = len(IDS) * (1 + EVENTS)
    handled: set[str] = set()
    done = threading.Event()

    def handle(op: Op, writes: HandlerWrites) -> None:
        writes.put(SEEN, {"entry": op.id, "seq": op.seq}, absent())
        handled.add(op.id)
        if len(handled) >= wanted:
            done.set()

    with casework.open(store, machines=[LEDGER]) as app:
        for id in IDS:
            app.start("ledger", id=id)
        consumer = {"lease_s": 5.0, "heartbeat_s": 0.2}
        with (
            app.worker(poll_s=0.1),
            app.streams.consumer("effects", ["audit"], handle, **consumer),
            app.streams.consumer("effects", ["audit"], handle, **consumer),
        ):
            for n in range(EVENTS):
                for id in IDS:
                    app.send(id, "Add", event_id=f"{id}-{n}")
            assert done.wait(120), f"{len(handled)} of {wanted}"
        assert {app.get(id).context["n"] for id in IDS} == {EVENTS}
        (lag,) = app.streams.lag("effects", ["audit"])
        assert (lag.lag, lag.parked) == (0, 0)
        published = list(app.streams.read("audit"))
        effects = [run(get(SEEN.key(op.id)), store) for op in published]
    assert len({op.id for op in published}) == len(published) == wanted
    assert [effect and effect["seq"] for effect in effects] == [op.seq for op in published]
    for id in IDS:
        entries = [json.loads(op.data) for op in published]
        versions = [entry["version"] for entry in entries if entry["execution"] == id]
        assert versions == sorted(versions) and len(versions) == 1 + EVENTS
