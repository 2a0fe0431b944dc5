"""What a machine publishes to a stream: the key ``publish`` of its definition.

It is a part of the definition, and so of its hash: whoever runs an execution, in whatever process, reads it from the
definition that the execution started with, and two processes cannot publish one execution differently.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Publish(msgspec.Struct, frozen=True):
    """What a machine's executions publish."""

    stream: str
    """The stream to which it goes."""
    events: tuple[str, ...] | None = None
    """Only the transitions that these events took, with patterns as in ``on``; None: every transition, the first one
    included.
    """
    data: bool = True
    """With the event's payload."""


def publish_of(definition: dict[str, Any]) -> Publish | None:
    """What a normalised definition says of publishing."""
    found = definition.get("publish")
    if found is None:
        return None
    events = found.get("events")
    return Publish(found["stream"], None if events is None else tuple(events), found.get("data", True))
