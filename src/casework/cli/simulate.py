"""``casework simulate``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from casework.cli.application import FromApp, machines_of
from casework.cli.failures import FAILED, command
from casework.cli.opening import MACHINE_FILES, AsJson, Debug, find_machines, print_json, read_text
from casework.errors import Misuse

if TYPE_CHECKING:
    from casework.simulation.payloads import EventsFile
    from casework.simulation.users import SimulationReport
    from casework.statechart import Machine


@command
def simulate(
    place: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE|MODULE:ATTR",
            help="A file, or machines with their functions and invariants.",
            show_default=False,
        ),
    ] = None,
    source: FromApp = None,
    runs: Annotated[int, typer.Option(min=1, help="Stop after so many runs.")] = 1000,
    crashes: Annotated[
        bool, typer.Option("--crashes", help="Processes die and pause, answers are lost, clocks are off.")
    ] = False,
    duplicates: Annotated[
        bool, typer.Option("--duplicates", help="Events are delivered again, results of tasks handed in twice.")
    ] = False,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Of the first run; the next has the next [default: a fresh one]", show_default=False),
    ] = None,
    events: Annotated[
        Path | None,
        typer.Option(
            "--events", metavar="FILE", help="YAML with events, script, input and tasks' stand-ins.", show_default=False
        ),
    ] = None,
    real_tasks: Annotated[
        bool, typer.Option("--real-tasks", help="Call the registered task functions, as many times as it takes.")
    ] = False,
    may_fail: Annotated[
        bool, typer.Option("--may-fail", help="An execution that fails is no failure of the run.")
    ] = False,
    seconds: Annotated[
        float | None, typer.Option(min=0, help="Stop after so much real time.", show_default=False)
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Run a chart a thousand times in a simulated world, and show the first run that goes wrong.

    Senders, workers, timers and tasks take their steps in an order that a seed decides, in virtual time, on a store
    that behaves as DynamoDB at its weakest. What casework promises is checked, and the functions that
    @casework.invariant marks. Tasks are replaced by stand-ins that return null, or what the chart's expressions read of
    them, unless the file of --events says what they return, or --real-tasks calls them. What no run reached is named.
    Exit code 1 when a run fails: with its timeline, and the command that replays it.

    \b
    casework simulate order.yaml
    casework simulate shop:order --runs 5000 --crashes --duplicates
    casework simulate shop:order --crashes --events payments.yaml --seed 41 --runs 1
    """
    from casework.simulation.users import simulate as run

    where, machines = _machines_at(place, source)
    file = _events_file(events)
    given = {"--crashes": crashes, "--duplicates": duplicates, "--real-tasks": real_tasks, "--may-fail": may_fail}
    replay = _replay([place] if place else ["--app", where], given, events)
    with _progress(runs, shown=not as_json) as on_progress:
        report = run(
            machines, runs=runs, crashes=crashes, duplicates=duplicates, events=file.events, script=file.script,
            input=file.input, invariants=_marked(where), tasks=file.tasks, real_tasks=real_tasks, may_fail=may_fail,
            seed=seed, seconds=seconds, on_progress=on_progress, command=replay,
        )  # fmt: skip
    if as_json:
        print_json(_document(report))
    else:
        print(report)
    if not report.ok:
        raise typer.Exit(FAILED)


def _machines_at(place: str | None, source: str | None) -> tuple[str, list[Machine]]:
    """The place that counts, and the machines at it."""
    if place is not None:
        return place, find_machines(place)
    if source is None:
        raise Misuse("name a file (order.yaml), machines (shop:order), or an application: --app shop:application")
    return source, machines_of(source)


def _events_file(path: Path | None) -> EventsFile:
    from casework.simulation.payloads import EventsFile, read_events_file

    if path is None:
        return EventsFile()
    return read_events_file(read_text(path, "--events"), str(path))


def _marked(place: str) -> list[Callable[..., Any]]:
    """The marked invariants of the module that the machines are in."""
    from casework.simulation.invariants import marked

    if place.lower().endswith(MACHINE_FILES):
        return []
    return marked(vars(sys.modules[place.partition(":")[0]]).values())


def _replay(place: list[str], given: dict[str, bool], events: Path | None) -> str:
    from casework.simulation.users import command_line

    flags = [flag for flag, is_given in given.items() if is_given]
    return command_line("casework", "simulate", *place, *flags, *(["--events", str(events)] if events else []))


def _document(report: SimulationReport) -> dict[str, Any]:
    import msgspec

    document: dict[str, Any] = {"ok": report.ok, **msgspec.to_builtins(report)}
    rates = {"seeds_per_s": round(report.seeds_per_s, 1), "steps_per_s": round(report.steps_per_s, 1)}
    never = {"never_entered": report.never_entered, "never_taken": report.never_taken}
    reached, failure = document.pop("reached"), document.pop("failure")
    return {**document, **rates, **never, "reached": reached, "failure": failure}


@contextmanager
def _progress(runs: int, *, shown: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A bar with runs a second on stderr, where that is a terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    if not shown or not console.is_terminal:
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("runs", total=runs, rate="")
        started_s = progress.get_time()

        def on_progress(done: int, steps: int) -> None:
            elapsed_s = max(1e-9, progress.get_time() - started_s)
            rate = f"{done / elapsed_s:,.0f} seeds/s, {steps / elapsed_s:,.0f} steps/s"
            progress.update(bar, completed=done, rate=rate)

        yield on_progress
