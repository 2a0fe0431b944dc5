"""The name under which a function's keys stand, and the refusal of a name that would mean two functions."""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable, MutableMapping
from typing import Any

from casework.errors import Misuse
from casework.idempotency.naming import qualified_name

_LOCAL: MutableMapping[Any, MutableMapping[str, Any]] = weakref.WeakKeyDictionary()
"""By target: the functions made inside others that this process guards, by name."""


def name_of(function: Callable[..., Any], target: Any) -> str:
    """The module and qualified name of a function.

    Misuse for what has no name of its own: a lambda, a partial, an object that can be called, and a function inside
    another one of which this target guards a different one already, with other values around it or other code.
    """
    if isinstance(function, functools.partial):
        raise Misuse(f"{function!r:.120} has no name of its own; give name=, or guard the function below it")
    if not hasattr(function, "__qualname__"):
        raise Misuse(f"{function!r:.120} has no name of its own; give name=, or guard its method __call__")
    if function.__name__ == "<lambda>":
        raise Misuse("a lambda has no name of its own, and two of them would share their keys; give name=, or use def")
    name = qualified_name(function)
    if "<locals>" in name and isinstance(function, types.FunctionType):
        _refuse_another(function, target, name)
    return name


def _refuse_another(function: types.FunctionType, target: Any, name: str) -> None:
    try:
        known = _LOCAL.setdefault(target, weakref.WeakValueDictionary())
    except TypeError:  # a target that cannot be kept so
        return
    before = known.get(name)
    if before is None:
        known[name] = function
    elif not _is_same(before, function):
        raise Misuse(
            f"two functions are called {name}, and one would get the results of the other; give each a name= of its own"
        )


def _is_same(one: types.FunctionType, other: types.FunctionType) -> bool:
    """Whether two functions do the same for the same arguments, as far as can be seen."""
    if one is other:
        return True
    if one.__code__ != other.__code__ or not _are_same(one.__defaults__ or (), other.__defaults__ or ()):
        return False
    return _are_same(_around(one), _around(other))


def _around(function: types.FunctionType) -> tuple[Any, ...]:
    """The values around a function that it uses; those that are not set yet are left out."""
    found = []
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:
            continue
    return tuple(found)


def _are_same(these: tuple[Any, ...], those: tuple[Any, ...]) -> bool:
    plain = (int, float, str, bytes, type(None))
    return len(these) == len(those) and all(
        one is other or (type(one) is type(other) and isinstance(one, plain) and one == other)
        for one, other in zip(these, those, strict=True)
    )
