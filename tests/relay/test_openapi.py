"""The OpenAPI document is true: requests made from it, good and bad, get answers that it describes."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

pytest.importorskip("schemathesis")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import schemathesis
    from hypothesis import HealthCheck, given, seed, settings, strategies
    from schemathesis import GenerationMode
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

from casework.streams.log import Op
from tests.executions.stepping import fresh_backend
from tests.relay.conftest import World
from tests.streams.stores import put

WORLD = World(fresh_backend(), max_wait_s=0.0)
put(WORLD.blocking, "a", "b", "c")
TOKEN = WORLD.token("*=read,append,admin")


OPERATIONS = {
    operation.label: operation
    for operation in (
        found.ok() for found in schemathesis.openapi.from_asgi("/openapi.json", WORLD.app).get_all_operations()
    )
    if not operation.label.endswith("/events")
}


@pytest.mark.parametrize("label", sorted(OPERATIONS))
def test_every_answer_is_one_that_the_document_describes(label: str) -> None:
    answered: list[int] = []

    @seed(1)
    @settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(case=strategies.one_of(*(OPERATIONS[label].as_strategy(generation_mode=mode) for mode in GenerationMode)))
    def fuzz(case: Any) -> None:
        response = case.call(headers={"Authorization": f"Bearer {TOKEN}"})
        answered.append(response.status_code)
        # The first world of this module has ended, and says so.
        assert response.status_code < 500 or (label, response.status_code) == ("GET /ready", 503), response.text
        case.validate_response(
            response, checks=[status_code_conformance, content_type_conformance, response_schema_conformance]
        )

    fuzz()
    assert answered


def test_the_document_names_every_route_and_its_errors() -> None:
    from litestar.testing import TestClient

    with TestClient(WORLD.app) as client:
        document = client.get("/openapi.json").json()
    assert set(document["paths"]) == {
        "/v1/streams", "/v1/streams/{stream}", "/v1/streams/{stream}/ops", "/v1/streams/{stream}/events",
        "/v1/streams/{stream}/truncate", "/v1/streams/{stream}/snapshot", "/health", "/ready", "/metrics",
    }  # fmt: skip
    push = document["paths"]["/v1/streams/{stream}/ops"]["post"]
    assert {"200", "401", "404", "409", "413", "422", "500", "503"} <= set(push["responses"])
    assert (
        push["security"] == [{"bearer": []}] and document["components"]["securitySchemes"]["bearer"]["type"] == "http"
    )
    assert Op("x", b"").seq == 0
