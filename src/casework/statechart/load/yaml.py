"""YAML 1.2 core (and so JSON) to plain values, with the line of every value.

Only what the core schema says: ``on``, ``yes`` and ``no`` are strings, duplicate keys are refused, keys are always
strings. There are no tags beyond the core ones, no merge keys, and aliases cannot multiply without bound.
"""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any

from casework.errors import InvalidMachine
from casework.statechart.findings import Located, Place, Problem
from casework.statechart.load.source import Path, Problems

MAX_NODES = 100_000
"""Values in one document, aliases counted each time."""

_INT = re.compile(r"[-+]?[0-9]+")
_OCTAL = re.compile(r"0o[0-7]+")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip
_CORE = "tag:yaml.org,2002:"


def parse(text: str, source: str = "machine") -> tuple[Any, dict[Path, int]]:
    """The value of the document and the line of each path in it. Raises InvalidMachine with all problems found."""
    value, problems = read(text, source)
    if problems.found:
        raise InvalidMachine(problems.found)
    return value, problems.lines  # type: ignore[return-value]


def read(text: str, source: str = "machine") -> tuple[Any, Problems]:
    """The value of the document, with the line of each path in it and the problems after which others can be found.

    Raises InvalidMachine when nothing can be made of it.
    """
    not_json = ""
    if text.lstrip("\ufeff \t\r\n").startswith("{"):
        try:
            return _json(text.lstrip("\ufeff"), source)
        except json.JSONDecodeError as error:
            if source.lower().endswith(".json"):
                not_json = f"not JSON: {error.msg}"
        except (ValueError, RecursionError):
            pass
    problems = Problems(source)
    value = _build(text, problems, not_json)
    return value, problems


def _build(text: str, problems: Problems, not_json: str = "") -> Any:
    """The value of a YAML document; ``not_json`` is what to say, if anything, when it is none."""
    import yaml

    source = problems.source
    try:
        node = yaml.compose(text, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = not_json or f"not YAML: {error.problem or error.context}"
        raise InvalidMachine([_unreadable(source, message, mark)]) from None
    except (yaml.YAMLError, RecursionError) as error:
        raise InvalidMachine([_unreadable(source, not_json or f"not YAML: {error}")]) from None
    if node is None:
        raise InvalidMachine([_unreadable(source, "the document is empty (a machine has an id and states)")])
    builder = _Builder(problems)
    value = builder.build(node, (), ())
    if builder.count > MAX_NODES:
        raise InvalidMachine(problems.found)
    return value


def _unreadable(source: str, message: str, mark: Any = None) -> Located:
    place = Place(source, mark.line + 1, mark.column + 1) if mark is not None else Place(source)
    return Located.of(Problem("error", "syntax", message, "", place))


def _json(text: str, source: str) -> tuple[Any, Problems]:
    """JSON by its own rules (tabs, escaped surrogate pairs), with lines where it can be read as YAML, too.

    ValueError when it is no JSON, so that YAML may try.
    """
    twice: list[str] = []

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) < len(pairs):
            twice.append(next(key for key, _ in pairs if [each for each, _ in pairs].count(key) > 1))
        return result

    def refuse(constant: str) -> Any:
        raise InvalidMachine([_unreadable(source, f"{constant} is not a number that JSON can hold")])

    value = json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
    problems = Problems(source)
    with contextlib.suppress(InvalidMachine):
        _build(text, problems)
    problems.found = [each for each in problems.found if "stands twice" in each] if twice else []
    if twice and not problems.found:
        problems.add((), f"the key {twice[0]!r} stands twice in one object", "remove one", 0, "duplicate-key")
    return value, problems


class _Builder:
    def __init__(self, problems: Problems) -> None:
        self.problems = problems
        self.lines: dict[Path, int] = {}
        self.columns: dict[Path, int] = {}
        problems.lines, problems.columns = self.lines, self.columns
        self.count = 0

    def build(self, node: Any, path: Path, outer: tuple[Any, ...]) -> Any:
        import yaml

        self.count += 1
        if any(node is each for each in outer) or self.count > MAX_NODES or len(outer) > 100:
            if self.count <= MAX_NODES + 1:
                self.problems.add(path, "the document holds itself or is too large", f"at most {MAX_NODES:,} values")
            self.count = max(self.count, MAX_NODES + 1)
            return None
        self.lines.setdefault(path, node.start_mark.line + 1)
        self.columns.setdefault(path, node.start_mark.column + 1)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path, outer)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(each, (*path, index), (*outer, node)) for index, each in enumerate(node.value)]
        return self._scalar(node, path)

    def _mapping(self, node: Any, path: Path, outer: tuple[Any, ...]) -> dict[str, Any]:
        import yaml

        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.add(path, "a key is not a plain name", "write the key as text", line)
                continue
            key = key_node.value
            if key in result:
                first = self.lines[(*path, key)]
                message = f"the key {key!r} stands twice"
                self.problems.add(path, message, f"first on line {first}; remove one", line, "duplicate-key")
                continue
            self.lines[(*path, key)] = line
            self.columns[(*path, key)] = key_node.start_mark.column + 1
            result[key] = self.build(value_node, (*path, key), (*outer, node))
        return result

    def _scalar(self, node: Any, path: Path) -> Any:
        text, tag = node.value, node.tag
        if tag is not None and tag.startswith(_CORE):
            wanted = tag.removeprefix(_CORE)
        else:
            wanted = "str" if tag in (None, "!", "?") else tag
        explicit = tag not in (None, "!", "?", _CORE + "str")
        if not explicit and node.style:
            return text
        if explicit and wanted not in ("int", "float", "bool", "null"):
            self.problems.add(path, f"the tag {tag!r} is not supported", "remove the tag")
            return text
        if text.lstrip("+-").lower() in (".inf", ".nan"):
            self.problems.add(path, f"{text} is not a number that JSON can hold", "quote it if text is meant")
        return plain(text)


def plain(text: str) -> Any:
    """The value of an unquoted scalar under the YAML 1.2 core schema (infinities and NaN are not among them)."""
    if text in _SPECIAL:
        return _SPECIAL[text]
    if _INT.fullmatch(text):
        return int(text) if len(text) < 1000 else text
    if _OCTAL.fullmatch(text):
        return int(text, 0)
    if _HEX.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text
