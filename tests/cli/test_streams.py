"""``casework streams``, ``token`` and ``relay``, run as a user runs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

COMMAND = [str(Path(sys.executable).with_name("casework"))]


@pytest.fixture
def casework(tmp_path: Path):  # type: ignore[no-untyped-def]
    def run(*arguments: str, code: int = 0, stdin: str = "", **environment: str) -> str:
        done = subprocess.run(
            [*COMMAND, *arguments], cwd=tmp_path, input=stdin, text=True, capture_output=True, check=False,
            env={**os.environ, "CASEWORK_STORE": "sqlite:///shop.db", "NO_COLOR": "1", **environment}, timeout=60,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


def test_operations_are_appended_read_and_kept_in_order(casework, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    assert casework("streams", "append", "orders", "op-1", "one") == "1  op-1\n"
    lines = '{"id": "op-1", "data": "one"}\n{"id": "op-2", "data": "two"}\n'
    assert casework("streams", "append", "orders", "--lines", "-", stdin=lines) == "1  op-1  (was there)\n2  op-2\n"
    assert casework("streams", "read", "orders") == "1  op-1  one\n2  op-2  two\n"
    (line,) = casework("streams", "read", "orders", "--after", "1", "--json").splitlines()
    assert {key: json.loads(line)[key] for key in ("seq", "id", "data")} == {"seq": 2, "id": "op-2", "data": "two"}
    assert casework("streams", "head", "orders") == "orders: last 2, floor 0, snapshot 0\n"
    assert casework("streams", "list") == "orders\n"
    assert casework("streams", "repair", "orders") == "orders is whole\n"
    assert "is taken at 1" in casework("streams", "append", "orders", "op-1", "other", code=2)
    assert "not a stream id" in casework("streams", "append", "a/b", "op-1", "x", code=2)
    assert "0 to 2" in casework("streams", "truncate", "orders", "9", code=2)
    assert casework("streams", "truncate", "orders", "1", "--repush-window-s", "0").startswith("orders: floor 1")


def test_a_group_is_listed_moved_and_told_what_it_cannot(casework) -> None:  # type: ignore[no-untyped-def]
    for n in (1, 2, 3):
        casework("streams", "append", "orders", f"op-{n}", "x")
    assert casework("streams", "groups") == ""
    assert casework("streams", "seek", "mailer", "orders", "--to", "2") == "mailer  orders: goes on behind 2\n"
    assert casework("streams", "groups") == "mailer  orders: at 2, 1 behind, 0 parked, going\n"
    assert casework("streams", "seek", "mailer", "orders", "--to", "2001-01-01T00:00:00Z").endswith("behind 0\n")
    (listed,) = json.loads(casework("streams", "groups", "--json"))
    assert (listed["group"], listed["stream"], listed["after"], listed["trouble"]) == ("mailer", "orders", 0, "")
    assert "no place in a stream" in casework("streams", "seek", "mailer", "orders", "--to", "soon", code=2)
    assert "up to 3, its head" in casework("streams", "seek", "mailer", "orders", "--to", "9", code=2)
    assert casework("streams", "parked", "mailer", "orders") == ""
    assert "0 operations" in casework("streams", "replay", "mailer", "orders")
    assert "nothing parked at 2" in casework("streams", "replay", "mailer", "orders", "2", code=2)
    assert casework("streams", "resume", "mailer", "orders").endswith("goes on behind 0\n")


def test_a_token_is_made_listed_and_revoked(casework) -> None:  # type: ignore[no-untyped-def]
    token = casework("token", "create", "orders-*=read,append", "--label", "till 3").strip()
    listed = casework("token", "list")
    id = token.split("_")[1]
    assert listed == f"{id}  orders-*=read,append  till 3\n" and token[12:] not in listed
    assert casework("token", "revoke", id) == f"{id} is revoked\n"
    assert "there is no token" in casework("token", "revoke", id, code=2)
    assert casework("token", "list") == ""
    assert "is not a grant" in casework("token", "create", "orders=write", code=2)


@pytest.mark.parametrize("value", ["0", "x", "-3", "nan"])
def test_a_bad_push_deadline_refuses_to_start(casework, value: str) -> None:  # type: ignore[no-untyped-def]
    said = casework("relay", code=2, CASEWORK_RELAY_PUSH_DEADLINE_SECS=value)
    assert said.startswith("casework: CASEWORK_RELAY_PUSH_DEADLINE_SECS is")


def test_a_relay_serves_and_ends_on_sigterm(casework, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    pytest.importorskip("litestar")
    token = casework("token", "create", "*=read,append").strip()
    environment = {**os.environ, "CASEWORK_STORE": "sqlite:///shop.db"}
    with subprocess.Popen(
        [*COMMAND, "relay", "--port", "0"], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            said = process.stderr.readline()
            url = said.split()[-1]
            request = urllib.request.Request(
                f"{url}/v1/streams/s/ops", json.dumps({"ops": [{"id": "a", "data": ""}]}).encode(),
                {"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
            )  # fmt: skip
            with urllib.request.urlopen(request, timeout=30) as answer:
                assert json.load(answer)["results"][0]["seq"] == 1
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0 and process.stderr.read() == "casework: the relay has ended\n"
        finally:
            if process.poll() is None:
                process.kill()
    assert casework("streams", "read", "s") == "1  a  \n"


def test_a_replica_is_begun_written_to_offline_and_synced(casework, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    pytest.importorskip("litestar")
    from tests.executions.stepping import fresh_backend
    from tests.relay.conftest import Serving, World

    world = World(fresh_backend())
    with Serving(world) as url:
        token = {"CASEWORK_RELAY_TOKEN": world.token("tasks=read,append")}
        for name in ("ann", "ben"):
            casework("replica", "init", f"{name}.replica", "--stream", "tasks", "--relay", url)
        assert casework("replica", "append", "ann.replica", "milk", "--id", "t-1") == "t-1\n"
        assert casework("replica", "status", "ann.replica") == "tasks at 0, 1 to push\n"
        assert casework("replica", "push", "ann.replica", **token) == "1 pushed, 0 parked\n"
        assert casework("replica", "pull", "ben.replica", **token) == "1 pulled\n"
        casework("replica", "append", "ben.replica", "other", "--id", "t-1")
        assert casework("replica", "sync", "ben.replica", **token) == "0 pushed, 1 parked, 0 pulled\n"
        assert "t-1" in casework("replica", "status", "ben.replica")
        assert casework("replica", "unpark", "ben.replica", "t-1", "--drop") == "t-1 is dropped\n"
        assert casework("replica", "read", "ben.replica") == "1  t-1  milk\n"
        assert "the relay answered 401" in casework("replica", "sync", "ann.replica", CASEWORK_RELAY_TOKEN="no", code=1)
    assert "did not answer" in casework("replica", "pull", "ann.replica", code=1, **token)
    assert "there is no replica" in casework("replica", "status", "nobody.replica", code=2)
