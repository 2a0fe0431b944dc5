"""``casework settings``: what a store itself decides, for all its processes."""

from __future__ import annotations

from typing import Annotated

import typer

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
    store: Store = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show the settings that a store has for all its processes, or change them.

    A process takes the dedupe window over when it opens the store, so restart workers and services after a change. With
    --dedupe-window-s a file that does not exist yet is made.

    More buckets let more workers share the work evenly, and DynamoDB take more events a second. Living processes learn
    of them by themselves; the number cannot be lowered.

    \b
    casework settings
    casework settings --dedupe-window-s 86400
    casework settings --buckets 64
    """
    from casework.app.core import change_dedupe_window
    from casework.backends.drive import run

    with open_store(store, make=dedupe_window_s is not None) as app:
        if dedupe_window_s is not None:
            run(change_dedupe_window(app.core, dedupe_window_s), app.backend)
        if buckets is not None and not app.raise_buckets(buckets):
            say(
                f"all look into {buckets} buckets soon; new items are put there once every worker knows, at a heartbeat"
            )
        options = app.core.rt.options
        if as_json:
            print_json({"buckets": options.buckets, "dedupe_window_s": options.dedupe_window_s})
            return
        print(f"buckets          {options.buckets}")
        print(f"dedupe_window_s  {options.dedupe_window_s}")
