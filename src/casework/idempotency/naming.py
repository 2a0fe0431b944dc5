"""The names of functions and classes inside keys: the same in every process that has them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

_SCRIPTS = ("__main__", "__mp_main__")


def qualified_name(thing: Any) -> str:
    """Module and name of a function or a class.

    A script is ``__main__`` in the process that runs it, ``__mp_main__`` in those that ``multiprocessing`` spawns from
    it, and has a third name where it is imported. Here it has the name under which it can be imported: that of its
    file, or what ``python -m`` was given. What was typed at a prompt stays ``__main__``.
    """
    module: str = thing.__module__
    return f"{_name_of_script(module) if module in _SCRIPTS else module}.{thing.__qualname__}"


def _name_of_script(module: str) -> str:
    script = sys.modules.get(module)
    spec, file = getattr(script, "__spec__", None), getattr(script, "__file__", None)
    if spec is not None:
        return str(spec.name)
    return Path(file).stem if file else "__main__"
