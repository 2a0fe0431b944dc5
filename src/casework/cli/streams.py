"""``casework streams``: look at streams, append to them, keep them in order."""

from __future__ import annotations

import base64
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from casework.cli.application import FromApp
from casework.cli.failures import FAILED, command
from casework.cli.groups import COMMANDS, Stream, state_of
from casework.cli.opening import AsJson, Debug, Store, counted, open_store, print_json
from casework.errors import Misuse

app = typer.Typer(
    help="Look at streams, append to them, truncate and repair them.", no_args_is_help=True, rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"]},
)  # fmt: skip


@app.command("list")
@command
def list_(source: FromApp = None, store: Store = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """List the streams that there are.

    \b
    casework streams list
    """
    with open_store(store, source, executions=False) as opened:
        names: list[str] = []
        cursor = None
        while True:
            page = opened.streams.list(cursor=cursor)
            names += page.streams
            cursor = page.next_cursor
            if cursor is None:
                break
    if as_json:
        print_json(names)
    else:
        for name in names:
            print(name)


@app.command("head")
@command
def head(
    stream: Stream,
    groups: Annotated[
        list[str] | None, typer.Option("--group", help="Also show how far this group of consumers is.")
    ] = None,
    source: FromApp = None,
    store: Store = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show the head of a stream: its last number, what was truncated, its snapshot.

    \b
    casework streams head orders
    casework streams head orders --group mailer
    """
    with open_store(store, source, executions=False) as opened:
        found = opened.streams.head(stream)
        lags = {group: opened.streams.lag(group, [stream])[0] for group in groups or ()}
    if as_json:
        print_json({"head": found, "groups": lags})
        return
    print(f"{stream}: last {found.last_seq}, floor {found.floor_seq}, snapshot {found.snapshot_seq}")
    for group, lag in lags.items():
        print(f"  {group}: {state_of(lag)}")


@app.command("read")
@command
def read(
    stream: Stream,
    after: Annotated[int, typer.Option(min=0, help="Begin behind this number.")] = 0,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many.", show_default=False)] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")] = False,
    source: FromApp = None,
    store: Store = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line; data that is no text as base64.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Print operations in order: number, id, data.

    \b
    casework streams read orders --after 100
    casework streams read orders -f --json | jq .data
    """
    with open_store(store, source, executions=False) as opened:
        left = limit
        for op in opened.streams.tail(stream, after) if follow else opened.streams.read(stream, after, limit):
            print(_line(op, as_json), flush=follow)
            if left is not None:
                left -= 1
                if left == 0:
                    break


def _line(op: Any, as_json: bool) -> str:
    import json

    try:
        text = op.data.decode()
        is_text = text.isprintable()
    except UnicodeDecodeError:
        is_text = False
    if as_json:
        data = {"data": text} if is_text else {"base64": base64.b64encode(op.data).decode()}
        return json.dumps({"seq": op.seq, "id": op.id, "at_us": op.at_us, **data}, ensure_ascii=False)
    return f"{op.seq}  {op.id}  {text if is_text else repr(op.data)}"


@app.command("append")
@command
def append(
    stream: Stream,
    id: Annotated[str | None, typer.Argument(metavar="[ID]", help="The operation's id.", show_default=False)] = None,
    data: Annotated[
        str | None, typer.Argument(metavar="[DATA|@FILE]", help="Its data; @- reads stdin.", show_default=False)
    ] = None,
    lines: Annotated[
        str | None,
        typer.Option(metavar="FILE", help='Operations, one JSON object {"id": ..., "data": ...} a line; - is stdin.'),
    ] = None,
    expected_seq: Annotated[
        int | None,
        typer.Option(metavar="N", help="Only if the stream ends at this number; 0: if it does not exist yet."),
    ] = None,
    source: FromApp = None,
    store: Store = None,
    debug: Debug = False,
) -> None:
    """Append an operation, or many; an id that is there already is answered with its own number.

    \b
    casework streams append orders op-1 '{"sku": "A-7"}'
    casework streams append orders --lines operations.jsonl
    """
    from casework.streams.log import Op

    if (lines is None) == (id is None) or (id is not None and data is None):
        raise Misuse("give an ID and its DATA, or --lines FILE")
    given: list[Op] = _from_lines(lines) if lines is not None else [Op(str(id), _data(str(data)))]
    with open_store(store, source, make=True, executions=False) as opened:
        answers = opened.streams.append(stream, given, expected_seq=expected_seq)
    for answer in answers:
        print(f"{answer.seq}  {answer.id}{'  (was there)' if answer.is_duplicate else ''}")


def _data(text: str) -> bytes:
    if not text.startswith("@"):
        return text.encode()
    try:
        return sys.stdin.buffer.read() if text == "@-" else Path(text[1:]).read_bytes()
    except OSError as error:
        raise Misuse(f"{text[1:]}: {error}") from None


def _from_lines(place: str) -> list[Any]:
    import msgspec

    from casework.streams.log import Op

    class Line(msgspec.Struct):
        id: str
        data: str

    found = []
    for number, line in enumerate(_data(f"@{place}").splitlines(), 1):
        if line.strip():
            try:
                one = msgspec.json.decode(line, type=Line)
            except msgspec.DecodeError as error:
                raise Misuse(f"{place}, line {number}: {error}") from None
            found.append(Op(one.id, one.data.encode()))
    return found


@app.command("truncate")
@command
def truncate(
    stream: Stream,
    upto: Annotated[int, typer.Argument(metavar="UPTO", min=0, help="Up to this number.", show_default=False)],
    repush_window_s: Annotated[
        float, typer.Option(min=0, help="Keep what is younger, so that a repeated push is recognised.")
    ] = 7 * 86_400.0,
    source: FromApp = None,
    store: Store = None,
    debug: Debug = False,
) -> None:
    """Remove operations from the beginning of a stream. Can be repeated; goes on where another run ended.

    \b
    casework streams truncate orders 50000
    """
    with open_store(store, source, executions=False) as opened:
        done = opened.streams.truncate(stream, upto, repush_window_s=repush_window_s)
    kept = f", {done.kept_ops} kept for repeated pushes" if done.kept_ops else ""
    print(f"{stream}: floor {done.floor_seq}, {counted(done.removed_ops, 'operation')} removed{kept}")


@app.command("repair")
@command
def repair(
    stream: Stream,
    apply: Annotated[bool, typer.Option("--apply", help="Mark holes as lost, correct the head.")] = False,
    source: FromApp = None,
    store: Store = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show what is wrong with a stream; with --apply, let readers pass holes. Exit code 1 while something is.

    Run it while nothing is appended. Overlaps and unreadable segments are shown, not changed.

    \b
    casework streams repair orders
    casework streams repair orders --apply
    """
    with open_store(store, source, executions=False) as opened:
        findings = opened.streams.repair(stream, apply=apply)
    if as_json:
        print_json(findings)
    else:
        for finding in findings:
            print(finding)
        if not findings:
            print(f"{stream} is whole")
    if any(not finding.repaired for finding in findings):
        raise typer.Exit(FAILED)


for _name, _command in COMMANDS.items():
    app.command(_name)(_command)
