"""Actions and guards, compiled to functions of the run.

An action changes the run: its context (always by a new dict, never in place), its internal queue, its effects. A
block is the executable content of one place; an exception in it raises ``error.execution`` and ends that block only
(SCXML 3.12.2, 4.10). Values that an action computes are checked as strictly as what a user brings in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from casework.errors import InvalidMachine, NotJson
from casework.statechart.durations import delay_us
from casework.statechart.expressions import Template, compile_template, has_expression
from casework.statechart.jsonable import INT_MAX, INT_MIN, checked_copy, copy_json
from casework.statechart.nodes import Block, Guard, Run
from casework.statechart.snapshot import CancelSend, Event, Log, Send


class UnboundFunction(InvalidMachine):
    """A step reached a function that is not registered in this process; nothing of the step counts.

    It is not the chart's fault: another process, or a later version of this one, may have it.
    """


class FunctionEvent(dict[str, Any]):
    """The event as functions get it: a mapping of the payload, with ``.type``, ``.id``, ``.source`` and ``.data``.

    ``.data`` is the payload as it is, for payloads that are not a mapping (the mapping is empty then).
    """

    __slots__ = ("data", "id", "source", "type")

    def __init__(self, event: Event, data: Any) -> None:
        self.data = copy_json(data)
        super().__init__(self.data if isinstance(self.data, dict) else {})
        self.type, self.id, self.source = event.type, event.id, event.source


class Registries:
    """The functions of a machine, shared by all of its definitions, looked up when they are called."""

    __slots__ = ("actions", "guards", "tasks")

    def __init__(self) -> None:
        self.tasks: dict[str, Callable[..., Any]] = {}
        self.actions: dict[str, Callable[..., Any]] = {}
        self.guards: dict[str, Callable[..., Any]] = {}


def raise_error(run: Run, error: Exception, where: str, once: bool = False) -> None:
    """Put ``error.execution`` into the internal queue; with ``once``, unless the same was put there in this step."""
    message = str(error)
    if isinstance(error, KeyError) and error.args:
        message = f"there is no key {error.args[0]!r}"
    data = {"message": message[:1000], "type": type(error).__name__, "where": where}
    if not once or all(event.data != data for event in run.queue):
        run.queue.append(Event("error.execution", data))


def compile_block(actions: list[dict[str, Any]], where: str, registries: Registries) -> Block | None:
    """The block of these normalised actions; None when there are none."""
    if not actions:
        return None
    compiled = [_compile(action, where, registries) for action in actions]
    asks = any(each.asks_active for each in compiled)
    ops = tuple(each.op for each in compiled)
    if len(ops) == 1:
        only = ops[0]

        def single(run: Run) -> None:
            try:
                only(run)
            except UnboundFunction:
                raise
            except Exception as error:  # noqa: BLE001 - it belongs to the chart
                raise_error(run, error, where)

        return Block(single, asks)

    def block(run: Run) -> None:
        try:
            for op in ops:
                op(run)
        except UnboundFunction:
            raise
        except Exception as error:  # noqa: BLE001 - it belongs to the chart
            raise_error(run, error, where)

    return Block(block, asks)


def compile_guard(guard: dict[str, Any] | None, where: str, registries: Registries) -> tuple[Guard | None, bool]:
    """The guard as a function that never raises (but UnboundFunction), and whether it asks for the active states."""
    if guard is None:
        return None, False
    asks = False
    if "expr" in guard:
        template = compile_template(guard)
        evaluate, asks = template.evaluate, template.asks_active

        def test(run: Run) -> Any:
            return evaluate(run.context, run.data, run.event, run.active)
    else:
        call, asks = _caller(guard, registries.guards, "guard")

        def test(run: Run) -> Any:
            return call(run)

    def safe(run: Run) -> bool:
        try:
            return bool(test(run))
        except UnboundFunction:
            raise
        except Exception as error:  # noqa: BLE001 - it belongs to the chart
            # Once a macrostep: an eventless guard is asked again after every internal event, its own error included.
            raise_error(run, error, where, once=True)
            return False

    return safe, asks


def evaluate(run: Run, template: Template, where: str, *extra: Any) -> Any:
    """The template's value, checked. Raises what the expression raises."""
    value = template.evaluate(run.context, run.data, run.event, run.active, *extra)
    return checked_copy(value, where)


# --- one action ---------------------------------------------------------------------------------------------------


def _compile(action: dict[str, Any], where: str, registries: Registries) -> Block:
    kind = action["type"]
    if kind == "call":
        return _named(action, registries)
    params = action["params"]
    if kind == "assign":
        return _assign(params)
    if kind == "if":
        return _if(params, where, registries)
    if kind == "foreach":
        return _foreach(params, where, registries)
    if kind == "block":
        return compile_block(params["actions"], where, registries) or Block(lambda run: None, False)
    return _BUILT_INS[kind](params)


def _caller(
    call: dict[str, Any], registry: dict[str, Callable[..., Any]], kind: str
) -> tuple[Callable[[Run], Any], bool]:
    name = call["name"]
    params = compile_template(call["params"]) if call.get("params") else None

    def run_it(run: Run) -> Any:
        function = registry.get(name)
        if function is None:
            raise UnboundFunction([f"{run.machine.name}: the {kind} {name!r} is not registered here (@machine.{kind})"])
        event = FunctionEvent(run.event, run.data)
        if params is None:
            return function(copy_json(run.context), event)
        return function(copy_json(run.context), event, **evaluate(run, params, "params"))

    return run_it, params is not None and params.asks_active


def _named(action: dict[str, Any], registries: Registries) -> Block:
    call, asks = _caller(action, registries.actions, "action")
    name = action["name"]

    def op(run: Run) -> None:
        change = call(run)
        if change is None:
            return
        if not isinstance(change, Mapping):
            if hasattr(change, "close") and hasattr(change, "send"):
                change.close()
            raise TypeError(f"action {name!r} returned {type(change).__name__}, not a mapping of changes or None")
        run.context = {**run.context, **checked_copy(dict(change), f"result of {name}")}

    return Block(op, asks)


def _checked(value: Any, key: str) -> Any:
    kind = type(value)
    if kind is str:
        if value.isascii():
            return value
    elif kind is bool or value is None or (kind is int and INT_MIN <= value <= INT_MAX):
        return value
    return checked_copy(value, f"context.{key}")


def _assign(params: dict[str, Any]) -> Block:
    template = compile_template(params)
    compute = template.evaluate
    if len(params) == 1 and "expr" not in params:
        key = next(iter(params))
        evaluate_one = compile_template(params[key]).evaluate

        def assign_one(run: Run) -> None:
            context = run.context
            value = evaluate_one(context, run.data, run.event, run.active)
            context = context.copy()
            context[key] = value if type(value) is bool else _checked(value, key)
            run.context = context

        return Block(assign_one, template.asks_active)

    def assign(run: Run) -> None:
        change = compute(run.context, run.data, run.event, run.active)
        if type(change) is not dict:
            raise TypeError(f"assign needs a mapping of changes, not {type(change).__name__}")
        for key, value in change.items():
            change[key] = _checked(value, key)
        run.context = {**run.context, **change}

    if "expr" in params:  # its value may be a part of the context itself, and its keys are not known to be strings

        def assign_mapping(run: Run) -> None:
            change = checked_copy(compute(run.context, run.data, run.event, run.active), "assign")
            if type(change) is not dict:
                raise TypeError(f"assign needs a mapping of changes, not {type(change).__name__}")
            run.context = {**run.context, **change}

        return Block(assign_mapping, template.asks_active)
    return Block(assign, template.asks_active)


def _if(params: dict[str, Any], where: str, registries: Registries) -> Block:
    branches = []
    asks = False
    for branch in params["branches"]:
        guard, guard_asks = compile_guard(branch.get("guard"), "guard of if", registries)
        inner = [_compile(action, where, registries) for action in branch["actions"]]
        asks = asks or guard_asks or any(each.asks_active for each in inner)
        branches.append((guard, tuple(each.op for each in inner)))

    def op(run: Run) -> None:
        for guard, ops in branches:
            if guard is None or guard(run):
                for each in ops:
                    each(run)
                return

    return Block(op, asks)


def _foreach(params: dict[str, Any], where: str, registries: Registries) -> Block:
    items = compile_template(params["items"])
    inner = [_compile(action, where, registries) for action in params["actions"]]
    item, index = params["item"], params.get("index")

    def op(run: Run) -> None:
        listed = evaluate(run, items, "items of foreach")
        if not isinstance(listed, list):
            raise TypeError(f"foreach needs a list, not {type(listed).__name__}")
        for position, each in enumerate(listed):
            change = {item: each} if index is None else {item: each, index: position}
            run.context = {**run.context, **change}
            for action in inner:
                action.op(run)

    return Block(op, items.asks_active or any(each.asks_active for each in inner))


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(f"{what} is text, not {value!r}")
    return value


def _raise(params: dict[str, Any]) -> Block:
    if "delay" in params:
        return _send({**params, "to": ""})
    event = params["event"]
    data = params.get("data", {})
    if isinstance(event, str) and not has_expression(data):

        def raise_fixed(run: Run) -> None:
            run.queue.append(Event(event, copy_json(data)))

        return Block(raise_fixed, False)
    template = compile_template([event, data])

    def op(run: Run) -> None:
        kind, payload = evaluate(run, template, "raise")
        run.queue.append(Event(_text(kind, "the event of raise"), payload))

    return Block(op, template.asks_active)


def _send(params: dict[str, Any]) -> Block:
    delay = params.get("delay", 0)
    is_fixed = isinstance(delay, int)
    template = compile_template([
        params["event"], params.get("data", {}), params.get("to", ""), params.get("id", ""), 0 if is_fixed else delay
    ])  # fmt: skip

    def op(run: Run) -> None:
        kind, data, to, name, wait = evaluate(run, template, "send")
        if not isinstance(to, str) or not isinstance(name, str):
            raise TypeError(f"'to' and 'id' of send are text, not {to!r} and {name!r}")
        wait_us = delay if is_fixed else delay_us(wait)
        run.effects.append(Send("" if to == "self" else to, _text(kind, "the event of send"), data, wait_us, name))

    return Block(op, template.asks_active)


def _cancel(params: dict[str, Any]) -> Block:
    template = compile_template(params["id"])

    def op(run: Run) -> None:
        run.effects.append(CancelSend(_text(evaluate(run, template, "cancel"), "the id of cancel")))

    return Block(op, template.asks_active)


def _log(params: dict[str, Any]) -> Block:
    template = compile_template([params.get("label", ""), params.get("value")])

    def op(run: Run) -> None:
        label, value = template.evaluate(run.context, run.data, run.event, run.active)
        try:
            value = checked_copy(value, "log")
        except NotJson:
            value = repr(value)
        run.effects.append(Log(str(label), value))

    return Block(op, template.asks_active)


_BUILT_INS: dict[str, Callable[[dict[str, Any]], Block]] = {
    "raise": _raise,
    "send": _send,
    "cancel": _cancel,
    "log": _log,
}
