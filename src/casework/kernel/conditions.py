"""Conditions on one item, and what they mean.

``evaluate(condition, item)`` in plain Python is the reference: every store is compared with it. Three rules hold
everywhere. Values of different types never compare equal and are never ordered (``True`` is not 1). A comparison with
an attribute that is absent, or of an item that is absent, is false. Strings are ordered by code point, which is the
order of their UTF-8 bytes.

No condition compares with the time: a store has no clock that two hosts could share.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

_Scalar = str | int | bool | bytes
_Found = Mapping[str, _Scalar] | None


class Condition(msgspec.Struct, frozen=True, gc=False):
    """Base of all conditions."""

    def holds(self, item: _Found) -> bool:
        """Whether the condition holds for ``item`` (None: there is no item)."""
        raise TypeError(f"{type(self).__name__} is not a condition")  # pragma: no cover


class Absent(Condition, frozen=True):
    """There is no item; with ``attribute``: the item, if any, lacks that attribute."""

    attribute: str | None = None

    def holds(self, item: _Found) -> bool:
        return item is None or (self.attribute is not None and self.attribute not in item)


class Present(Condition, frozen=True):
    """There is an item; with ``attribute``: and it has that attribute."""

    attribute: str | None = None

    def holds(self, item: _Found) -> bool:
        return item is not None and (self.attribute is None or self.attribute in item)


class Equals(Condition, frozen=True):
    """The attribute is there, of the same type, and equal."""

    attribute: str
    value: _Scalar

    def holds(self, item: _Found) -> bool:
        if item is None:
            return False
        found = item.get(self.attribute)
        return found == self.value and type(found) is type(self.value)


class Compares(Condition, frozen=True):
    """The attribute is there, of the same type, and ordered so: ``<``, ``<=``, ``>`` or ``>=``."""

    attribute: str
    operator: str
    value: str | int | bytes

    def holds(self, item: _Found) -> bool:
        found = None if item is None else item.get(self.attribute)
        if type(found) is not type(self.value):
            return False
        if self.operator == "<":
            return found < self.value  # type: ignore[operator]
        if self.operator == "<=":
            return found <= self.value  # type: ignore[operator]
        if self.operator == ">":
            return found > self.value  # type: ignore[operator]
        return found >= self.value  # type: ignore[operator]


class AllOf(Condition, frozen=True):
    """Every one of them holds."""

    conditions: tuple[Condition, ...]

    def holds(self, item: _Found) -> bool:
        for condition in self.conditions:  # noqa: SIM110 (a generator costs more than most conditions)
            if not condition.holds(item):
                return False
        return True


class AnyOf(Condition, frozen=True):
    """At least one of them holds."""

    conditions: tuple[Condition, ...]

    def holds(self, item: _Found) -> bool:
        return any(condition.holds(item) for condition in self.conditions)


class Not(Condition, frozen=True):
    """It does not hold."""

    condition: Condition

    def holds(self, item: _Found) -> bool:
        return not self.condition.holds(item)


def spoken(condition: Condition) -> str:
    """A condition as it is written in code, for an error's message; long values are cut."""
    if isinstance(condition, Absent | Present):
        attribute = "" if condition.attribute is None else repr(condition.attribute)
        return f"{type(condition).__name__.lower()}({attribute})"
    if isinstance(condition, Equals):
        return f"equals({condition.attribute!r}, {condition.value!r:.80})"
    if isinstance(condition, Compares):
        return f"{_COMPARISONS[condition.operator]}({condition.attribute!r}, {condition.value!r:.80})"
    if isinstance(condition, Not):
        return f"not_({spoken(condition.condition)})"
    if isinstance(condition, AllOf | AnyOf):
        name = "all_of" if isinstance(condition, AllOf) else "any_of"
        return f"{name}({', '.join(spoken(each) for each in condition.conditions)})"
    return repr(condition)


_COMPARISONS = {"<": "less_than", "<=": "at_most", ">": "greater_than", ">=": "at_least"}


def evaluate(condition: Condition | None, item: _Found) -> bool:
    """Whether ``condition`` holds for ``item`` (None: there is no item). No condition always holds."""
    return condition is None or condition.holds(item)


def absent(attribute: str | None = None) -> Condition:
    """Holds when there is no item, or, with ``attribute``, when it lacks that attribute."""
    return Absent(attribute)


def present(attribute: str | None = None) -> Condition:
    """Holds when there is an item, and, with ``attribute``, when it has that attribute."""
    return Present(attribute)


def equals(attribute: str, value: _Scalar) -> Condition:
    """Holds when the attribute has that very value, type included."""
    return Equals(attribute, value)


def differs(attribute: str, value: _Scalar) -> Condition:
    """Holds when the attribute is absent, of another type, or has another value."""
    return Not(Equals(attribute, value))


def less_than(attribute: str, value: str | int | bytes) -> Condition:
    """Holds when the attribute is there, of the same type, and less."""
    return Compares(attribute, "<", value)


def at_most(attribute: str, value: str | int | bytes) -> Condition:
    """Holds when the attribute is there, of the same type, and not greater."""
    return Compares(attribute, "<=", value)


def greater_than(attribute: str, value: str | int | bytes) -> Condition:
    """Holds when the attribute is there, of the same type, and greater."""
    return Compares(attribute, ">", value)


def at_least(attribute: str, value: str | int | bytes) -> Condition:
    """Holds when the attribute is there, of the same type, and not less."""
    return Compares(attribute, ">=", value)


def all_of(*conditions: Condition) -> Condition:
    """Holds when every one holds. A write refuses it of none at all: leave it out there."""
    return conditions[0] if len(conditions) == 1 else AllOf(conditions)


def any_of(*conditions: Condition) -> Condition:
    """Holds when at least one holds. A write refuses it of none at all."""
    return conditions[0] if len(conditions) == 1 else AnyOf(conditions)


def not_(condition: Condition) -> Condition:
    """Holds when the other does not."""
    return Not(condition)
