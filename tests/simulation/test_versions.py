"""A failure says on which code it was seen."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import casework
from casework.simulation import versions
from casework.simulation.runner import explore
from tests.simulation.test_runs import Guarded, LostUpdate


def checkout(folder: Path, package: str) -> Path:
    """A git repository with one commit and a package in it."""
    place = folder / package
    place.mkdir(parents=True)
    (place / "code.py").write_text("")
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], check=True, capture_output=True)
    return place


def test_a_checkout_says_its_commit_and_whether_it_was_changed(tmp_path: Path) -> None:
    package = checkout(tmp_path, "src/casework")
    found = versions.commit_of(package)
    assert re.fullmatch("[0-9a-f]{12}", found)
    (package / "code.py").write_text("changed = 1\n")
    assert versions.commit_of(package) == f"{found}, changed since"


def test_what_is_installed_into_another_checkout_is_not_of_its_commit(tmp_path: Path) -> None:
    assert versions.commit_of(checkout(tmp_path, ".venv/lib/site-packages/casework")) == ""


@pytest.mark.parametrize("git", ["", "exit 1"])
def test_without_git_or_with_one_that_fails_there_is_no_commit_and_no_error(
    git: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = checkout(tmp_path / "there", "src/casework")
    programs = tmp_path / "bin"
    programs.mkdir()
    if git:
        (programs / "git").write_text(f"#!/bin/sh\n{git}\n")
        (programs / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    assert versions.commit_of(package) == ""


def test_a_failing_run_of_a_scenario_says_how_to_run_it_again() -> None:
    failure = explore(LostUpdate, runs=200).failure
    assert failure is not None
    told = str(failure)
    assert told.startswith("lost update: the number is {'id': 'n', 'v': 1}\n\n")
    assert f"on: casework {casework.__version__}" in told
    again = f"run it again: run_once(<lost update>, {failure.seed}, schedule={failure.schedule!r}, records=True)"
    assert told.endswith(again)


def test_a_run_that_held_says_so_in_a_line() -> None:
    from casework.simulation.runner import run_once

    assert re.fullmatch(r"guarded: seed 3, \w+ schedule, \d+ steps: everything held", str(run_once(Guarded, 3)))


def test_a_users_failure_says_which_definition_failed_on_which_casework() -> None:
    machine = casework.Machine.from_yaml("{id: m, initial: a, states: {a: {on: {go: b}}, b: {type: final}}}")
    report = casework.simulate(machine, runs=50, invariants=[lambda execution, history: not execution.is_in("b")])
    assert report.failure is not None
    assert report.failure.versions == f"m {machine.hash[:12]}; {versions.casework_version()}"
    assert f"\non: {report.failure.versions}\nreplay it: " in str(report)
