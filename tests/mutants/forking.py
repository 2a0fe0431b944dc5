"""A plugin of pytest that collects the tests once and then forks for each mutant: the child changes the functions that
are loaded already, and runs the tests of that line.

It reads mutants as JSON from the file that ``CASEWORK_MUTANTS`` names, and writes a line to the descriptor
``CASEWORK_ANSWERS`` for each: its number, and ``survived``, ``noticed`` or ``untried``. What a function did while
modules were imported stays as it was; so a mutant that survives here is tried again in a process of its own
(``trying.py``).
"""

from __future__ import annotations

import ast
import contextlib
import faulthandler
import gc
import json
import os
import signal
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

_UNTRIED = 77
"""Exit code of a child that could not try it."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    """In place of one run of everything: for each mutant a child that runs its tests."""
    items = {item.nodeid: item for item in session.items}
    gc.collect()
    with os.fdopen(int(os.environ["CASEWORK_ANSWERS"]), "w") as answers:
        for mutant in json.loads(Path(os.environ["CASEWORK_MUTANTS"]).read_text()):
            answers.write(f"{mutant['n']} {_outcome(session, items, mutant)}\n")
            answers.flush()
    return True


def _outcome(session: pytest.Session, items: dict[str, pytest.Item], mutant: dict[str, Any]) -> str:
    child = os.fork()
    if child == 0:
        os.setsid()
        faulthandler.dump_traceback_later(mutant["limit_s"], exit=True)  # one that hangs has noticed
        code = _UNTRIED
        try:
            change(Path(mutant["file"]), mutant["source"].encode())
            code = _run(session, [items[test] for test in mutant["tests"]])
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what a test started
    return {0: "survived", _UNTRIED: "untried"}.get(os.waitstatus_to_exitcode(status), "noticed")


def _run(session: pytest.Session, items: list[pytest.Item]) -> int:
    for item, after in zip(items, [*items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        if session.testsfailed:
            return 1
    return 0


def change(file: Path, source: bytes) -> int:
    """Give every loaded function of ``file`` the code and the defaults that ``source`` has for it; how many changed."""
    before, after = file.read_bytes(), source
    olds, news = _codes(before, file), _codes(after, file)
    codes = {
        _place(old): new
        for name in olds
        if len(olds[name]) == len(news.get(name, ()))
        for old, new in zip(olds[name], news[name], strict=True)
        if old.co_freevars == new.co_freevars
    }
    defaults = _changed_defaults(before, after)
    changed = 0
    for function in [each for each in gc.get_objects() if type(each) is FunctionType]:
        old = function.__code__
        if old.co_filename != str(file):
            continue
        fresh = defaults.get((old.co_name, old.co_firstlineno))
        if fresh is not None:
            function.__defaults__ = _values(fresh.defaults, function) or None
            named = zip(fresh.kwonlyargs, fresh.kw_defaults, strict=True)
            given = [(each.arg, default) for each, default in named if default is not None]
            values = _values([default for _, default in given], function)
            function.__kwdefaults__ = dict(zip([name for name, _ in given], values, strict=True)) or None
        new = codes.get(_place(old))
        if new is not None:
            function.__code__ = new
        changed += 1
    return changed


def _values(expressions: list[ast.expr], function: FunctionType) -> tuple[Any, ...]:
    texts = [compile(ast.Expression(each), "default", "eval") for each in expressions]
    return tuple(eval(text, function.__globals__) for text in texts)


def _codes(source: bytes, file: Path) -> dict[str, list[CodeType]]:
    """By qualified name, in order of place; only a lambda can be missing after a change."""
    found: dict[str, list[CodeType]] = {}

    def collect(code: CodeType) -> None:
        for each in code.co_consts:
            if isinstance(each, CodeType):
                found.setdefault(each.co_qualname, []).append(each)
                collect(each)

    collect(compile(source, str(file), "exec", dont_inherit=True))
    return found


def _place(code: CodeType) -> tuple[Any, ...]:
    return code.co_qualname, code.co_firstlineno, tuple(code.co_positions())


def _changed_defaults(before: bytes, after: bytes) -> dict[tuple[str, int], ast.arguments]:
    """By name and first line: the arguments of functions whose defaults changed."""
    return {
        (old.name, min(each.lineno for each in (old, *old.decorator_list))): new.args
        for old, new in zip(_definitions(before), _definitions(after), strict=True)
        if ast.dump(old.args) != ast.dump(new.args)
    }


def _definitions(source: bytes) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
