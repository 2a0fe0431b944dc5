"""``casework replica``: a stream in a file of one's own, which works offline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from casework.cli.failures import command
from casework.cli.opening import AsJson, Debug, counted, print_json
from casework.errors import Misuse

if TYPE_CHECKING:
    from casework.replica import Replica

app = typer.Typer(
    help="Keep a stream in a file of your own: append offline, push, pull.", no_args_is_help=True,
    rich_markup_mode=None, context_settings={"help_option_names": ["--help", "-h"]},
)  # fmt: skip

File = Annotated[Path, typer.Argument(metavar="FILE", help="The replica's file.", show_default=False)]
Token = Annotated[
    str | None,
    typer.Option("--token", envvar="CASEWORK_RELAY_TOKEN", help="For the relay.", show_default=False),
]


def _open(file: Path, token: str | None = None) -> Replica:
    from casework.replica import Replica

    if not file.exists():
        raise Misuse(f"there is no replica {str(file)!r}; begin one with `casework replica init`")
    return Replica(file, token=token)


@app.command("init")
@command
def init(
    file: File,
    stream: Annotated[str, typer.Option(help="The stream.", show_default=False)],
    relay: Annotated[str, typer.Option(metavar="URL", help="The relay's address.", show_default=False)],
    debug: Debug = False,
) -> None:
    """Begin a replica: make its file. Its token comes from CASEWORK_RELAY_TOKEN, and is not kept.

    \b
    casework replica init tasks.replica --stream tasks --relay https://relay.example.org
    """
    from casework.replica import Replica

    with Replica(file, stream=stream, relay=relay):
        print(f"{file} is a replica of {stream}")


@app.command("append")
@command
def append(
    file: File,
    data: Annotated[str, typer.Argument(metavar="DATA", help="The operation's data.", show_default=False)],
    id: Annotated[str | None, typer.Option(help="Its id [default: a fresh one]", show_default=False)] = None,
    debug: Debug = False,
) -> None:
    """Append an operation to the file; works offline. Prints its id.

    \b
    casework replica append tasks.replica '{"add": "milk"}'
    """
    with _open(file) as replica:
        print(replica.append(data.encode(), id=id))


@app.command("push")
@command
def push(file: File, token: Token = None, debug: Debug = False) -> None:
    """Push what waits to the relay.

    \b
    casework replica push tasks.replica
    """
    with _open(file, token) as replica:
        report = replica.push()
    print(f"{report.pushed} pushed, {report.parked} parked")


@app.command("pull")
@command
def pull(file: File, token: Token = None, debug: Debug = False) -> None:
    """Pull what is new from the relay.

    \b
    casework replica pull tasks.replica
    """
    with _open(file, token) as replica:
        print(f"{replica.pull()} pulled")


@app.command("sync")
@command
def sync(file: File, token: Token = None, debug: Debug = False) -> None:
    """Push, then pull.

    \b
    casework replica sync tasks.replica
    """
    with _open(file, token) as replica:
        before = replica.file.cursor
        report = replica.sync()
        pulled = max(0, replica.file.cursor - before)
    print(f"{report.pushed} pushed, {report.parked} parked, {pulled} pulled")


@app.command("read")
@command
def read(
    file: File,
    after: Annotated[int, typer.Option(min=0, help="Begin behind this number.")] = 0,
    debug: Debug = False,
) -> None:
    """Print the stream as far as it was pulled, and then what waits to be pushed.

    \b
    casework replica read tasks.replica
    """
    with _open(file) as replica:
        for op in replica.read(after):
            print(f"{op.seq}  {op.id}  {op.data.decode(errors='replace')}")
        for waiting in replica.file.own("waiting", "pushed"):
            print(f"-  {waiting.op.id}  {waiting.op.data.decode(errors='replace')}")


@app.command("tail")
@command
def tail(file: File, token: Token = None, debug: Debug = False) -> None:
    """Print what comes, until Ctrl-C.

    \b
    casework replica tail tasks.replica
    """
    with _open(file, token) as replica:
        for op in replica.tail():
            print(f"{op.seq}  {op.id}  {op.data.decode(errors='replace')}", flush=True)


@app.command("rebase")
@command
def rebase(
    file: File,
    token: Token = None,
    skip_lost: Annotated[
        bool,
        typer.Option("--skip-lost", help="Without a snapshot: go on without what was truncated before it was pulled."),
    ] = False,
    debug: Debug = False,
) -> None:
    """Go on after the stream was truncated past this replica: from the relay's snapshot.

    \b
    casework replica rebase tasks.replica
    """
    with _open(file, token) as replica:
        print(f"goes on behind {replica.rebase(skip_lost=skip_lost)}")


@app.command("status")
@command
def status(file: File, debug: Debug = False) -> None:
    """Show how far a replica is: what was pulled, what waits, what is parked and why.

    \b
    casework replica status tasks.replica
    """
    with _open(file) as replica:
        own = replica.file.own("waiting", "pushed")
        print(f"{replica.stream} at {replica.file.cursor}, {sum(w.state == 'waiting' for w in own)} to push")
        for parked in replica.parked():
            print(f"  parked  {parked.op.id}  {parked.error}")
        lost = sum(each.now_seq is None for each in replica.differences())
        if replica.file.rewinds:
            print(
                f"  the relay's log became another one; {lost} operations have not come back: see `replica differences`"
            )


@app.command("differences")
@command
def differences(
    file: File,
    push: Annotated[
        bool, typer.Option("--push", help="Let operations of others that have not come back wait to be pushed.")
    ] = False,
    forget: Annotated[bool, typer.Option("--forget", help="Forget what was set aside.")] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show what was pulled and is not at its number any more, after the relay's store was restored from a backup.

    This replica's own operations are pushed again by themselves; --push does it for those of others, under their ids.

    \b
    casework replica differences tasks.replica
    casework replica differences tasks.replica --push
    """
    if push and forget:
        raise Misuse("give --push or --forget, not both")
    with _open(file) as replica:
        if push:
            print(f"{counted(replica.push_differences(), 'operation')} waiting to be pushed")
            return
        found = replica.differences()
        if forget:
            replica.file.forget_differences()
            print(f"{counted(len(found), 'difference')} forgotten")
            return
    if as_json:
        print_json(found)
        return
    for each in found:
        now = "not there" if each.now_seq is None else f"now {each.now_seq}"
        whose = "own" if each.is_own else "of others"
        print(f"{each.op.seq}  {each.op.id}  {whose}  {now}  {each.op.data.decode(errors='replace')}")
    if not found:
        print("nothing differs")


@app.command("unpark")
@command
def unpark(
    file: File,
    id: Annotated[str, typer.Argument(metavar="ID", help="The operation.", show_default=False)],
    drop: Annotated[bool, typer.Option("--drop", help="Forget it instead of pushing it again.")] = False,
    new_id: Annotated[str | None, typer.Option(help="Push it under another id.", show_default=False)] = None,
    debug: Debug = False,
) -> None:
    """Let a parked operation be pushed again, under its own id or a new one, or drop it.

    \b
    casework replica unpark tasks.replica 4f0c --new-id 4f0d
    casework replica unpark tasks.replica 4f0c --drop
    """
    with _open(file) as replica:
        if not replica.unpark(id, drop=drop, new_id=new_id):
            raise Misuse(f"no operation {id!r} is parked; `casework replica status` shows those that are")
    print(f"{id} is {'dropped' if drop else 'waiting again'}")
