"""``casework dynamodb``: tables, their check, templates. What it needs is imported when it runs."""

from __future__ import annotations

from typing import Annotated, Any, cast

import typer

from casework.cli.application import FromApp, arguments_of
from casework.cli.failures import FAILED, command
from casework.cli.opening import AsJson, Debug, Store, print_json
from casework.errors import Misuse

app = typer.Typer(
    help="Make and check the tables on Amazon DynamoDB.", no_args_is_help=True, rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"]},
)  # fmt: skip

Prefix = Annotated[str, typer.Option(help="The tables' prefix.")]


def _backend(store: str | None, source: str | None) -> Any:
    from casework.app.stores import open_backend, store_url

    given = store or arguments_of(source).get("store")
    if given is not None and not isinstance(given, str):
        if not hasattr(given, "verify_tables"):
            raise Misuse(f"{given!r:.80} is not on DynamoDB; give --store 'dynamodb://?region=...&prefix=...'")
        return given
    url = store_url(given)
    if not url.startswith("dynamodb:"):
        raise Misuse(f"{url!r} is not on DynamoDB; give --store 'dynamodb://?region=...&prefix=...'")
    return open_backend(url)


@app.command("create")
@command
def create(source: FromApp = None, store: Store = None, debug: Debug = False) -> None:
    """Make the tables that are missing, wait until they are active, and switch TTL on.

    \b
    casework dynamodb create --store "dynamodb://?region=eu-west-1&prefix=shop"
    """
    from casework.kernel.schema import TABLES

    backend = _backend(store, source)
    try:
        backend.create_tables(TABLES)
    finally:
        backend.close()
    print("the tables are there and active")


@app.command("verify")
@command
def verify(source: FromApp = None, store: Store = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """Name everything that is missing or different: tables, indexes, TTL, permissions. Changes nothing.

    Exit code 1 when something is.

    \b
    casework dynamodb verify --store "dynamodb://?region=eu-west-1&prefix=shop"
    """
    from casework.kernel.schema import TABLES

    backend = _backend(store, source)
    try:
        problems = list(backend.verify_tables(TABLES))
    finally:
        backend.close()
    if as_json:
        print_json({"ok": not problems, "problems": problems})
    else:
        for problem in problems:
            print(problem)
        if not problems:
            print("all is well")
    if problems:
        raise typer.Exit(FAILED)


@app.command("template")
@command
def template(prefix: Prefix = "casework", debug: Debug = False) -> None:
    """Print a CloudFormation template for the tables.

    \b
    casework dynamodb template --prefix shop > tables.json
    """
    from casework.aws import cloudformation

    print_json(cloudformation(prefix))


@app.command("iam")
@command
def iam(
    prefix: Prefix = "casework",
    role: Annotated[str, typer.Option(help="app, worker or admin.")] = "app",
    debug: Debug = False,
) -> None:
    """Print the IAM policy that a role needs, and no more.

    An app sends, starts and waits; a worker also looks for what is due; an admin makes and verifies the tables, and
    lists idempotency keys.

    \b
    casework dynamodb iam --prefix shop --role worker
    """
    from casework.aws import iam_policy

    print_json(iam_policy(prefix, cast(Any, role)))
