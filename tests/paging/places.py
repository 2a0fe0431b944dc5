"""Every place in the source that reads a range of items: the rows of the table of pages."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "casework"

PAGING = frozenset({"query", "query_all", "query_up_to", "Query", "Walk", "walk_all", "walk"})
"""What reads a page of a range: programs' helpers, the effect itself, and a backend's walk over a whole table."""

NOT_PROGRAMS = ("backends", "kernel", "simulation", "statechart", "testing")
"""They carry out queries, or look on; what they do is under the contract of backends, or is a test itself."""


class _Finder(ast.NodeVisitor):
    def __init__(self, module: str) -> None:
        self.module = module
        self.inside: list[str] = []
        self.found: set[str] = set()

    def _enter(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        self.inside.append(node.name)
        self.generic_visit(node)
        self.inside.pop()

    visit_FunctionDef = _enter
    visit_AsyncFunctionDef = _enter
    visit_ClassDef = _enter

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name in PAGING:
            self.found.add(f"{self.module}:{'.'.join(self.inside)}")
        self.generic_visit(node)


def places() -> set[str]:
    """Each place as ``module:function``."""
    found: set[str] = set()
    for path in sorted(SOURCE.rglob("*.py")):
        relative = path.relative_to(SOURCE)
        if relative.parts[0] not in NOT_PROGRAMS:
            finder = _Finder(str(relative.with_suffix("")))
            finder.visit(ast.parse(path.read_text("utf-8")))
            found |= finder.found
    return found
