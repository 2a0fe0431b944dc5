"""The demo on real worker processes, one of them killed; and that its proof is one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import casework
from casework.demo import ledger
from casework.demo.evidence import Evidence, gather
from casework.demo.machine import machines
from casework.demo.orders import ENDS, read_orders
from casework.demo.proof import Kill, Proof, prove

pytestmark = pytest.mark.slow

ORDERS = 30


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "CASEWORK_STORE"}
    return {**kept, "NO_COLOR": "1"}


def demo(*args: str, folder: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "casework", "demo", "--orders", str(ORDERS), *args]
    done = subprocess.run(
        command,
        env={**environment(), "TMPDIR": str(folder), "CASEWORK_STORE": f"sqlite:///{folder}/application.db"},
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert not (folder / "application.db").exists(), "only --store says where the orders go"
    assert done.returncode == code, done.stdout[-3000:] + done.stderr[-3000:]
    return done


class Kept:
    """A demo that was run once, with its database and its ledger."""

    def __init__(self, folder: Path) -> None:
        done = demo("--keep", "--json", folder=folder)
        self.proof: dict[str, Any] = json.loads(done.stdout)
        (self.folder,) = folder.glob("casework-demo-*")
        self.orders = read_orders(ORDERS)
        self.entries = ledger.read(self.folder / "ledger.jsonl")
        self.webhooks = {order.id: 1 + order.repeats for order in self.orders if order.is_approved}
        self.kill = msgspec.convert(self.proof["kill"], Kill)
        with casework.open(self.proof["store"], machines=machines()) as app:
            self.evidence = gather(app, self.orders)

    def prove(self, *, entries: list[ledger.Entry] | None = None, evidence: Evidence | None = None) -> Proof:
        return prove(self.orders, evidence or self.evidence, entries or self.entries, self.webhooks, self.kill)

    def copy(self) -> Evidence:
        return msgspec.json.decode(msgspec.json.encode(self.evidence), type=Evidence)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    return Kept(tmp_path_factory.mktemp("demo"))


def assert_fails(proof: Proof, name: str, *words: str) -> None:
    assert not proof.ok
    problems = {check.name: check.problems for check in proof.checks}
    assert problems[name], problems
    assert all(any(word in problem for problem in problems[name]) for word in words), problems[name]


# --- it proves what happened ------------------------------------------------------------------------------------------


def test_the_proof_of_a_run_with_a_killed_worker_holds(kept: Kept) -> None:
    proof = kept.proof
    assert proof["ok"] is True
    assert [check["problems"] for check in proof["checks"]] == [[]] * len(proof["checks"])
    orders = kept.orders
    assert proof["ends"] == {
        end: sum(ENDS[order.story] == end for order in orders) for end in sorted({ENDS[o.story] for o in orders})
    }
    assert proof["kill"]["held"]
    assert proof["tasks"]["charge_card"]["failed"] > 0
    assert proof["webhooks"] == {
        "delivered": sum(kept.webhooks.values()),
        "repeats": sum(order.repeats for order in orders if order.is_approved),
    }
    charges = {key: runs for key, runs in proof["keys"].items() if runs["task"] == "charge_card"}
    assert len(charges) == sum(order.is_approved for order in orders)
    assert sum(runs["effects"] > 0 for runs in charges.values()) == sum(order.is_charged for order in orders)


def test_a_task_that_was_cut_off_by_the_kill_ran_again_elsewhere_under_the_same_key(kept: Kept) -> None:
    again = [kept.proof["keys"][key] for key in kept.kill.held if kept.proof["keys"][key]["runs"] > 1]
    assert again
    assert all(len(set(runs["pids"])) > 1 for runs in again)


def test_the_database_says_the_same_when_it_is_read_again(kept: Kept) -> None:
    assert kept.prove().ok


def test_which_attempts_fail_follows_from_the_seed(kept: Kept) -> None:
    from casework.demo.machine import fails

    began = {(entry.key, entry.attempt): False for entry in kept.entries if entry.what == ledger.BEGAN}
    declined = {order.id for order in kept.orders if order.story == "declined"}
    for entry in kept.entries:
        if entry.what == ledger.FAILED:
            began[entry.key, entry.attempt] = True
    cut_off = {entry.key for entry in kept.entries if entry.pid == kept.kill.pid and entry.key in kept.kill.held}
    for (key, attempt), has_failed in began.items():
        if key.endswith("/charge") and key not in cut_off and key.partition("/")[0] not in declined:
            assert has_failed == fails(1, key, attempt), (key, attempt)


# --- and nothing else -------------------------------------------------------------------------------------------------


def test_a_second_charge_under_another_key_breaks_the_proof(kept: Kept) -> None:
    charge = next(entry for entry in kept.entries if entry.task == "charge_card" and entry.what == ledger.EFFECT)
    forged = msgspec.structs.replace(charge, key=charge.key + "-again")
    assert_fails(kept.prove(entries=[*kept.entries, forged]), "each charge once, under one key", charge.order)


def test_a_charge_that_the_bank_has_not_breaks_the_proof(kept: Kept) -> None:
    charge = next(entry for entry in kept.entries if entry.task == "charge_card" and entry.what == ledger.EFFECT)
    entries = [e for e in kept.entries if not (e.key == charge.key and e.what == ledger.EFFECT)]
    assert_fails(kept.prove(entries=entries), "each charge once, under one key", charge.order)


def test_a_run_that_two_workers_held_breaks_the_proof(kept: Kept) -> None:
    began = next(entry for entry in kept.entries if entry.what == ledger.BEGAN)
    forged = msgspec.structs.replace(began, pid=1)
    assert_fails(kept.prove(entries=[*kept.entries, forged]), "each attempt had one holder", began.key)


def test_a_lost_task_of_the_killed_worker_breaks_the_proof(kept: Kept) -> None:
    stories = {order.id: order.story for order in kept.orders}
    key = next(key for key in kept.kill.held if stories[kept.proof["keys"][key]["order"]] != "cancels")
    entries = [entry for entry in kept.entries if entry.key != key or entry.pid == kept.kill.pid]
    assert_fails(kept.prove(entries=entries), "a killed worker's tasks went on", key)


@pytest.mark.parametrize("tamper", ["gap", "repeat", "fork"])
def test_a_state_change_that_is_lost_or_doubled_breaks_the_proof(kept: Kept, tamper: str) -> None:
    evidence = kept.copy()
    trace = evidence.traces["o-0001"]
    if tamper == "gap":
        del trace[1]
    elif tamper == "repeat":
        trace.insert(1, trace[1])
    else:
        trace[1]["events"][0]["from"] = ["somewhere.else"]
    assert_fails(kept.prove(evidence=evidence), "every state change happened once", "o-0001")


def test_a_webhook_that_counted_twice_breaks_the_proof(kept: Kept) -> None:
    evidence = kept.copy()
    evidence.orders["o-0001"].context["approvals"] = 2
    assert_fails(kept.prove(evidence=evidence), "repeated webhooks had no effect", "o-0001")


def test_a_missing_shipment_breaks_the_proof(kept: Kept) -> None:
    evidence = kept.copy()
    evidence.children["o-0001"].pop()
    assert_fails(kept.prove(evidence=evidence), "a shipment for each item", "o-0001")


def test_an_order_that_is_lost_unfinished_or_unknown_breaks_the_proof(kept: Kept) -> None:
    evidence = kept.copy()
    evidence.listed.remove("o-0001")
    evidence.listed.append("o-9999")
    evidence.orders["o-0002"].status = "running"
    assert_fails(kept.prove(evidence=evidence), "every order ended", "o-0001", "o-0002", "o-9999")


def test_something_left_behind_breaks_the_proof(kept: Kept) -> None:
    evidence = kept.copy()
    evidence.left["o-0003"] = ["timer after:0:x"]
    assert_fails(kept.prove(evidence=evidence), "nothing is left behind", "o-0003")


def test_a_database_that_was_tampered_with_breaks_the_proof(kept: Kept) -> None:
    with casework.open(kept.proof["store"], machines=machines()) as app:
        app.purge("o-0005")
        evidence = gather(app, kept.orders)
    assert_fails(kept.prove(evidence=evidence), "every order ended", "o-0005")


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_demo_tells_what_happens_and_cleans_up(tmp_path: Path) -> None:
    said = demo("--seed", "5", "--workers", "3", folder=tmp_path).stdout
    for words in ("killed with SIGKILL", "The proof", "The tasks", "Order o-", "Machine order", "Proved: 10 of 10"):
        assert words in said
    assert "\x1b[" not in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_takes_its_workers_along(tmp_path: Path, sent: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "casework", "demo"],
        env={**environment(), "TMPDIR": str(tmp_path)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if "are ready" in line:
            break
    pids = [int(part.split(")")[0]) for part in said.split("(pid ")[1:]]
    process.send_signal(sent)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert len(pids) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--orders", "201"], "200"),
        (["--orders", "0"], "200"),
        (["--workers", "0"], "--workers"),
        (["--store", "memory:"], "memory:"),
        (["--store", "nonsense"], "nonsense"),
    ],
)
def test_a_demo_that_cannot_work_is_refused(tmp_path: Path, args: list[str], words: str) -> None:
    done = demo(*args, "--json", folder=tmp_path, code=2)
    assert words in done.stderr and done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_the_demo_runs_on_dynamodb_with_tables_of_its_own(
    tmp_path: Path, ministack_url: str, unique: Callable[[str], str]
) -> None:
    from tests.servers.clients import dynamodb

    client = dynamodb(ministack_url)
    before = set(client.list_tables()["TableNames"])
    store = f"dynamodb://?endpoint={ministack_url}&region=eu-west-1"
    proof = json.loads(demo("--json", "--store", store, folder=tmp_path).stdout)
    assert proof["ok"] is True and proof["kill"]["held"]
    assert "prefix=casework-demo-" in proof["store"]
    assert not {name for name in client.list_tables()["TableNames"] if name.startswith("casework-demo-")} - before
