"""What clients do, on bare sockets: wait, repeat, leave before, during and after."""

from __future__ import annotations

import http.client
import socket
import threading
from typing import Any, NamedTuple

from tests.surfaces.cells import AGAIN, Cell
from tests.surfaces.effects import Effects
from tests.surfaces.sites import FILE, seen

LARGE = bytes(range(256)) * 39_063
UNCOUNTED = {
    "date", "server", "connection", "keep-alive", "transfer-encoding", "content-length", "set-cookie", "via",
    "idempotency-replayed", "idempotency-not-stored",
}  # fmt: skip
"""Headers of one connection, and casework's own."""


class Answer(NamedTuple):
    """What a client got."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def counted(self) -> tuple[Any, ...]:
        """What must be the same for each who asks."""
        return self.status, {k: v for k, v in self.headers.items() if k not in UNCOUNTED}, self.body

    @property
    def is_replay(self) -> bool:
        return self.headers.get("idempotency-replayed") == "true"


def payload(request: str, amount: int = 5) -> tuple[str, bytes]:
    """The type and the body of a request."""
    if request == "form":
        return "application/x-www-form-urlencoded", f"amount={amount}".encode()
    if request == "multipart":
        part = f'--B\r\nContent-Disposition: form-data; name="amount"\r\n\r\n{amount}\r\n--B--\r\n'
        return "multipart/form-data; boundary=B", part.encode()
    if request == "large":
        return "application/octet-stream", LARGE + b"%d" % amount
    if request == "empty" and amount == 5:
        return "", b""
    return "application/json", b'{"amount": %d}' % amount


def raw(cell: Cell, amount: int = 5) -> bytes:
    """The bytes of a request."""
    kind, body = payload(cell.request, amount)
    head = (
        f"POST /{cell.site}/{cell.response} HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: {cell.key}\r\n"
        "Connection: close\r\n"
    )
    if kind:
        head += f"Content-Type: {kind}\r\n"
    if cell.request == "chunked":
        pieces = [body[:4], body[4:]]
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
        return f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + chunks + b"0\r\n\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def expected(cell: Cell) -> tuple[int, bytes]:
    """The status of a cell's answer, and what its body has in it."""
    kind, body = payload(cell.request)
    form = kind.startswith(("application/x-www", "multipart"))
    got = ("amount=5" if form else seen(body)).encode()
    return {
        "small": (201, got), "background": (201, got), "unavailable": (503, got), "stream": (201, got + b" end"),
        "events": (200, b"data: "), "file": (200, FILE.read_bytes()), "nothing": (204, b""), "redirect": (303, b""),
        "missing": (404, b""), "broken": (500, b""),
    }[cell.response]  # fmt: skip


class Client:
    """One client of a server."""

    def __init__(self, port: int, effects: Effects) -> None:
        self.port, self.effects = port, effects

    def open(self, data: bytes) -> socket.socket:
        """A connection on which something was sent."""
        connection = socket.create_connection(("127.0.0.1", self.port), 60)
        try:
            connection.sendall(data)
        except OSError:  # it was refused before it was whole; the answer is there to be read
            pass
        return connection

    def ask(self, cell: Cell, amount: int = 5) -> Answer:
        """Send a request and wait for the answer."""
        with self.open(raw(cell, amount)) as connection:
            response = http.client.HTTPResponse(connection, method="POST")
            response.begin()
            headers = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, headers, response.read())

    def run(self, cell: Cell) -> list[str]:
        """What is wrong with a cell; nothing where it holds."""
        first: Answer | None = None
        with_first = cell.client in ("waits", "another-payload")
        if with_first:
            first = self.ask(cell)
        elif cell.client == "at-once":
            first, later = self.at_once(cell)
            if not cell.no_length:
                return self.judge(cell, first, later)
        elif cell.client == "leaves-before":
            self.open(raw(cell)[:-1]).close()
        elif cell.client == "leaves-during" and not cell.no_length:
            self.leave_during(cell)
        elif cell.client == "leaves-after":
            with self.open(raw(cell)) as connection:
                connection.recv(1)
        if cell.client == "leaves-before":
            first = self.ask(cell)
        if cell.client == "another-payload" and not (cell.no_length or cell.response in AGAIN):
            other = self.ask(cell, 6)
            if other.status != 422 or self.effects.counts[cell.key] != 1:
                return [f"another payload got {other.status} {other.body[:200]!r}"]
        return self.judge(cell, first, self.ask(cell))

    def at_once(self, cell: Cell) -> tuple[Answer, Answer]:
        """Two requests of which the second is sent while the first is under way."""
        answers: list[Answer] = []
        if not cell.no_length:
            self.effects.hold(cell.key)
        threads = [threading.Thread(target=lambda: answers.append(self.ask(cell))) for _ in range(2)]
        threads[0].start()
        if not cell.no_length:
            self.effects.has_begun(cell.key)
        threads[1].start()
        self.effects.release(cell.key)
        for thread in threads:
            thread.join(60)
        assert len(answers) == 2, f"{len(answers)} answers"
        answers.sort(key=lambda answer: answer.is_replay or answer.status == 409)
        return answers[0], answers[1]

    def leave_during(self, cell: Cell) -> None:
        """Hang up while the application is at work."""
        self.effects.hold(cell.key)
        with self.open(raw(cell)):
            begun = self.effects.has_begun(cell.key)
        self.effects.release(cell.key)
        assert begun, "it was not begun"

    def judge(self, cell: Cell, first: Answer | None, later: Answer) -> list[str]:
        """Whether there was one effect and one answer, or what the cell says instead."""
        count = self.effects.counts[cell.key]
        if cell.no_length:
            return [] if (later.status, count) == (411, 0) else [f"not refused: {later}, {count} effects"]
        wrong: list[str] = []
        if count != cell.effects:
            wrong.append(f"{count} effects")
        status, part = expected(cell)
        if first is not None and (first.status != status or part not in first.body):
            wrong.append(f"the first answer is {first.status} {first.headers} {first.body[:300]!r}")
        if cell.response in AGAIN:
            if later.status != status or later.is_replay:
                wrong.append(f"the second answer is {later.status} {later.body[:300]!r}")
        elif cell.is_not_stored:
            if later.status != 409 or b"response-not-stored" not in later.body:
                wrong.append(f"the repeated request got {later.status} {later.body[:300]!r}")
            if first is not None and first.headers.get("idempotency-not-stored") != "streamed":
                wrong.append(f"no header says that the response is not stored: {first.headers}")
        elif not later.is_replay or later.status != status or part not in later.body:
            wrong.append(f"no replay: {later.status} {later.headers} {later.body[:300]!r}")
        elif first is not None and first.counted != later.counted:
            wrong.append(f"two answers: {first.counted!s:.600} and {later.counted!s:.600}")
        return wrong
