"""The relay as an AWS Lambda, behind an API gateway (HTTP API, payload format 2.0) or a function URL.

Set the handler of the function to ``casework.relay.aws_lambda.handler`` and the environment variable
``CASEWORK_STORE`` to ``dynamodb://?region=...&prefix=...``. An answer is whole when it is sent, so an event stream ends
after 20 seconds there, and the client comes back by itself.
"""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Callable, Mapping
from typing import Any

from casework.app.stores import open_backend_async, store_url
from casework.relay.http import make_app
from casework.relay.serve import make_relay
from casework.relay.settings import RelaySettings, read_push_deadline

STREAM_S = 20.0

PAGE_BYTES = 2_500_000
"""Lambda's answers have at most 6 MB: this in base64, with the longest ids and what stands around them, is less."""

Event = Mapping[str, Any]


class LambdaApp:
    """An ASGI application as a function of an event. One event loop serves all invocations of a process."""

    def __init__(self, app: Callable[..., Any]) -> None:
        self._app = app
        self._loop: asyncio.AbstractEventLoop | None = None

    def __call__(self, event: Event, context: Any = None) -> dict[str, Any]:
        """Answer one request."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(self._answer(event))

    def close(self) -> None:
        """Give back the event loop; harmless when done twice."""
        if self._loop is not None:
            self._loop.close()
            self._loop = None

    async def _answer(self, event: Event) -> dict[str, Any]:
        text = event.get("body") or ""
        body = base64.b64decode(text) if event.get("isBase64Encoded") else text.encode()
        status, headers, chunks = 500, [], []
        asked = False
        gone = asyncio.Event()

        async def receive() -> dict[str, Any]:
            nonlocal asked
            if not asked:
                asked = True
                return {"type": "http.request", "body": body, "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Mapping[str, Any]) -> None:
            nonlocal status, headers
            if message["type"] == "http.response.start":
                status, headers = message["status"], list(message.get("headers", ()))
            elif message["type"] == "http.response.body":
                chunks.append(message.get("body", b""))
                if not message.get("more_body", False):
                    gone.set()

        await self._app(_scope(event), receive, send)
        whole = b"".join(chunks)
        try:  # text goes as text: in base64 it would be larger by a third, and a page is in base64 already
            text, is_base64 = whole.decode(), False
        except UnicodeDecodeError:
            text, is_base64 = base64.b64encode(whole).decode(), True
        return {
            "statusCode": status,
            "headers": {name.decode("latin-1"): value.decode("latin-1") for name, value in headers},
            "body": text,
            "isBase64Encoded": is_base64,
        }


def _scope(event: Event) -> dict[str, Any]:
    http = event["requestContext"]["http"]
    headers = [
        (name.lower().encode("latin-1"), str(value).encode("latin-1")) for name, value in event["headers"].items()
    ]
    stage = event["requestContext"].get("stage", "$default")
    path = str(event.get("rawPath") or "/")
    if stage != "$default" and path.startswith(f"/{stage}/"):
        path = path[len(stage) + 1 :]
    return {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1",
        "method": http["method"], "scheme": "https", "path": path, "raw_path": path.encode(), "root_path": "",
        "query_string": str(event.get("rawQueryString") or "").encode(), "headers": headers,
        "client": (http.get("sourceIp", ""), 0), "server": (event["requestContext"].get("domainName", ""), 443),
        "state": {},
    }  # fmt: skip


_made: LambdaApp | None = None


def handler(event: Event, context: Any) -> dict[str, Any]:
    """The function's handler. The first invocation opens the store that ``CASEWORK_STORE`` names."""
    global _made  # noqa: PLW0603 - a Lambda's process keeps it between invocations
    if _made is None:
        settings = RelaySettings(
            push_deadline_s=read_push_deadline(None, os.environ), max_stream_s=STREAM_S, max_page_bytes=PAGE_BYTES
        )
        _made = LambdaApp(make_app(make_relay(open_backend_async(store_url(None)), settings)))
    return _made(event, context)
