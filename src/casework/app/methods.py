"""A method that drives an operation looks as the method that it is, in ``help`` and to who asks for its signature."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

SELF = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)


def look_like(method: Callable[..., Any], operation: Callable[..., Any]) -> None:
    """Give a method the name, docstring and parameters of its operation, and T as the result of ``Program[T]``.

    The operation's first parameter is what the method's object brings; types are checked without any of this.
    """
    functools.update_wrapper(method, operation)
    signature = inspect.signature(operation)
    _, *parameters = signature.parameters.values()
    result = signature.return_annotation
    if isinstance(result, str) and result.startswith("Program["):
        result = result.removeprefix("Program[").removesuffix("]")
    dressed: Any = method
    dressed.__signature__ = signature.replace(parameters=[SELF, *parameters], return_annotation=result)
