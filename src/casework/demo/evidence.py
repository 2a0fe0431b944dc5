"""What the database says at the end, read through the same face that every application has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from casework.demo.orders import Order
from casework.errors import NoSuchExecution
from casework.executions.deliver import Execution
from casework.executions.joins import child_id
from casework.executions.listing import DeadLetter

if TYPE_CHECKING:
    from casework.app.sync import App
MOST_STAYS = 40
"""The shipments of an order were started by one of its first so many stays."""


class Child(msgspec.Struct):
    """A shipment."""

    execution: Execution
    trace: list[dict[str, Any]]


class Evidence(msgspec.Struct):
    """Everything that the proof needs from the database."""

    listed: list[str]
    """Ids of the orders that the listing has, each as often as it stands there."""
    orders: dict[str, Execution]
    traces: dict[str, list[dict[str, Any]]]
    left: dict[str, list[str]]
    """What still waits in an order's partition: tasks, timers, messages."""
    children: dict[str, list[Child]]
    """The shipments of each order by ordinal, one beyond the last included where there is one."""
    dead: list[DeadLetter]


def listed_orders(app: App, status: str | None = None) -> list[Execution]:
    """All orders in the listing, page by page."""
    found: list[Execution] = []
    cursor: str | None = None
    while True:
        page = app.list(machine="order", status=status, limit=1000, cursor=cursor)
        found += page.items
        cursor = page.next
        if cursor is None:
            return found


def gather(app: App, orders: Sequence[Order]) -> Evidence:
    """Read everything back."""
    evidence = Evidence([execution.id for execution in listed_orders(app)], {}, {}, {}, {}, app.dead_letters().items)
    stay = 0
    for order in orders:
        try:
            seen = app.inspect(order.id)
        except NoSuchExecution:
            continue
        evidence.orders[order.id] = seen.execution
        evidence.traces[order.id] = app.trace(order.id)
        evidence.left[order.id] = [
            *(f"task {task.name}" for task in seen.tasks),
            *(f"timer {timer.name}" for timer in seen.timers),
            *(f"message {message.type}" for message in seen.messages),
        ]
        if order.is_charged:
            stay = stay or _stay_of_shipments(app, order.id)
            evidence.children[order.id] = _children(app, order, stay)
    return evidence


def _stay_of_shipments(app: App, id: str) -> int:
    """Every order takes the same way to its shipments, so one tells for all which stay started them."""
    for stay in range(1, MOST_STAYS):
        if _child(app, child_id(id, "shipments", stay, 0, app.get(id).created_at_us)) is not None:
            return stay
    return 0


def _children(app: App, order: Order, stay: int) -> list[Child]:
    found = []
    born_us = app.get(order.id).created_at_us
    for ordinal in range(len(order.items) + 1):
        child = _child(app, child_id(order.id, "shipments", stay, ordinal, born_us))
        if child is not None:
            found.append(child)
    return found


def _child(app: App, id: str) -> Child | None:
    try:
        return Child(app.get(id), app.trace(id))
    except NoSuchExecution:
        return None
