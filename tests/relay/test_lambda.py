"""The relay as a Lambda: events of an API gateway in, answers out."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from casework import Op, StreamStore
from casework.relay.aws_lambda import PAGE_BYTES, LambdaApp
from tests.executions.stepping import fresh_backend
from tests.relay.conftest import World


def event(
    method: str, path: str, query: str = "", body: str = "", *, encoded: bool = False, **headers: str
) -> dict[str, Any]:
    text = base64.b64encode(body.encode()).decode() if encoded else body
    return {
        "version": "2.0", "rawPath": path, "rawQueryString": query, "body": text, "isBase64Encoded": encoded,
        "headers": {"content-type": "application/json", **headers},
        "requestContext": {"stage": "$default", "http": {"method": method, "sourceIp": "::1"}},
    }  # fmt: skip


@pytest.fixture
def invoke(request: pytest.FixtureRequest) -> Callable[[World], LambdaApp]:
    def make(world: World) -> LambdaApp:
        app = LambdaApp(world.app)
        request.addfinalizer(app.close)
        return app

    return make


def answer(app: LambdaApp, *args: Any, **options: Any) -> tuple[int, str]:
    found = app(event(*args, **options))
    text = found["body"]
    return found["statusCode"], base64.b64decode(text).decode() if found["isBase64Encoded"] else text


LAMBDA_LIMIT = 6 * 1024 * 1024


@pytest.mark.parametrize("size", [2_600, 250_000])
def test_the_largest_page_fits_an_answer_of_lambda(invoke: Callable[[World], LambdaApp], size: int) -> None:
    world = World(fresh_backend(), max_page_bytes=PAGE_BYTES)
    app, headers = invoke(world), {"authorization": f"Bearer {world.token('s=read,append')}"}
    store = StreamStore(world.blocking)
    store.append("s", [Op(f"{n:04}" + "\u00e9" * 250, os.urandom(size)) for n in range(4_000_000 // size)])
    event_of_pull = event("GET", "/v1/streams/s/ops", "limit=1000", **headers)
    found = app(event_of_pull)
    page = json.loads(found["body"])
    assert found["statusCode"] == 200 and len(page["ops"]) >= 2_000_000 // size
    assert len(json.dumps(found).encode()) < LAMBDA_LIMIT


@pytest.mark.parametrize("encoded", [False, True])
def test_requests_through_a_gateway_are_answered_one_after_the_other(
    encoded: bool, invoke: Callable[[World], LambdaApp]
) -> None:
    world = World(fresh_backend())
    app, headers = invoke(world), {"authorization": f"Bearer {world.token('s=read,append')}"}
    body = json.dumps({"ops": [{"id": "a", "data": "YQ=="}]})
    status, text = answer(app, "POST", "/v1/streams/s/ops", body=body, encoded=encoded, **headers)
    assert (status, json.loads(text)["results"][0]["seq"]) == (200, 1)
    status, text = answer(app, "GET", "/v1/streams/s/ops", "after=0&limit=5", **headers)
    assert status == 200 and json.loads(text)["next_after"] == 1
    assert answer(app, "GET", "/v1/streams/s/ops")[0] == 401
    assert answer(app, "GET", "/health")[0] == 200


def test_an_event_stream_ends_by_itself_so_that_a_gateway_gets_an_answer(invoke: Callable[[World], LambdaApp]) -> None:
    world = World(fresh_backend(), max_stream_s=0.05)
    app, headers = invoke(world), {"authorization": f"Bearer {world.token('s=read,append')}"}
    answer(app, "POST", "/v1/streams/s/ops", body=json.dumps({"ops": [{"id": "a", "data": ""}]}), **headers)
    status, text = answer(app, "GET", "/v1/streams/s/events", **headers)
    assert status == 200 and "id: 1 " in text and "event: op\n" in text
