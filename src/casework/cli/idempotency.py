"""``casework idempotency``: look at keys, release claims by force, purge. What it needs is imported when it runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from casework.cli.application import FromApp, arguments_of
from casework.cli.failures import FAILED, command, say
from casework.cli.inspecting import moment
from casework.cli.opening import AsJson, Debug, Store, command_store, counted, print_json
from casework.errors import CorruptItem, Misuse

app = typer.Typer(
    help="Look at idempotency keys, release claims, purge results.", no_args_is_help=True, rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"]},
)  # fmt: skip

Key = Annotated[str, typer.Argument(metavar="KEY", help="The whole key, such as shop.refund/42.", show_default=False)]


@contextmanager
def _opened(store: str | None, source: str | None) -> Iterator[Any]:
    """The idempotency store at a URL. Misuse for a file that is not there: a typing error must not leave a new one."""
    from casework.app.idempotency_store import IdempotencyStore
    from casework.app.stores import open_backend

    found = command_store(store, arguments_of(source))
    with IdempotencyStore(open_backend(found) if isinstance(found, str) else found) as opened:
        yield opened


def _stored_key(opened: Any, key: str) -> str:
    """The key as it is stored. One that is text stands there as JSON, ``shop.refund/"42"``; the plain form will do."""
    name, slash, rest = key.partition("/")
    if not slash or opened.get(key) is not None:
        return key
    quoted = f"{name}/{json.dumps(rest, ensure_ascii=False)}"
    return quoted if opened.get(quoted) is not None else key


@app.command("show")
@command
def show(key: Key, source: FromApp = None, store: Store = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """Show the record of a key: who has it until when, or what it came to.

    \b
    casework idempotency show shop.refund/42
    """
    with _opened(store, source) as opened:
        record = opened.get(_stored_key(opened, key))
    if record is None:
        say(f"there is no record of {key!r}")
        raise typer.Exit(FAILED)
    if as_json:
        print_json(_as_json(record))
        return
    for line in shown(record):
        print(line)


def shown(record: Any) -> Iterator[str]:
    """A record in lines."""
    yield f"{record.key}  {record.state}  (epoch {record.epoch}, {record.renewals} renewals)"
    lease = f"lease {record.lease_us / 1e6:g} s until {moment(record.lease_until_us)}"
    yield f"  claimed   {moment(record.created_at_us)}, {lease}"
    yield f"  payload   {record.fingerprint or '-'} (version {record.fingerprint_version})"
    if record.state == "completed":
        expires = moment(record.expires_at_us) if record.expires_at_us else "never"
        yield f"  completed {moment(record.completed_at_us)}, expires {expires}"
        chunks = f" in {record.chunks} chunks" if record.chunks else ""
        yield f"  result    status {record.status}, {record.size:,} bytes{chunks}"
        for name, value in record.headers:
            yield f"            {name}: {value}"
        if record.body:
            yield f"            {record.body[:300].decode(errors='replace')}"


def _as_json(record: Any) -> dict[str, Any]:
    import msgspec

    found: dict[str, Any] = msgspec.to_builtins(record)
    found["body"] = record.body.decode(errors="replace")
    return found


@app.command("list")
@command
def list_(
    state: Annotated[str | None, typer.Option(help="claimed, completed or released.", show_default=False)] = None,
    prefix: Annotated[str, typer.Option(help="Only keys that begin so, such as shop.refund/.")] = "",
    limit: Annotated[int, typer.Option(help="At most so many, 1 to 1000.")] = 100,
    cursor: Annotated[str | None, typer.Option(help="Go on where the page before ended.", show_default=False)] = None,
    source: FromApp = None,
    store: Store = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List keys. It walks through the whole table, so on DynamoDB it is charged for every item that it passes,
    and needs the permission dynamodb:Scan (role admin of `casework dynamodb iam`).

    \b
    casework idempotency list --state claimed
    """
    if not 1 <= limit <= 1000:
        raise Misuse(f"--limit is {limit}; it must be 1 to 1000")
    with _opened(store, source) as opened:
        records, unreadable, after = _page(opened, state, prefix, limit, cursor)
    if as_json:
        print_json({"items": [_as_json(record) for record in records], "unreadable": unreadable, "next": after})
        return
    for record in records:
        until = record.lease_until_us if record.state == "claimed" else record.expires_at_us
        print(f"{record.state:<9}  {moment(until) if until else '-':<24}  {record.key}")
    if not records:
        say("nothing to list")
    for text in unreadable:
        say(f"unreadable: {text}")
    if after is not None:
        say(f"more with --cursor {after}")


def _page(
    opened: Any, state: str | None, prefix: str, limit: int, cursor: str | None
) -> tuple[list[Any], list[str], str | None]:
    from casework.executions.cursors import Place, read_place, write_place
    from casework.idempotency.record import RECORD, record_of

    place = read_place(cursor, ["keys", state, prefix], limit)
    after = place.inner
    records: list[Any] = []
    unreadable: list[str] = []
    while True:
        items, after = opened.backend.walk(opened.shared.table, limit - len(records), after)
        for item in items:
            if item.get("part") != RECORD or not str(item.get("key", "")).startswith(prefix):
                continue
            try:
                record = record_of(item)
            except CorruptItem as error:
                unreadable.append(str(error))
                continue
            if state is None or record.state == state:
                records.append(record)
        if after is None or len(records) >= limit:
            return records, unreadable, None if after is None else write_place(Place(place.binding, 0, after))


def _purge_expired(opened: Any) -> int:
    """Page by page; first what is expired of a page, then on from its end."""
    deleted: int = 0
    after: str | None = None
    while True:
        items, after = opened.backend.walk(opened.shared.table, 500, after)
        deleted += opened.purge_expired(items)
        if after is None:
            return deleted


@app.command("release")
@command
def release(key: Key, source: FromApp = None, store: Store = None, debug: Debug = False) -> None:
    """Release the claim on a key, so that the next call begins at once. Be sure that its holder works no more.

    \b
    casework idempotency release shop.refund/42
    """
    with _opened(store, source) as opened:
        key = _stored_key(opened, key)
        if not opened.force_release(key):
            say(f"nobody has {key!r} claimed")
            raise typer.Exit(FAILED)
    print(f"{key} is released")


@app.command("purge")
@command
def purge(
    key: Annotated[
        str | None, typer.Argument(metavar="[KEY]", help="The whole key, such as shop.refund/42.", show_default=False)
    ] = None,
    expired: Annotated[bool, typer.Option("--expired", help="Instead of a key: all whose time is over.")] = False,
    source: FromApp = None,
    store: Store = None,
    debug: Debug = False,
) -> None:
    """Forget a key and its result: the next call with it runs again.

    --expired deletes all records whose time is over at once. A store does that by itself as well, later.

    \b
    casework idempotency purge shop.refund/42
    casework idempotency purge --expired --store sqlite:///shop.db
    """
    if expired == (key is not None):
        raise Misuse("name a key, or give --expired")
    with _opened(store, source) as opened:
        if key is None:
            print(f"{counted(_purge_expired(opened), 'item')} deleted")
            return
        key = _stored_key(opened, key)
        count = opened.purge(key)
    if not count:
        say(f"there is no record of {key!r}")
        raise typer.Exit(FAILED)
    print(f"{key} is forgotten: {counted(count, 'item')} deleted")
