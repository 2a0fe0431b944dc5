"""What each option of a replica changes."""

from __future__ import annotations

import contextlib
import http.server
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from casework.errors import Unavailable
from casework.replica import Replica
from casework.replica.transport import Answer
from casework.streams.log import Op
from tests.options.table import SOMETHING, Rows, refusal, row


@contextlib.contextmanager
def replica(**options: Any) -> Iterator[Replica]:
    """A replica that has pulled three operations."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Replica(Path(folder) / "r.replica", **{"stream": "s", **options}) as made,
    ):
        made.file.store_page(0, [Op(id, id.encode(), seq, 1) for seq, id in enumerate("abc", 1)], 3, "", 0)
        yield made


def read(after: int) -> list[int]:
    with replica() as own:
        return [op.seq for op in own.read(after)]


def joined(state: str, op: Op) -> str:
    return state + op.id


def folded(name: str = "f", function: Any = joined, initial: str = "", **options: Any) -> Any:
    """The state, and what the fold ``f`` in the file has then: its number and its bytes."""
    with replica() as own:
        return own.fold(name, function, initial, **options), own.file.fold("f")


def decoded(decode: Any) -> Any:
    with replica() as own:
        own.fold("f", joined, "")
        return own.fold("f", joined, "", decode=decode)


def parked(**options: Any) -> Any:
    with replica() as own:
        for id in ("x", "y"):
            own.append(b"1", id=id)
            own.file.park(id, "no")
        own.unpark(**{"id": "x", **options})
        return sorted((each.op.id, each.state) for each in own.file.own("waiting", "parked"))


def appended(data: bytes = b"1", **options: Any) -> Any:
    with replica() as own:
        own.append(data, **options)
        (waiting,) = own.file.own("waiting")
        return waiting.op.id, waiting.op.data


def plain(value: bytes) -> str:
    return value.decode().strip('"')


def viewed(name: str = "f", function: Any = joined, initial: str = "", **options: Any) -> Any:
    """The state with an own operation on top, and what the fold ``f`` in the file has then."""
    with replica() as own:
        own.append(b"", id="d")
        return own.view(name, function, initial, **options), own.file.fold("f")


def viewed_again(decode: Any) -> Any:
    with replica() as own:
        own.view("f", joined, "")
        return own.view("f", joined, "", decode=decode)


# --- with a relay -----------------------------------------------------------------------------------------------------


class Asked:
    """A transport that notes what is asked, and answers: three operations, and then nothing."""

    def __init__(self, *answers: Answer) -> None:
        self.queries: list[Any] = []
        self.answers = list(answers)

    def request(self, method: str, path: str, *, query: Mapping[str, Any] | None = None, body: Any = None) -> Answer:
        self.queries.append(dict(query or {}))
        nothing = Answer(200, {"ops": [], "next_after": self.queries[-1].get("after"), "mark": ""})
        return self.answers.pop(0) if self.answers else nothing

    def close(self) -> None: ...


GONE = Answer(410, {"floor_seq": 5, "snapshot_seq": 0})


def waited(wait_s: float) -> Any:
    """How long a pull asks the relay to wait."""
    asked = Asked()
    with replica(transport=asked) as own:
        own.pull(wait_s=wait_s)
    return asked.queries[0].get("wait_s")


def rebased(skip_lost: bool) -> Any:
    with replica(transport=Asked(GONE)) as own:
        return refusal(lambda: own.rebase(skip_lost=skip_lost)), own.file.cursor


NEXT = Answer(200, {"ops": [{"seq": 4, "id": "d", "data": "", "at_us": 1}], "next_after": 4, "mark": ""})


def tailed(after: int | None = None, wait_s: float = 20.0) -> Any:
    """The first operation that is handed out, and how long the relay was asked to wait."""
    asked = Asked(NEXT)
    with replica(transport=asked) as own:
        return next(own.tail(after, wait_s=wait_s)).id, [query.get("wait_s") for query in asked.queries]


def of_file(name: str) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        Replica(Path(folder) / name, stream="s").close()
        return [path.name for path in Path(folder).iterdir() if path.suffix == ".replica"]


def of_stream(stream: str) -> str:
    with replica(stream=stream) as own:
        return own.stream


def of_relay(url: str | None) -> Any:
    with replica(relay=url) as own:
        return own.file.setting("relay")


def sent_token(token: str) -> Any:
    """What a relay is sent as the token."""
    seen: list[Any] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers["Authorization"])
            self.send_response(401)
            self.end_headers()

        def log_message(self, *arguments: Any) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request, daemon=True)
        thread.start()
        with replica(relay=f"http://127.0.0.1:{server.server_port}", token=token) as own:
            refusal(own.pull)
        thread.join(20)
    return seen


def through(other: bool) -> list[int]:
    """How many requests two transports have carried, one of which a replica pulled by."""
    both = Asked(), Asked()
    with replica(transport=both[other]) as own:
        own.pull()
    return [len(each.queries) for each in both]


class Stop(Exception):
    """Ends a pause."""


def paused(longer: bool) -> list[float]:
    """What is waited for where a relay is away, by the function that lets time pass."""
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds * (2 if longer else 1))
        raise Stop

    class Away(Asked):
        def request(self, *arguments: Any, **options: Any) -> Answer:
            raise Unavailable("away")

    with replica(transport=Away(), sleep=sleep) as own, contextlib.suppress(Stop):
        next(own.tail(3))
    return slept


REPLICA: Rows = {
    "Replica": {
        "path": row(of_file, ("a.replica", ["a.replica"]), ("b.replica", ["b.replica"])),
        "stream": row(of_stream, ("s", "s"), ("t", "t")),
        "relay": row(of_relay, (None, None), ("http://r", "http://r")),
        "token": row(sent_token, ("a", ["Bearer a"]), ("b", ["Bearer b"])),
        "transport": row(through, (False, [1, 0]), (True, [0, 1])),
        "sleep": row(paused, (False, SOMETHING), (True, SOMETHING)),
    },
    "Replica.pull": {"wait_s": row(waited, (0.0, None), (5.0, 5.0))},
    "Replica.rebase": {"skip_lost": row(rebased, (False, ("CursorTooOld", 3)), (True, ("", 5)))},
    "Replica.tail": {
        "after": row(lambda after: tailed(after)[0], (None, "d"), (1, "b")),
        "wait_s": row(lambda wait_s: tailed(wait_s=wait_s)[1], (5.0, [5.0, None]), (6.0, [6.0, None])),
    },
    "Replica.view": {
        "name": row(lambda name: viewed(name)[1] is None, ("f", False), ("g", True)),
        "function": row(
            lambda function: viewed(function=function)[0], (joined, "abcd"), (lambda state, op: state + "-", "----")
        ),
        "initial": row(lambda initial: viewed(initial=initial)[0], ("", "abcd"), ("x", "xabcd")),
        "encode": row(
            lambda encode: viewed(encode=encode)[1], (str.encode, (3, b"abc")), (lambda state: b"1", (3, b"1"))
        ),
        "decode": row(viewed_again, (plain, "abc"), (lambda value: "other", "other")),
        "keep": row(lambda keep: viewed(keep=keep), (True, ("abcd", (3, b'"abc"'))), (False, ("abcd", None))),
    },
    "Replica.fold": {
        "name": row(lambda name: folded(name)[1] is None, ("f", False), ("g", True)),
        "function": row(
            lambda function: folded(function=function)[0], (joined, "abc"), (lambda state, op: state + "-", "---")
        ),
        "initial": row(lambda initial: folded(initial=initial)[0], ("", "abc"), ("x", "xabc")),
        "encode": row(
            lambda encode: folded(encode=encode)[1], (str.encode, (3, b"abc")), (lambda state: b"1", (3, b"1"))
        ),
        "decode": row(decoded, (plain, "abc"), (lambda value: "other", "other")),
        "keep": row(lambda keep: folded(keep=keep), (True, ("abc", (3, b'"abc"'))), (False, ("abc", None))),
    },
    "Replica.append": {
        "data": row(lambda data: appended(data)[1], (b"1", b"1"), (b"2", b"2")),
        "id": row(lambda id: appended(id=id)[0], ("a-1", "a-1"), ("a-2", "a-2")),
    },
    "Replica.unpark": {
        "id": row(
            lambda id: [state for _, state in parked(id=id)], ("x", ["waiting", "parked"]), ("y", ["parked", "waiting"])
        ),
        "drop": row(lambda drop: len(parked(drop=drop)), (False, 2), (True, 1)),
        "new_id": row(lambda id: [each for each, _ in parked(new_id=id)], (None, ["x", "y"]), ("z", ["y", "z"])),
    },
    "Replica.read": {"after": row(read, (0, [1, 2, 3]), (2, [3]))},
}  # fmt: skip
