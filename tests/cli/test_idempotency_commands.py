"""``casework idempotency``: what an operator sees and can do."""

from __future__ import annotations

from casework import SqliteIdempotencyStore, idempotent
from tests.cli.conftest import Shell


def fill(shell: Shell) -> None:
    with SqliteIdempotencyStore(shell.folder / "casework.db") as store:

        @idempotent(store, key="n", name="shop.refund")
        def refund(n: int) -> dict[str, int]:
            return {"refunded": n}

        refund(1), refund(2)
        store.claim("shop.pay/1", "f" * 32, 1, 3600)
        token = store.claim("shop.big/1", "f" * 32, 1, 3600).token
        store.complete("shop.big/1", str(token), 200, [("A", "1")], b"x" * 900_000, None)


def test_keys_are_listed_and_shown(shell: Shell) -> None:
    fill(shell)
    lines = shell.run("idempotency", "list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["completed", "completed", "claimed", "completed"]
    assert [
        line.split()[-1] for line in shell.run("idempotency", "list", "--state", "claimed").stdout.splitlines()
    ] == ["shop.pay/1"]
    first = shell.json("idempotency", "list", "--prefix", "shop.refund/", "--limit", "1")
    rest = shell.json("idempotency", "list", "--prefix", "shop.refund/", "--limit", "1", "--cursor", first["next"])
    assert [item["key"] for item in first["items"] + rest["items"]] == ["shop.refund/1", "shop.refund/2"]
    shown = shell.run("idempotency", "show", "shop.refund/1").stdout
    assert '{"refunded":1}' in shown and "expires" in shown
    assert "900,000 bytes in 3 chunks" in shell.run("idempotency", "show", "shop.big/1").stdout
    assert shell.json("idempotency", "show", "shop.refund/2")["body"] == '{"refunded":2}'


def test_a_key_that_is_text_may_be_given_without_its_quotes(shell: Shell) -> None:
    with SqliteIdempotencyStore(shell.folder / "casework.db") as store:
        for key in ('shop.pay/"a/1"', 'shop.pay/"2"', "shop.pay/2"):
            store.claim(key, "f" * 32, 1, 3600)
    for given, key in (("shop.pay/a/1", 'shop.pay/"a/1"'), ('shop.pay/"2"', 'shop.pay/"2"'), ("shop.pay/2",) * 2):
        assert shell.json("idempotency", "show", given)["key"] == key
    assert shell.run("idempotency", "release", "shop.pay/a/1").stdout == 'shop.pay/"a/1" is released\n'
    assert shell.run("idempotency", "purge", "shop.pay/a/1").stdout == 'shop.pay/"a/1" is forgotten: 1 item deleted\n'


def test_a_claim_is_released_and_a_key_purged(shell: Shell) -> None:
    fill(shell)
    assert "released" in shell.run("idempotency", "release", "shop.pay/1").stdout
    assert "nobody" in shell.run("idempotency", "release", "shop.pay/1", code=1).stderr
    assert "4 items" in shell.run("idempotency", "purge", "shop.big/1").stdout
    assert "no record" in shell.run("idempotency", "purge", "shop.big/1", code=1).stderr
    assert "no record" in shell.run("idempotency", "show", "shop.big/1", code=1).stderr
    with SqliteIdempotencyStore(shell.folder / "casework.db") as store:
        assert store.claim("shop.pay/1", "", 1, 5).result == "new_claimed"


def test_what_has_expired_is_deleted_from_a_file(shell: Shell) -> None:
    fill(shell)
    with SqliteIdempotencyStore(shell.folder / "casework.db") as store:
        store.shared.grace_s = -10  # so that nobody has to wait until it has ended
        claim = store.claim("old/1", "", 1, 60)
        store.complete("old/1", str(claim.token), 200, None, b"x" * 400_000, 0.001)
    assert shell.run("idempotency", "purge", "--expired").stdout == "3 items deleted\n"
    assert shell.run("idempotency", "purge", "--expired").stdout == "0 items deleted\n"
    assert len(shell.run("idempotency", "list").stdout.splitlines()) == 4
    assert "name a key" in shell.refused("idempotency", "purge")


def test_a_store_that_is_not_there_is_not_made(shell: Shell) -> None:
    assert "no database" in shell.refused("idempotency", "list")
    assert not (shell.folder / "casework.db").exists()
