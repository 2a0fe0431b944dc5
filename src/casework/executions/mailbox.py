"""Messages to an execution, and dead letters, in its own partition.

All that one commit sends to one execution is one item, at ``e/<send time>/<source>/<n>``. Keys of one sender ascend,
since a sender's send times do. Dead letters stand at ``l/``, behind the mailbox in sort order, so that one query reads
the state and the waiting messages and nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from casework.errors import CorruptItem
from casework.executions.runtime import Runtime
from casework.kernel.items import Item, Key, Put
from casework.kernel.schema import EXECUTIONS, FORMAT, bucket_of, check_format

MAIL_BEGIN = "e/"
MAIL_END = "e0"
"""First sort key behind all messages: ``0`` follows ``/``."""

DEAD_BEGIN, DEAD_END = "l/", "l0"
DEAD_LETTER_DAYS = 14
MAX_DEAD_BYTES = 380_000

PRIORITY_HEAD_START_US = 60_000_000
"""Each step of priority puts a message ahead of what was due up to a minute before it."""

MAX_PRIORITY = 4


class Mail(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """One event inside a message."""

    type: str
    data: Any = None
    id: str = ""
    source: str = ""
    stay: int = 0
    invoke: str = ""
    kind: str = ""
    """``""`` or ``given`` (a caller gave its id): an event; ``result`` of a task; ``child``: a report; ``cancel``;
    ``machine``: what was begun as a task is a child; ``offer``: another definition may take what is deferred."""
    ordinal: int = 0


class Message(msgspec.Struct, gc=False):
    """A message as it was read."""

    key: Key
    sent_at_us: int
    mails: list[Mail]
    rank_us: int = 0
    priority: int = 0


_decode_mails = msgspec.json.Decoder(list[Mail]).decode
_encode = msgspec.json.Encoder().encode


def short(source: str) -> str:
    """A source's part of a message key: itself, or a digest of it when it is long or holds a slash."""
    if len(source) <= 40 and "/" not in source:
        return source
    return hashlib.blake2b(source.encode(), digest_size=12).hexdigest()


def mail_sort(sent_at_us: int, source: str, n: int) -> str:
    """The sort key of a message; ascending in time, then by sender and number."""
    return f"e/{sent_at_us:017d}/{short(source)}/{n}"


def message_item(
    target: str,
    sort: str,
    mails: Sequence[Mail],
    buckets: int,
    *,
    sent_at_us: int,
    now_us: int | None = None,
    priority: int = 0,
    rt: Runtime | None = None,
) -> Item:
    """The item of a message: in the ``pending`` index as due now, less its priority's head start.

    Its send time may be a little later, since a sender's send times ascend. ``rt`` has the codec for what it holds.
    """
    item: Item = {
        "id": target,
        "sort": sort,
        "format": FORMAT,
        "mails": _encoded(mails, rt),
        "pending": f"work/{bucket_of(target, buckets)}",
        "rank_us": (sent_at_us if now_us is None else min(sent_at_us, now_us)) - priority * PRIORITY_HEAD_START_US,
    }
    if priority:
        item["priority"] = priority
    return item


def put_message(
    target: str,
    sort: str,
    mails: Sequence[Mail],
    buckets: int,
    *,
    sent_at_us: int,
    now_us: int | None = None,
    priority: int = 0,
    rt: Runtime | None = None,
) -> Put:
    """The write that sends a message."""
    item = message_item(target, sort, mails, buckets, sent_at_us=sent_at_us, now_us=now_us, priority=priority, rt=rt)
    return Put(EXECUTIONS, item)


def _encoded(mails: Sequence[Mail], rt: Runtime | None) -> str:
    text = _encode(mails).decode()
    return text if rt is None else rt.encode(text)


def mails_of(item: Mapping[str, Any], rt: Runtime | None = None) -> list[Mail]:
    """What a message or a dead letter holds. Raises CorruptItem, KeyError, msgspec.DecodeError."""
    text = str(item["mails"])
    return _decode_mails(text if rt is None else rt.decode(text))


def message_of(item: Mapping[str, Any], rt: Runtime | None = None) -> Message:
    """The message in ``item``; CorruptItem, NewerFormat when it cannot be read."""
    sort = item["sort"]
    check_format(item, f"message {sort!r} of execution {item['id']!r}")
    try:
        return Message(
            Key(EXECUTIONS, item["id"], sort),
            int(sort[2:19]),
            mails_of(item, rt),
            item.get("rank_us", 0),
            item.get("priority", 0),
        )
    except (KeyError, ValueError, msgspec.DecodeError) as error:
        raise CorruptItem(f"message {sort!r} of execution {item['id']!r} cannot be read: {error}") from None


def dead_letter(
    id: str, at_us: int, n: str, reason: str, mails: Sequence[Mail], buckets: int, rt: Runtime | None = None
) -> Put:
    """The write that keeps mails nobody can take, with the reason, for ``DEAD_LETTER_DAYS``."""
    text = _encoded(mails, rt)
    if len(text) > MAX_DEAD_BYTES:
        reason += "; its payload is too large to be kept beside this reason"
        text = _encoded([msgspec.structs.replace(mail, data=None) for mail in mails], rt)
    item: Item = {
        "id": id,
        "sort": f"l/{at_us:017d}/{n}",
        "format": FORMAT,
        "reason": reason,
        "mails": text,
        "expires_at_s": at_us // 1_000_000 + DEAD_LETTER_DAYS * 86_400,
        "listing": f"dead/{bucket_of(id, buckets)}",
        "listed": f"{at_us:017d}/{id}",
    }
    return Put(EXECUTIONS, item)
