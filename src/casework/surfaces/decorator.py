"""``@casework.idempotent``: a function that runs once for its key."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from casework.arguments import check_function, check_text
from casework.errors import Misuse
from casework.idempotency.codecs import Codec, codec_for, result_type
from casework.idempotency.guarding import Policy
from casework.idempotency.keys import fingerprint_of, make_key
from casework.surfaces.function_names import name_of
from casework.surfaces.guard import Guard, Hook, Target

P = ParamSpec("P")
T = TypeVar("T")

KeySource = str | Sequence[str] | Callable[..., Any]
Function = TypeVar("Function", bound=Callable[..., Any])

_MISSING = object()


def idempotent(
    target: Target,
    *,
    key: KeySource,
    name: str | None = None,
    payload: str | Sequence[str] | Callable[..., Any] | bool = True,
    scope: Callable[[], str] | None = None,
    result: Any = _MISSING,
    codec: Codec | None = None,
    remember: Sequence[type[BaseException]] = (),
    lease_s: float = 30.0,
    max_run_s: float = 900.0,
    keep_s: float | None = 86_400.0,
    wait_s: float = 30.0,
    on_unavailable: str = "refuse",
    on_lease_lost: str = "raise",
    cache: int = 0,
    hooks: Sequence[Hook] = (),
) -> Callable[[Function], Function]:
    """Make a function, coroutine function or method run once for each key; later calls get the first result.

    Args:
        target: an application, an idempotency store, or a function that returns one.
        key: what identifies the operation: the name of an argument, or a path below one (``"order.id"``), several of
            them, or a function of the arguments. A part that is missing or None is Misuse.
        name: the operation's name, a part of every key; by default the function's module and qualified name. Give one
            to a function that may be renamed or moved.
        payload: what must be the same in every call with one key: True for all arguments, else as ``key``; False for
            nothing.
        scope: what else to keep apart, such as the tenant of the calling context.
        result: the type of the results, by default the function's annotation; decides how they are stored.
        codec: stores results in another way.
        remember: exceptions that are results: a later call raises them again. All others release the key.
        lease_s: another caller takes over so long after this process was last heard of.
        max_run_s: the longest that a call may take; then its lease is not renewed any more.
        keep_s: results are kept so long; None: for ever.
        wait_s: a duplicate waits so long for the first call; 0: not at all.
        on_unavailable: the store is down: ``refuse`` (its error is raised) or ``run`` (unprotected).
        on_lease_lost: ``raise``, ``cancel`` (coroutine functions) or ``return``; see ``Policy``.
        cache: keep so many results in this process as well.
        hooks: called with an ``Event`` for everything that happens.

    Raises, when the function is called:
        PayloadMismatch: the key was used with another payload.
        InProgress: another call holds the key, longer than ``wait_s``.
        LeaseLost: another call took over while this one ran.
        ResultNotKept: the call was performed before, but its result could not be stored.
        NotJson: the result cannot be stored as it is; the call was performed, and is not performed again.
        StoreError: the store is down, and nothing was run.
    """  # fmt: skip
    if scope is not None:
        check_function("scope", scope, "a function without arguments")
    if name is not None:
        check_text("name", name, 500)
    policy = Policy(
        lease_s=lease_s, max_run_s=max_run_s, keep_s=keep_s, wait_s=wait_s, on_unavailable=on_unavailable,
        on_lease_lost=on_lease_lost,
    )  # fmt: skip

    def decorate(function: Function) -> Function:
        is_async = _check_function(function, on_lease_lost)
        guard = Guard(
            target, name=name_of(function, target) if name is None else name, policy=policy,
            codec=codec or codec_for(result_type(function) if result is _MISSING else result),
            remember=remember, hooks=hooks, cache=cache,
        )  # fmt: skip
        identify = _identifier(_Arguments(function), guard.name, key, payload, scope)
        return _wrapped(function, guard, identify, is_async=is_async)

    return decorate


def _check_function(function: Any, on_lease_lost: str) -> bool:
    """Whether it is a coroutine function; Misuse for what has no one result."""
    if isinstance(function, staticmethod | classmethod):
        raise Misuse("put @casework.idempotent below @staticmethod or @classmethod, next to the function")
    if not callable(function):
        raise Misuse(f"{function!r:.80} is no function; @casework.idempotent(...) stands above one")
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - of an object that can be called
    )
    label = _label(function)
    if not is_async and (inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function)):
        raise Misuse(f"{label} is a generator; only a function with one result can be replayed")
    if on_lease_lost == "cancel" and not is_async:
        raise Misuse(f"{label} is a plain function, which nobody can cancel; use on_lease_lost='raise'")
    return is_async


def _label(function: Any) -> str:
    """What a function is called in errors."""
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)


def _wrapped(function: Function, guard: Guard, identify: Identify, *, is_async: bool) -> Function:
    """The function as its callers see it; with its ``guard``, and ``key_of`` a call's arguments."""
    if is_async:

        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            key, fingerprint = identify(args, kwargs)
            return await guard.run_async(key, fingerprint, lambda: function(*args, **kwargs))

        wrapper: Any = coroutine
    else:

        def plain(*args: Any, **kwargs: Any) -> Any:
            key, fingerprint = identify(args, kwargs)
            return guard.run(key, fingerprint, lambda: function(*args, **kwargs))

        wrapper = plain
    functools.update_wrapper(wrapper, function)
    wrapper.__name__ = getattr(function, "__name__", guard.name)
    wrapper.guard = guard
    wrapper.key_of = lambda *args, **kwargs: identify(args, kwargs)[0]
    return wrapper  # type: ignore[no-any-return]


Identify = Callable[[tuple[Any, ...], dict[str, Any]], tuple[str, str]]


def _identifier(
    arguments: _Arguments, name: str, key: KeySource, payload: Any, scope: Callable[[], str] | None
) -> Identify:
    """How a call's key and fingerprint are made."""
    key_of = arguments.reader(key, "key")
    payload_of = (lambda args, kwargs: None) if payload is False else (
        arguments.all_of if payload is True else arguments.reader(payload, "payload")
    )  # fmt: skip

    def identify(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, str]:
        owner = None if scope is None else _scoped(scope, name)
        record_key = make_key("", name, owner, key_of(args, kwargs))
        return record_key, fingerprint_of(payload_of(args, kwargs))

    return identify


def _scoped(scope: Callable[[], str], name: str) -> str:
    found: Any = scope()
    if not isinstance(found, str) or not found:
        raise Misuse(f"{name}: scope() returned {found!r:.80}; it must be a non-empty string, such as the tenant's id")
    return found


class _Arguments:
    """How the arguments of a function are found, without binding them anew for each call."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.name = _label(function)
        self.signature = inspect.signature(function)
        self.names = list(self.signature.parameters)
        self.skips_first = bool(self.names) and self.names[0] in ("self", "cls") and "." in self.name
        self.positions = {
            name: n
            for n, (name, parameter) in enumerate(self.signature.parameters.items())
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        }
        self.is_plain = all(
            parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
            for parameter in self.signature.parameters.values()
        )
        self.defaults = {
            name: parameter.default
            for name, parameter in self.signature.parameters.items()
            if parameter.default is not parameter.empty
        }

    def get(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The argument of that name; Misuse when the call lacks it."""
        if name in kwargs:
            return kwargs[name]
        position = self.positions.get(name)
        if position is not None and position < len(args):
            return args[position]
        if name in self.defaults:
            return self.defaults[name]
        bound = self._bound(args, kwargs)
        if name in bound:
            return bound[name]
        raise Misuse(f"{self.name} was called without {name!r}, which is part of its key")

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}() {error}") from None
        bound.apply_defaults()
        return bound.arguments

    def all_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """All arguments but ``self``, by name, defaults included: however they were passed, they are the same."""
        if self.is_plain and len(args) + len(kwargs) == len(self.names) and len(args) <= len(self.positions):
            found = dict(zip(self.names, args, strict=False))
            if not kwargs:
                pass
            elif kwargs.keys() <= self.signature.parameters.keys() and not (kwargs.keys() & found.keys()):
                found.update(kwargs)
            else:
                found = self._bound(args, kwargs)
        else:
            found = self._bound(args, kwargs)
        if self.skips_first:
            found = dict(found)
            found.pop(self.names[0], None)
        return found

    def reader(self, source: Any, what: str) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
        """How to read what ``key=`` or ``payload=`` names. Misuse for a name that the function does not have."""
        if isinstance(source, str):
            return self._path_reader(source, what)
        if callable(source):
            function: Callable[..., Any] = source
            if self.skips_first:
                return lambda args, kwargs: function(*args[1:], **kwargs)
            return lambda args, kwargs: function(*args, **kwargs)
        if isinstance(source, Sequence) and source and all(isinstance(part, str) for part in source):
            readers = [self._path_reader(part, what) for part in source]
            return lambda args, kwargs: tuple([read(args, kwargs) for read in readers])
        raise Misuse(f'{what} is {source!r:.80}; name arguments ("order_id", "order.id"), or give a function of them')

    def _path_reader(self, path: str, what: str) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
        name, *below = path.split(".")
        takes_more = any(p.kind is p.VAR_KEYWORD for p in self.signature.parameters.values())
        if name not in self.signature.parameters and not takes_more:
            raise Misuse(f"{what}={path!r}: {self.name} has no argument {name!r}; it has {', '.join(self.names)}")
        if name not in self.signature.parameters:
            return lambda args, kwargs: _below(self._keyword(name, kwargs, what), below, path)
        if not below:
            return lambda args, kwargs: self.get(name, args, kwargs)
        return lambda args, kwargs: _below(self.get(name, args, kwargs), below, path)

    def _keyword(self, name: str, kwargs: dict[str, Any], what: str) -> Any:
        if name not in kwargs:
            raise Misuse(f"{self.name} was called without {name!r}, which is part of its {what}")
        return kwargs[name]


def _below(value: Any, names: Sequence[str], path: str) -> Any:
    """The value at a path of keys or attributes; Misuse when it is not there."""
    for name in names:
        if isinstance(value, Mapping):
            if name not in value:
                raise Misuse(f"{path!r}: there is no {name!r} in {sorted(map(str, value))!r:.120}")
            value = value[name]
        elif hasattr(value, name):
            value = getattr(value, name)
        else:
            raise Misuse(f"{path!r}: {value!r:.80} has no {name!r}")
    return value
