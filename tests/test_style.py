"""Style, where a machine can check it. `make lint` runs this file; each failure names the place and the way out.

Import contracts between the layers stand in pyproject.toml (import-linter); ruff and mypy have the rest.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "casework"

MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 70
MAX_LINES_WITHOUT_DOCSTRING = 12

PURE = ("kernel", "statechart")
PROGRAMS = ("executions", "idempotency", "streams")
"""Packages of domain programs; those that do not exist yet are simply empty here."""

EFFECT_INSTEAD = {
    "aiobotocore": "yield Get, Query, Write or Transact; casework.backends carries them out",
    "asyncio": "yield All, Race, Spawn or Sleep; the drivers know about asyncio",
    "boto3": "yield Get, Query, Write or Transact; casework.backends carries them out",
    "botocore": "yield Get, Query, Write or Transact; casework.backends carries them out",
    "concurrent": "yield All, Spawn or Call; the drivers own the threads",
    "multiprocessing": "yield Spawn; processes belong to the command line",
    "queue": "yield Signal or Race",
    "random": "yield Token for an id; the retry policy in casework.kernel has the jitter",
    "secrets": "yield Token",
    "sqlite3": "yield Get, Query, Write or Transact; casework.backends carries them out",
    "threading": "yield Spawn, Race or Signal; the drivers own the threads",
    "time": "yield Now for the time and Sleep to wait",
    "uuid": "yield Token",
}
BANNED_CALLS = {
    "datetime.now": "yield Now",
    "datetime.utcnow": "yield Now",
    "datetime.today": "yield Now",
    "date.today": "yield Now",
    "os.urandom": "yield Token",
    "os.getenv": "take it as an argument; casework.app reads the environment",
    "input": "take it as an argument",
    "print": "return it, or log it",
}
BANNED_MODULE_NAMES = re.compile(r"^_?(utils?|helpers?|commons?|managers?|misc)$")
# Written so that this file does not match itself.
MACHINE_PATHS = re.compile(r"(?<![\w.}/:-])/(?:home|Users|root|work|tmp/wt)/[\w.-]|[A-Z]:\\Users\\")
MAY_SLEEP = ("tests/servers/", "tests/soak/")
"""Where tests wait for real servers."""


# --- finding things ---------------------------------------------------------------------------------------------------


@cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text("utf-8"), str(file))


def modules(*packages: str) -> list[Path]:
    folders = [SOURCE / package for package in packages] if packages else [SOURCE]
    return sorted(file for folder in folders for file in folder.rglob("*.py"))


def files_of_tests() -> list[Path]:
    return sorted((ROOT / "tests").rglob("test_*.py"))


def place(file: Path, node: ast.AST | int) -> str:
    line = node if isinstance(node, int) else getattr(node, "lineno", 1)
    return f"{file.relative_to(ROOT).as_posix()}:{line}"


def imported(file: Path) -> Iterator[tuple[ast.AST, str]]:
    """Every module that the file imports, wherever in it, by its full name."""
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node, node.module or ""


def called(node: ast.AST) -> Iterator[tuple[ast.Call, str]]:
    """Every call below the node, with the last two parts of the name that is called."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call):
            yield call, ".".join(ast.unparse(call.func).split(".")[-2:])


Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(file: Path) -> Iterator[Function]:
    yield from (node for node in ast.walk(tree(file)) if isinstance(node, Function))


def lines(node: Function) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()]


def none_of(problems: Iterable[str]) -> None:
    found = sorted(problems)
    assert not found, "\n" + "\n".join(found)


# --- programs ---------------------------------------------------------------------------------------------------------


def test_programs_reach_clock_random_threads_and_stores_through_effects_only() -> None:
    none_of(
        f"{place(file, node)} imports {name}: {EFFECT_INSTEAD[name.partition('.')[0]]}"
        for file in modules(*PURE, *PROGRAMS)
        for node, name in imported(file)
        if name.partition(".")[0] in EFFECT_INSTEAD
    )


def test_programs_make_no_call_that_is_an_effect_in_disguise() -> None:
    none_of(
        f"{place(file, call)} calls {name}(): {BANNED_CALLS[name]}"
        for file in modules(*PURE, *PROGRAMS)
        for call, name in called(tree(file))
        if name in BANNED_CALLS
    )


def test_the_kernel_imports_only_the_standard_library_msgspec_and_errors() -> None:
    allowed = {*sys.stdlib_module_names, "msgspec"}
    none_of(
        f"{place(file, node)} imports {name}: the kernel stands on the standard library, msgspec, errors and arguments"
        for file in modules("kernel")
        for node, name in imported(file)
        if name.partition(".")[0] not in allowed
        and name not in {"casework", "casework.errors", "casework.arguments"}
        and not (name == "casework.kernel" or name.startswith("casework.kernel."))
    )


# --- size, names, words -----------------------------------------------------------------------------------------------


def test_a_file_is_one_room() -> None:
    none_of(
        f"{place(file, 1)} has {count} lines, more than {MAX_FILE_LINES}: look for the wall"
        for file in modules()
        if (count := len(file.read_text("utf-8").splitlines())) > MAX_FILE_LINES
    )


def test_a_function_fits_on_a_screen() -> None:
    none_of(
        f"{place(file, node)} {node.name} has {lines(node)} lines, more than {MAX_FUNCTION_LINES}"
        for file in modules()
        for node in functions(file)
        if lines(node) > MAX_FUNCTION_LINES
    )


def test_a_module_is_named_for_what_lives_in_it() -> None:
    none_of(
        f"{place(file, 1)} is a drawer, not a room: name it for what it holds"
        for file in modules()
        if any(BANNED_MODULE_NAMES.match(part) for part in file.relative_to(SOURCE).with_suffix("").parts)
    )


def test_a_package_says_what_lives_in_it() -> None:
    none_of(
        f"{place(file, 1)} needs a docstring: what lives here, and what may be imported from here"
        for file in modules()
        if file.name == "__init__.py" and tree(file).body and ast.get_docstring(tree(file)) is None
    )


def test_a_public_definition_of_some_length_has_a_docstring() -> None:
    none_of(
        f"{place(file, node)} {node.name} has {lines(node)} lines and no docstring: what does it promise?"
        for file in modules()
        for node in public_functions(tree(file))
        if lines(node) > MAX_LINES_WITHOUT_DOCSTRING and ast.get_docstring(node) is None
    )


def public_functions(scope: ast.Module | ast.ClassDef) -> Iterator[Function]:
    for node in scope.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from public_functions(node)
        elif isinstance(node, Function) and not node.name.startswith("_"):
            yield node


# --- the repository ---------------------------------------------------------------------------------------------------


def test_no_tracked_file_knows_the_paths_of_one_machine() -> None:
    def found() -> Iterator[str]:
        for file in tracked_files():
            try:
                text = file.read_text("utf-8")
            except UnicodeDecodeError:
                continue
            for number, line in enumerate(text.splitlines(), 1):
                if match := MACHINE_PATHS.search(line):
                    yield f"{place(file, number)} has {match[0]!r}: make it relative"

    none_of(found())


# --- tests ------------------------------------------------------------------------------------------------------------


def test_every_test_asserts_something() -> None:
    none_of(
        f"{place(file, node)} {node.name} asserts nothing"
        for file in files_of_tests()
        for node in functions(file)
        if node.name.startswith("test_") and not asserts(node, {other.name: other for other in functions(file)})
    )


def asserts(node: Function, neighbours: dict[str, Function], seen: frozenset[str] = frozenset()) -> bool:
    """By itself, through a function of the same file, or through one whose name says so (assert_..., check_...)."""
    if any(isinstance(inner, ast.Assert) for inner in ast.walk(node)):
        return True
    for _, name in called(node):
        last = name.rpartition(".")[2]
        if name in {"pytest.raises", "pytest.warns", "pytest.fail"} or last.startswith(("assert_", "check_")):
            return True
        if last in neighbours and last not in seen and asserts(neighbours[last], neighbours, seen | {last, node.name}):
            return True
    return False


def test_no_test_sleeps() -> None:
    none_of(
        f"{place(file, call)} sleeps: time is an effect, wait for an event or use virtual time"
        for file in sorted((ROOT / "tests").rglob("*.py"))
        if not place(file, 1).startswith(MAY_SLEEP)
        for call, name in called(tree(file))
        if name == "time.sleep"
    )


# --- the checks check -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/home/" + "ann/x", 'open("/root/' + '.aws")', "/Users/" + "ann", "C:\\Users" + "\\ann"]
)
def test_paths_of_one_machine_are_recognised(path: str) -> None:
    assert MACHINE_PATHS.search(path)


@pytest.mark.parametrize("path", ["../work/x", "https://example.org/home/x", "w/<stay>", "/home", "{prefix}/work/x"])
def test_other_paths_are_not(path: str) -> None:
    assert not MACHINE_PATHS.search(path)


def test_a_test_that_asserts_through_its_neighbour_counts_and_an_empty_one_does_not() -> None:
    module = ast.parse("def a(): b()\ndef b(): assert 1\ndef c(): d()\ndef d(): c()\ndef e(): check_it()")
    found = {node.name: node for node in module.body if isinstance(node, Function)}
    assert {name for name, node in found.items() if asserts(node, found)} == {"a", "b", "e"}
