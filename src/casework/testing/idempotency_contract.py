"""The contract of an idempotency store, for whoever writes one.

Subclass it in a test module and say how a store is made; pytest does the rest::

    class TestMyStore(IdempotencyStoreContract):
        @pytest.fixture
        def store(self):
            with MyStore(...) as store:
                yield store

``store`` has the operations of :class:`casework.IdempotencyStore`: ``claim``, ``complete``, ``release``, ``renew`` and
``wait_for_completion``. An async store is put behind :class:`casework.testing.bridge.BridgedStore`. The fixture may
have any scope: every test has keys of its own. Leases and expiries here are short, so that the suite is; a store with a
virtual clock overrides :meth:`let_pass`.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from casework.errors import ItemTooLarge

SHORT_S = 0.4
"""A lease that is to lapse."""

LONG_S = 300.0
"""A lease that is not."""

PATIENCE_S = 30.0
"""What has not happened after so long will not."""

ANY_BYTES = bytes(range(256)) + b"\xff\x00 {} \xed\xa0\x80\r\n"


class IdempotencyStoreContract:
    """What every idempotency store promises. Override ``store``."""

    largest_bytes = 3_500_000
    """The largest result; less only where a test server counts its bytes wrongly."""

    @pytest.fixture
    def store(self) -> Iterator[Any]:
        """The store under test."""
        raise NotImplementedError("override the fixture `store` in your subclass")

    @pytest.fixture
    def key(self) -> str:
        """A key that no other test has."""
        return f"contract-{secrets.token_hex(8)}"

    def let_pass(self, seconds: float) -> None:
        """Let time pass; override it for a virtual clock."""
        time.sleep(seconds)

    # --- what the tests share -----------------------------------------------------------------------------------------

    def _claimed(self, store: Any, key: str, lease_s: float = LONG_S, fingerprint: str = "print") -> str:
        claim = store.claim(key, fingerprint, 1, lease_s)
        assert claim.result == "new_claimed"
        assert isinstance(claim.token, str) and claim.token
        return claim.token

    def _when_lapsed(self, store: Any, key: str, expected: str = "lease_reclaimed", fingerprint: str = "print") -> Any:
        """Claim until the claim that stands has lapsed, or the result has expired."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            claim = store.claim(key, fingerprint, 1, LONG_S)
            if claim.token is not None:
                assert claim.result == expected
                return claim
            assert time.monotonic() < deadline, f"still {claim.result} long after its end"
            self.let_pass(SHORT_S / 4)

    def _together(self, count: int, act: Callable[[], Any]) -> list[Any]:
        """What ``act`` returns in so many threads that begin at once."""
        barrier, found = threading.Barrier(count), []

        def work() -> None:
            barrier.wait()
            found.append(act())

        threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert len(found) == count
        return found

    # --- claim --------------------------------------------------------------------------------------------------------

    def test_the_first_claim_wins_and_the_next_is_told_who_has_it(self, store: Any, key: str) -> None:
        first = store.claim(key, "print", 3, LONG_S)
        assert first.result == "new_claimed" and first.token and not first.recovered_from_corrupt
        second = store.claim(key, "other", 1, LONG_S)
        assert second.result == "already_claimed" and second.token is None
        record = second.record
        assert (record.key, record.state) == (key, "claimed")
        assert (record.fingerprint, record.fingerprint_version) == ("print", 3)

    def test_keys_do_not_touch_each_other(self, store: Any, key: str) -> None:
        keys = [key, key + " ", key.upper(), key + "\u00e9", key + "e\u0301", key + "/0", key + "x" * (2048 - len(key))]
        tokens = [self._claimed(store, each) for each in keys]
        assert len(set(tokens)) == len(keys)
        assert store.complete(keys[0], tokens[0], 200, None, b"mine", LONG_S)
        for each in keys[1:]:
            assert store.claim(each, "print", 1, LONG_S).result == "already_claimed"

    def test_of_many_first_claims_at_once_one_wins(self, store: Any, key: str) -> None:
        for n in range(5):
            place = f"{key}-{n}"
            results = [c.result for c in self._together(6, lambda place=place: store.claim(place, "print", 1, LONG_S))]  # type: ignore[misc]
            assert sorted(results) == ["already_claimed"] * 5 + ["new_claimed"]

    def test_a_lapsed_lease_is_reclaimed_and_its_holder_is_fenced(self, store: Any, key: str) -> None:
        zombie = self._claimed(store, key, SHORT_S)
        claim = self._when_lapsed(store, key)
        assert claim.token != zombie
        assert not store.complete(key, zombie, 200, None, b"late", LONG_S)
        assert not store.release(key, zombie)
        assert not store.renew(key, zombie, LONG_S)
        assert store.claim(key, "print", 1, LONG_S).result == "already_claimed"
        assert store.complete(key, claim.token, 201, None, b"mine", LONG_S)
        done = store.claim(key, "print", 1, LONG_S)
        assert (done.result, done.record.status, done.record.body) == ("already_completed", 201, b"mine")

    def test_of_many_who_reclaim_a_lapsed_lease_at_once_one_wins(self, store: Any, key: str) -> None:
        """A takeover is one conditional write: who looked and then writes is too late."""
        for n in range(4):
            place = f"{key}-{n}"
            self._claimed(store, place, SHORT_S)
            won: list[Any] = []
            deadline = time.monotonic() + PATIENCE_S
            while not won:
                self.let_pass(SHORT_S / 2)
                found = self._together(6, lambda place=place: store.claim(place, "print", 1, LONG_S))  # type: ignore[misc]
                won = [claim for claim in found if claim.token is not None]
                assert time.monotonic() < deadline
            assert [claim.result for claim in won] == ["lease_reclaimed"]
            assert store.complete(place, won[0].token, 200, None, b"", LONG_S)

    def test_a_renewed_lease_is_not_reclaimed(self, store: Any, key: str) -> None:
        token = self._claimed(store, key, SHORT_S)
        assert store.renew(key, token, LONG_S)
        self.let_pass(SHORT_S * 2.5)
        assert store.claim(key, "print", 1, LONG_S).result == "already_claimed"
        assert store.renew(key, token, LONG_S)
        assert store.complete(key, token, 200, None, b"done", LONG_S)

    def test_a_zombie_does_not_renew_the_claim_of_who_took_over(self, store: Any, key: str) -> None:
        zombie = self._claimed(store, key, SHORT_S)
        deadline = time.monotonic() + PATIENCE_S
        while (claim := store.claim(key, "print", 1, SHORT_S)).token is None:
            assert time.monotonic() < deadline
            self.let_pass(SHORT_S / 4)
        assert not store.renew(key, zombie, LONG_S)
        again = self._when_lapsed(store, key)  # the zombie's long lease would keep this from ever being
        assert again.token not in (zombie, claim.token)

    # --- complete -----------------------------------------------------------------------------------------------------

    def test_a_result_comes_back_as_it_was(self, store: Any, key: str) -> None:
        """Status, every header in its place, every byte; small and large."""
        headers = [
            ("Content-Type", "text/plain; charset=utf-8"),
            ("X-Same", "1"),
            ("X-Same", "2"),
            ("x-\u00e9", '\u00fc, "'),
        ]
        for n, body in enumerate((ANY_BYTES, b"", b"{}", b"x" * 4097, ANY_BYTES * 2000)):
            place = f"{key}-{n}"
            token = self._claimed(store, place)
            assert store.complete(place, token, 207, headers, body, LONG_S)
            done = store.claim(place, "print", 1, LONG_S)
            assert (done.result, done.token, done.record.state) == ("already_completed", None, "completed")
            assert (done.record.status, done.record.body) == (207, body)
            assert [tuple(pair) for pair in done.record.headers] == headers
            assert (done.record.fingerprint, done.record.fingerprint_version) == ("print", 1)

    def test_headers_may_be_a_mapping_or_none(self, store: Any, key: str) -> None:
        token = self._claimed(store, key)
        assert store.complete(key, token, 200, {"A": "1", "B": "2"}, b"", LONG_S)
        assert [tuple(pair) for pair in store.claim(key, "print", 1, 5).record.headers] == [("A", "1"), ("B", "2")]
        token = self._claimed(store, key + "x")
        assert store.complete(key + "x", token, 200, None, b"", LONG_S)
        assert list(store.claim(key + "x", "print", 1, 5).record.headers) == []

    def test_a_large_result_is_kept_whole(self, store: Any, key: str) -> None:
        token = self._claimed(store, key)
        body = (ANY_BYTES * 14_000)[: self.largest_bytes]
        assert store.complete(key, token, 200, {"A": "1"}, body, LONG_S)
        assert store.claim(key, "print", 1, LONG_S).record.body == body
        found = store.wait_for_completion(key, 5)
        assert found is not None and found.body == body

    def test_a_result_that_is_too_large_is_refused_and_the_claim_stands(self, store: Any, key: str) -> None:
        token = self._claimed(store, key)
        with pytest.raises(ItemTooLarge):
            store.complete(key, token, 200, None, b"x" * 4_200_000, LONG_S)
        assert store.claim(key, "print", 1, LONG_S).result == "already_claimed"
        assert store.complete(key, token, 200, None, b"small", LONG_S)

    def test_only_the_holder_completes_and_only_once(self, store: Any, key: str) -> None:
        token = self._claimed(store, key)
        assert not store.complete(key, "another-token", 500, None, b"theirs", LONG_S)
        assert not store.complete(key + "-nobody", token, 500, None, b"theirs", LONG_S)
        assert store.claim(key, "print", 1, LONG_S).result == "already_claimed"
        assert store.complete(key, token, 200, {"N": "1"}, b"first", LONG_S)
        assert not store.complete(key, token, 500, {"N": "2"}, b"second", LONG_S)
        record = store.claim(key, "print", 1, LONG_S).record
        assert (record.status, record.body, [tuple(h) for h in record.headers]) == (200, b"first", [("N", "1")])

    def test_a_completed_record_is_neither_renewed_nor_released(self, store: Any, key: str) -> None:
        token = self._claimed(store, key)
        assert store.complete(key, token, 200, None, b"done", LONG_S)
        assert not store.renew(key, token, LONG_S)
        assert not store.release(key, token)
        done = store.claim(key, "print", 1, LONG_S)
        assert (done.result, done.record.body) == ("already_completed", b"done")

    def test_an_expired_result_makes_room_for_a_new_claim(self, store: Any, key: str) -> None:
        token = self._claimed(store, key)
        assert store.complete(key, token, 200, {"Old": "1"}, b"old", SHORT_S)
        claim = self._when_lapsed(store, key, "new_claimed", "new print")
        assert claim.token != token
        assert store.complete(key, claim.token, 201, None, b"new", LONG_S)
        record = store.claim(key, "new print", 1, LONG_S).record
        assert (record.status, record.body, list(record.headers)) == (201, b"new", [])
        assert record.fingerprint == "new print"

    def test_a_result_may_be_kept_for_ever(self, store: Any, key: str) -> None:
        token = self._claimed(store, key, SHORT_S)
        assert store.complete(key, token, 200, None, b"kept", None)
        self.let_pass(SHORT_S * 2)
        assert store.claim(key, "print", 1, LONG_S).result == "already_completed"

    # --- release ------------------------------------------------------------------------------------------------------

    def test_only_the_holder_releases_and_the_next_claim_is_a_new_one(self, store: Any, key: str) -> None:
        """Released by the holder, and only by it; what it does afterwards is refused."""
        token = self._claimed(store, key)
        assert not store.release(key, "another-token")
        assert not store.release(key + "-nobody", token)
        assert store.claim(key, "print", 1, LONG_S).result == "already_claimed"
        assert store.release(key, token)
        assert not store.release(key, token)
        assert not store.renew(key, token, LONG_S)
        assert not store.complete(key, token, 200, None, b"late", LONG_S)
        claim = store.claim(key, "other print", 2, LONG_S)
        assert claim.result == "new_claimed" and claim.token not in (None, token)
        record = store.claim(key, "print", 1, LONG_S).record
        assert (record.fingerprint, record.fingerprint_version) == ("other print", 2)

    # --- wait ---------------------------------------------------------------------------------------------------------

    def _waiting(self, store: Any, key: str) -> tuple[threading.Thread, list[Any]]:
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(store.wait_for_completion(key, 600)), daemon=True)
        thread.start()
        return thread, found

    def test_a_waiter_gets_the_result(self, store: Any, key: str) -> None:
        token = self._claimed(store, key)
        waiting = [self._waiting(store, key) for _ in range(3)]
        assert store.complete(key, token, 203, {"A": "1"}, ANY_BYTES, LONG_S)
        for thread, found in waiting:
            thread.join(PATIENCE_S)
            assert [(r.status, r.body, [tuple(h) for h in r.headers]) for r in found] == [
                (203, ANY_BYTES, [("A", "1")])
            ]

    def test_a_waiter_is_let_go_by_a_release_and_does_not_claim(self, store: Any, key: str) -> None:
        token = self._claimed(store, key)
        thread, found = self._waiting(store, key)
        assert store.release(key, token)
        thread.join(PATIENCE_S)
        assert found == [None]
        assert store.claim(key, "print", 1, LONG_S).result == "new_claimed"

    def test_a_waiter_is_let_go_when_the_lease_lapses(self, store: Any, key: str) -> None:
        self._claimed(store, key, SHORT_S)
        thread, found = self._waiting(store, key)
        deadline = time.monotonic() + PATIENCE_S
        while thread.is_alive() and time.monotonic() < deadline:
            self.let_pass(SHORT_S / 4)
        assert found == [None]
        assert store.claim(key, "print", 1, LONG_S).result == "lease_reclaimed"

    def test_waiting_ends_at_its_time_and_where_there_is_nothing_to_wait_for(self, store: Any, key: str) -> None:
        assert store.wait_for_completion(key, 5) is None
        token = self._claimed(store, key)
        assert store.wait_for_completion(key, 0.05) is None
        assert store.wait_for_completion(key, 0) is None
        assert store.complete(key, token, 200, None, b"x", LONG_S)
        assert store.wait_for_completion(key, 0).body == b"x"
