"""OpenTelemetry attributes of guarded operations."""

from __future__ import annotations

import pytest

from casework import MemoryIdempotencyStore, OpenTelemetryHook, idempotent

pytest.importorskip("opentelemetry.sdk")


def test_the_current_span_says_what_became_of_the_call() -> None:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")

    @idempotent(MemoryIdempotencyStore(), key="n", name="shop.refund", hooks=[OpenTelemetryHook()])
    def refund(n: int) -> int:
        return n

    for _ in range(2):
        with tracer.start_as_current_span("request"):
            refund(1)
    first, second = [dict(span.attributes or {}) for span in exporter.get_finished_spans()]
    prefix = "casework.idempotency."
    assert (first[prefix + "outcome"], first[prefix + "epoch"], first[prefix + "replayed"]) == ("completed", 1, False)
    assert (second[prefix + "outcome"], second[prefix + "replayed"]) == ("replayed", True)
    assert first[prefix + "operation"] == "shop.refund" and first[prefix + "key_hash"] == second[prefix + "key_hash"]
    assert prefix + "key" not in first
    provider.shutdown()
