"""The client: append offline, push, pull, follow, fold.

An operation is first of all in the file. Pushing it again is harmless, since the relay answers a repeat with the number
of the first time; so a crash between a push and its note, or an answer that was lost, costs one more push. Nothing is
noted as pushed on any answer but success.
"""

from __future__ import annotations

import base64
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self, TypeVar

import msgspec

from casework.arguments import check_flag, check_function, check_instance, check_seconds, check_text
from casework.errors import CursorTooOld, LogChanged, Misuse, Unavailable
from casework.replica.answers import (
    PAGE_OPS,
    RelayBusy,
    is_of_another_log,
    last_in_common,
    numbers_of,
    page_of,
    refusal,
)
from casework.replica.file import Difference, ReplicaFile, Waiting
from casework.replica.transport import Answer, HttpTransport, Transport, check_address
from casework.streams.log import OP_ID_BYTES_MAX, Op, check_after, check_op, check_stream

T = TypeVar("T")

PUSH_OPS = 500
PUSH_BYTES = 2_000_000
"""A push has at most so many operations and bytes of data; less after the relay has found one too large."""

CHANGES_MAX = 3
"""The log may become another one so often during a pull."""

WAIT_S_MAX = 20
"""A relay refuses a request that asks to wait longer."""

TAIL_PAUSE_S, EMPTY_PAUSE_S = 30.0, 2.0
"""The longest pause before a relay is asked again, and the one where there is no stream yet."""

log = logging.getLogger("casework.replica")

TOKEN_VARIABLE = "CASEWORK_RELAY_TOKEN"


def _check_fold(name: Any, function: Any, encode: Any, decode: Any, keep: Any) -> None:
    check_text("name", name)
    for what, given in (("function", function), ("encode", encode), ("decode", decode)):
        check_function(what, given)
    check_flag("keep", keep)


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
        if relay is not None:
            check_address(relay)
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
                numbers = numbers_of(answer, ops)
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
                raise refusal(answer)
        report.left = len(self.file.own("waiting"))
        return report

    # --- reading ----------------------------------------------------------------------------------------------------

    def pull(self, *, wait_s: float = 0.0) -> int:
        """Pull what is new until there is no more; how many operations.

        Args:
            wait_s: wait so long for the first one, 0 to 20; a relay may wait less.

        Raises CursorTooOld when what comes next was truncated: see :meth:`begin_at_snapshot`. Others as ``push``.
        """
        check_seconds("wait_s", wait_s, 0, WAIT_S_MAX)
        count = 0
        changes = 0
        while True:
            after, rewinds = self.file.cursor, self.file.rewinds
            pushed = [waiting.op.id for waiting in self.file.own("pushed")]
            answer = self._ask("GET", "ops", query=self._behind(after, wait_s if not count else 0.0))
            if answer.status == 404 and after == 0:
                return count  # it has no operations yet, or this token may not read it
            if answer.status == 410:
                floor, snapshot = int(answer.body["floor_seq"]), int(answer.body["snapshot_seq"])
                raise CursorTooOld(self.stream, after, floor, snapshot)
            if is_of_another_log(answer) and changes < CHANGES_MAX:
                changes += 1
                self._go_back(after)
                continue
            if answer.status != 200:
                raise refusal(answer)
            ops, next_after, mark = page_of(answer, after)
            if next_after == after:
                self.file.wait_again(pushed)  # the log ends before them
                return count
            if self.file.store_page(after, ops, next_after, mark, rewinds):
                count += len(ops)

    def _behind(self, after: int, wait_s: float) -> dict[str, Any]:
        query: dict[str, Any] = {"after": after, "limit": PAGE_OPS}
        if mark := self.file.mark(after):
            query["mark"] = mark
        if wait_s:
            query["wait_s"] = wait_s
        return query

    def _go_back(self, cursor: int) -> None:
        """The relay's log is another one than was pulled: go back to where they part."""
        common, mark = last_in_common(self.file, lambda **query: self._ask("GET", "ops", query=query))
        if self.file.rewind(cursor, common, mark):
            log.warning(
                "%s: the relay's log is another one behind %d: was its store restored? What differs is set aside: "
                "`casework replica differences %s`; own operations are pushed again",
                self.stream, common, self.file.path,
            )  # fmt: skip

    def sync(self) -> PushReport:
        """Push, then pull; and push again what the relay turns out to have lost."""
        report = self.push()
        for _ in range(CHANGES_MAX):
            self.pull()
            if not self.file.to_push(1, 1):
                break
            again = self.push()
            report = PushReport(report.pushed + again.pushed, report.parked + again.parked, again.left)
        return report

    def differences(self) -> list[Difference]:
        """What was pulled once, and the relay's log did not have at its number any more: its store was restored, or
        the stream was made again.

        This replica's own are pushed again by themselves; each of the others comes back when its own writer pushes it
        again. :meth:`push_differences` does it in their place.
        """
        return self.file.differences()

    def push_differences(self) -> int:
        """Let wait to be pushed, under their ids, the operations of others that have not come back; how many.

        It is harmless when their writers do the same: an id is stored once.
        """
        lost = [each.op for each in self.file.differences() if each.now_seq is None and not each.is_own]
        self.file.add(lost)
        return len(lost)

    def read(self, after: int = 0) -> Iterator[Op]:
        """The stream as far as it was pulled, behind number ``after``, in order."""
        check_after(after)
        return self._read(after)

    def _read(self, after: int) -> Iterator[Op]:
        while page := self.file.read(after, PAGE_OPS):
            yield from page
            after = page[-1].seq

    def tail(self, after: int | None = None, *, wait_s: float = 20.0) -> Iterator[Op]:
        """The stream behind ``after`` (None: behind what was pulled), and then what comes, for ever.

        A relay that does not answer is asked again, with pauses of up to half a minute; a stream without operations is
        waited for. Raises what asking again does not mend: RelayRefused, CursorTooOld (see :meth:`rebase`), LogChanged:
        some of what it gave is in the relay's log no more (see :meth:`differences`), and the file has gone on in the
        new one.

        Args:
            after: the number to go on behind; None: what was pulled.
            wait_s: each request for what comes waits so long at the relay, 0 to 20.
        """
        if after is not None:
            check_after(after)
        check_seconds("wait_s", wait_s, 0, WAIT_S_MAX)
        return self._tail(after, wait_s)

    def _tail(self, after: int | None, wait_s: float) -> Iterator[Op]:
        position = self.file.cursor if after is None else after
        rewinds = self.file.rewinds
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
            if self.file.rewinds != rewinds:
                raise LogChanged(self.stream, position, self.file.cursor)
            if not came and self.file.cursor == 0:
                self._sleep(EMPTY_PAUSE_S)  # there is no stream yet, so the relay cannot be waited at

    def begin_at_snapshot(self) -> tuple[int, bytes]:
        """Go on from the relay's snapshot: its number and data. Folds that are below it begin with it, decoded.

        What it contains of the pulled log is given up, so the file stops to grow; call it again after a new snapshot.
        Raises RelayRefused when there is none.
        """
        answer = self._ask("GET", "snapshot")
        if answer.status != 200:
            raise refusal(answer)
        seq, data = int(answer.body["seq"]), base64.b64decode(answer.body["data"])
        self.file.begin_at(seq, data, str(answer.body.get("mark", "")))
        return seq, data

    def rebase(self, *, skip_lost: bool = False) -> int:
        """The way on after ``CursorTooOld``: go on from the relay's snapshot; the number from which it goes on.

        Args:
            skip_lost: where there is no snapshot, go on behind what was truncated. What was truncated and not pulled
                is then missing here for good, and from every fold.

        Raises CursorTooOld when there is no snapshot and ``skip_lost`` was not said. Changes nothing where nothing that
        was not pulled is gone.
        """
        check_flag("skip_lost", skip_lost)
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
        _check_fold(name, function, encode, decode, keep)
        rewinds = self.file.rewinds
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
            self.file.store_fold(name, upto, encode(state), rewinds)
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
        check_text("id", id, OP_ID_BYTES_MAX)
        check_flag("drop", drop)
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
