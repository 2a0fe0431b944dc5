"""The design that streams replace: one operation in one transaction, with its counter, its claim and its predecessor.

Written for comparison after the description in docs/design/streams.md. The counter's value is carried from one
operation to the next; a lost round is handed the real one and tried again after a jitter.
"""

from __future__ import annotations

from casework.errors import ConditionFailed, Contention, Throttled
from casework.kernel.conditions import absent, equals, present
from casework.kernel.items import AnyWrite, Check, Put, Update
from casework.kernel.programs import Program, sleep, token, transact
from casework.kernel.retry import fraction
from casework.kernel.schema import STREAM_CLAIMS, STREAMS

JITTER_S = 0.04


class OnePerTransaction:
    """One writer of one stream."""

    def __init__(self) -> None:
        self.last = 0

    def append(self, stream: str, id: str, data: bytes) -> Program[int]:
        while True:
            c = self.last
            counter = STREAMS.key(stream, 0)
            writes: list[AnyWrite] = [
                Update(counter, {"last_seq": c + 1}, when=equals("last_seq", c) if c else absent("last_seq")),
                Put(STREAM_CLAIMS, {"claim": f"{stream} {id}", "seq": c + 1, "digest": bytes(16)}, when=absent()),
                Put(STREAMS, {"stream_id": stream, "seq": c + 1, "id": id, "data": data}, when=absent()),
            ]
            if c:
                writes.append(Check(STREAMS.key(stream, c), present()))
            try:
                yield from transact(writes)
            except ConditionFailed as failed:
                head = failed.refusals[0]
                if head is not None:
                    self.last = int(head.item["last_seq"]) if head.item else 0
            except (Contention, Throttled):
                pass
            else:
                self.last = c + 1
                return c + 1
            dice = yield from token()
            yield from sleep(JITTER_S * fraction(dice))
