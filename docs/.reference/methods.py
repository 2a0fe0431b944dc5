"""For mkdocstrings: shows ``start = _driven(operations.start)`` as the method that it is.

The operation's docstring and parameters are taken over; its first parameter is what the method is bound to, and of
``Program[T]`` it returns T. Roles such as ``:class:`casework.App` `` become plain code in every docstring.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

DRIVEN = re.compile(r"(_driven|_driven_async)\(([\w.]+)\)")
PROGRAM = re.compile(r"Program\[(.*)\]", re.DOTALL)
ROLE = re.compile(r":(?:class|func|meth|mod):`~?([\w.]+)`")


class Methods(griffe.Extension):
    """Runs once the package was read."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Put functions in the place of the attributes."""
        count = 0
        for module in _modules(pkg):
            for cls in module.classes.values():
                if not cls.is_alias:
                    count += _complete(pkg, module, cls)
            _tidy(module)
        if not count:
            raise RuntimeError("no driven method was found: what is `start = _driven(operations.start)` called now?")


def _modules(module: griffe.Module) -> list[griffe.Module]:
    found = [module]
    for each in module.modules.values():
        if not each.is_alias:
            found += _modules(each)
    return found


def _complete(pkg: griffe.Module, module: griffe.Module, cls: griffe.Class) -> int:
    count = 0
    for name, attribute in list(cls.members.items()):
        if attribute.is_alias or not attribute.is_attribute:
            continue
        driven = DRIVEN.fullmatch(str(attribute.value))
        if driven is not None:
            is_async = driven[1] == "_driven_async" or module.name.endswith("aio")
            cls.set_member(name, _method(name, attribute, _found(pkg, module, driven[2]), is_async))
            count += 1
    return count


def _found(pkg: griffe.Module, module: griffe.Module, where: str) -> griffe.Function:
    path = module.resolve(where.partition(".")[0])
    rest = where.partition(".")[2]
    found = pkg[(f"{path}.{rest}" if rest else path).removeprefix(f"{pkg.name}.")]
    return found.final_target if found.is_alias else found


def _method(name: str, attribute: griffe.Attribute, operation: griffe.Function, is_async: bool) -> griffe.Function:
    bound, *others = operation.parameters
    program = PROGRAM.fullmatch(str(operation.returns))
    method = griffe.Function(
        name,
        parameters=griffe.Parameters(
            griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword), *others
        ),
        returns=_argument(operation.returns) if program else operation.returns,
        lineno=attribute.lineno,
        endlineno=attribute.endlineno,
    )
    said = operation.docstring
    if said is not None:
        text = re.sub(rf"(?m)^    {bound.name}: .*\n(?:      .*\n)*", "", said.value)
        method.docstring = griffe.Docstring(text, parent=method, parser=said.parser, parser_options=said.parser_options)
    if is_async:
        method.labels.add("async")
    return method


def _argument(annotation: Any) -> Any:
    """T of ``Program[T]``."""
    return annotation.slice if isinstance(annotation, griffe.ExprSubscript) else annotation


def _tidy(thing: Any) -> None:
    for each in [thing, *thing.members.values()]:
        if each.is_alias:
            continue
        if each.docstring is not None:
            each.docstring.value = ROLE.sub(r"`\1`", each.docstring.value)
        if each is not thing and each.is_class:
            _tidy(each)
