"""What a relay answers: pages, numbers, errors; and where its log and a replica's file part."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from casework.errors import CaseworkError, StreamDamaged, Unavailable
from casework.replica.file import ReplicaFile
from casework.replica.transport import Answer
from casework.streams.log import Op

PAGE_OPS = 1000
"""Operations of one page."""

LOG_CHANGED = "urn:casework:log-changed"


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


def numbers_of(answer: Answer, ops: Sequence[Op]) -> list[tuple[str, int]]:
    """The numbers in a successful answer, which must be about these very operations."""
    results = answer.body.get("results", [])
    found = [(str(one["id"]), int(one["seq"])) for one in results]
    if [id for id, _ in found] != [op.id for op in ops]:
        raise Unavailable("the relay's answer is not about the operations that were pushed; push again")
    return found


def page_of(answer: Answer, after: int) -> tuple[list[Op], int, str]:
    """The operations of a page, the position behind it, and its mark.

    Raises StreamDamaged when the numbers do not go up from behind the cursor.
    """
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
    return ops, next_after, str(answer.body.get("mark", ""))


def refusal(answer: Answer) -> CaseworkError:
    """The error in an answer."""
    detail = str(answer.body.get("detail") or answer.body.get("title") or "no word of why")
    if answer.status in (502, 503, 504, 429):
        return RelayBusy(f"the relay answered {answer.status}: {detail}", answer.retry_after_s)
    if answer.status >= 500:
        return Unavailable(f"the relay answered {answer.status}: {detail}")
    return RelayRefused(answer.status, detail)


def is_of_another_log(answer: Answer) -> bool:
    """Whether it says that the relay's log is not the one that was asked about, or ends before the position."""
    changed = answer.status == 409 and answer.body.get("type") == LOG_CHANGED
    return changed or (answer.status == 422 and answer.body.get("place") == "after")


def last_in_common(file: ReplicaFile, ask: Callable[..., Answer]) -> tuple[int, str]:
    """The last position up to which the relay's log is the one in the file, and its mark.

    The ends of the pages that were pulled are halved by their marks; then what follows is compared, page by page. Where
    the relay has truncated it cannot be asked: what was truncated is taken for what was pulled.
    """
    marks = [(seq, mark) for seq, mark in file.marks() if seq >= file.base()[0]]
    low, high = 0, len(marks)  # of the first mark that is not the relay's any more
    while low < high:
        middle = (low + high) // 2
        seq, mark = marks[middle]
        answer = ask(after=seq, limit=1, mark=mark)
        if is_of_another_log(answer) or (answer.status == 404 and seq):
            high = middle
        elif answer.status in (200, 410):
            low = middle + 1
        else:
            raise refusal(answer)
    common, mark = marks[low - 1] if low else (0, "")
    while True:
        own = file.read(common, PAGE_OPS)
        answer = ask(after=common, limit=PAGE_OPS)
        if not own or answer.status in (404, 410) or is_of_another_log(answer):
            return common, mark
        if answer.status != 200:
            raise refusal(answer)
        theirs, _, _ = page_of(answer, common)
        alike = list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(own, theirs, strict=False)))
        if not alike:
            return common, mark
        common, mark = alike[-1][0].seq, ""
        if len(alike) < len(theirs):
            return common, mark
