"""The machine: a definition, compiled, with the functions that it names.

The definition never changes; the functions are added with the decorators, before the machine is opened. Executions
that began with an older definition run on ``machine.rebound(definition)``: the same functions, the stored chart.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar, overload

from casework.arguments import check_count, check_text, is_unicode
from casework.errors import InvalidMachine, Misuse, UnknownEvent
from casework.statechart.actions import Registries, UnboundFunction
from casework.statechart.check import check_machine
from casework.statechart.compile import Tables
from casework.statechart.findings import Problem
from casework.statechart.load.naming import MAX_NAME
from casework.statechart.load.normalise import FORMAT, is_normalised, normalise
from casework.statechart.load.source import Places, Problems
from casework.statechart.names import Names, names_in
from casework.statechart.nodes import Invoke, StateNode
from casework.statechart.publishing import Publish, publish_of
from casework.statechart.suggestions import suggestion

_SUSPENDS = 0x20 | 0x80 | 0x200
"""Code flags of generators, coroutines and async generators (``inspect`` has names for them, and is slow to import)."""

F = TypeVar("F", bound=Callable[..., Any])


class Machine:
    """A statechart with its functions. Make one with :meth:`load`, :meth:`from_yaml` or :meth:`from_dict`."""

    def __init__(
        self,
        definition: dict[str, Any],
        registries: Registries | None = None,
        places: Places | None = None,
    ) -> None:
        """For the loaders and ``rebound``: ``definition`` is normalised, ``places`` says where its parts stand."""
        self.definition: dict[str, Any] = definition
        """The normalised definition: JSON, and what the store keeps. Not to be changed."""
        self.name: str = definition["name"]
        self.version: str | None = definition.get("version")
        self.hash: str = hashlib.sha256(canonical_json(definition).encode()).hexdigest()
        """SHA-256 of the canonical JSON of ``definition``, in hex. Descriptions count, layout and file name do not."""
        self.publish: Publish | None = publish_of(definition)
        """What its executions publish to a stream; the key ``publish`` of the definition."""
        self.places = places or Places()
        self._registries = registries or Registries()
        self.tables = Tables(definition, self._registries)
        self.names: Names = names_in(definition)
        self._machines: frozenset[str] = frozenset()
        self._accepted: dict[str, bool] = {}

    # --- making one

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The machine in a YAML, JSON or SCXML file. Raises InvalidMachine with every problem and its line; Misuse."""
        _check(bool(path) and isinstance(path, str | Path), path, "the path of a file; write Machine.load('a.yaml')")
        file = Path(path)
        try:
            text = file.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise Misuse(f"there is no file {str(path)!r:.300} (paths are relative to the working directory)") from None
        except (OSError, ValueError) as error:
            if isinstance(error, UnicodeDecodeError):
                raise InvalidMachine([f"{path}: not UTF-8 text: {error}"]) from None
            why = getattr(error, "strerror", None) or error
            raise Misuse(f"{str(path)!r:.300} cannot be read: {why}; give the file of a machine") from None
        if file.suffix in (".scxml", ".xml"):
            return cls.from_scxml(text, source=str(path))
        return cls.from_yaml(text, source=str(path))

    @classmethod
    def from_yaml(cls, text: str, *, source: str = "machine") -> Self:
        """The machine in a text of YAML or JSON; ``source`` stands in messages."""
        from casework.statechart.load.yaml import read

        _check(
            is_unicode(text),
            text,
            "text; Machine.from_yaml takes a definition's text, Machine.load a path",
        )
        check_text("source", source, 4096)
        return cls._from_raw(*read(text, source))

    @classmethod
    def from_scxml(cls, text: str, *, source: str = "machine") -> Self:
        """The machine in an SCXML document (see ``load.scxml`` for what is supported)."""
        first, *inline = cls.all_from_scxml(text, source=source)
        if inline:
            names = ", ".join(machine.name for machine in inline)
            raise InvalidMachine([f"{source}: the document holds others ({names}; use Machine.all_from_scxml)"])
        return first

    @classmethod
    def all_from_scxml(cls, text: str, *, source: str = "machine") -> list[Self]:
        """The machine in an SCXML document, then one for each document that it invokes inline."""
        from casework.statechart.load.scxml import parse

        _check(isinstance(text, str), text, "text; Machine.from_scxml takes a document's text, Machine.load a path")
        check_text("source", source, 4096)
        return [cls._from_raw(raw, Problems(source)) for raw in parse(text, source)]

    @classmethod
    def from_dict(cls, definition: Mapping[str, Any], *, source: str = "machine") -> Self:
        """The machine in a mapping: the authoring format, or a normalised definition as a store keeps it."""
        check_text("source", source, 4096)
        if not isinstance(definition, Mapping):
            raise InvalidMachine([f"{source}: a machine is a mapping, not {type(definition).__name__}"])
        raw = dict(definition)
        if is_normalised(raw):
            if raw["format"] != FORMAT:
                message = (
                    f"format {raw['format']!r} of the stored definition is not known; this casework reads {FORMAT}"
                )
                raise InvalidMachine([f"{source}: {message}"])
            return cls(raw)
        return cls._from_raw(raw, Problems(source))

    @classmethod
    def _from_raw(cls, raw: Any, problems: Problems) -> Self:
        places = Places()
        definition = normalise(raw, problems, places)
        return cls(definition, None, places)

    def rebound(self, definition: Mapping[str, Any]) -> Machine:
        """The same functions on another definition of this machine, as it was stored when an execution began."""
        other = Machine.from_dict(definition)
        bound = Machine(other.definition, self._registries, other.places)
        bound._machines = self._machines
        return bound

    def beside(self, names: Iterable[str]) -> Self:
        """This machine as an application sees it that has machines of these names, which ``src`` can then name.

        The functions are the same ones, those that are registered later too; this object itself is not changed, so
        that several applications can have it.
        """
        seen = copy.copy(self)
        seen._machines = self._machines | frozenset(names)
        return seen

    # --- functions

    @property
    def tasks(self) -> Mapping[str, Callable[..., Any]]:
        """Registered task functions by name (``name@version`` where a version was given)."""
        return self._registries.tasks

    @property
    def actions(self) -> Mapping[str, Callable[..., Any]]:
        """Registered actions by name."""
        return self._registries.actions

    @property
    def guards(self) -> Mapping[str, Callable[..., Any]]:
        """Registered guards by name."""
        return self._registries.guards

    @overload
    def task(self, function: F, /) -> F: ...
    @overload
    def task(self, *, name: str | None = None, version: str | int | None = None) -> Callable[[F], F]: ...
    def task(self, function: Any = None, *, name: str | None = None, version: str | int | None = None) -> Any:
        """Register a task: a side effect, run at least once, as ``fn(task, **input)``; plain or async."""
        return self._decorated("task", function, name, version)

    @overload
    def action(self, function: F, /) -> F: ...
    @overload
    def action(self, *, name: str | None = None, version: str | int | None = None) -> Callable[[F], F]: ...
    def action(self, function: Any = None, *, name: str | None = None, version: str | int | None = None) -> Any:
        """Register an action: pure, ``fn(context, event)`` returns the changes of the context, or None for none."""
        return self._decorated("action", function, name, version)

    @overload
    def guard(self, function: F, /) -> F: ...
    @overload
    def guard(self, *, name: str | None = None, version: str | int | None = None) -> Callable[[F], F]: ...
    def guard(self, function: Any = None, *, name: str | None = None, version: str | int | None = None) -> Any:
        """Register a guard: pure, ``fn(context, event)`` returns whether the transition may be taken."""
        return self._decorated("guard", function, name, version)

    def _decorated(self, kind: str, function: Any, name: str | None, version: str | int | None) -> Any:
        if name is not None:
            check_text("name", name, 4 * MAX_NAME)  # in bytes; the definition says in characters what may be a name
        if type(version) is int:
            check_count("version", version)
        elif version is not None:
            check_text("version", version, 100)
        if function is not None:
            self._register(kind, function, name, version)
            return function

        def decorate(decorated: F) -> F:
            self._register(kind, decorated, name, version)
            return decorated

        return decorate

    def _register(self, kind: str, function: Any, name: str | None, version: str | int | None) -> None:
        if not callable(function):
            raise Misuse(f"@{self.name}.{kind}: {function!r} is not a function (write @machine.{kind}(name=...))")
        base = str(name or getattr(function, "__name__", ""))
        key = base if version is None else f"{base}@{version}"
        known = {"task": self.names.tasks, "action": self.names.actions, "guard": self.names.guards}[kind]
        if base.partition("@")[0] not in {each.partition("@")[0] for each in known}:
            raise Misuse(f"machine {self.name!r} names no {kind} {base!r} ({suggestion(base, known)})")
        flags = getattr(getattr(function, "__code__", None), "co_flags", 0)
        if kind != "task" and flags & _SUSPENDS:
            raise Misuse(f"{kind} {base!r} is async or a generator; {kind}s are plain functions (a task may be async)")
        registry: dict[str, Any] = getattr(self._registries, kind + "s")
        if registry.get(key, function) is not function:
            raise Misuse(f"machine {self.name!r} has a {kind} {key!r} already (give one a version or another name)")
        registry[key] = function

    # --- invocations

    def invocation_kind(self, src: str) -> str:
        """``task`` or ``machine``. Raises InvalidMachine when ``src`` names both or neither."""
        is_task, is_machine = src in self._registries.tasks, src in self._machines
        if is_task and is_machine:
            fix = f"write src: {{task: {src}}} or src: {{machine: {src}}}"
            raise InvalidMachine([f"{self.name}: src {src!r} names a task and a machine ({fix})"])
        if not is_task and not is_machine:
            known = suggestion(src, [*self._registries.tasks, *self._machines])
            raise UnboundFunction([f"{self.name}: src {src!r} is neither a task nor a machine known here ({known})"])
        return "task" if is_task else "machine"

    def kind_of(self, invoke: Invoke) -> str:
        """``task`` or ``machine`` for an invocation of this machine; a name that nobody knows counts as a task,
        or as a machine where it is invoked per element of a list (``check`` reports it).
        """
        if invoke.kind != "name":
            return invoke.kind
        is_task, is_machine = invoke.src in self._registries.tasks, invoke.src in self._machines
        if is_task != is_machine:
            return "task" if is_task else "machine"
        if is_task:
            self.invocation_kind(invoke.src)
        return "machine" if invoke.each is not None else "task"

    # --- questions

    @property
    def event_types(self) -> tuple[str, ...]:
        """Every event descriptor that a state of this machine mentions, sorted."""
        return tuple(sorted(self.tables.descriptors))

    def accepts(self, event_type: str) -> bool:
        """Whether an event of this type from outside can be taken in some state. Reports on tasks, children and
        timers are not events from outside, and what is no text is none at all.
        """
        if type(event_type) is not str:
            return False
        found = self._accepted.get(event_type)
        if found is None:
            if len(self._accepted) >= 4096:
                self._accepted.clear()
            found = event_type not in self.tables.owners and any(
                not transition.exact and transition.matches(event_type) for transition in self.tables.transitions
            )
            self._accepted[event_type] = found
        return found

    def require_event(self, event_type: str) -> None:
        """Raise UnknownEvent, with the events that the machine knows, unless it accepts this one."""
        if not event_type:
            raise UnknownEvent(f"{event_type!r} is not the type of an event (text, such as 'PaymentReceived')")
        if not self.accepts(event_type):
            raise UnknownEvent(
                f"machine {self.name!r} has no event {event_type!r} ({suggestion(str(event_type), self.event_types)})"
            )

    def state(self, path: str) -> StateNode:
        """The state with this path. Raises Misuse when there is none."""
        try:
            return self.tables.by_path[path]
        except KeyError:
            hint = suggestion(path, self.tables.by_path)
            raise Misuse(f"machine {self.name!r} has no state {path!r} ({hint})") from None

    def check(self) -> list[Problem]:
        """Everything that is wrong or doubtful now that the functions are registered; empty when all is well."""
        return check_machine(self)

    def missing_functions(self) -> list[str]:
        """What the definition names and nobody registered, as ``action 'x'``; sources of invocations included."""
        found = [f"action {name!r}" for name in sorted(self.names.actions - set(self.actions))]
        found += [f"guard {name!r}" for name in sorted(self.names.guards - set(self.guards))]
        found += [f"task {name!r}" for name in sorted(self.names.only_tasks - set(self.tasks))]
        found += [f"machine {name!r}" for name in sorted(self.names.only_machines - self._machines)]
        either = self.names.tasks - self.names.only_tasks
        return found + [f"task or machine {name!r}" for name in sorted(either - set(self.tasks) - self._machines)]

    @property
    def machines(self) -> frozenset[str]:
        """The names given to :meth:`beside`."""
        return self._machines

    def __repr__(self) -> str:
        return f"<Machine {self.name!r} {self.hash[:12]}, {len(self.tables.states) - 1} states>"


def _check(is_right: bool, given: Any, what: str) -> None:
    if not is_right:
        raise Misuse(f"{given!r:.80} is not {what}")


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no blanks: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
