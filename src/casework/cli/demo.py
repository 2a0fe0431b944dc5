"""``casework demo``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from casework.cli.failures import command
from casework.cli.opening import AsJson, Debug


@command
def demo(
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            show_default=False,
            metavar="URL",
            help="sqlite:///new.db, or dynamodb://?endpoint=...&region=... [default: a file in a temporary folder]",
        ),
    ] = None,
    orders: Annotated[int, typer.Option(help="Orders to take from the demo's file, which has 200.")] = 200,
    workers: Annotated[int, typer.Option(help="Worker processes.")] = 2,
    seed: Annotated[int, typer.Option(help="Decides which attempts fail, and when things happen outside.")] = 1,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the database and the ledger, and say where they are.")
    ] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Two hundred orders, two workers, one SIGKILL, and a proof.

    An order machine takes orders from a file; its payments fail now and then; one of the worker processes is killed in
    the middle. At the end the database is held against a ledger that the tasks wrote outside it. Exit code 1 when
    anything does not fit. CASEWORK_STORE is not used: only --store says where the orders go.

    \b
    casework demo
    casework demo --orders 50 --seed 7 --keep
    casework demo --store "dynamodb://?endpoint=http://127.0.0.1:8000&region=eu-west-1"
    """
    from rich.console import Console

    console = None
    if not as_json:
        console = Console()
        if not console.is_terminal:
            console = Console(width=120, no_color=True)
        console.print("casework demo", style="bold", highlight=False)
        sys.stdout.flush()
    from casework.demo.run import DemoOptions, run_demo

    options = DemoOptions(store=store, orders=orders, workers=workers, seed=seed, keep=keep)
    proof = run_demo(options, console)
    if as_json:
        from casework.cli.opening import print_json

        print_json(proof)
    if not proof.ok:
        raise typer.Exit(1)
