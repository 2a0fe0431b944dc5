"""The client: append offline, push, pull, follow, fold.

An operation is first of all in the file. Pushing it again is harmless, since the relay answers a repeat with the number
of the first time; so a crash between a push and its note, or an answer that was lost, costs one more push. Nothing is
noted as pushed on any answer but success.
"""

from __future__ import annotations

import base64
import itertools
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self, TypeVar

import msgspec

from casework.arguments import check_function, check_instance, check_text
from casework.errors import CaseworkError, CursorTooOld, Misuse, StreamDamaged, Unavailable
from casework.replica.file import ReplicaFile, Waiting
from casework.replica.transport import Answer, HttpTransport, Transport
from casework.streams.log import Op, check_op, check_stream

T = TypeVar("T")

PUSH_OPS = 500
PUSH_BYTES = 2_000_000
"""A push has at most so many operations and bytes of data; less after the relay has found one too large."""

PULL_OPS = 1000

TAIL_PAUSE_S, EMPTY_PAUSE_S = 30.0, 2.0
"""The longest pause before a relay is asked again, and the one where there is no stream yet."""

log = logging.getLogger("casework.replica")

TOKEN_VARIABLE = "CASEWORK_RELAY_TOKEN"


class RelayRefused(CaseworkError):
    """The relay refused a request, and repeating it will not help: the token, its rights, the stream."""

    def __init__(self, status: int, detail: str) -> None:
        self.status, self.detail = status, detail
        super().__init__(f"the relay answered {status}: {detail}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.status, self.detail)


class RelayBusy(Unavailable):
    """The relay could not store it all now; ``retry_after_s`` says when to try again."""

    def __init__(self, detail: str, retry_after_s: float) -> None:
        self.detail, self.retry_after_s = detail, retry_after_s
        super().__init__(detail)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.detail, self.retry_after_s)


class PushReport(msgspec.Struct):
    """What a push did."""

    pushed: int = 0
    parked: int = 0
    left: int = 0
    """Operations that still wait."""


class Replica:
    """A stream in a file of one's own. Safe to use from several threads but for requests, which go one at a time.

    Args:
        path: of the file; it is made when it is missing.
        stream: the stream; kept in the file, so that later it may be left out.
        relay: the relay's address; kept in the file, too.
        token: for the relay; else the environment's ``CASEWORK_RELAY_TOKEN``. It is kept nowhere.
        transport: in place of HTTP.
        sleep: lets a time in seconds pass, for :meth:`tail`.

    Raises Misuse when the file belongs to another stream, or knows none and none is given.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, stream: str | None = None, relay: str | None = None,
        token: str | None = None, transport: Transport | None = None, sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        if stream is not None:
            check_stream(stream)
        for name, text in (("relay", relay), ("token", token)):
            if text is not None:
                check_text(name, text)
        check_function("sleep", sleep)
        if transport is not None:
            check_instance("transport", transport, Transport, "what has the methods of casework.replica.Transport")
        self.file = ReplicaFile(path)
        try:
            self.stream = self._setting("stream", stream)
            check_stream(self.stream)
            if relay is not None:
                self.file.set_setting("relay", relay)
        except BaseException:
            self.file.close()
            raise
        self._token = token
        self._transport = transport
        self._sleep = sleep
        self._push_ops = PUSH_OPS

    def _setting(self, name: str, given: str | None) -> str:
        known = self.file.setting(name)
        if known is None and given is None:
            raise Misuse(f"{self.file.path} has no {name} yet; give it one")
        if known is None:
            check_stream(given)
            self.file.set_setting(name, str(given))
        elif given is not None and given != known:
            raise Misuse(f"{self.file.path} is a replica of {name} {known!r}, not of {given!r}; use another file")
        return str(given or known)

    @property
    def transport(self) -> Transport:
        """What carries requests; made when it is first used, so that everything else works without a relay."""
        if self._transport is None:
            url = self.file.setting("relay")
            token = self._token or os.environ.get(TOKEN_VARIABLE)
            if url is None or not token:
                missing = "relay" if url is None else f"token; set {TOKEN_VARIABLE}"
                raise Misuse(f"{self.file.path} cannot be synced: it has no {missing}")
            self._transport = HttpTransport(str(url), token)
        return self._transport

    def _ask(self, method: str, what: str, **more: Any) -> Answer:
        """One request about the stream. Unavailable when something else than a relay answers."""
        answer = self.transport.request(method, f"/v1/streams/{self.stream}/{what}", **more)
        if 300 <= answer.status < 400 or (answer.status == 200 and not answer.is_json):
            raise Unavailable(
                f"something else than a relay answered, with {answer.status}: a proxy, or a network that wants a "
                f"login? {str(answer.body.get('detail', ''))[:80]}"
            )
        return answer

    # --- writing ----------------------------------------------------------------------------------------------------

    def append(self, data: bytes, *, id: str | None = None) -> str:
        """Store an operation in the file, to be pushed; its id. Works offline.

        Args:
            data: its content.
            id: its own name; None makes one up. The same id with the same content is one operation.
        """
        op = Op(id or uuid.uuid4().hex, data)
        check_op(op, 0)
        self.file.add([op])
        return op.id

    def push(self) -> PushReport:
        """Push what waits, in order, until nothing waits.

        A push that is too large (413) is halved; a single operation that is, or whose id is taken by other content
        (409), is parked, and the others go on.

        Raises:
            RelayBusy: not all is stored yet; push again later.
            Unavailable: no answer; push again, which is harmless.
            RelayRefused: the token, its rights or the stream are wrong.
        """
        report = PushReport()
        while ops := self.file.to_push(self._push_ops, PUSH_BYTES):
            body = {"ops": [{"id": op.id, "data": op.data} for op in ops]}
            answer = self._ask("POST", "ops", body=body)
            if answer.status == 200:
                numbers = _numbers(answer, ops)
                self.file.mark_pushed(numbers)
                report.pushed += len(numbers)
                self._push_ops = min(PUSH_OPS, self._push_ops * 2)
            elif answer.status == 413 and len(ops) > 1:
                self._push_ops = max(1, len(ops) // 2)
            elif answer.status == 413:
                self.file.park(ops[0].id, f"the relay finds it too large: {answer.body.get('detail', '')}")
                report.parked += 1
            elif answer.status == 409 and answer.body.get("id") in {op.id for op in ops}:
                self.file.park(str(answer.body["id"]), f"{answer.body.get('detail', 'its id is taken')}")
                report.parked += 1
            else:
                raise _error(answer)
        report.left = len(self.file.own("waiting"))
        return report

    # --- reading ----------------------------------------------------------------------------------------------------

    def pull(self, *, wait_s: float = 0.0) -> int:
        """Pull what is new until there is no more; how many operations. ``wait_s``: wait so long for the first.

        Raises CursorTooOld when what comes next was truncated: see :meth:`begin_at_snapshot`. Others as ``push``.
        """
        count = 0
        while True:
            after = self.file.cursor
            query: dict[str, Any] = {"after": after, "limit": PULL_OPS}
            if wait_s and not count:
                query["wait_s"] = wait_s
            answer = self._ask("GET", "ops", query=query)
            if answer.status == 404 and after == 0:
                return count  # it has no operations yet, or this token may not read it
            if answer.status == 410:
                floor, snapshot = int(answer.body["floor_seq"]), int(answer.body["snapshot_seq"])
                raise CursorTooOld(self.stream, after, floor, snapshot)
            if answer.status != 200:
                raise _error(answer)
            ops, next_after = _page(answer, after)
            if next_after == after:
                return count
            if self.file.store_page(after, ops, next_after):
                count += len(ops)

    def sync(self) -> PushReport:
        """Push, then pull."""
        report = self.push()
        self.pull()
        return report

    def read(self, after: int = 0) -> Iterator[Op]:
        """The stream as far as it was pulled, behind number ``after``, in order."""
        while page := self.file.read(after, PULL_OPS):
            yield from page
            after = page[-1].seq

    def tail(self, after: int | None = None, *, wait_s: float = 20.0) -> Iterator[Op]:
        """The stream behind ``after`` (None: behind what was pulled), and then what comes, for ever.

        A relay that does not answer is asked again, with pauses of up to half a minute; a stream without operations is
        waited for. Raises what asking again does not mend: RelayRefused, CursorTooOld (see :meth:`rebase`).
        """
        position = self.file.cursor if after is None else after
        failures = 0
        while True:
            for op in self.read(position):
                position = op.seq
                yield op
            try:
                came = self.pull(wait_s=wait_s)
            except Unavailable as error:
                failures += 1
                retry_after_s = error.retry_after_s if isinstance(error, RelayBusy) else 0.0
                log.warning("%s: %s; it is asked again", self.stream, error)
                self._sleep(max(retry_after_s, min(TAIL_PAUSE_S, 0.1 * 2.0 ** min(failures, 10))))
                continue
            failures = 0
            if not came and self.file.cursor == 0:
                self._sleep(EMPTY_PAUSE_S)  # there is no stream yet, so the relay cannot be waited at

    def begin_at_snapshot(self) -> tuple[int, bytes]:
        """Go on from the relay's snapshot: its number and data. Folds that are below it begin with it, decoded.

        What it contains of the pulled log is given up, so the file stops to grow; call it again after a new snapshot.
        Raises RelayRefused when there is none.
        """
        answer = self._ask("GET", "snapshot")
        if answer.status != 200:
            raise _error(answer)
        seq, data = int(answer.body["seq"]), base64.b64decode(answer.body["data"])
        self.file.begin_at(seq, data)
        return seq, data

    def rebase(self, *, skip_lost: bool = False) -> int:
        """The way on after ``CursorTooOld``: go on from the relay's snapshot; the number from which it goes on.

        Args:
            skip_lost: where there is no snapshot, go on behind what was truncated. What was truncated and not pulled
                is then missing here for good, and from every fold.

        Raises CursorTooOld when there is no snapshot and ``skip_lost`` was not said. Changes nothing where nothing that
        was not pulled is gone.
        """
        try:
            self.pull()
            return self.file.cursor
        except CursorTooOld as error:
            if error.snapshot_seq >= error.floor_seq:
                return self.begin_at_snapshot()[0]
            if not skip_lost:
                raise
            self.file.pass_over(error.floor_seq)
            return error.floor_seq

    # --- folding ----------------------------------------------------------------------------------------------------

    def fold(
        self,
        name: str,
        function: Callable[[T, Op], T],
        initial: T,
        *,
        encode: Callable[[T], bytes] = msgspec.json.encode,
        decode: Callable[[bytes], T] = msgspec.json.decode,
        keep: bool = True,
    ) -> T:
        """The state that ``function`` makes of the stream as far as it was pulled, from where the last fold stopped.

        The watermark is the last operation that the state has seen; it moves in the transaction that stores the state,
        and never above what was pulled without a hole.

        Args:
            name: of the fold in the file; change it when the function changes its meaning.
            function: pure; the state and an operation to the next state.
            initial: the state before the first operation.
            encode: the state to bytes.
            decode: and back; of the relay's snapshot, too, where the replica went on from one.
            keep: store the state in the file.
        """
        known = self.file.fold(name)
        watermark, state = (0, initial) if known is None else (known[0], decode(known[1]))
        upto = self.file.cursor
        base, snapshot = self.file.base()
        if watermark < base:
            watermark, state = base, decode(snapshot)
        for op in self.read(watermark):
            if op.seq > upto:
                break
            state = function(state, op)
        if keep and upto > watermark:
            self.file.store_fold(name, upto, encode(state))
        return state

    def view(self, name: str, function: Callable[[T, Op], T], initial: T, **options: Any) -> T:
        """As :meth:`fold`, and on top of it this replica's own operations that have not come back yet."""
        state = self.fold(name, function, initial, **options)
        for waiting in self.file.own("waiting", "pushed"):
            state = function(state, waiting.op)
        return state

    # --- parked -----------------------------------------------------------------------------------------------------

    def parked(self) -> Sequence[Waiting]:
        """Operations that the relay will not take, with its words."""
        return self.file.own("parked")

    def unpark(self, id: str, *, drop: bool = False, new_id: str | None = None) -> bool:
        """Let a parked operation be pushed again, or drop it; False when there is none.

        Args:
            id: of the operation.
            drop: forget it.
            new_id: push it under another id, since its own is taken by something else.
        """
        if new_id is not None:
            if drop:
                raise Misuse("an operation that is dropped needs no new id; give one of the two")
            check_op(Op(new_id, b""), 0)
        return self.file.unpark(id, drop=drop, new_id=new_id)

    def close(self) -> None:
        """Close the file and the connection; harmless when done twice."""
        if self._transport is not None:
            self._transport.close()
        self.file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _numbers(answer: Answer, ops: Sequence[Op]) -> list[tuple[str, int]]:
    """The numbers in a successful answer, which must be about these very operations."""
    results = answer.body.get("results", [])
    found = [(str(one["id"]), int(one["seq"])) for one in results]
    if [id for id, _ in found] != [op.id for op in ops]:
        raise Unavailable("the relay's answer is not about the operations that were pushed; push again")
    return found


def _page(answer: Answer, after: int) -> tuple[list[Op], int]:
    """The operations of a page; StreamDamaged when they do not go up from behind the cursor."""
    ops = [
        Op(str(one["id"]), base64.b64decode(one["data"]), int(one["seq"]), int(one["at_us"]))
        for one in answer.body.get("ops", [])
    ]
    if "next_after" not in answer.body:
        raise Unavailable("the relay's answer is no page of a stream; is it another server?")
    next_after = int(answer.body["next_after"])
    numbers = [after, *(op.seq for op in ops)]
    if any(low >= high for low, high in itertools.pairwise(numbers)) or next_after < numbers[-1]:
        raise StreamDamaged(f"the relay answered with the numbers {numbers[1:6]}... behind {after}, up to {next_after}")
    return ops, next_after


def _error(answer: Answer) -> CaseworkError:
    detail = str(answer.body.get("detail") or answer.body.get("title") or "no word of why")
    if answer.status in (502, 503, 504, 429):
        return RelayBusy(f"the relay answered {answer.status}: {detail}", answer.retry_after_s)
    if answer.status >= 500:
        return Unavailable(f"the relay answered {answer.status}: {detail}")
    return RelayRefused(answer.status, detail)
