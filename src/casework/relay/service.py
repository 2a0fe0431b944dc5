"""What a relay does, without HTTP: who may do what, and pushing and pulling within limits. Counts what it did."""

from __future__ import annotations

import collections
from collections.abc import Sequence

import msgspec

from casework.app.streams_aio import AsyncStreamStore
from casework.backends.drive_async import run_async
from casework.errors import CaseworkError, CursorAhead, ItemTooLarge
from casework.kernel.effects import Flag
from casework.relay.settings import RelaySettings
from casework.streams.log import Appended, Op, check_op, check_stream
from casework.streams.read import OpPage
from casework.streams.tokens import TokenInfo, verify_token


class Unauthorized(CaseworkError):
    """No token, or none that is known."""


class NotFound(CaseworkError):
    """The stream does not exist, or the token may not know whether it does."""


class TooLarge(CaseworkError):
    """The request is over a limit of the relay."""


class RelayCounts(msgspec.Struct):
    """What a relay did since it was started."""

    pushes: int = 0
    ops_pushed: int = 0
    duplicates: int = 0
    pulls: int = 0
    ops_pulled: int = 0
    waiting: int = 0
    """Long polls and event streams under way."""


class Relay:
    """The service. ``stopping`` ends long polls and event streams.

    Args:
        store: the streams.
        settings: limits.
    """

    def __init__(self, store: AsyncStreamStore, settings: RelaySettings | None = None) -> None:
        self.store = store
        self.settings = settings or RelaySettings()
        self.stopping = Flag()
        self.counts = RelayCounts()
        self.answers: collections.Counter[int] = collections.Counter()
        self._known: dict[str, tuple[int, TokenInfo | None]] = {}

    async def token(self, header: str | None) -> TokenInfo:
        """The token of an ``Authorization`` header. Raises Unauthorized."""
        scheme, _, text = (header or "").partition(" ")
        if scheme.lower() != "bearer" or not text.strip():
            raise Unauthorized("send a token, as 'Authorization: Bearer cw_...'; `casework token create` makes one")
        text = text.strip()
        now_us = self.store.backend.now().middle_us
        known = self._known.get(text)
        if known is None or now_us - known[0] > self.settings.token_cache_s * 1e6:
            if len(self._known) > 10_000:
                self._known.clear()
            known = now_us, await run_async(verify_token(text), self.store.backend)
            self._known[text] = known
        if known[1] is None:
            raise Unauthorized("this token is not known; it may have been revoked, or have ended")
        return known[1]

    async def allow(self, header: str | None, stream: str, right: str) -> None:
        """Return when the request may do that. Raises Unauthorized; NotFound, which does not say why."""
        token = await self.token(header)
        if not token.allows(stream, right):
            raise self.not_found(stream)
        check_stream(stream)

    @staticmethod
    def not_found(stream: str) -> NotFound:
        """The one answer for what is not there and for what is not to be known."""
        return NotFound(f"there is no stream {stream!r:.220}")

    async def push(self, stream: str, ops: Sequence[Op]) -> Sequence[Appended]:
        """Store operations within the deadline. Raises TooLarge, and what ``append`` raises."""
        if len(ops) > self.settings.max_push_ops:
            raise TooLarge(f"a push has at most {self.settings.max_push_ops} operations, this one has {len(ops)}")
        try:
            for position, op in enumerate(ops):
                check_op(op, position)
        except ItemTooLarge as error:
            raise TooLarge(str(error)) from None
        self.counts.pushes += 1
        answers = await self.store.append(stream, ops, deadline_s=self.settings.push_deadline_s)
        self.counts.ops_pushed += len(answers)
        self.counts.duplicates += sum(answer.is_duplicate for answer in answers)
        return answers

    async def pull(self, stream: str, after: int, limit: int, wait_s: float) -> OpPage:
        """A page, waited for up to ``wait_s``. Raises NotFound, and what ``page`` raises."""
        self.counts.pulls += 1
        page = await self.store.page(stream, after, limit, max_bytes=self.settings.max_page_bytes)
        if not page.ops and page.next_after == after:
            if after == 0 and (await self.store.head(stream)).last_seq == 0:
                raise self.not_found(stream)
            if wait_s > 0:
                page = await self.wait(stream, after, limit, wait_s)
        self.counts.ops_pulled += len(page.ops)
        return page

    async def wait(self, stream: str, after: int, limit: int, wait_s: float) -> OpPage:
        """A page, or an empty one after ``wait_s``, or when the relay stops."""
        self.counts.waiting += 1
        try:
            return await self.store.wait(
                stream, after, limit, wait_s=wait_s, stop=self.stopping, max_bytes=self.settings.max_page_bytes
            )
        finally:
            self.counts.waiting -= 1

    async def must_exist(self, stream: str, after: int) -> None:
        """Raises NotFound for a stream without operations, CursorAhead for a cursor above its end."""
        head = await self.store.head(stream)
        if head.last_seq == 0:
            raise self.not_found(stream)
        if after > head.last_seq:
            raise CursorAhead(f"stream {stream!r} ends at {head.last_seq}, the cursor is {after}")
