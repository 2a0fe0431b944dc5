"""What a relay does, without HTTP: who may do what, and pushing and pulling within limits. Counts what it did."""

from __future__ import annotations

import asyncio
import collections
import hashlib
import secrets
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from casework.app.streams_aio import AsyncStreamStore
from casework.backends.drive_async import run_async
from casework.errors import CaseworkError, CursorAhead, ItemTooLarge, LogChanged
from casework.kernel.effects import Flag
from casework.relay.sealing import seal, sealing_key, unseal
from casework.relay.settings import RelaySettings
from casework.streams.log import Appended, Op, Watcher, check_op
from casework.streams.read import OpPage
from casework.streams.tokens import TokenInfo, looks_like_token, verify_token
from casework.streams.waiting import wait_again

TOKENS_KEPT = 10_000
"""Answers about so many tokens are remembered, for ``token_cache_s``."""


class Unauthorized(CaseworkError):
    """No token, or none that is known."""


class NotFound(CaseworkError):
    """The stream does not exist, or the token may not know whether it does."""


class TooLarge(CaseworkError):
    """The request is over a limit of the relay."""


class NotReady(CaseworkError):
    """Requests cannot be served now."""


class RelayCounts(msgspec.Struct):
    """What a relay did since it was started."""

    pushes: int = 0
    ops_pushed: int = 0
    duplicates: int = 0
    pulls: int = 0
    ops_pulled: int = 0
    cut_off: int = 0
    """Answers that their clients did not take."""
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
        self._known: collections.OrderedDict[bytes, tuple[int, TokenInfo | None]] = collections.OrderedDict()
        self._sealing_key: bytes | None = None

    async def token(self, header: str | None) -> TokenInfo:
        """The token of an ``Authorization`` header. Raises Unauthorized."""
        scheme, _, text = (header or "").partition(" ")
        if scheme.lower() != "bearer" or not text.strip():
            raise Unauthorized("send a token, as 'Authorization: Bearer cw_...'; `casework token create` makes one")
        text = text.strip()
        if not looks_like_token(text):
            raise Unauthorized("this is no token of a relay; `casework token create` makes one")
        now_us = self.store.backend.now().middle_us
        digest = hashlib.sha256(text.encode()).digest()  # no secret is kept, and no text of any length
        known = self._known.get(digest)
        if known is None or now_us - known[0] > self.settings.token_cache_s * 1e6:
            known = now_us, await run_async(verify_token(text), self.store.backend)
            self._known[digest] = known
            while len(self._known) > TOKENS_KEPT:
                self._known.popitem(last=False)
        if known[1] is None:
            raise Unauthorized("this token is not known; it may have been revoked, or have ended")
        return known[1]

    async def allow(self, header: str | None, stream: str, right: str) -> None:
        """Return when the request may do that. Raises Unauthorized; NotFound, which does not say why."""
        token = await self.token(header)
        if not token.allows(stream, right):
            raise self.not_found(stream)

    def note_cut_off(self) -> None:
        """An answer was cut off, since its client did not take it."""
        self.counts.cut_off += 1

    async def is_allowed(self, header: str | None, stream: str, right: str) -> bool:
        """Whether what began with this token may still go on."""
        try:
            await self.allow(header, stream, right)
        except (Unauthorized, NotFound):
            return False
        return True

    async def names(self, token: TokenInfo, limit: int, cursor: str | None) -> tuple[list[str], str | None]:
        """A page of the streams that a token may read, and a cursor that says nothing of those that it may not."""
        key = self._sealing_key
        if key is None:
            key = self._sealing_key = await run_async(sealing_key(), self.store.backend)
        page = await self.store.list(limit=limit, cursor=None if cursor is None else unseal(key, cursor))
        names = [name for name in page.streams if token.allows(name, "read")]
        return names, None if page.next_cursor is None else seal(key, page.next_cursor, secrets.token_bytes(16))

    @staticmethod
    def not_found(stream: str) -> NotFound:
        """The one answer for what is not there and for what is not to be known."""
        return NotFound(f"there is no stream {stream!r:.220}")

    async def push(
        self, stream: str, ops: Sequence[Op], passed_s: float = 0.0, *, expected_seq: int | None = None
    ) -> Sequence[Appended]:
        """Store operations within the deadline, of which ``passed_s`` is over. Raises TooLarge, and as ``append``."""
        if len(ops) > self.settings.max_push_ops:
            raise TooLarge(f"a push has at most {self.settings.max_push_ops} operations, this one has {len(ops)}")
        try:
            for position, op in enumerate(ops):
                check_op(op, position)
        except ItemTooLarge as error:
            raise TooLarge(str(error)) from None
        self.counts.pushes += 1
        left_s = max(0.05, self.settings.push_deadline_s - passed_s)
        answers = await self.store.append(stream, ops, deadline_s=left_s, expected_seq=expected_seq)
        self.counts.ops_pushed += len(answers)
        self.counts.duplicates += sum(answer.is_duplicate for answer in answers)
        return answers

    async def pull(
        self, stream: str, after: int, limit: int, wait_s: float, is_allowed: Callable[[], Awaitable[bool]], mark: str
    ) -> OpPage:
        """A page, waited for up to ``wait_s`` while the token is good. Raises NotFound, and what ``page`` raises."""
        self.counts.pulls += 1
        most = self.settings.max_page_bytes
        page = await self.store.page(stream, after, limit, max_bytes=most, mark=mark)
        if not page.ops and page.next_after == after:
            if after == 0 and (await self.store.head(stream)).last_seq == 0:
                raise self.not_found(stream)
            look_s = max(0.1, self.settings.token_cache_s)
            with self.watcher(stream) as watcher:
                while wait_s > 0 and not page.ops and not self.stopping.is_set and await is_allowed():
                    page = await self.wait(watcher, after, limit, min(wait_s, look_s), max_bytes=most, mark=mark)
                    wait_s -= look_s
        self.counts.ops_pulled += len(page.ops)
        return page

    def watcher(self, stream: str) -> Watcher:
        """What a request that waits for a stream keeps until it ends, in a ``with`` block."""
        return Watcher(self.store.log, stream)

    async def wait(
        self, watcher: Watcher, after: int, limit: int, wait_s: float, *, max_bytes: int, mark: str
    ) -> OpPage:
        """A page, or an empty one after ``wait_s``, or when the relay stops."""
        self.counts.waiting += 1
        try:
            waits = wait_again(
                self.store.log, watcher, after, limit, wait_s=wait_s, stop=self.stopping, max_bytes=max_bytes, mark=mark
            )
            return await run_async(waits, self.store.backend)
        finally:
            self.counts.waiting -= 1

    async def must_be_ready(self, within_s: float) -> None:
        """Raises NotReady when the store does not answer in time, or the relay stops."""
        if self.stopping.is_set:
            raise NotReady("the relay is stopping")
        look = asyncio.ensure_future(self.store.list(limit=1))
        done, _ = await asyncio.wait({look}, timeout=within_s)
        if not done:
            look.cancel()
            raise NotReady(f"the store did not answer within {within_s:g} s")
        if look.exception() is not None:
            raise NotReady("the store failed")

    async def must_exist(self, stream: str, after: int, mark: str = "") -> None:
        """Raises NotFound for a stream without operations; CursorAhead, LogChanged for a cursor above its end."""
        head = await self.store.head(stream)
        if mark and after > head.last_seq:
            raise LogChanged(stream, after, head.last_seq)
        if head.last_seq == 0:
            raise self.not_found(stream)
        if after > head.last_seq:
            raise CursorAhead(f"stream {stream!r} ends at {head.last_seq}, the cursor is {after}")
