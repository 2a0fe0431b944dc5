"""A host that stood still, or whose clock was set, asks the service for the time before it writes one."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

import casework
from casework.backends.dynamodb import AsyncDynamoDBBackend, DynamoDBBackend
from casework.backends.dynamodb.clock import ServiceClock, steady_s
from casework.backends.threaded import ThreadedBackend
from casework.errors import Unavailable
from casework.executions.inspection import Inspection
from tests.dynamodb.conftest import QUICK, Maker

ORDER = {
    "id": "order",
    "initial": "new",
    "states": {
        "new": {"on": {"Hold": "held"}},
        "held": {"after": {"15m": "expired"}, "on": {"Again": {"target": "held", "reenter": True}}},
        "expired": {"type": "final"},
    },
}
WAITING = {"id": "waiting", "initial": "held", "states": {"held": {"after": {"15m": "expired"}}, "expired": {}}}
MACHINES = [casework.Machine.from_dict(ORDER), casework.Machine.from_dict(WAITING)]


class Host:
    """The clocks of a host that can be frozen and set; the service's time is this machine's."""

    def __init__(self) -> None:
        self.monotonic_off_s = self.wall_off_s = 0.0
        self.clock = ServiceClock(
            monotonic_s=lambda: steady_s() + self.monotonic_off_s, wall_s=lambda: time.time() + self.wall_off_s
        )

    def fail(self, how: str) -> None:
        """As it looks from within: an hour's freeze is an hour by the wall clock and nothing by the other."""
        if how == "the monotonic clock stood still":
            self.wall_off_s += 3600.0
        elif how == "the wall clock stood still":
            self.monotonic_off_s += 3600.0
        elif how == "set back":
            self.wall_off_s -= 3 * 3600.0
        elif how == "set forward":
            self.wall_off_s += 86_400.0
        elif how == "stood still and set back":
            self.monotonic_off_s -= 5.0
            self.wall_off_s -= 7200.0


FAILURES = [
    "the monotonic clock stood still", "the wall clock stood still", "set back", "set forward",
    "stood still and set back",
]  # fmt: skip


def due_in_s(found: Inspection) -> float:
    (timer,) = found.timers
    return timer.due_at_us / 1e6 - time.time()


@pytest.mark.parametrize("how", FAILURES)
def test_a_timer_that_is_armed_after_a_freeze_or_a_step_is_due_in_a_quarter_of_an_hour(
    ministack_url: str, unique: Any, how: str
) -> None:
    host = Host()
    with DynamoDBBackend(endpoint_url=ministack_url, prefix=unique("frozen"), clock=host.clock) as backend:
        backend.create_tables()
        with casework.open(backend, machines=MACHINES) as app:
            app.start("order", id="o")
            app.handle("o", "Hold")
            host.fail(how)
            app.handle("o", "Again")  # the state is held here: nothing is read before
            assert abs(due_in_s(app.inspect("o")) - 900) < 3
            host.fail(how)
            app.start("waiting", id="w")
            assert abs(due_in_s(app.inspect("w")) - 900) < 3


@pytest.mark.parametrize(("how", "threaded"), [*((how, False) for how in FAILURES), (FAILURES[0], True)])
def test_the_same_on_a_loop(ministack_url: str, unique: Any, how: str, threaded: bool) -> None:
    host, prefix = Host(), unique("frozen")

    async def play() -> None:
        if threaded:
            backend: Any = ThreadedBackend(
                DynamoDBBackend(endpoint_url=ministack_url, prefix=prefix, clock=host.clock), owns_blocking=True
            )
        else:
            backend = AsyncDynamoDBBackend(endpoint_url=ministack_url, prefix=prefix, clock=host.clock)
        await backend.create_tables(casework.kernel.schema.TABLES)
        async with casework.open_async(backend, machines=MACHINES) as app:
            await app.start("order", id="o")
            await app.handle("o", "Hold")
            host.fail(how)
            await app.handle("o", "Again")
            assert abs(due_in_s(await app.inspect("o")) - 900) < 3
            host.fail(how)
            await app.start("waiting", id="w")
            assert abs(due_in_s(await app.inspect("w")) - 900) < 3
        await backend.close()

    asyncio.run(play())


def test_a_time_that_cannot_be_learned_is_unavailable_and_not_guessed(make: Maker, ministack_url: str) -> None:
    host = Host()
    backend = make(ministack_url, clock=host.clock)
    ask = backend.now if make.flavour == "sync" else lambda: make._runner.run(backend.backend.tell_time())
    first = ask()
    host.fail("the monotonic clock stood still")
    gone = make("http://127.0.0.1:9", clock=host.clock, policy=QUICK)
    ask_gone = gone.now if make.flavour == "sync" else lambda: make._runner.run(gone.backend.tell_time())
    with pytest.raises(Unavailable, match=r"clock was set, or the host stood still.*Nothing was written"):
        ask_gone()
    assert 0 <= ask().middle_us - first.middle_us < 60_000_000
