"""``casework check`` and ``casework new``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TextIO

import typer

from casework.cli.application import FromApp, machines_of
from casework.cli.failures import MISUSE, command, say
from casework.cli.opening import MACHINE_FILES, AsJson, Debug, counted, find_machines, print_json
from casework.errors import InvalidMachine, Misuse

if TYPE_CHECKING:
    from casework.statechart.findings import Problem

STRICT = 1
"""The exit code of ``check --strict`` where there are warnings only."""
Format = Literal["text", "json", "github"]


@command
def check(
    place: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE|MODULE:NAME", help="A file, or machines with their functions.", show_default=False
        ),
    ] = None,
    source: FromApp = None,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings fail the check, too.")] = False,
    form: Annotated[
        Format, typer.Option("--format", help="How problems are printed; github makes annotations of them.")
    ] = "text",
    diagram: Annotated[bool, typer.Option("--diagram", help="Print the machine as a Mermaid diagram.")] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Check a machine: every problem with its file, line and column. Exit code 2 with errors, 0 with warnings or none.

    A file is checked by itself; MODULE:NAME also checks that every function is registered and takes its input. With
    --strict the exit code is 1 when there are warnings only.

    \b
    casework check order.yaml
    casework check --app shop:application
    casework check shop:order --diagram > order.mmd
    """
    from casework.statechart.findings import problem_of

    problems: list[Problem] = []
    machines = []
    if place is None and not source:
        raise Misuse("name a file (order.yaml), machines (shop:order), or an application: --app shop:application")
    if as_json and form not in ("text", "json"):
        raise Misuse("--json and --format say different things; give one of them")
    is_file = place is not None and place.lower().endswith(MACHINE_FILES)
    try:
        machines = find_machines(place) if place is not None else machines_of(source)
    except InvalidMachine as error:
        problems += [problem_of(text) for text in error.problems]
    for machine in machines:
        for found in machine.beside(each.name for each in machines).check():
            # A file alone registers nothing, which says nothing about the file.
            if not found.needs_functions if is_file else found.code != "built-in":
                problems.append(found)
    errors = [problem for problem in problems if problem.severity == "error"]
    warnings = [problem for problem in problems if problem.severity == "warning"]
    failed = bool(errors) or (strict and bool(warnings))
    if as_json or form == "json":
        shown = [problem.fields() for problem in problems]
        print_json({"ok": not failed, "machines": [machine.name for machine in machines], "problems": shown})
    else:
        for problem in problems:
            print(_annotation(problem) if form == "github" else str(problem), file=_stream(form))
        if diagram and not errors:
            from casework.statechart.diagram import mermaid

            for machine in machines:
                print(mermaid(machine), end="")
        elif not errors:
            verdict = counted(len(warnings), "warning") if warnings else "fine"
            for machine in machines:
                states = counted(len(machine.tables.states) - 1, "state")
                print(f"{machine.name}: {states}, {counted(len(machine.event_types), 'event')}, {verdict}")
    if failed:
        raise typer.Exit(MISUSE if errors else STRICT)


def _stream(form: str) -> TextIO:
    """GitHub reads annotations from the standard output."""
    return sys.stdout if form == "github" else sys.stderr


def _annotation(problem: Problem) -> str:
    """The problem as a workflow command of GitHub Actions."""
    file, line, column, _ = problem.place
    where = [f"file={_escaped(file, True)}"] + [f"{name}={at}" for name, at in (("line", line), ("col", column)) if at]
    where.append(f"title={_escaped('casework: ' + problem.code, True)}")
    text = f"{problem.place.path}: {problem.message}{f' ({problem.suggestion})' if problem.suggestion else ''}"
    level = {"note": "notice"}.get(problem.severity, problem.severity)
    return f"::{level} {','.join(where)}::{_escaped(text)}"


def _escaped(text: str, is_property: bool = False) -> str:
    for sign, code in (
        ("%", "%25"),
        ("\r", "%0D"),
        ("\n", "%0A"),
        *(((":", "%3A"), (",", "%2C")) if is_property else ()),
    ):
        text = text.replace(sign, code)
    return text


@command
def new(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The machine's name: a Python identifier.", show_default=False)
    ],
    folder: Annotated[Path, typer.Option("--folder", help="Where the files go.")] = Path("."),
    debug: Debug = False,
) -> None:
    """Begin a machine: a definition, its functions and a test, which run as they are.

    \b
    casework new order
    """
    import keyword

    from casework.cli.scaffold import files

    if not name.isidentifier() or keyword.iskeyword(name) or name in sys.stdlib_module_names or name == "casework":
        raise Misuse(f"{name!r} cannot name a machine here; use a Python identifier that is no module, such as order")
    wanted = {folder / path: text for path, text in files(name).items()}
    there = [str(path) for path in wanted if path.exists()]
    if there:
        raise Misuse(f"{', '.join(there)}: there already; nothing was written")
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in wanted.items():
        path.write_text(text, "utf-8")
        print(path)
    say(f"next: casework check {name}:machine; casework start {name}:machine --id 1; casework worker {name}:machine")
