"""What the commands do when they are used as they should be."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

import casework
from tests.cli.conftest import Shell

READY = casework.Machine.from_dict({
    "id": "ready", "context": {}, "initial": "end", "states": {"end": {"type": "final", "output": 7}},
})  # fmt: skip


def test_an_order_is_started_sent_to_and_shown(shell: Shell) -> None:
    assert shell.run("start", "order.yaml", "--id", "o-1", "--input", '{"amount": 5}').stdout == "o-1\n"
    shell.run("send", "o-1", "Paid", '{"ref": "p"}', "--event-id", "p")
    seen = shell.json("show", "o-1")
    assert seen["execution"]["configuration"] == ["open"]
    assert seen["execution"]["context"] == {"amount": 5, "paid": 0}
    assert [(message["type"], message["id"], message["data"]) for message in seen["messages"]] == [
        ("Paid", "p", {"ref": "p"})
    ]
    assert [timer["name"] for timer in seen["timers"]] == ["after:0:open"]
    text = shell.run("show", "o-1").stdout
    assert "message   Paid" in text and "timer     after:0:open  in 7 d" in text


def test_starting_again_changes_nothing_and_other_input_is_refused(shell: Shell) -> None:
    for _ in range(2):
        assert shell.run("start", "shop:order", "--id", "o-1").stdout == "o-1\n"
    assert shell.json("show", "o-1")["execution"]["version"] == 1
    assert "o-1" in shell.refused("start", "shop:order", "--id", "o-1", "--input", '{"amount": 7}')


def test_input_comes_from_a_file_or_stdin_and_a_name_needs_its_place(shell: Shell) -> None:
    (shell.folder / "in.json").write_text('{"amount": 9}')
    shell.run("start", "order", "--machine", "shop:both", "--id", "o-1", "--input", "@in.json")
    assert shell.json("show", "o-1")["execution"]["context"]["amount"] == 9
    done = subprocess.run(
        [sys.executable, "-m", "casework", "send", "o-1", "Paid", "@-"],
        cwd=shell.folder, env=shell.environment(), input='{"n": 1}', capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert shell.json("show", "o-1")["messages"][0]["data"] == {"n": 1}


def test_a_waiting_task_is_shown_with_its_key_and_attempts(shell: Shell) -> None:
    shell.run("start", "shop:order", "--id", "o-1")
    with casework.open(
        f"sqlite:///{shell.folder}/casework.db", machines=[casework.Machine.load(shell.folder / "order.yaml")]
    ) as app:
        app.handle("o-1", "Ship")
    task = shell.json("show", "o-1")["tasks"][0]
    assert (task["src"], task["status"], task["attempt"], task["max_attempts"]) == ("ship", "due", 0, 2)
    assert task["key"] in shell.run("show", "o-1").stdout


def test_listing_goes_page_by_page_in_one_json_document(shell: Shell) -> None:
    for n in range(3):
        shell.run("start", "order.yaml", "--id", f"o-{n}")
    first = shell.json("list", "--limit", "2")
    second = shell.json("list", "--limit", "2", "--cursor", first["next"])
    assert sorted(each["id"] for page in (first, second) for each in page["items"]) == ["o-0", "o-1", "o-2"]
    assert second["next"] is None
    assert set(first) == {"items", "next", "unreadable"}
    assert shell.json("list", "--status", "failed")["items"] == []
    assert shell.run("list", "--machine", "order").stdout.splitlines()[0].split() == [
        "id", "status", "machine", "in", "changed",
    ]  # fmt: skip


PARENTS = """
import casework

kid = casework.Machine.from_yaml("{id: kid, initial: a, states: {a: {on: {end: b}}, b: {type: final}}}")
parent = casework.Machine.from_yaml("{id: parent, initial: a, states: {a: {invoke: {id: k, src: {machine: kid}}}}}")
"""


def test_what_ended_is_purged_by_age_with_its_descendants_or_one_with_its_tree(shell: Shell) -> None:
    (shell.folder / "family.py").write_text(PARENTS)
    for id in ("p-1", "p-2", "p-3"):
        shell.run("start", "parent", "--machine", "family", "--id", id)
    for id in ("p-1", "p-2"):
        shell.run("terminate", id)
    (kid,) = [each["id"] for each in shell.json("list", "--parent", "p-1")["items"]]
    assert kid in shell.run("show", "p-1").stdout
    found = shell.json("purge", "--before", "0s", "--dry-run")
    assert sorted(one["id"] for one in found["items"]) == ["p-1", "p-2"] and found["deleted"] == 0
    assert "no machine" not in shell.run("purge", "p-1", "--tree").stdout
    assert shell.json("list", "--parent", "p-1")["items"] == []
    assert kid in shell.refused("show", kid)
    said = shell.run("purge", "--before", "0s").stdout
    assert "p-2  cancelled  parent" in said and "1 execution purged" in said
    assert shell.json("list")["items"][0]["id"] == "p-3"
    for wrong in (
        (),
        ("p-3", "--before", "1d"),
        ("--before", "soon"),
        ("p-3", "--dry-run"),
        ("--before", "1d", "--tree"),
    ):
        shell.refused("purge", *wrong)


def test_an_execution_is_suspended_resumed_cancelled_and_purged(shell: Shell) -> None:
    shell.run("start", "order.yaml", "--id", "o-1")
    assert "suspended" in shell.run("suspend", "o-1").stdout
    assert "running" in shell.run("resume", "o-1").stdout
    assert "cancelled" in shell.run("cancel", "o-1").stdout
    assert "is gone" in shell.run("purge", "o-1").stdout
    assert "o-1" in shell.refused("show", "o-1")


def test_what_is_sent_to_a_terminated_execution_is_listed_as_dead(shell: Shell) -> None:
    shell.run("start", "order.yaml", "--id", "o-1")
    assert "cancelled" in shell.run("terminate", "o-1").stdout
    assert shell.json("list", "--dead") == {"items": [], "next": None}
    shell.run("send", "o-1", "Paid", '{"n": 1}')
    order = casework.Machine.load(shell.folder / "order.yaml")
    order.task(name="ship")(lambda task: None)
    with casework.open(f"sqlite:///{shell.folder}/casework.db", machines=[order]) as app, app.worker(poll_s=0.01):
        while app.inspect("o-1").messages:
            pass
    letters = shell.json("list", "--dead")["items"]
    assert [(each["execution_id"], each["events"][0]["data"]) for each in letters] == [("o-1", {"n": 1})]
    assert "Paid" in shell.run("list", "--dead").stdout
    assert "dead      Paid" in shell.run("show", "o-1").stdout


def test_waiting_ends_with_the_end_and_its_code_says_which(shell: Shell) -> None:
    shell.run("start", "order.yaml", "--id", "o-1")
    assert "open" in shell.run("wait", "o-1", "--timeout-s", "0", code=1).stderr
    shell.run("terminate", "o-1")
    assert "terminated" in shell.run("wait", "o-1", code=1).stderr
    with casework.open(f"sqlite:///{shell.folder}/casework.db", machines=[READY]) as app:
        app.start("ready", id="r-1")
    assert shell.run("wait", "r-1").stdout == "7\n"
    assert shell.json("wait", "r-1")["status"] == "done"


def test_migrating_takes_the_new_definition_and_refuses_one_that_does_not_fit(shell: Shell) -> None:
    shell.run("start", "order.yaml", "--id", "o-1")
    new = (shell.folder / "order.yaml").read_text().replace("Paid:", "PaidTwice: {}\n      Paid:")
    (shell.folder / "new.yaml").write_text(new)
    before = shell.json("show", "o-1")["execution"]["machine_hash"]
    shell.run("migrate", "o-1", "--machine", "new.yaml")
    assert shell.json("show", "o-1")["execution"]["machine_hash"] != before
    (shell.folder / "other.yaml").write_text(
        new.replace("  open:", "  opened:").replace("initial: open", "initial: opened")
    )
    assert "open" in shell.refused("migrate", "o-1", "--machine", "other.yaml")


def test_a_trace_is_a_timeline(shell: Shell) -> None:
    url = f"sqlite:///{shell.folder}/casework.db"
    with casework.open(url, machines=[casework.Machine.load(shell.folder / "order.yaml")], trace_max=50) as app:
        app.start("order", id="o-1")
        app.handle("o-1", "Ship")
        app.terminate("o-1")
    text = shell.run("trace", "o-1").stdout
    assert "open -> shipping" in text and "cancelled" in text
    assert [entry["version"] for entry in shell.json("trace", "o-1")["entries"]] == [1, 2, 3]


def test_a_trace_shows_the_messages_of_errors(shell: Shell) -> None:
    text = """
id: sad
initial: a
states:
  a: {invoke: {id: do, src: {task: do}, onError: b}}
  b: {on: {spin: c}}
  c: {entry: {type: raise, params: {event: error.custom, data: {type: Odd, message: "odd\\nor even"}}}}
"""
    machine = casework.Machine.from_yaml(text)

    @machine.task(name="do")
    def fail(task: Any) -> None:
        raise casework.TaskFailed("no money", retry=False)

    with casework.open(f"sqlite:///{shell.folder}/casework.db", machines=[machine], trace_max=50) as app, app.worker():
        app.start("sad", id="o-1")
        while not app.get("o-1").is_in("b"):
            pass
        app.send("o-1", "spin")
        app.wait("o-1", timeout_s=60)
    lines = shell.run("trace", "o-1").stdout.splitlines()
    assert any("error.invoke.do  a -> b  (TaskFailed: no money)" in line for line in lines)
    assert lines[-1].endswith("failed: Odd: odd")


def test_checking_says_what_is_missing_and_draws(shell: Shell) -> None:
    assert "fine" in shell.run("check", "order.yaml").stdout
    assert "fine" in shell.run("check", "shop:both").stdout
    assert shell.run("check", "order.yaml", "--diagram").stdout.startswith("stateDiagram-v2")
    (shell.folder / "bare.py").write_text("import casework; order = casework.Machine.load('order.yaml')")
    done = shell.run("check", "bare:order", code=2)
    assert "task 'ship'" in done.stderr
    found = shell.json("check", "order.yaml")
    assert (found["ok"], found["machines"]) == (True, ["order"])
    (note,) = found["problems"]
    message = "nothing takes an error of 'shipping', so it fails the execution"
    assert note.pop("text").startswith(f"order.yaml:16: states.shipping.invoke: {message}")
    assert note == {
        "severity": "note", "code": "error-untaken", "file": "order.yaml", "line": 16, "column": 5,
        "path": "states.shipping.invoke", "message": message,
        "suggestion": "if that is not meant, add onError, or on: {error: ...} in a state around it",
    }  # fmt: skip


def test_a_misspelt_built_in_action_is_told_with_its_line(shell: Shell) -> None:
    entry = "entry: {type: asign, params: {n: 1}}"
    text = f"id: m\ncontext: {{n: 0}}\ninitial: a\nstates:\n  a:\n    {entry}\n    on: {{go: {{}}}}\n"
    (shell.folder / "m.yaml").write_text(text)
    (shell.folder / "mod.py").write_text("import casework; m = casework.Machine.load('m.yaml')")
    done = shell.run("check", "m.yaml")
    place = "m.yaml:6: states.a.entry.type: the action 'asign' is"
    assert done.stderr == f"warning: {place} not built in, so it needs a function (did you mean 'assign'?)\n"
    assert done.stdout == "m: 1 state, 1 event, 1 warning\n"
    done = shell.run("check", "mod:m", code=2)
    assert done.stderr == f"error: {place} named but not registered (did you mean 'assign'?)\n"
    (shell.folder / "m.yaml").write_text(text.replace("asign", "bless"))
    assert shell.run("check", "m.yaml").stdout == "m: 1 state, 1 event, fine\n"


@pytest.mark.slow
def test_a_new_machine_runs_as_it_is(shell: Shell) -> None:
    shell.run("new", "parcel", "--folder", "fresh")
    fresh = Shell(shell.folder / "fresh")
    assert {path.name for path in fresh.folder.iterdir()} == {"parcel.yaml", "parcel.py", "test_parcel.py"}
    fresh.run("check", "parcel.yaml")
    fresh.run("check", "parcel:machine")
    fresh.run("start", "parcel:machine", "--id", "1")
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "test_parcel.py"], cwd=fresh.folder, capture_output=True, text=True,
        env=fresh.environment(), check=False,
    )  # fmt: skip
    assert tests.returncode == 0, tests.stdout + tests.stderr
    assert "nothing was written" in fresh.refused("new", "parcel")


def test_the_store_comes_from_the_environment_and_the_option_outranks_it(shell: Shell) -> None:
    shell.run("start", "order.yaml", "--id", "a", CASEWORK_STORE="sqlite:///one.db")
    shell.run("start", "order.yaml", "--id", "b", "--store", "sqlite:///two.db", CASEWORK_STORE="sqlite:///one.db")
    assert [each["id"] for each in shell.json("list", "--store", "sqlite:///one.db")["items"]] == ["a"]
    assert [each["id"] for each in shell.json("list", "--store", "sqlite:///two.db")["items"]] == ["b"]


def test_version_and_help_load_nothing_heavy(shell: Shell) -> None:
    assert shell.run("--version").stdout == f"casework {casework.__version__}\n"
    program = (
        "import sys; sys.argv = ['casework', '--help']\n"
        "from casework.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert end.code == 0, end.code\n"
        "print('LOADED', *{'sqlite3', 'boto3', 'yaml', 'asyncio', 'casework.statechart'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1].split() == ["LOADED"]


def test_the_template_and_the_policy_are_json(shell: Shell) -> None:
    template = json.loads(shell.run("dynamodb", "template", "--prefix", "shop").stdout)
    assert template["Parameters"]["Prefix"]["Default"] == "shop"
    policy = json.loads(shell.run("dynamodb", "iam", "--prefix", "shop", "--role", "worker").stdout)
    assert policy["Statement"]
    assert "role" in shell.refused("dynamodb", "iam", "--role", "king")


def test_settings_shows_and_changes_what_the_store_decides_for_all_its_processes(shell: Shell) -> None:
    assert "there is no database" in shell.refused("settings")
    assert "dedupe_window_s  60" in shell.run("settings", "--dedupe-window-s", "60").stdout
    found = {"buckets": 16, "dedupe_window_s": 60, "trace_max": None, "codec": None}
    assert shell.json("settings") == found
    assert "buckets          32" in shell.run("settings", "--buckets", "32").stdout
    assert "cannot go back to 16" in shell.refused("settings", "--buckets", "16")
    assert shell.json("settings") == {**found, "buckets": 32}
    url = f"sqlite:///{shell.folder}/casework.db"
    with casework.open(url, dedupe_window_s=60):
        shell.run("settings", "--dedupe-window-s", "0")
    with casework.open(url) as app:
        assert app.core.rt.options.dedupe_window_s == 0


def test_checking_a_file_finds_a_circle_that_never_rests(shell: Shell) -> None:
    (shell.folder / "circle.yaml").write_text("id: m\ninitial: a\nstates:\n  a: {always: b}\n  b: {always: a}\n")
    done = shell.run("check", "circle.yaml", code=2)
    assert "circle.yaml:4: states.a: eventless transitions go round for ever: a -> b -> a" in done.stderr


def test_annotations_for_ci_name_file_line_and_column_and_warnings_fail_when_asked(shell: Shell) -> None:
    (shell.folder / "m.yaml").write_text("id: m\ninitial: a\nstates:\n  a:\n    on: {go: b}\n  b: {}\n")
    (shell.folder / "bad,1.yaml").write_text("id: m\ninitial: a\nstates:\n  a:\n    on: {go: c}\n    onn: {}\n")
    message = "the state 'b' takes no event and is never left"
    annotation = f"::warning file=m.yaml,line=6,col=3,title=casework%3A dead-end::states.b: {message} ("
    assert shell.run("check", "m.yaml", "--format", "github").stdout.startswith(annotation)
    done = shell.run("check", "bad,1.yaml", "--format", "github", code=2)
    assert done.stdout.startswith("::error file=bad%2C1.yaml,line=6,col=5,title=casework%3A unknown-key::")
    assert done.stdout.count("::error ") == 2
    assert shell.run("check", "m.yaml").stdout == "m: 2 states, 1 event, 1 warning\n"
    assert shell.run("check", "m.yaml", "--strict", code=1).stderr.count("warning: ") == 1
    assert shell.run("check", "order.yaml", "--strict").stdout == "order: 3 states, 3 events, fine\n"
    found = json.loads(shell.run("check", "bad,1.yaml", "--json", code=2).stdout)
    assert [each["code"] for each in found["problems"]] == ["unknown-key", "target"]
    assert [(each["line"], each["column"]) for each in found["problems"]] == [(6, 5), (5, 10)]
    assert shell.run("check", "bad,1.yaml", "--format", "json", code=2).stdout.startswith("{")
    assert "give one of them" in shell.refused("check", "m.yaml", "--json", "--format", "github")
