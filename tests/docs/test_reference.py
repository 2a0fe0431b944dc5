"""The reference has every public name, and the navigation every page."""

from __future__ import annotations

import importlib
import inspect
import re
import typing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

import casework
import casework.errors
from casework.app.execution_store import ExecutionStore
from casework.app.idempotency_store import IdempotencyStore
from casework.app.streams import StreamStore
from casework.app.sync import App
from casework.app.transaction import Intents
from casework.executions.runtime import Options
from casework.executions.worker import WorkerOptions
from casework.idempotency.guarding import Policy
from casework.streams.consumer import ConsumerOptions, HandlerWrites
from casework.surfaces.http import HttpOptions

ROOT = Path(__file__).parents[2]
DIRECTIVE = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)
SHOWN = [
    name
    for page in sorted((ROOT / "docs" / "reference").glob("*.md"))
    for name in DIRECTIVE.findall(page.read_text("utf-8"))
]
OPTIONS = [Options, WorkerOptions, ConsumerOptions, casework.StreamOptions, HttpOptions, Policy]
FACADES = [App, StreamStore, ExecutionStore, IdempotencyStore]


def thing(path: str) -> Any:
    """The module, or what a module has, at a dotted path."""
    module, _, name = path.rpartition(".")
    found = getattr(importlib.import_module(module), name, None)
    return importlib.import_module(path) if found is None else found


def structs(annotation: Any) -> set[Any]:
    """The structs that an annotation names, those that they hold included."""
    found = set()
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        found = {annotation}
        for field in typing.get_type_hints(annotation).values():
            found |= structs(field)
    for argument in typing.get_args(annotation):
        found |= structs(argument)
    return found


@pytest.mark.parametrize("name", casework.__all__)
def test_every_public_name_is_in_the_reference(name: str) -> None:
    assert f"casework.{name}" in SHOWN or ("casework.errors" in SHOWN and hasattr(casework.errors, name))


@pytest.mark.parametrize("module", ["casework.aws", "casework.replica", "casework.testing"])
def test_every_public_name_of_another_module_is_in_the_reference(module: str) -> None:
    found = importlib.import_module(module)
    shown = [thing(path) for path in SHOWN]
    assert [name for name in found.__all__ if getattr(found, name) not in shown] == []


@pytest.mark.parametrize("kind", [*OPTIONS, Intents, HandlerWrites], ids=lambda kind: kind.__name__)
def test_every_options_type_is_in_the_reference(kind: Any) -> None:
    assert kind in map(thing, SHOWN)


@pytest.mark.parametrize("facade", FACADES, ids=lambda facade: facade.__name__)
def test_what_a_facade_hands_back_is_in_the_reference(facade: Any) -> None:
    operations = [inspect.unwrap(method) for _, method in inspect.getmembers(facade, inspect.isfunction)]
    programs = [typing.get_type_hints(each)["return"] for each in operations if inspect.isgeneratorfunction(each)]
    found = set().union(*(structs(typing.get_args(program)[-1]) for program in programs))
    assert found, "nothing was looked at"
    assert sorted(kind.__qualname__ for kind in found - set(map(thing, SHOWN))) == []


def test_the_reference_names_nothing_twice() -> None:
    assert sorted(name for name in set(SHOWN) if SHOWN.count(name) > 1) == []


class Loader(yaml.SafeLoader):
    """Reads past the tags that name Python objects."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)


def test_every_page_is_in_the_navigation() -> None:
    def pages(entry: Any) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        return [page for each in (entry.values() if isinstance(entry, dict) else entry) for page in pages(each)]

    listed = pages(yaml.load((ROOT / "mkdocs.yml").read_text("utf-8"), Loader)["nav"])
    docs = ROOT / "docs"
    assert sorted(listed) == sorted(page.relative_to(docs).as_posix() for page in docs.rglob("*.md"))


@pytest.mark.parametrize("facade", [App, casework.AsyncApp], ids=lambda facade: facade.__name__)
def test_help_says_what_a_method_takes_and_returns(facade: Any) -> None:
    signature = inspect.signature(facade.start)
    assert str(signature) == "(self, /, machine: 'str', *, id: 'str | None' = None, input: 'Any' = None) -> 'Execution'"
    assert str(inspect.signature(facade.wait)).endswith("-> 'Execution'")
    assert str(inspect.signature(facade.trace)).endswith("-> 'list[dict[str, Any]]'")
