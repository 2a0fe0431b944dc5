# ruff: noqa: PT012 - what is raised is raised at the end of a block, which is the point
"""``app.transaction()``: all of it or nothing, and a refusal names its part."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import casework
from casework import (
    ExecutionExists,
    ItemTooLarge,
    LeaseLost,
    MemoryIdempotencyStore,
    Misuse,
    OutcomeUnknown,
    TransactionRefused,
    idempotent,
    once,
)
from casework.idempotency.guarding import Policy
from casework.kernel.effects import Get, Query, Transact
from casework.kernel.schema import EXECUTIONS

THINGS = casework.Table(name="things", partition="id")
MACHINE = casework.Machine.from_dict({
    "id": "order", "initial": "open", "context": {"n": 0},
    "states": {"open": {"on": {"Paid": "paid"}}, "paid": {"on": {"Sent": "done"}}, "done": {"type": "final"}},
})  # fmt: skip


@pytest.fixture(params=["memory", "sqlite"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[casework.App]:
    url = "memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 'shop.db'}"
    with casework.open(url, machines=[MACHINE]) as app:
        app.backend.create_tables([THINGS])
        yield app


def thing(app: Any, id: str = "a") -> Any:
    return app.backend.execute(Get(THINGS.key(id)))


def settle(app: casework.App, id: str) -> casework.Execution:
    from casework.backends.drive import run
    from casework.executions.advance import advance

    run(advance(app.core.rt, id), app.backend)
    return app.get(id)


def test_a_start_a_send_and_an_item_are_committed_together_in_order(app: casework.App) -> None:
    app.start("order", id="o-1")
    with app.transaction() as tx:
        started = tx.start("order", id="o-2")
        tx.send("o-1", "Paid")
        tx.send("o-1", "Sent")
        tx.send("o-2", "Paid")
        tx.put(THINGS, {"id": "a", "n": 1}, when=casework.absent())
        with pytest.raises(Misuse, match="commits"):
            _ = started.execution
        assert thing(app) is None
    assert started.execution.configuration == ["open"]
    assert (settle(app, "o-1").status, settle(app, "o-2").configuration) == ("done", ["paid"])
    assert thing(app) == {"id": "a", "n": 1}


def test_a_refused_part_names_itself_and_nothing_is_written(app: casework.App) -> None:
    with app.transaction() as tx:
        tx.put(THINGS, {"id": "a", "n": 1})
    with pytest.raises(TransactionRefused) as refused, app.transaction() as tx:
        tx.start("order", id="o-1")
        tx.update(THINGS.key("b"), {"n": 2})
        tx.put(THINGS, {"id": "a", "n": 2}, when=casework.equals("n", 7))
    assert refused.value.intent == "put things['a']"
    assert refused.value.refusals[0] is not None and refused.value.refusals[0].item == {"id": "a", "n": 1}
    assert thing(app, "b") is None
    with pytest.raises(casework.NoSuchExecution):
        app.get("o-1")


def test_a_refused_write_names_its_item_and_its_condition(app: casework.App) -> None:
    with app.transaction() as tx:
        tx.put(THINGS, {"id": "a", "n": 1})
    with (
        pytest.raises(
            TransactionRefused, match=r"put things\['a'\] was refused \(when=absent\(\) does not hold, an item"
        ),
        app.transaction() as tx,
    ):
        tx.put(THINGS, {"id": "a"}, when=casework.absent())
    condition = casework.all_of(
        casework.any_of(casework.equals("n", 7), casework.not_(casework.present("n"))), casework.at_most("n", 3)
    )
    with pytest.raises(TransactionRefused) as refused, app.transaction() as tx:
        tx.delete(THINGS.key("b"), when=condition)
    said = (
        "when=all_of(any_of(equals('n', 7), not_(present('n'))), at_most('n', 3)) does not hold, there is no such item"
    )
    assert said in str(refused.value) and str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)


def test_what_is_no_write_is_refused_in_words(app: casework.App) -> None:
    tx = app.transaction()
    for call, said in (
        (lambda: tx.put("tt", {"id": "a"}), "put: table is 'tt'"),  # type: ignore[arg-type]
        (lambda: tx.put(THINGS, "a"), "put: item is 'a'"),  # type: ignore[arg-type]
        (lambda: tx.put(THINGS, {"id": "a"}, when="absent"), "put: when is 'absent'"),  # type: ignore[arg-type]
        (lambda: tx.update("a", {}), "update: key is 'a'"),  # type: ignore[arg-type]
        (lambda: tx.update(THINGS.key("a"), 1), "update: set is 1"),  # type: ignore[arg-type]
        (lambda: tx.delete("a"), "delete: key is 'a'"),  # type: ignore[arg-type]
        (lambda: tx.check("a", casework.absent()), "check: key is 'a'"),  # type: ignore[arg-type]
    ):
        with pytest.raises(Misuse, match=said):
            call()
    with pytest.raises(Misuse, match="timeout_s is '3'"):
        app.wait("o-1", timeout_s="3")  # type: ignore[arg-type]


def test_an_exception_in_the_block_discards_all_of_it(app: casework.App) -> None:
    with pytest.raises(ZeroDivisionError), app.transaction() as tx:
        tx.put(THINGS, {"id": "a"})
        raise ZeroDivisionError
    assert thing(app) is None
    with pytest.raises(Misuse, match="ended"):
        tx.put(THINGS, {"id": "a"})


def test_a_start_that_was_made_before_is_left_as_it_is_and_another_is_refused(app: casework.App) -> None:
    app.start("order", id="o-1", input={"a": 1})
    with app.transaction() as tx:
        started = tx.start("order", id="o-1", input={"a": 1})
        tx.put(THINGS, {"id": "a"})
    assert (started.execution.id, thing(app)) == ("o-1", {"id": "a"})
    with pytest.raises(ExecutionExists), app.transaction() as tx:
        tx.start("order", id="o-1", input={"a": 2})
        tx.put(THINGS, {"id": "b"})
    assert thing(app, "b") is None


def test_bad_parts_are_refused_where_they_are_given(app: casework.App) -> None:
    with app.transaction() as tx:
        for wrong in (
            lambda: tx.put(THINGS, {"n": 1}),
            lambda: tx.send("", "Paid"),
            lambda: tx.send("o-1", "Paid", {1: 2}),
            lambda: tx.send("o-1", "Paid", priority=9),
            lambda: tx.start("nobody"),
            lambda: tx.finish("x"),
        ):
            with pytest.raises(Misuse):
                wrong()
    app.start("order", id="o-1")
    with pytest.raises(ItemTooLarge, match="o-1"), app.transaction() as tx:
        for n in range(100):
            tx.put(THINGS, {"id": f"{n}"})
        tx.send("o-1", "Paid")
    assert thing(app, "1") is None


@pytest.mark.parametrize(
    ("is_request", "given", "said"),
    [
        (False, {"body": b"x"}, "belong to a request"),
        (False, {"status": 201}, "belong to a request"),
        (True, {"body": b"x", "result": 1}, "not both"),
        (True, {"status": 7}, "status is 7"),
        (True, {"headers": {"X": 5}}, "the value of X is 5"),
    ],
)
def test_what_no_caller_could_be_answered_with_is_no_result_of_a_claim(
    app: casework.App, is_request: bool, given: dict[str, Any], said: str
) -> None:
    claim = casework.Claim("k", "n", "t", Policy(), epoch=1, is_reclaimed=False)
    claim.answers_http, claim.shared = is_request, app.idempotency.shared
    with app.transaction() as tx, pytest.raises(Misuse, match=said):
        tx.finish(claim=claim, **given)


def test_names_of_attributes_to_remove_are_a_list(app: casework.App) -> None:
    with app.transaction() as tx, pytest.raises(Misuse, match="update: remove is 'note'"):
        tx.update(THINGS.key("a"), {}, remove="note")


def test_a_function_finishes_its_key_in_the_transaction(app: casework.App) -> None:
    ran = []

    @idempotent(app, key="n")
    def work(n: int) -> dict:  # type: ignore[type-arg]
        ran.append(n)
        with app.transaction() as tx:
            tx.put(THINGS, {"id": f"t-{n}"}, when=casework.absent())
            tx.finish({"n": n})
        if n == 2:
            raise RuntimeError("after the commit")
        return {"n": n}

    assert work(1) == work(1) == {"n": 1}
    with pytest.raises(RuntimeError):
        work(2)
    assert work(2) == {"n": 2}  # it was committed
    assert ran == [1, 2] and thing(app, "t-2") is not None


def test_when_the_transaction_is_refused_the_key_is_free_again(app: casework.App) -> None:
    app.backend.execute(Transact([casework_put("t-1")]))

    @idempotent(app, key="n")
    def work(n: int) -> int:
        with app.transaction() as tx:
            tx.finish(n)
            tx.put(THINGS, {"id": f"t-{n}"}, when=casework.absent())
        return n

    for _ in range(2):
        with pytest.raises(TransactionRefused):
            work(1)


def casework_put(id: str) -> Any:
    from casework.kernel.items import Put

    return Put(THINGS, {"id": id})


def test_a_holder_that_was_overtaken_writes_nothing(app: casework.App) -> None:
    with pytest.raises(LeaseLost), once(app, "k") as block:
        assert block.claim is not None
        app.idempotency.force_release(block.claim.key)
        with app.transaction() as tx:
            tx.put(THINGS, {"id": "a"})
            tx.finish("mine")
    assert thing(app) is None


def test_a_claim_of_another_store_is_refused(app: casework.App) -> None:
    with once(MemoryIdempotencyStore(), "k"), app.transaction() as tx, pytest.raises(Misuse, match="another store"):
        tx.finish(1)


def test_a_transaction_whose_answer_was_lost_is_resolved(app: casework.App, monkeypatch: pytest.MonkeyPatch) -> None:
    execute = app.backend.execute
    lost = [True]

    def losing(effect: Any) -> Any:
        answer = execute(effect)
        if isinstance(effect, Transact) and lost:
            lost.pop()
            raise OutcomeUnknown("lost")
        return answer

    monkeypatch.setattr(app.backend, "execute", losing)

    @idempotent(app, key="n")
    def work(n: int) -> int:
        with app.transaction() as tx:
            tx.put(THINGS, {"id": "a", "n": n}, when=casework.absent())
            tx.finish(n)
        return n

    assert (work(1), work(1), lost) == (1, 1, [])


def test_it_works_with_await() -> None:
    async def main() -> Any:
        async with casework.open_async("memory:", machines=[MACHINE]) as app:
            await app.backend.create_tables([THINGS])

            @idempotent(app, key="n")
            async def work(n: int) -> int:
                async with app.transaction() as tx:
                    tx.start("order", id=f"o-{n}")
                    tx.put(THINGS, {"id": "a", "n": n})
                    tx.finish(n)
                return n

            assert await work(1) == await work(1) == 1
            return await app.backend.execute(Get(THINGS.key("a"))), (await app.get("o-1")).configuration

    assert asyncio.run(main()) == ({"id": "a", "n": 1}, ["open"])


def test_a_webhook_commits_its_key_its_execution_and_its_answer_together() -> None:
    from tests.idempotency.serving import on_waitress

    with casework.open("memory:", machines=[MACHINE]) as app:

        def webhook(environ: Any, start_response: Any) -> list[bytes]:
            with app.transaction() as tx:
                tx.start("order", id="o-1")
                tx.finish({"order": "o-1"}, status=201)
            start_response("201 Created", [("content-type", "application/json")])
            return [b'{"order":"o-1"}']

        guarded = casework.IdempotencyWsgiMiddleware(webhook, app, scope=None)
        with on_waitress(guarded) as post:
            first, second = post(), post()
        assert (first.status, first.body) == (second.status, second.body) == (201, b'{"order":"o-1"}')
        assert second.is_replay and second.headers["content-type"] == "application/json"
        assert app.get("o-1").configuration == ["open"]


def test_a_send_to_nobody_or_of_an_event_that_its_machine_does_not_know_writes_nothing(app: casework.App) -> None:
    app.start("order", id="o-1")
    with pytest.raises(casework.NoSuchExecution, match="o-9"), app.transaction() as tx:
        tx.put(THINGS, {"id": "a"})
        tx.send("o-9", "Paid")
    for id in ("o-1", "o-2"):  # there already, and started beside it
        with pytest.raises(casework.UnknownEvent, match=r"Piad.*it knows: Paid, Sent"), app.transaction() as tx:
            tx.put(THINGS, {"id": "a"})
            tx.send(id, "Piad")
            tx.start("order", id="o-2")
    assert thing(app) is None
    with app.transaction() as tx:  # the order in the block does not matter
        tx.send("o-2", "Paid")
        tx.start("order", id="o-2")
    assert settle(app, "o-2").configuration == ["paid"]
    with pytest.raises(Misuse, match="event_id"), app.transaction() as tx:
        tx.send("o-1", "Paid", event_id=7)  # type: ignore[arg-type]


class Reversing:
    """A codec that anybody can see at work."""

    def encode(self, text: str) -> str:
        return text[::-1]

    def decode(self, text: str) -> str:
        return text[::-1]


def test_what_is_sent_goes_through_the_codec() -> None:
    with casework.open("memory:", machines=[MACHINE], codec=Reversing()) as app:
        app.start("order", id="o-1")
        with app.transaction() as tx:
            tx.send("o-1", "Paid", {"card": "4242"})
        page = app.backend.execute(Query(EXECUTIONS, "o-1", None, "e/", "e0"))
        assert ["4242" in str(item["mails"]) for item in page.items] == [False]
        assert settle(app, "o-1").configuration == ["paid"]
