"""The orders of ``orders.csv`` and what becomes of each.

``story`` says what its customer and its bank do; the machine does not know it, only the outside world of the demo does.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from importlib import resources
from typing import Any, NamedTuple

from casework.errors import Misuse

ENDS: Mapping[str, str] = {
    "pays": "completed",
    "declined": "declined",
    "forgets": "expired",
    "changes mind": "cancelled",
    "cancels": "cancelled",
}
"""The final state that each story must lead to."""


class Order(NamedTuple):
    """One line of the file."""

    id: str
    customer: str
    items: list[str]
    amount_cents: int
    story: str
    repeats: int
    """So many extra times the bank delivers the same webhook."""

    @property
    def input(self) -> dict[str, Any]:
        """The input of its execution."""
        return {
            "order": self.id,
            "customer": self.customer,
            "items": self.items,
            "amount_cents": self.amount_cents,
        }

    @property
    def is_approved(self) -> bool:
        """Whether the bank calls the webhook."""
        return self.story in ("pays", "declined", "cancels")

    @property
    def is_charged(self) -> bool:
        """Whether the card is charged in the end, a refund notwithstanding."""
        return self.story in ("pays", "cancels")


def read_orders(count: int) -> list[Order]:
    """The first ``count`` orders of the file. Misuse when it has not so many."""
    text = (resources.files("casework.demo") / "orders.csv").read_text("utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    if not 1 <= count <= len(rows):
        raise Misuse(f"--orders is {count}; the demo's file has {len(rows)} orders, so use 1 to {len(rows)}")
    return [
        Order(
            row["order"], row["customer"], row["items"].split(), int(row["amount_cents"]), row["story"],
            int(row["repeats"]),
        )
        for row in rows[:count]
    ]  # fmt: skip
