"""A small real HTTP proxy in front of a DynamoDB (or SQS) endpoint that loses what a network loses.

    with LossyProxy(ministack_url) as proxy:
        client = boto3.client("dynamodb", endpoint_url=proxy.url, ...)
        proxy.on("PutItem").drop_answer()                       # the first PutItem from now on
        proxy.on("PutItem", nth=3, times=2).drop_request()      # the third and fourth from now on
        proxy.on(when=lambda body: b"o-1" in body).throttle()   # whatever mentions o-1
        held = proxy.on("UpdateItem").hold_answer()             # applied, unanswered until held.release()
        ...
        assert proxy.received["PutItem"] == 2                   # what clients sent, the SDK's own repeats included
        assert proxy.applied["PutItem"] == 1                    # what the server answered, heard by the client or not

A rule counts the requests that it matches; it acts on the ``nth`` of them and the ``times - 1`` after it, and is spent.
The first rule that acts on a request wins; every matching rule counts it. The servers never answer with throttling or
conflicts by themselves, so those bodies are written here, as the service documents them.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

HOLD_TIMEOUT_S = 30.0
_NAMESPACE = "com.amazonaws.dynamodb.v20120810#"
_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "proxy-connection"})


@dataclass(frozen=True)
class Request:
    """One request as the proxy saw it."""

    operation: str
    """The part of X-Amz-Target after the dot: ``PutItem``."""
    body: bytes
    method: str = "POST"
    path: str = "/"
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def json(self) -> Any:
        """The decoded body."""
        return json.loads(self.body)


@dataclass(frozen=True)
class Answer:
    """One HTTP answer, the server's or one made up."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = (("Content-Type", "application/x-amz-json-1.0"),)


class Held:
    """A request or an answer that waits; ``arrived`` is set when it does."""

    def __init__(self) -> None:
        self.arrived = threading.Event()
        self._released = threading.Event()

    def release(self) -> None:
        """Let it go on."""
        self._released.set()

    def wait_until_it_arrives(self, timeout_s: float = HOLD_TIMEOUT_S) -> None:
        """Return once the request is here; an AssertionError if it does not come."""
        assert self.arrived.wait(timeout_s), "no request came that the rule holds"

    def _hold(self) -> None:
        self.arrived.set()
        self._released.wait(HOLD_TIMEOUT_S)


_Forward = Callable[[Request], Answer]
_Action = Callable[[Request, _Forward], Answer | None]
"""Carries out a request; None closes the connection without an answer."""


@dataclass
class Rule:
    """Which requests, and (by one of the methods) what happens to them."""

    operation: str | None
    when: Callable[[bytes], bool] | None
    nth: int
    times: int | None
    matched: int = 0
    """Requests that it matched."""
    acted: int = 0
    """Requests that it acted on."""
    action: _Action | None = field(default=None, repr=False)

    def drop_answer(self) -> Rule:
        """The server applies it; the client never hears of it."""

        def act(request: Request, forward: _Forward) -> None:
            forward(request)

        return self._does(act)

    def drop_request(self) -> Rule:
        """The connection breaks before the server saw anything."""
        return self._does(lambda request, forward: None)

    def delay(self, seconds: float) -> Rule:
        """The request reaches the server later. Where a test can say when, ``hold_request`` is better."""

        def act(request: Request, forward: _Forward) -> Answer:
            time.sleep(seconds)
            return forward(request)

        return self._does(act)

    def hold_request(self) -> Held:
        """The request waits before the server, until it is released."""
        held = Held()

        def act(request: Request, forward: _Forward) -> Answer:
            held._hold()
            return forward(request)

        self._does(act)
        return held

    def hold_answer(self) -> Held:
        """The server applies it; the answer waits until it is released."""
        held = Held()

        def act(request: Request, forward: _Forward) -> Answer:
            answer = forward(request)
            held._hold()
            return answer

        self._does(act)
        return held

    def answer(self, status: int, body: bytes | Callable[[Request], bytes]) -> Rule:
        """This answer, and the server sees nothing."""
        return self._does(
            lambda request, forward: Answer(status, body if isinstance(body, bytes) else body(request)),
        )

    def error(self, code: str, message: str = "", status: int = 400) -> Rule:
        """An error of the service, by its code; the server sees nothing."""
        return self.answer(status, error_body(code, message))

    def server_error(self) -> Rule:
        """500 InternalServerError before anything was applied. The SDK repeats it."""
        return self.error("InternalServerError", "The request processing has failed", 500)

    def server_error_after_applying(self) -> Rule:
        """500 InternalServerError although the server did apply it. The SDK repeats it."""

        def act(request: Request, forward: _Forward) -> Answer:
            forward(request)
            return Answer(500, error_body("InternalServerError", "The request processing has failed"))

        return self._does(act)

    def throttle(self) -> Rule:
        """Throttled: as a cancellation for a transaction, as an exception for all else. The SDK repeats the latter."""
        return self.answer(400, lambda request: _refused(request, "ThrottlingError", "ThrottlingException"))

    def provisioned_throughput_exceeded(self) -> Rule:
        """The table's capacity is used up. The SDK repeats it, except inside a transaction."""
        return self.answer(
            400,
            lambda request: _refused(
                request, "ProvisionedThroughputExceeded", "ProvisionedThroughputExceededException"
            ),
        )

    def transaction_conflict(self) -> Rule:
        """Another transaction holds the item. The SDK does not repeat it."""
        return self.answer(
            400, lambda request: _refused(request, "TransactionConflict", "TransactionConflictException")
        )

    def transaction_in_progress(self) -> Rule:
        """A transaction with the same ClientRequestToken is still being carried out."""
        return self.error("TransactionInProgressException", "Transaction is in progress")

    def _does(self, action: _Action) -> Rule:
        assert self.action is None, "a rule does one thing"
        self.action = action
        return self

    def _takes(self, request: Request) -> bool:
        if self.action is None:
            return False
        if self.operation is not None and self.operation != request.operation:
            return False
        if self.when is not None and not self.when(request.body):
            return False
        self.matched += 1
        if self.matched < self.nth or (self.times is not None and self.matched >= self.nth + self.times):
            return False
        self.acted += 1
        return True


class LossyProxy:
    """A context manager; ``url`` is the endpoint to give to the SDK. Without rules it only passes on and counts."""

    def __init__(self, upstream_url: str) -> None:
        parts = urlsplit(upstream_url)
        assert parts.hostname is not None
        self._upstream = (parts.hostname, parts.port or 80)
        self._lock = threading.Lock()
        self._rules: list[Rule] = []
        self._received: list[Request] = []
        self._applied: list[Request] = []
        self._server = _Server(("127.0.0.1", 0), self)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def on(
        self,
        operation: str | None = None,
        *,
        nth: int = 1,
        times: int | None = 1,
        when: Callable[[bytes], bool] | None = None,
    ) -> Rule:
        """A rule for the requests from now on; it does nothing until one of its methods says what.

        ``operation`` as in X-Amz-Target (None: any), ``when`` looks at the body, ``nth`` counts the requests that match
        both from 1, ``times`` is how many it acts on (None: all from the nth on).
        """
        assert nth >= 1 and (times is None or times >= 1)
        rule = Rule(operation, when, nth, times)
        with self._lock:
            self._rules.append(rule)
        return rule

    def clear(self) -> None:
        """Forget rules and counts."""
        with self._lock:
            self._rules.clear()
            self._received.clear()
            self._applied.clear()

    @property
    def requests(self) -> list[Request]:
        """All that clients sent, in order of arrival."""
        with self._lock:
            return list(self._received)

    @property
    def received(self) -> Counter[str]:
        """Per operation: the requests that clients sent, repeats of the SDK included."""
        return Counter(request.operation for request in self.requests)

    @property
    def applied(self) -> Counter[str]:
        """Per operation: the requests that the server answered, refusals included, whether the client heard or not."""
        with self._lock:
            return Counter(request.operation for request in self._applied)

    def __enter__(self) -> LossyProxy:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.close_connections()
        self._server.server_close()

    def _carry_out(self, request: Request, connection: http.client.HTTPConnection) -> Answer | None:
        with self._lock:
            self._received.append(request)
            acting = [rule for rule in self._rules if rule._takes(request)]
        action = acting[0].action if acting else None

        def forward(request: Request) -> Answer:
            answer = _forward(request, connection)
            with self._lock:
                self._applied.append(request)
            return answer

        return forward(request) if action is None else action(request, forward)


def error_body(code: str, message: str = "", **more: Any) -> bytes:
    """The JSON of an error of DynamoDB."""
    return json.dumps({"__type": _NAMESPACE + code, "message": message, **more}).encode()


def _refused(request: Request, reason: str, exception: str) -> bytes:
    """What a transaction (reasons by position; the first write meets the trouble) or a plain call is told."""
    if request.operation not in {"TransactWriteItems", "TransactGetItems"}:
        return error_body(exception, f"{exception} by a rule of the test")
    others = request.json["TransactItems"][1:]
    reasons = [{"Code": reason, "Message": f"{reason} by a rule of the test"}, *({"Code": "None"} for _ in others)]
    message = "Transaction cancelled, please refer cancellation reasons for specific reasons "
    return error_body(
        "TransactionCanceledException",
        message + f"[{', '.join(one['Code'] for one in reasons)}]",
        CancellationReasons=reasons,
    )


def _forward(request: Request, connection: http.client.HTTPConnection) -> Answer:
    connection.request(request.method, request.path, request.body, dict(request.headers))
    response = connection.getresponse()
    body = response.read()
    headers = tuple((name, value) for name, value in response.getheaders() if name.lower() not in _HOP_BY_HOP)
    return Answer(response.status, body, headers)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], proxy: LossyProxy) -> None:
        self.proxy = proxy
        self._connections: set[socket.socket] = set()
        super().__init__(address, _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections.add(connection)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def close_connections(self) -> None:
        """Wake the threads that wait for a kept-alive client's next request."""
        for connection in list(self._connections):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # the client closed it first

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is everyday life here, not a traceback on the terminal."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keep-alive
    server: _Server

    def setup(self) -> None:
        super().setup()
        self._upstream = http.client.HTTPConnection(*self.server.proxy._upstream, timeout=60)

    def finish(self) -> None:
        self._upstream.close()
        super().finish()

    def do_POST(self) -> None:
        request = Request(
            operation=self.headers.get("X-Amz-Target", "").rpartition(".")[2],
            body=self.rfile.read(int(self.headers.get("Content-Length", 0))),
            method=self.command,
            path=self.path,
            headers=tuple((name, value) for name, value in self.headers.items() if name.lower() not in _HOP_BY_HOP),
        )
        answer = self.server.proxy._carry_out(request, self._upstream)
        if answer is None:
            self.close_connection = True
            return
        self.send_response_only(answer.status)
        for name, value in answer.headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

    do_GET = do_POST  # the SDKs only post; a person with a browser may look

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet: the test reads ``requests``."""
