"""All commands, assembled. What a command needs is imported when it runs, so that ``--help`` is quick."""

from __future__ import annotations

from typing import Annotated

import typer

import casework
from casework.cli import (
    control,
    demo,
    dynamodb,
    idempotency,
    inspecting,
    machines,
    relay,
    replica,
    sending,
    settings,
    simulate,
    streams,
    worker,
)

PLAIN = None
"""Help without boxes and colours: the same text in a terminal, in the documentation and in a test."""

app = typer.Typer(
    name="casework",
    help="Durable statecharts, idempotency and streams on SQLite and DynamoDB.",
    no_args_is_help=True,
    rich_markup_mode=PLAIN,
    context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 100},
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"casework {casework.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Durable statecharts, idempotency and streams on SQLite and DynamoDB.

    \b
    Try it:        casework demo
    Begin:         casework new order
    Which store:   --store sqlite:///shop.db, or the variable CASEWORK_STORE

    Exit codes: 0 done, 1 failed, 2 the call cannot work as it was made (nothing was written), 130 interrupted.
    """


app.command("demo")(demo.demo)
app.command("new")(machines.new)
app.command("check")(machines.check)
app.command("simulate")(simulate.simulate)
app.command("start")(sending.start)
app.command("send")(sending.send)
app.command("worker")(worker.worker)
app.command("wait")(sending.wait)
app.command("show")(inspecting.show)
app.command("list")(inspecting.list_)
app.command("trace")(inspecting.trace)
for _name, _command in control.COMMANDS.items():
    app.command(_name)(_command)
app.command("settings")(settings.settings)
app.command("relay")(relay.relay)
app.add_typer(relay.tokens, name="token")
app.add_typer(streams.app, name="streams")
app.add_typer(replica.app, name="replica")
app.add_typer(dynamodb.app, name="dynamodb")
app.add_typer(idempotency.app, name="idempotency")


def run() -> None:
    """Run the command line on the arguments of this process; ends the process."""
    app(prog_name="casework")
