"""Combining: whoever holds the lead carries out everything that waits, then hands the lead on.

So one commit serves every thread that waits for one, there is no thread of the backend's own (none to lose in a fork),
and a thread that nobody competes with pays for one uncontended lock.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from casework.backends.sqlite.group import Request

GROUP_REQUESTS = 1024
"""A group takes no further batch when it has so many requests ..."""

GROUP_BYTES = 16 * 1024 * 1024
"""... or so many bytes."""

_TURNS = 10


class Batch:
    """The requests of one caller; they stand in one group."""

    __slots__ = ("done", "event", "requests", "size", "work")

    def __init__(self, requests: Sequence[Request]) -> None:
        self.requests = requests
        self.size = sum(request.size for request in requests)
        self.done = False
        self.event: threading.Lock | None = None
        self.work: Callable[[], None] | None = None


class Combiner:
    """Brings the batches of all threads to ``carry_out``, one group at a time.

    ``carry_out`` answers every request of the group, and raises nothing but what interrupts the thread.
    """

    def __init__(self, carry_out: Callable[[list[Request]], None]) -> None:
        self._carry_out = carry_out
        self._mutex = threading.Lock()
        self._waiting: deque[Batch] = deque()
        self._leader: Batch | None = None
        self._last_group = 1

    def submit(self, requests: Sequence[Request]) -> None:
        """Carry out ``requests``, together with those of other threads; returns when they are answered.

        When the thread is interrupted (KeyboardInterrupt), a batch that was not begun never will be; one that was
        begun is waited for, and then the interrupt goes on.
        """
        self._take_turn(Batch(requests))

    def _take_turn(self, batch: Batch) -> None:
        try:
            with self._mutex:
                if self._leader is None:
                    self._leader = batch
                else:
                    batch.event = threading.Lock()
                    batch.event.acquire()
                    self._waiting.append(batch)
            if batch.event is not None:
                batch.event.acquire()
            if not batch.done:
                self._lead(batch)
        except BaseException:
            self._withdraw(batch)
            raise

    def alone(self, work: Callable[[], None]) -> None:
        """Run ``work`` while no group is under way."""
        batch = Batch(())
        batch.work = work
        self._take_turn(batch)

    def _lead(self, batch: Batch) -> None:
        """Carry out this batch and what waits behind it; then whoever waits next leads."""
        group = [batch]
        try:
            if batch.work is not None:
                return batch.work()
            if self._last_group > 1:
                self._let_others_come()
            with self._mutex:
                count, size = len(batch.requests), batch.size
                while self._waiting and self._waiting[0].work is None and count < GROUP_REQUESTS and size < GROUP_BYTES:
                    other = self._waiting.popleft()
                    group.append(other)
                    count += len(other.requests)
                    size += other.size
            self._last_group = len(group)
            if len(group) == 1:
                self._carry_out(list(batch.requests))
            else:
                self._carry_out([request for one in group for request in one.requests])
        finally:
            self._hand_on(group)

    def _let_others_come(self) -> None:
        """Step aside for those who were answered a moment ago and are about to ask again.

        Without it a leader that comes back first commits alone while the rest gather: every second commit would serve
        one request. Only after a group of several, and for a few turns of the interpreter at most.
        """
        for _ in range(_TURNS):
            if len(self._waiting) + 1 >= self._last_group:
                break
            time.sleep(0)

    def _hand_on(self, group: Sequence[Batch]) -> None:
        with self._mutex:
            following = self._leader = self._waiting.popleft() if self._waiting else None
        try:
            for one in group:
                one.done = True
                if one.event is not None and one is not group[0]:
                    one.event.release()
        finally:  # last, so that those who were answered can join the next group with their next request
            if following is not None and following.event is not None:
                following.event.release()

    def _withdraw(self, batch: Batch) -> None:
        """After an interrupt: take the batch back, or wait until the group that it is in has been carried out."""
        if batch.done:
            return
        with self._mutex:
            if batch in self._waiting:
                self._waiting.remove(batch)
                return
            leads = self._leader is batch
        if leads:
            self._hand_on([batch])
        elif batch.event is not None:
            while not batch.done:
                batch.event.acquire()
