"""Every place at which the library takes a function of a user's, found in the source, and which test is for it.

``found_in_source`` lists the parameters and fields that take a function. One that stands in neither table below fails a
test: whoever adds a place says here how it is tested, or why no function of a user's ever comes there.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import casework

SOURCE = Path(casework.__file__).parent

OF_USERS = frozenset((
    "Callable", "Handler", "Hook", "Invariant", "Scope", "KeySource", "Codec", "View", "AsgiApp", "WsgiApp", "Target",
    "MessageHandler", "Perform", "Function", "F",
))  # fmt: skip
"""Annotations of what takes a function, or an object with methods that users write."""

NOT_FOR_USERS = ("kernel", "backends", "demo", "cli", "testing")
"""Packages in which no function of a user's is taken: what comes there came through another place."""

TESTED = {
    "task": (r"statechart/model.py:Machine.task\(function\)",),
    "action": (r"statechart/model.py:Machine.action\(function\)",),
    "guard": (r"statechart/model.py:Machine.guard\(function\)",),
    "codec": (r"(app|executions)/.*\(codec\)", r"app/core.py:.*codec"),
    "stream handler": (r"(app|streams)/.*\(handler\)",),
    "message": (
        r"surfaces/messages.py:.*\((function|target|key|payload|hooks|handler)\)",
        r"surfaces/consumer.py:.*\(handler\)",
    ),
    "idempotent": (
        r"surfaces/(decorator|guard|once).py:.*\((function|target|key|payload|scope|codec|hooks)\)",
        r"idempotency/calling.py:.*(codec|\(work\))", r"idempotency/codecs.py:result_type\(function\)",
        r"idempotency/guarding.py:Claim.when_lost\(tell\)",
    ),
    "http": (
        r"surfaces/(aiohttp|asgi|wsgi|views|http|django|flask|routes).py:"
        r".*\((app|store|target|view|hooks|function|handler|endpoint|work)\)",
        r"surfaces/http.py:(HttpOptions|HttpArguments).(scope|applies|keep_status|fingerprint|hooks)",
        r"relay/aws_lambda.py:.*\(app\)",
    ),
    "invariant": (r"simulation/invariants.py:.*\((check|function)\)", r"simulation/.*(invariants|invariants\))"),
    "stand-in": (
        r"simulation/standins.py:StandIn.function", r"simulation/.*prepare\)?",
        r"simulation/users.py:.*\(on_progress\)",
    ),
    "when_ended": (r"executions/worker_state.py:Worker.when_ended\(callback\)",),
    "view of a replica": (r"replica/replica.py:.*\((function|encode|decode)\)",),
}  # fmt: skip
"""By place: which parameters and fields of the source lead to it."""

OURS = (
    ".*:_driven.*", "app/methods.py:.*", "app/idempotency_memory.py:.*", "app/workers.py:_on_own_thread.*",
    "executions/(control|holding|setting_aside|tasks|run_task|deliver).py:.*",
    "executions/worker_state.py:Worker.__init__.*",
    "idempotency/(lifecycle|bounded).py:.*", "arguments.py:.*", "surfaces/function_names.py:.*",
    "simulation/(runner|world|users).py:.*", "simulation/scenarios/.*",
    "statechart/(?!model.py).*", r"replica/replica.py:.*\(sleep\)", "replica/answers.py:.*",
    "relay/(?!aws_lambda).*", "streams/(append|log|writer|read).py:.*",
    "app/(transaction|intents|operations|settings|arguments).py:.*",
    "executions/(store|store_items|publish|spill|advance|change|joins).py:.*",
)  # fmt: skip
"""Where only our own functions come."""


def found_in_source() -> list[str]:
    """Every parameter and field that takes a function, as ``file:Class.function(parameter)``."""
    found: list[str] = []
    for file in sorted(SOURCE.rglob("*.py")):
        name = file.relative_to(SOURCE).as_posix()
        if name.split("/")[0] not in NOT_FOR_USERS:
            found += _in(ast.parse(file.read_text()), f"{name}:")
    return found


def _in(node: ast.AST, inside: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if getattr(child, "name", "").startswith("_") and child.name != "__init__":  # type: ignore[attr-defined]
            continue  # what comes there came through something public
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            for each in (*child.args.posonlyargs, *child.args.args, *child.args.kwonlyargs):
                if each.annotation is not None and _takes_function(each.annotation):
                    yield f"{inside}{child.name}({each.arg})"
            yield from _in(child, f"{inside}{child.name}.")
        elif isinstance(child, ast.ClassDef):
            yield from _in(child, f"{inside}{child.name}.")
        elif isinstance(child, ast.AnnAssign) and isinstance(node, ast.ClassDef) and _takes_function(child.annotation):
            yield f"{inside}{ast.unparse(child.target)}"


def _takes_function(annotation: ast.expr) -> bool:
    names = {each.id for each in ast.walk(annotation) if isinstance(each, ast.Name)}
    names |= {each.attr for each in ast.walk(annotation) if isinstance(each, ast.Attribute)}
    return not names.isdisjoint(OF_USERS)


def place_of(found: str) -> str | None:
    """The place that a parameter leads to; "" where it is ours, None where nobody has said."""
    for place, patterns in TESTED.items():
        if any(re.fullmatch(pattern, found) for pattern in patterns):
            return place
    return "" if any(re.fullmatch(pattern, found) for pattern in OURS) else None
