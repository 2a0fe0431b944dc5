"""OpenTelemetry: attributes on the current span, and counters, for guarded operations. Needs the extra ``otel``."""

from __future__ import annotations

from typing import Any

from casework.arguments import check_flag
from casework.errors import MissingExtra
from casework.idempotency.keys import digest
from casework.surfaces.guard import Event


class OpenTelemetryHook:
    """A hook for ``hooks=[casework.OpenTelemetryHook()]``.

    The current span gets ``casework.idempotency.operation``, ``.key_hash`` (keys may hold what a trace must not),
    ``.outcome`` (the event's kind), ``.replayed`` and, under a claim, ``.epoch``. The counter
    ``casework.idempotency.events`` counts by operation and outcome.

    Args:
        with_key: put the key itself on the span, too.
    """

    def __init__(self, *, with_key: bool = False) -> None:
        try:
            from opentelemetry import metrics, trace
        except ImportError as error:
            raise MissingExtra(f"OpenTelemetry is not installed: pip install casework[otel] ({error})") from error
        check_flag("with_key", with_key)
        self._trace: Any = trace
        self._events: Any = metrics.get_meter("casework").create_counter(
            "casework.idempotency.events", description="What happened to guarded operations"
        )
        self._with_key = with_key

    def __call__(self, event: Event) -> None:
        """Take one event."""
        self._events.add(1, {"operation": event.name, "outcome": event.kind})
        span = self._trace.get_current_span()
        if not span.is_recording():
            return
        span.set_attribute("casework.idempotency.operation", event.name)
        span.set_attribute("casework.idempotency.key_hash", digest(event.key.encode()))
        span.set_attribute("casework.idempotency.outcome", event.kind)
        span.set_attribute("casework.idempotency.replayed", event.kind == "replayed")
        if event.claim is not None:
            span.set_attribute("casework.idempotency.epoch", event.claim.epoch)
        if self._with_key:
            span.set_attribute("casework.idempotency.key", event.key)
