"""How a replica speaks to a relay: one request, one answer, over the standard library's HTTP client."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable
from urllib.parse import SplitResult, urlencode, urlsplit

import msgspec

from casework.errors import Misuse, Unavailable


class Answer(NamedTuple):
    """What a relay said."""

    status: int
    body: Mapping[str, Any]
    retry_after_s: float = 0.0
    is_json: bool = True
    """False: something else than a relay answered, such as a proxy or the page of a network that wants a login."""


@runtime_checkable
class Transport(Protocol):
    """Whoever carries requests to a relay."""

    def request(self, method: str, path: str, *, query: Mapping[str, Any] | None = None, body: Any = None) -> Answer:
        """Send one request. Raises Unavailable when no answer came: the relay may have carried it out."""

    def close(self) -> None:
        """Give back the connection; harmless when done twice."""


def check_address(url: str) -> SplitResult:
    """The parts of a relay's address; Misuse unless it can be one."""
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return parts
    except ValueError:  # a port that is no number, or an address with half a bracket
        pass
    raise Misuse(f"{url!r:.200} is not the address of a relay; write https://relay.example.org")


class HttpTransport:
    """Requests over one connection that is kept.

    Args:
        url: of the relay, ``http://`` or ``https://``, a path in front of its own allowed.
        token: for the ``Authorization`` header.
        timeout_s: without an answer for so long, the request counts as lost; above the relay's own deadlines.
    """

    def __init__(self, url: str, token: str, *, timeout_s: float = 60.0) -> None:
        parts = check_address(url)
        self.url, self._parts, self._timeout_s = url, parts, timeout_s
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._connection: http.client.HTTPConnection | None = None

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self._parts.hostname or "", self._parts.port
        if self._parts.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(host, port, timeout=self._timeout_s, context=context)
        return http.client.HTTPConnection(host, port, timeout=self._timeout_s)

    def request(self, method: str, path: str, *, query: Mapping[str, Any] | None = None, body: Any = None) -> Answer:
        """Send one request; see :class:`Transport`."""
        target = self._parts.path.rstrip("/") + path + ("?" + urlencode(query) if query else "")
        payload = None if body is None else msgspec.json.encode(body)
        for attempt in (1, 2):
            is_kept = self._connection is not None
            connection = self._connection = self._connection or self._connect()
            try:
                connection.request(method, target, payload, self._headers)
                answer = connection.getresponse()
                text = answer.read()
            except (OSError, http.client.HTTPException) as error:
                self.close()
                # A kept connection may have been closed by the other side meanwhile. Every request can be repeated.
                if is_kept and attempt == 1 and not isinstance(error, socket.timeout):
                    continue
                raise Unavailable(f"{self.url} did not answer: {type(error).__name__}: {error}") from None
            kind = (answer.getheader("Content-Type") or "").partition(";")[0].strip().lower()
            is_json = not text or kind == "application/json" or kind.endswith("+json")
            return Answer(answer.status, _decoded(text), _seconds(answer.getheader("Retry-After")), is_json)
        raise Unavailable(f"{self.url} did not answer")  # pragma: no cover

    def close(self) -> None:
        """Give back the connection; harmless when done twice."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _decoded(text: bytes) -> Mapping[str, Any]:
    try:
        found = msgspec.json.decode(text) if text else {}
    except msgspec.DecodeError:
        found = {"detail": text[:200].decode(errors="replace")}  # a proxy's own page
    return found if isinstance(found, dict) else {"detail": str(found)[:200]}


def _seconds(text: str | None) -> float:
    return float(text) if text is not None and text.isdigit() else 0.0
