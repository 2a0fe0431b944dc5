"""A server on loopback that takes the requests of DynamoDB's clients, notes them, and stores nothing."""

from __future__ import annotations

import http.server
import json
import threading
from typing import Any, NamedTuple


class Request(NamedTuple):
    """What a client sent."""

    operation: str
    body: dict[str, Any]
    headers: Any

    @property
    def region(self) -> str:
        """The region that it is signed for."""
        return str(self.headers["Authorization"]).split("Credential=")[1].split("/")[2]


class Service:
    """The server. It makes tables as it is asked to, and finds no item.

    Args:
        listens: whether anybody answers before :meth:`listen`.
        silent: so many requests get no answer.
        held_s: an answer takes so long.
    """

    def __init__(self, *, listens: bool = True, silent: int = 0, held_s: float = 0.0) -> None:
        self.requests: list[Request] = []
        self.tables: set[str] = set()
        self.silent, self.held_s = silent, held_s
        self._held = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _Handler, bind_and_activate=False)
        self._server.service = self
        self._server.server_bind()
        self._thread: threading.Thread | None = None
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        if listens:
            self.listen()

    def listen(self) -> None:
        """Answer from now on."""
        if self._thread is None:
            self._server.server_activate()
            self._thread = threading.Thread(target=self._server.serve_forever, args=(0.005,), daemon=True)
            self._thread.start()

    def answer(self, request: Request) -> tuple[int, dict[str, Any]] | None:
        """The answer to a request; None: none."""
        self.requests.append(request)
        if self.silent:
            self.silent -= 1
            return None
        if self.held_s:
            self._held.wait(self.held_s)
        name = request.body.get("TableName", "")
        if request.operation == "CreateTable":
            self.tables.add(name)
            return 200, {"TableDescription": {"TableStatus": "ACTIVE"}}
        if request.operation == "DescribeTable":
            if name not in self.tables:
                return 400, {"__type": "com.amazonaws.dynamodb.v20120810#ResourceNotFoundException"}
            return 200, {"Table": {"TableName": name, "TableStatus": "ACTIVE"}}
        if request.operation == "DescribeTimeToLive":
            return 200, {"TimeToLiveDescription": {"TimeToLiveStatus": "ENABLED"}}
        return 200, {}

    def operations(self) -> list[str]:
        """What was asked for."""
        return [request.operation for request in self.requests]

    def close(self) -> None:
        """Stop."""
        self._held.set()
        if self._thread is not None:
            self._server.shutdown()
            self._thread.join(20)
        self._server.server_close()


class _Server(http.server.ThreadingHTTPServer):
    service: Service
    daemon_threads = True
    block_on_close = False


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        operation = self.headers["X-Amz-Target"].rpartition(".")[2]
        answer = self.server.service.answer(Request(operation, body, self.headers))
        if answer is None:
            self.close_connection = True
            return
        content = json.dumps(answer[1]).encode()
        self.send_response_only(answer[0])  # without a date: the time is not asked of it
        self.send_header("Content-Type", "application/x-amz-json-1.0")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: Any) -> None: ...
