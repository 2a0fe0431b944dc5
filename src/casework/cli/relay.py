"""``casework relay`` and ``casework token``: streams over HTTP, and who may use them."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from casework.cli.application import FromApp, arguments_of
from casework.cli.failures import command, say
from casework.cli.opening import AsJson, Debug, Store, command_store, open_store, print_json
from casework.errors import MissingExtra, Misuse

if TYPE_CHECKING:
    from casework.app.arguments import OpenArguments

tokens = typer.Typer(
    help="Make, list and revoke the relay's tokens.", no_args_is_help=True, rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"]},
)  # fmt: skip


@command
def relay(
    source: FromApp = None,
    store: Store = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 8420,
    push_deadline: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", show_default=False,
            help="Answer a push after so long, whatever is stored by then "
            "[env: CASEWORK_RELAY_PUSH_DEADLINE_SECS; default: 20]",
        ),
    ] = None,
    max_body_bytes: Annotated[int, typer.Option(min=1000, help="A larger request is refused.")] = 6 * 1024 * 1024,
    debug: Debug = False,
) -> None:  # fmt: skip
    """Serve streams over HTTP: push, pull, long poll and events; /openapi.json describes it.

    Every request needs a token: `casework token create`. SIGTERM or Ctrl-C ends it after the pushes under way.

    \b
    casework relay --store sqlite:///shop.db
    casework relay --host 0.0.0.0 --port 80 --store "dynamodb://?region=eu-west-1"
    """
    import asyncio

    from casework.relay.settings import RelaySettings, read_push_deadline

    settings = RelaySettings(
        push_deadline_s=read_push_deadline(push_deadline, os.environ), max_body_bytes=max_body_bytes
    )
    logging.basicConfig(
        stream=sys.stderr, level=logging.DEBUG if debug else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )  # fmt: skip
    arguments = arguments_of(source)
    target = command_store(store, arguments, make=True)
    asyncio.run(_serve(target, arguments, settings, host, port, debug))


async def _serve(target: Any, arguments: OpenArguments, settings: object, host: str, port: int, debug: bool) -> None:
    from casework.app.aio import open_core_async
    from casework.app.arguments import check_rest, make_options
    from casework.app.core import Core
    from casework.backends.threaded import ThreadedBackend

    try:
        from casework.relay.serve import RelayServer
        from casework.relay.service import Relay
    except ModuleNotFoundError as error:
        raise MissingExtra(f"the relay needs {error.name}: pip install casework[web]") from error

    check_rest(arguments.get("create"), arguments.get("streams"))
    core = Core((), make_options(), None, arguments.get("streams"))
    core.reads_executions = False
    opened = target if isinstance(target, str) else ThreadedBackend(target, owns_blocking=True)
    async with open_core_async(core, opened, arguments.get("create")) as app:
        server = RelayServer(
            Relay(app.streams, settings), host=host, port=port,  # type: ignore[arg-type]
            log_level="info" if debug else "warning",
        )  # fmt: skip
        server.when_started = lambda: say(f"the relay listens on http://{host}:{server.port}")
        await server.serve()
    say("the relay has ended")


@tokens.command("create")
@command
def create(
    grants: Annotated[
        list[str],
        typer.Argument(
            metavar="PATTERN=RIGHTS...", show_default=False,
            help="Rights (read, append, admin) to the streams whose ids match, as in 'orders-*=read,append'.",
        ),
    ],
    label: Annotated[str, typer.Option(help="For people: whose it is.")] = "",
    ttl_s: Annotated[float | None, typer.Option(help="It ends after so many seconds.", show_default=False)] = None,
    source: FromApp = None,
    store: Store = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:  # fmt: skip
    """Make a token and print it. It is shown this once; the store keeps only a hash.

    \b
    casework token create 'orders-*=read,append' --label "till 3"
    casework token create '*=admin' --ttl-s 3600
    """
    from casework.backends.drive import run
    from casework.streams.tokens import create_token, read_grant

    wanted = [read_grant(grant) for grant in grants]
    with open_store(store, source, make=True, executions=False) as app:
        text, info = run(create_token(wanted, label=label, ttl_s=ttl_s), app.backend)
    if as_json:
        print_json({"token": text, "id": info.id})
    else:
        print(text)


@tokens.command("list")
@command
def list_(source: FromApp = None, store: Store = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """List the tokens: their ids, rights and ends, never their secrets.

    \b
    casework token list
    """
    from casework.backends.drive import run
    from casework.streams.tokens import list_tokens

    with open_store(store, source, executions=False) as app:
        found = run(list_tokens(), app.backend)
    if as_json:
        print_json(found)
        return
    for info in found:
        grants = " ".join(f"{grant.pattern}={','.join(grant.rights)}" for grant in info.grants)
        ends = f"  ends at {info.expires_at_s}" if info.expires_at_s else ""
        print(f"{info.id}  {grants}  {info.label}{ends}".rstrip())


@tokens.command("revoke")
@command
def revoke(
    id: Annotated[str, typer.Argument(metavar="ID", help="As `casework token list` shows it.", show_default=False)],
    source: FromApp = None,
    store: Store = None,
    debug: Debug = False,
) -> None:
    """Revoke a token; a relay refuses it within five seconds.

    \b
    casework token revoke 3kHd0Y2w
    """
    from casework.backends.drive import run
    from casework.streams.tokens import revoke_token

    with open_store(store, source, executions=False) as app:
        if not run(revoke_token(id), app.backend):
            raise Misuse(f"there is no token {id!r}; `casework token list` shows those that there are")
    print(f"{id} is revoked")
