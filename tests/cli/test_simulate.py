"""``casework simulate``: exit codes, the timeline, and the command that replays it."""

from __future__ import annotations

import json
import shlex

import pytest

from tests.cli.conftest import Shell

INVARIANT = """

@casework.invariant
def never_over(execution, history):
    assert not execution.is_in("over"), "it is over"
"""


@pytest.fixture
def broken(shell: Shell) -> Shell:
    shop = shell.folder / "shop.py"
    shop.write_text(shop.read_text() + INVARIANT)
    return shell


def test_a_sound_chart_ends_with_0_and_says_how_fast_it_was(shell: Shell) -> None:
    done = shell.run("simulate", "order.yaml", "--runs", "100", "--may-fail", "--seed", "3")
    assert done.stdout.startswith("order: 100 runs, everything held in all states and transitions (seeds 3 to 102; ")
    assert "seeds/s" in done.stdout and "steps/s" in done.stdout


def test_a_failure_ends_with_1_and_its_command_replays_it(broken: Shell) -> None:
    done = broken.run("simulate", "shop:order", "--crashes", "--duplicates", "--may-fail", code=1)
    assert "never_over does not hold: it is over" in done.stdout
    command = shlex.split(done.stdout.rpartition("replay it: ")[2])
    assert command[:3] == ["casework", "simulate", "shop:order"] and command[-2:] == ["--runs", "1"]
    again = broken.run(*command[1:], code=1)

    def timeline(text: str) -> str:
        return text.partition("\n\n")[2]

    assert timeline(again.stdout) == timeline(done.stdout) != ""


def test_json_is_one_document_on_success_and_failure(broken: Shell) -> None:
    failed = json.loads(broken.run("simulate", "shop:order", "--may-fail", "--json", code=1).stdout)
    assert failed["ok"] is False and failed["failure"]["seed"] >= 0 and failed["failure"]["timeline"]
    fine = broken.json("simulate", "order.yaml", "--runs", "3", "--may-fail")
    assert fine["ok"] is True and fine["runs"] == 3 and fine["failure"] is None and fine["seeds_per_s"] > 0


def test_what_was_never_reached_is_printed_and_stands_in_the_json(shell: Shell) -> None:
    (shell.folder / "e.yaml").write_text("script: [{Paid: {amount: 1}}]\n")
    args = ("simulate", "order.yaml", "--events", "e.yaml", "--runs", "20", "--may-fail")
    said = shell.run(*args).stdout
    assert "everything held in what was reached, " in said and "\nnever " in said
    assert said.rstrip().endswith("stand-ins for tasks (with fails: 0.2 for onError), an input, or more runs")
    document = shell.json(*args)
    assert document["ok"] is True and (document["never_entered"] or document["never_taken"])
    (reached,) = document["reached"]
    assert reached["machine"] == "order" and all(count >= 0 for count in reached["states"].values())
    assert {"state", "event", "target", "guard", "taken"} == set(reached["transitions"][0])


def test_a_misspelt_stand_in_of_the_file_is_refused(shell: Shell) -> None:
    (shell.folder / "e.yaml").write_text("tasks: {ship: {fials: 5}}\n")
    assert "did you mean 'fails'?" in shell.refused("simulate", "order.yaml", "--events", "e.yaml")


def test_real_tasks_are_called_only_when_they_are_asked_for(shell: Shell) -> None:
    shell.run("simulate", "shop:order", "--runs", "10", "--may-fail")
    assert not (shell.folder / "shipped").exists()
    shell.run("simulate", "shop:order", "--runs", "10", "--may-fail", "--real-tasks")
    assert (shell.folder / "shipped").read_text().startswith("order-")


def test_a_file_says_what_is_sent_and_what_tasks_return(shell: Shell) -> None:
    (shell.folder / "e.yaml").write_text("script: [Paid, Ship]\ntasks: {ship: {returns: x, fails: 1.0, final: true}}\n")
    done = shell.run("simulate", "order.yaml", "--events", "e.yaml", "--runs", "50", code=1)
    assert "order-1 failed, and its machine did not mean to" in done.stdout.replace("order-2", "order-1")
    assert "--events e.yaml" in done.stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("nothing.yaml",), "no file"),
        (("order.yaml", "--events", "nothing.yaml"), "nothing.yaml"),
        (("order.yaml", "--runs", "0"), "--runs"),
        (("shop:nothing",), "has no 'nothing'"),
    ],
)
def test_misuse_ends_with_2_and_one_line(shell: Shell, args: tuple[str, ...], message: str) -> None:
    assert message in shell.refused("simulate", *args)


def test_an_events_file_that_is_not_there_is_named(shell: Shell) -> None:
    assert "--events: there is no file 'none.yaml'" in shell.refused("simulate", "order.yaml", "--events", "none.yaml")


def test_a_bare_assertion_is_shown_by_its_line(shell: Shell) -> None:
    shop = shell.folder / "shop.py"
    shop.write_text(
        shop.read_text() + "\n\n@casework.invariant\ndef bare(execution, history):\n    assert not execution\n"
    )
    said = shell.run("simulate", "shop:order", "--runs", "1", "--seed", "1", code=1).stdout
    assert "bare does not hold: assert not execution (line " in said
