"""The outside world of the demo: customers who order and change their minds, and a bank that calls webhooks.

It knows nothing of the machine's inside. What it does, and when, follows from the orders and the seed.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from casework.demo.ledger import EFFECT, Entry
from casework.demo.machine import dice
from casework.demo.orders import Order
from casework.surfaces.once import once

if TYPE_CHECKING:
    from casework.app.sync import App

MOST_UNDER_WAY = 80
"""A slow store gets fewer orders a second, not more work than it can do in the time that customers have."""

MOST_AT_ONCE = 8
"""On a slow store, look at the ledger and at the workers between so many calls."""

LATE = 2
"""The copy of a webhook with this number arrives when its order has ended long ago."""


class World:
    """What happens outside.

    Args:
        app: the application, on the store.
        orders: all orders.
        seed: decides when things happen.
        per_s: so many orders come in each second, fewer while too many are under way.
        confirm_within_s: customers have so long to confirm their payment.
    """

    def __init__(self, app: App, orders: Sequence[Order], seed: int, *, per_s: float, confirm_within_s: float) -> None:
        self.app = app
        self.orders = {order.id: order for order in orders}
        self.started = 0
        self.webhooks = 0
        self.repeats = 0
        self.cancels = 0
        self.sent_at_us: dict[str, list[int]] = {}
        """For each order, when its webhook was delivered, each copy."""
        self._seed = seed
        self._per_s = per_s
        self._confirm_within_s = confirm_within_s
        self._to_come = list(reversed(orders))
        self._began = time.monotonic()
        self._plan: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the first order."""
        return time.monotonic() - self._began

    @property
    def is_idle(self) -> bool:
        """Whether nothing more is going to happen by itself."""
        return not self._plan and not self._to_come

    def look(self, news: Sequence[Entry], ended: int) -> None:
        """Do what is due.

        Args:
            news: the ledger's new lines: customers see their card charged, and cancel.
            ended: orders that have ended; with too many under way, no more come in.
        """
        for entry in news:
            order = self.orders[entry.order]
            if entry.task == "charge_card" and entry.what == EFFECT and order.story == "cancels":
                self._in(0.2, functools.partial(self._cancel_later, order))
        for _ in range(MOST_AT_ONCE):
            if self._plan and self._plan[0][0] <= self.elapsed_s:
                heapq.heappop(self._plan)[2]()
        is_time = self.elapsed_s * self._per_s >= self.started
        if self._to_come and is_time and self.started - ended < MOST_UNDER_WAY:
            self._start(self._to_come.pop())

    def late_webhooks(self) -> int:
        """The bank repeats some webhooks after everything has ended; how many."""
        late = [order for order in self.orders.values() if order.repeats >= LATE]
        for order in late:
            self._webhook(order)
        return len(late)

    def _in(self, pause_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._plan, (self.elapsed_s + pause_s, next(self._count), what))

    def _start(self, order: Order) -> None:
        confirm_within_ms = int(self._confirm_within_s * 1000)
        self.app.start("order", id=order.id, input={**order.input, "confirm_within_ms": confirm_within_ms})
        self.started += 1
        pause_s = 0.1 + 0.4 * dice(self._seed, "webhook", order.id)
        if order.is_approved:
            self._in(pause_s, functools.partial(self._webhook, order))
            if order.repeats:
                self._in(pause_s + 0.1, functools.partial(self._webhook, order))
        elif order.story == "changes mind":
            self._in(pause_s, functools.partial(self._cancel, order))

    def _webhook(self, order: Order) -> None:
        """The bank says that the customer confirmed; a repeat has the same delivery id and gets the first answer.

        The key, the event and the answer are one transaction: there is no moment at which only some of them are stored.
        """
        delivery = f"b-{order.id}"
        data = {"bank_reference": delivery}
        with once(self.app, delivery, name="bank webhook", payload=data) as claim:
            if claim.is_mine:
                with self.app.transaction() as tx:
                    tx.send(order.id, "PaymentApproved", data, event_id=delivery)
                    tx.finish({"accepted": order.id})
        times = self.sent_at_us.setdefault(order.id, [])
        self.repeats += bool(times)
        self.webhooks += 1
        times.append(time.time_ns() // 1000)

    def _cancel_later(self, order: Order) -> None:
        """The customer gives up on a sold-out item; asks again later while the order is not there yet."""
        execution = self.app.get(order.id)
        if execution.is_in("fulfilment"):
            self._cancel(order)
        elif not execution.has_ended:
            self._in(0.2, functools.partial(self._cancel_later, order))

    def _cancel(self, order: Order) -> None:
        self.app.send(order.id, "CancelRequested", {"by": order.customer}, event_id=f"cancel-{order.id}")
        self.cancels += 1
