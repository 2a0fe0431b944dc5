"""``casework cancel``, ``terminate``, ``suspend``, ``resume``, ``retry``, ``redrive``, ``purge``, ``migrate``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from casework.cli.application import FromApp
from casework.cli.failures import FAILED, command, say
from casework.cli.inspecting import moment
from casework.cli.opening import AsJson, Debug, Id, Store, counted, find_machines, open_store, print_json
from casework.errors import CaseworkError, Contention, Misuse

Code = Annotated[
    str | None,
    typer.Option(
        "--machine", metavar="PLACE", help="A file, MODULE:NAME or MODULE with the machine.", show_default=False
    ),
]


def _check_code(code: str | None, source: str | None) -> None:
    if not code and not source:
        raise Misuse("name the machine: --machine shop:order, or the application: --app shop:application")


def _said(execution: Any) -> None:
    where = ", ".join(execution.configuration)
    print(f"{execution.id} is {execution.status}{f' in {where}' if where and not execution.has_ended else ''}")


@command
def cancel(id: Id, code: Code = None, source: FromApp = None, store: Store = None, debug: Debug = False) -> None:
    """Ask an execution to end.

    With --machine, and where the machine knows an event named cancel, that event is handled; else it is terminated.

    \b
    casework cancel o-1
    casework cancel o-1 --machine shop:order
    """
    with open_store(store, source, find_machines(code) if code else ()) as app:
        _said(app.cancel(id))


@command
def terminate(id: Id, source: FromApp = None, store: Store = None, debug: Debug = False) -> None:
    """End an execution now, whatever its machine says; its tasks and children are stopped, its parent is told.

    \b
    casework terminate o-1
    """
    with open_store(store, source) as app:
        _said(app.terminate(id))


@command
def suspend(id: Id, source: FromApp = None, store: Store = None, debug: Debug = False) -> None:
    """Stop an execution where it stands: events wait, timers do not fire, no task starts. Running tasks go on.

    \b
    casework suspend o-1
    """
    with open_store(store, source) as app:
        _said(app.suspend(id))


@command
def resume(id: Id, source: FromApp = None, store: Store = None, debug: Debug = False) -> None:
    """Let a suspended execution go on; timers that came due meanwhile fire now.

    \b
    casework resume o-1
    """
    with open_store(store, source) as app:
        _said(app.resume(id))


@command
def retry(id: Id, source: FromApp = None, store: Store = None, debug: Debug = False) -> None:
    """Let what an execution has put off be due now.

    That is a task in its pause after a failed attempt, a task whose worker died, and what is parked. What runs is left
    alone, and no attempt is counted.

    \b
    casework retry o-1
    """
    with open_store(store, source) as app:
        _said(app.retry(id))


@command
def redrive(
    id: Id,
    code: Code = None,
    skip: Annotated[bool, typer.Option("--skip", help="Go on without the event at which it failed.")] = False,
    source: FromApp = None,
    store: Store = None,
    debug: Debug = False,
) -> None:
    """Let a failed execution go on: it takes the event at which it failed again, in the state before it.

    Tasks and timers that it waited for begin again, the tasks under new idempotency keys. Ends with exit code 1 when it
    fails once more; then all is kept as before.

    \b
    casework redrive o-1 --machine shop:order
    casework redrive o-1 --machine shop:order --skip
    """
    _check_code(code, source)
    with open_store(store, source, find_machines(code) if code else ()) as app:
        execution = app.redrive(id, skip=skip)
    _said(execution)
    if execution.status == "failed":
        from casework.executions.telling import told

        say(f"it failed once more: {told(execution.error)}")
        raise typer.Exit(FAILED)


@command
def purge(
    id: Annotated[str | None, typer.Argument(metavar="[ID]", help="One execution.", show_default=False)] = None,
    tree: Annotated[
        bool, typer.Option("--tree", help="Of one execution: with its descendants. With --before they always go.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Also one that has not ended.")] = False,
    before: Annotated[
        str | None,
        typer.Option(
            metavar="AGE|DATE",
            help="Instead of one: all that ended so long ago (30d, 12h), or before a date.",
            show_default=False,
        ),
    ] = None,
    status: Annotated[
        str | None, typer.Option(help="Of these only the done, failed or cancelled ones.", show_default=False)
    ] = None,
    machine: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of these only those of this machine.", show_default=False)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Delete nothing, only say what would be.")] = False,
    source: FromApp = None,
    store: Store = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Delete ended executions and everything of them; then their ids are free.

    Interrupted, it is done again: what it had begun is finished first.

    \b
    casework purge o-1 --tree
    casework purge --before 30d --status done --machine order --dry-run
    """  # fmt: skip
    if (id is None) == (before is None):
        raise Misuse("name one execution, or say --before 30d for all that ended so long ago")
    if id is None:
        if force or tree:
            raise Misuse(
                "--force and --tree are for one execution; --before takes what has ended, descendants included"
            )
        _purge_ended(store, source, as_json, before=before, status=status, machine=machine, dry_run=dry_run)
        return
    if status is not None or machine is not None or dry_run:
        raise Misuse("--status, --machine and --dry-run go with --before")
    with open_store(store, source) as app:
        children = 0 if tree else sum(each.total for each in _children(app, id))
        count = app.purge(id, force=force, tree=tree)
    if as_json:
        print_json({"id": id, "deleted": count})
        return
    print(f"{id} is gone: {counted(count, 'item')} deleted")
    if children:
        those = "1 child, which stays" if children == 1 else f"{children:,} children, which stay"
        say(f"it had {those}; --tree takes them too")


def _children(app: Any, id: str) -> Any:
    """The children that an execution has, as far as they can be read."""
    try:
        return app.inspect(id).children
    except CaseworkError:
        return ()


def _purge_ended(store: str | None, source: str | None, as_json: bool, **filters: Any) -> None:
    """Page after page, with what was done so far on stderr."""
    found: list[Any] = []
    looked, cursor = 0, None
    with open_store(store, source) as app:
        while True:
            page = app.purge_ended(cursor=cursor, **filters)
            found += page.items
            looked += page.looked
            if not as_json:
                for one in page.items:
                    print("  ".join((one.id, one.status, one.machine, moment(one.ended_at_us), one.problem)).rstrip())
            cursor = page.next
            if cursor is None:
                break
            say(f"{counted(len(found), 'execution')} of {looked:,} looked at")
    deleted = sum(one.deleted for one in found)
    failed = [one for one in found if one.problem]
    if as_json:
        print_json({"is_dry_run": filters["dry_run"], "looked": looked, "deleted": deleted, "items": found})
    else:
        gone = counted(len(found) - len(failed), "execution")
        print(f"{gone} would be purged" if filters["dry_run"] else f"{gone} purged: {counted(deleted, 'item')} deleted")
    if failed:
        raise Contention(f"{counted(len(failed), 'execution')} could not be purged; purge again later")


@command
def migrate(
    id: Id,
    code: Code = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="NAME", help="Another machine of that place.", show_default=False)
    ] = None,
    source: FromApp = None,
    store: Store = None,
    debug: Debug = False,
) -> None:
    """Let an execution go on with another definition of its machine; refused when its states do not fit.

    \b
    casework migrate o-1 --machine order-v2.yaml
    """
    _check_code(code, source)
    with open_store(store, source, find_machines(code) if code else ()) as app:
        execution = app.migrate(id, to=to)
    print(f"{id} runs {execution.machine} {execution.machine_hash[:12]}")


COMMANDS: dict[str, Callable[..., None]] = {
    "cancel": cancel,
    "terminate": terminate,
    "suspend": suspend,
    "resume": resume,
    "retry": retry,
    "redrive": redrive,
    "purge": purge,
    "migrate": migrate,
}
