"""``casework settings``: what a store itself decides, for all its processes."""

from __future__ import annotations

from typing import Annotated

import typer

from casework.cli.application import FromApp, arguments_of
from casework.cli.failures import command, say
from casework.cli.opening import AsJson, Debug, Store, open_store, print_json


@command
def settings(
    dedupe_window_s: Annotated[
        int | None,
        typer.Option(
            min=0, show_default=False, help="Refuse repeated event ids for so long; 0: the last 32 of an execution."
        ),
    ] = None,
    buckets: Annotated[
        int | None,
        typer.Option(
            min=1, max=1024, show_default=False, help="Raise the buckets of the indexes; nothing has to be stopped."
        ),
    ] = None,
    trace_max: Annotated[
        int | None,
        typer.Option(min=0, show_default=False, help="Keep so many trace entries of each execution; 0: none."),
    ] = None,
    does_take: Annotated[
        bool, typer.Option("--take-codec", help="Let the codec of --app be the store's from now on.")
    ] = False,
    source: FromApp = None,
    store: Store = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show the settings that a store has for all its processes, or change them.

    A process takes the settings over when it opens the store, so restart workers and services after a change. Where
    something is changed, a file that does not exist yet is made.

    More buckets let more workers share the work evenly, and DynamoDB take more events a second. Living processes learn
    of them by themselves; the number cannot be lowered.

    \b
    casework settings
    casework settings --dedupe-window-s 86400
    casework settings --buckets 64
    casework settings --take-codec --app shop:application
    """
    from casework.app.settings import change_settings, stored_settings, take_codec
    from casework.backends.drive import run

    changes = dedupe_window_s is not None or trace_max is not None
    if does_take:
        codec = arguments_of(source).get("codec")
        with open_store(store, source, executions=False) as opened:
            run(take_codec(codec), opened.backend)
    with open_store(store, source, make=changes, executions=False) as app:
        run(change_settings(dedupe_window_s=dedupe_window_s, trace_max=trace_max), app.backend)
        if buckets is not None and not app.raise_buckets(buckets):
            say(
                f"all look into {buckets} buckets soon; new items are put there once every worker knows, at a heartbeat"
            )
        found = run(stored_settings(), app.backend)
    if as_json:
        print_json(found)
        return
    for name, value in found.items():
        print(f"{name:<16} {'(not decided yet)' if value is None else value}")
