"""A child process changes the functions that are loaded: all of them, wherever they are held."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from tests.mutants.forking import change

SOURCE = """
import functools

def plain(a, b=7):
    return a < b

def makes():
    n = 1
    def inner(a):
        return a + n
    return inner

class Thing:
    @property
    def size(self):
        return 3

    @staticmethod
    def named(*, step=1, name="x"):
        return name * step

@functools.cache
def cached(a):
    return [lambda: a, lambda: a + 1]

MADE = makes()
"""


@pytest.fixture
def loaded(tmp_path: Path) -> ModuleType:
    file = tmp_path / "loaded.py"
    file.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("loaded", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("old", "new", "call", "before", "after"),
    [
        ("a < b", "a <= b", "plain(7)", False, True),
        ("b=7", "b=(8)", "plain(7)", False, True),
        ("a + n", "a - n", "MADE(5)", 6, 4),
        ("a + n", "a - n", "makes()(5)", 6, 4),
        ("return 3", "return None", "Thing().size", 3, None),
        ("step=1", "step=(2)", "Thing.named()", "x", "xx"),
        ("a + 1", "a - 1", "[each() for each in cached(5)]", [5, 6], [5, 4]),
        ("return [lambda: a, lambda: a + 1]", "return None", "cached(5) and 2", 2, None),
    ],
)
def test_a_loaded_function_is_changed(
    loaded: ModuleType, old: str, new: str, call: str, before: object, after: object
) -> None:
    file = Path(str(loaded.__file__))
    assert eval(call, vars(loaded)) == before
    loaded.cached.cache_clear()
    assert SOURCE.count(old) == 1
    change(file, SOURCE.replace(old, new).encode())
    assert eval(call, vars(loaded)) == after


def test_functions_of_other_files_stay(loaded: ModuleType) -> None:
    code = change.__code__
    assert change(Path(str(loaded.__file__)), SOURCE.replace("a < b", "a > b").encode()) >= 6
    assert change.__code__ is code
