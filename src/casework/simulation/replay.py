"""The call that replays a failure, written so that it can be pasted."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from casework.simulation.standins import StandIn

ALWAYS = ("crashes", "duplicates")
"""Options that are written even where they are as by default: what a failure needed is not left to a default."""


def call_of(machines: Sequence[Any], options: Mapping[str, Any], defaults: Mapping[str, Any], seed: int) -> str:
    """``casework.simulate(order, crashes=True, ..., seed=41, runs=1)``; functions and machines by their names."""
    names = [re.sub(r"\W", "_", machine.name) for machine in machines]
    parts = [names[0] if len(names) == 1 else f"[{', '.join(names)}]"]
    parts += [
        f"{name}={written(value)}"
        for name, value in options.items()
        if name in ALWAYS or not (value is defaults.get(name) or _is_default(value, defaults.get(name)))
    ]
    return f"casework.simulate({', '.join([*parts, f'seed={seed}', 'runs=1'])})"


def _is_default(value: Any, default: Any) -> bool:
    if isinstance(value, list | tuple | Mapping) and not value:
        return not default
    return type(value) is type(default) and isinstance(value, bool | int) and bool(value == default)


def written(value: Any) -> str:
    """A value as source; a function is its name."""
    if isinstance(value, StandIn):
        set_to = {name: getattr(value, name) for name in value.__struct_fields__ if getattr(value, name) is not None}
        return f"StandIn({', '.join(f'{name}={written(part)}' for name, part in set_to.items())})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{written(name)}: {written(part)}" for name, part in value.items()) + "}"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(written, value)) + ("," if len(value) == 1 else "") + ")"
    if isinstance(value, list):
        return "[" + ", ".join(map(written, value)) + "]"
    if callable(value):
        return _named(value)
    return repr(value)


def _named(function: Any) -> str:
    """A function's name; for one without a name, where it stands."""
    name = str(getattr(function, "__name__", None) or type(function).__name__)
    code = getattr(function, "__code__", None)
    if name.isidentifier() or code is None:
        return name
    return f"<lambda of {PurePath(code.co_filename).name}:{code.co_firstlineno}>"
