"""What each option of the idempotency records' methods changes."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from casework.idempotency.operating import get_record
from casework.kernel.schema import IDEMPOTENCY
from tests.options.applications import World
from tests.options.table import SOMETHING, refusal, row


def claimed(w: World, *keys: str, **options: Any) -> Any:
    """The records, with claims on these keys; their tokens."""
    for key in keys or ("k",):
        found = w.app.idempotency.claim(
            **{"key": key, "fingerprint": "f", "fingerprint_version": 1, "lease_ttl_seconds": 30.0, **options}
        )
    return found


def record(w: World, key: str = "k") -> Any:
    return w.app.idempotency.get(key)


def completed(w: World, *, token: str | None = None, **options: Any) -> Any:
    own = claimed(w).token
    arguments = {"key": "k", "status": 200, "headers": None, "body": b"", "expires_after_seconds": None, **options}
    w.app.idempotency.complete(**arguments, token=own if token is None else token)
    return record(w)


def of_keys(w: World, call: Any) -> list[str | None]:
    """What becomes of the claims on two keys."""
    tokens = {key: claimed(w, key).token for key in ("k", "l")}
    call(w.app.idempotency, tokens)
    return [None if (found := record(w, key)) is None else found.state for key in ("k", "l")]


def of_token(w: World, method: str, token: str, *more: Any) -> Any:
    own = claimed(w).token
    return refusal(lambda: getattr(w.app.idempotency, method)("k", own if token == "own" else token, *more)), record(w)


def renewed(w: World, key: str) -> list[int]:
    tokens = {each: claimed(w, each).token for each in ("k", "l")}
    w.app.idempotency.renew(key, tokens[key], 60.0)
    return [record(w, each).renewals for each in ("k", "l")]


def purged(w: World, count: int) -> list[str]:
    for key in "kl":
        token = claimed(w, key).token
        w.virtual.idempotency.complete(key, token, 200, None, b"", 1.0)
    w.virtual.clock.advance(1_000_000)
    w.virtual.idempotency.purge_expired(list(w.backend.tables.stored(IDEMPOTENCY).items.values())[:count])
    return [key for key in "kl" if record(w, key)]


def waited(w: World, timeout_s: float) -> bool:
    clock, look = w.virtual.clock, w.virtual.clock.now
    claimed(w)
    clock.now = lambda: clock.advance(0.5) or look()  # type: ignore[func-returns-value]
    began_us = look().middle_us
    w.app.idempotency.wait_for_completion("k", timeout_s)
    return (look().middle_us - began_us) / 1e6 >= 6


def carried(w: World, method: str, key: str) -> Any:
    """What a program says that looks at that key, where ``k`` is claimed."""
    claimed(w)
    answer = getattr(w.app.idempotency, method)(get_record(w.app.idempotency.shared, key))
    found = asyncio.run(answer) if inspect.iscoroutine(answer) else answer
    return found and found.key


TOKEN = (("own", SOMETHING), ("another", SOMETHING))
FIRST_OR_SECOND = (("k", SOMETHING), ("l", SOMETHING))

KEY_ROWS = {
    "keys.claim": {
        "key": row(lambda w, key: (claimed(w, "k"), claimed(w, key).is_mine)[1], ("k", False), ("l", True)),
        "fingerprint": row(lambda w, text: claimed(w, fingerprint=text).record.fingerprint, ("f", "f"), ("g", "g")),
        "fingerprint_version": row(
            lambda w, n: claimed(w, fingerprint_version=n).record.fingerprint_version, (1, 1), (2, 2)
        ),
        "lease_ttl_seconds": row(
            lambda w, lease_s: claimed(w, lease_ttl_seconds=lease_s).record.lease_us, (5.0, 5_000_000), (6.0, 6_000_000)
        ),
    },
    "keys.complete": {
        "key": row(
            lambda w, key: of_keys(w, lambda keys, tokens: keys.complete(key, tokens[key], 200, None, b"", None)),
            ("k", ["completed", "claimed"]), ("l", ["claimed", "completed"]),
        ),
        "token": row(
            lambda w, token: (refusal(lambda: completed(w, token=token)), record(w).state),
            (None, ("", "completed")), ("another", SOMETHING),
        ),
        "status": row(lambda w, status: completed(w, status=status).status, (200, 200), (201, 201)),
        "headers": row(
            lambda w, headers: completed(w, headers=headers).headers, (None, ()), ({"a": "b"}, (("a", "b"),))
        ),
        "body": row(lambda w, body: completed(w, body=body).body, (b"x", b"x"), (b"y", b"y")),
        "expires_after_seconds": row(
            lambda w, after_s: completed(w, expires_after_seconds=after_s).kept_us, (None, 0), (5.0, 5_000_000)
        ),
    },
    "keys.release": {
        "key": row(
            lambda w, key: of_keys(w, lambda keys, tokens: keys.release(key, tokens[key])),
            ("k", ["released", "claimed"]), ("l", ["claimed", "released"]),
        ),
        "token": row(lambda w, token: of_token(w, "release", token)[1].state, ("own", "released"), ("no", "claimed")),
    },
    "keys.renew": {
        "key": row(renewed, ("k", [1, 0]), ("l", [0, 1])),
        "token": row(lambda w, token: of_token(w, "renew", token, 60.0)[1].renewals, ("own", 1), ("no", 0)),
        "lease_ttl_seconds": row(
            lambda w, lease_s: of_token(w, "renew", "own", lease_s)[1].lease_us, (5.0, 5_000_000), (6.0, 6_000_000)
        ),
    },
    "keys.wait_for_completion": {
        "key": row(
            lambda w, key: (completed(w), w.app.idempotency.wait_for_completion(key, 0.0) is None)[1],
            ("k", False), ("l", True),
        ),
        "timeout_seconds": row(waited, (0.1, False), (8.0, True)),
    },
    "keys.get": {"key": row(lambda w, key: (claimed(w), record(w, key) is None)[1], ("k", False), ("l", True))},
    "keys.force_release": {
        "key": row(
            lambda w, key: of_keys(w, lambda keys, tokens: keys.force_release(key)),
            ("k", ["released", "claimed"]), ("l", ["claimed", "released"]),
        ),
    },
    "keys.purge": {
        "key": row(
            lambda w, key: of_keys(w, lambda keys, tokens: keys.purge(key)),
            ("k", [None, "claimed"]), ("l", ["claimed", None]),
        ),
    },
    **{
        f"keys.{name}": {"program": row(lambda w, key, name=name: carried(w, name, key), ("k", "k"), ("l", None))}
        for name in ("run", "run_on_loop")
    },
    "keys.purge_expired": {"items": row(purged, (0, ["k", "l"]), (1, ["l"]))},
}  # fmt: skip
