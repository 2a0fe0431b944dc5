"""``casework check`` and ``casework new``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from casework.cli.application import FromApp, machines_of
from casework.cli.failures import MISUSE, command, say
from casework.cli.opening import MACHINE_FILES, AsJson, Debug, counted, find_machines, print_json
from casework.errors import InvalidMachine, Misuse


@command
def check(
    place: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE|MODULE:NAME", help="A file, or machines with their functions.", show_default=False
        ),
    ] = None,
    source: FromApp = None,
    diagram: Annotated[bool, typer.Option("--diagram", help="Print the machine as a Mermaid diagram.")] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Check a machine: every problem with its file and line. Exit code 2 when there are errors.

    A file is checked by itself; MODULE:NAME also checks that every function is registered.

    \b
    casework check order.yaml
    casework check --app shop:application
    casework check shop:order --diagram > order.mmd
    """
    problems: list[dict[str, str]] = []
    machines = []
    if place is None and not source:
        raise Misuse("name a file (order.yaml), machines (shop:order), or an application: --app shop:application")
    is_file = place is not None and place.lower().endswith(MACHINE_FILES)
    try:
        machines = find_machines(place) if place is not None else machines_of(source)
    except InvalidMachine as error:
        problems += [{"severity": "error", "text": text} for text in error.problems]
    for machine in machines:
        for found in machine.beside(each.name for each in machines).check():
            if not (is_file and found.needs_functions):
                problems.append({"severity": found.severity, "text": found.text})
            elif found.in_a_file:  # a file alone registers nothing: that by itself says nothing about the file
                problems.append({"severity": "warning", "text": found.in_a_file})
    errors = [problem for problem in problems if problem["severity"] == "error"]
    if as_json:
        print_json({"ok": not errors, "machines": [machine.name for machine in machines], "problems": problems})
    else:
        for problem in problems:
            print(f"{problem['severity']}: {problem['text']}", file=sys.stderr)
        if diagram and not errors:
            from casework.statechart.diagram import mermaid

            for machine in machines:
                print(mermaid(machine), end="")
        elif not errors:
            verdict = counted(len(problems), "warning") if problems else "fine"
            for machine in machines:
                states = counted(len(machine.tables.states) - 1, "state")
                print(f"{machine.name}: {states}, {counted(len(machine.event_types), 'event')}, {verdict}")
    if errors:
        raise typer.Exit(MISUSE)


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
