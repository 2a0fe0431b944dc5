"""The demo's machines with their functions: ``casework worker casework.demo.machine:machines``.

Each task stands for a call to somebody else's service: it takes a little while, and everything that the service sees is
written to the ledger. The bank fails now and then; which attempt fails follows from the seed.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from importlib import resources
from typing import Any

from casework import Machine, TaskContext, TaskFailed
from casework.demo.ledger import BEGAN, EFFECT, ENDED, FAILED, Ledger
from casework.errors import Misuse

LEDGER_VARIABLE = "CASEWORK_DEMO_LEDGER"
SEED_VARIABLE = "CASEWORK_DEMO_SEED"
DECLINED_VARIABLE = "CASEWORK_DEMO_DECLINED"

FAILURE_RATE = 0.3
"""So many of the calls to the bank fail and are tried again; from the fifth attempt on none does."""


class BankUnavailable(Exception):
    """The bank did not answer; nothing was charged."""


def fails(seed: int, key: str, attempt: int) -> bool:
    """Whether the bank fails this attempt: the same for the same seed, key and attempt."""
    return attempt < 5 and dice(seed, key, attempt) < FAILURE_RATE


def dice(seed: int, *parts: object) -> float:
    """A number from 0 to 1 that follows from the seed and the parts."""
    digest = hashlib.blake2b("/".join(map(str, (seed, *parts))).encode(), digest_size=7).digest()
    return int.from_bytes(digest) / 2**56


class _Run:
    """One run of a task, as the outside world sees it: the ledger's lines around the effect."""

    def __init__(self, task: TaskContext, name: str, order: str) -> None:
        if LEDGER_VARIABLE not in os.environ:
            raise Misuse(f"the demo's tasks write to a ledger; set {LEDGER_VARIABLE}, or run `casework demo`")
        self.seed = int(os.environ.get(SEED_VARIABLE, "1"))
        self._ledger = Ledger(os.environ[LEDGER_VARIABLE])
        self._told = (name, task.idempotency_key, task.attempt, order)
        self._ledger.write(BEGAN, *self._told)

    def effect(self) -> None:
        self._ledger.write(EFFECT, *self._told)

    def ended(self) -> None:
        self._ledger.write(ENDED, *self._told)
        self._ledger.close()

    def failed(self, reason: str) -> None:
        self._ledger.write(FAILED, *self._told, reason)
        self._ledger.close()

    def latency_s(self, most_ms: int) -> float:
        """Half the time that the service takes."""
        return (0.3 + 0.7 * dice(self.seed, "latency", *self._told)) * most_ms / 2000


def machines() -> list[Machine]:
    """The order and the shipment, with their functions; a fresh pair each time."""
    order, shipment = (_load(name) for name in ("order", "shipment"))
    order.action(count_approval)
    order.task(charge_card)
    order.task(write_invoice)
    order.task(refund_card)
    shipment.task(book_courier)
    return [order, shipment]


def _load(name: str) -> Machine:
    text = (resources.files("casework.demo") / f"{name}.yaml").read_text("utf-8")
    return Machine.from_yaml(text, source=f"casework/demo/{name}.yaml")


def count_approval(context: dict[str, Any], event: Any) -> dict[str, Any]:
    """A webhook arrived."""
    return {"approvals": context["approvals"] + 1}


async def charge_card(task: TaskContext, *, order: str, amount_cents: int) -> dict[str, Any]:
    """Ask the bank for the money; it takes each idempotency key once, however often it is asked."""
    run = _Run(task, "charge_card", order)
    await asyncio.sleep(run.latency_s(300))
    if order in os.environ.get(DECLINED_VARIABLE, "").split():
        run.failed("card declined")
        raise TaskFailed("card declined")
    if fails(run.seed, task.idempotency_key, task.attempt):
        run.failed("503 from the bank")
        raise BankUnavailable("503 from the bank")
    run.effect()
    await asyncio.sleep(run.latency_s(300))
    run.ended()
    return {"charge": task.idempotency_key}


async def refund_card(task: TaskContext, *, order: str, amount_cents: int) -> dict[str, Any]:
    """Give the money back."""
    run = _Run(task, "refund_card", order)
    await asyncio.sleep(run.latency_s(200))
    if fails(run.seed, task.idempotency_key, task.attempt):
        run.failed("503 from the bank")
        raise BankUnavailable("503 from the bank")
    run.effect()
    run.ended()
    return {"refund": task.idempotency_key}


def write_invoice(task: TaskContext, *, order: str, amount_cents: int) -> str:
    """Write the invoice: a plain function, run in a thread."""
    run = _Run(task, "write_invoice", order)
    time.sleep(run.latency_s(120))
    run.effect()
    run.ended()
    return f"invoice-{order}"


def book_courier(task: TaskContext, *, order: str, sku: str) -> str:
    """Have an item fetched; its tracking number."""
    run = _Run(task, "book_courier", order)
    time.sleep(run.latency_s(160))
    run.effect()
    time.sleep(run.latency_s(160))
    run.ended()
    return f"{order}-{sku}"
