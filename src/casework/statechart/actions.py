"""Actions and guards, compiled to functions of the run.

An action changes the run: its context (always by a new dict, never in place), its internal queue, its effects. A
block is the executable content of one place; an exception in it raises ``error.execution`` and ends that block only
(SCXML 3.12.2, 4.10). Values that an action computes are checked as strictly as what a user brings in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from casework.errors import InvalidMachine, NotJson
from casework.kernel.containment import is_interrupt, text_of, type_of
from casework.statechart.budget import EFFECT, Meter, OverBudget
from casework.statechart.durations import delay_us
from casework.statechart.ecmascript_values import UNDEFINED, truth
from casework.statechart.expressions import Template, compile_template, has_expression, is_expression
from casework.statechart.jsonable import INT_MAX, INT_MIN, checked_copy, copy_json
from casework.statechart.nodes import Block, Guard, Op, Run
from casework.statechart.operations import text
from casework.statechart.snapshot import CancelSend, Event, Log, Send

_FEW_KEYS = 64
"""A context of so many keys is copied as quickly as it could be charged for."""


class UnboundFunction(InvalidMachine):
    """A step reached a function that is not registered in this process; nothing of the step counts.

    It is not the chart's fault: another process, or a later version of this one, may have it.
    """


class FunctionEvent(dict[str, Any]):
    """The event as functions get it: a mapping of the payload, with ``.type``, ``.id``, ``.source`` and ``.data``.

    ``.data`` is the payload as it is, for payloads that are not a mapping (the mapping is empty then).
    """

    __slots__ = ("data", "id", "source", "type")

    def __init__(self, event: Event, data: Any, meter: Meter | None = None) -> None:
        self.data = copy_json(data, meter)
        super().__init__(self.data if isinstance(self.data, dict) else {})
        self.type, self.id, self.source = event.type, event.id, event.source


class Registries:
    """The functions of a machine, shared by all of its definitions, looked up when they are called."""

    __slots__ = ("actions", "guards", "tasks")

    def __init__(self) -> None:
        self.tasks: dict[str, Callable[..., Any]] = {}
        self.actions: dict[str, Callable[..., Any]] = {}
        self.guards: dict[str, Callable[..., Any]] = {}


def raise_error(run: Run, error: BaseException, where: str, once: bool = False) -> None:
    """Put ``error.execution`` into the internal queue; with ``once``, unless the same was put there in this step.

    Whatever a function raises belongs to the chart, ``SystemExit`` too. Only a real Ctrl-C is raised again. When the
    budget of the step is spent, the chart gets it a second time, to handle that error.
    """
    if is_interrupt(error):
        raise error
    if isinstance(error, OverBudget):
        if not run.exhausted:
            run.work = run.size = 0
        run.exhausted += 1
    data = {"message": text_of(error, 1000), "type": type_of(error), "where": where}
    if not once or all(event.data != data for event in run.queue):
        run.queue.append(Event("error.execution", data))


def compile_block(actions: list[dict[str, Any]], where: str, registries: Registries) -> Block | None:
    """The block of these normalised actions; None when there are none."""
    if not actions:
        return None
    compiled = [_compile(action, where, registries) for action in actions]
    asks = any(each.asks_active for each in compiled)
    ops = tuple(each.op for each in compiled)
    weight = sum(each.weight for each in compiled)
    if len(ops) == 1:
        only = ops[0]

        def single(run: Run) -> None:
            try:
                only(run)
            except UnboundFunction:
                raise
            except BaseException as error:  # noqa: BLE001 - it belongs to the chart
                raise_error(run, error, where)

        return Block(single, asks, weight)

    def block(run: Run) -> None:
        try:
            for op in ops:
                op(run)
        except UnboundFunction:
            raise
        except BaseException as error:  # noqa: BLE001 - it belongs to the chart
            raise_error(run, error, where)

    return Block(block, asks, weight)


class Test(NamedTuple):
    """A compiled guard: a function that never raises (but UnboundFunction), whether it asks for the active states, and
    its operations.
    """

    holds: Guard | None
    asks_active: bool
    weight: int


def compile_guard(guard: dict[str, Any] | None, where: str, registries: Registries) -> Test:
    """The guard, ready to be asked; without function where there is none."""
    if guard is None:
        return Test(None, False, 0)
    if "expr" in guard:
        template = compile_template(guard)
        evaluate, asks, weight = template.evaluate, template.asks_active, template.weight
        test = (lambda run: truth(evaluate(run))) if "ecmascript" in guard else evaluate
    else:
        test, asks, weight = _caller(guard, registries.guards, "guard")

    def safe(run: Run) -> bool:
        try:
            return bool(test(run))
        except UnboundFunction:
            raise
        except BaseException as error:  # noqa: BLE001 - it belongs to the chart
            # Once a macrostep: an eventless guard is asked again after every internal event, its own error included.
            raise_error(run, error, where, once=True)
            return False

    return Test(safe, asks, weight)


def evaluate(run: Run, template: Template, where: str, *extra: Any) -> Any:
    """The template's value, checked. Raises what the expression raises."""
    return checked_copy(template.evaluate(run, *extra), where, run)


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
        return compile_block(params["actions"], where, registries) or Block(lambda run: None, False, 0)
    return _BUILT_INS[kind](params)


def _caller(
    call: dict[str, Any], registry: dict[str, Callable[..., Any]], kind: str
) -> tuple[Callable[[Run], Any], bool, int]:
    name = call["name"]
    params = compile_template(call["params"]) if call.get("params") else None

    def run_it(run: Run) -> Any:
        function = registry.get(name)
        if function is None:
            raise UnboundFunction([f"{run.machine.name}: the {kind} {name!r} is not registered here (@machine.{kind})"])
        event = FunctionEvent(run.event, run.data, run)
        if params is None:
            return function(copy_json(run.context, run), event)
        return function(copy_json(run.context, run), event, **evaluate(run, params, "params"))

    return run_it, params is not None and params.asks_active, 1 if params is None else 1 + params.weight


def _named(action: dict[str, Any], registries: Registries) -> Block:
    call, asks, weight = _caller(action, registries.actions, "action")
    name = action["name"]

    def op(run: Run) -> None:
        change = call(run)
        if change is None:
            return
        if not isinstance(change, Mapping):
            if hasattr(change, "close") and hasattr(change, "send"):
                change.close()
            raise TypeError(f"action {name!r} returned {type(change).__name__}, not a mapping of changes or None")
        run.context = {**run.context, **checked_copy(dict(change), f"result of {name}", run)}

    return Block(op, asks, weight)


def _checked(run: Run, value: Any, key: str) -> Any:
    kind = type(value)
    if kind is str:
        if value.isascii():
            return value
    elif kind is bool or value is None or (kind is int and INT_MIN <= value <= INT_MAX):
        return value
    return checked_copy(value, f"context.{key}", run)


def _assign(params: dict[str, Any]) -> Block:
    template = compile_template(params)
    compute = template.evaluate
    if len(params) == 1 and "expr" not in params:
        key = next(iter(params))
        evaluate_one = compile_template(params[key]).evaluate
        if is_expression(params[key]) and "ecmascript" in params[key]:
            return Block(_assign_ecmascript(key, evaluate_one), template.asks_active, template.weight)

        def assign_one(run: Run) -> None:
            value = evaluate_one(run)
            kind = type(value)
            if kind is not bool and (kind is not int or not INT_MIN <= value <= INT_MAX):
                value = _checked(run, value, key)
            context = run.context
            if len(context) > _FEW_KEYS:
                run.charge(len(context))
            context = context.copy()
            context[key] = value
            run.context = context

        return Block(assign_one, template.asks_active, template.weight)

    def assign(run: Run) -> None:
        change = compute(run)
        if type(change) is not dict:
            raise TypeError(f"assign needs a mapping of changes, not {type(change).__name__}")
        for key, value in change.items():
            change[key] = _checked(run, value, key)
        if len(run.context) > _FEW_KEYS:
            run.charge(len(run.context))
        run.context = {**run.context, **change}

    if "expr" in params:  # its value may be a part of the context itself, and its keys are not known to be strings

        def assign_mapping(run: Run) -> None:
            change = checked_copy(compute(run), "assign", run)
            if type(change) is not dict:
                raise TypeError(f"assign needs a mapping of changes, not {type(change).__name__}")
            run.charge(len(run.context))
            run.context = {**run.context, **change}

        return Block(assign_mapping, template.asks_active, template.weight)
    return Block(assign, template.asks_active, template.weight)


def _assign_ecmascript(key: str, evaluate_one: Callable[..., Any]) -> Op:
    """What is undefined is not in the context, as it would not be in JSON."""

    def assign(run: Run) -> None:
        value = evaluate_one(run)
        run.charge(len(run.context))
        context = {name: each for name, each in run.context.items() if value is not UNDEFINED or name != key}
        if value is not UNDEFINED:
            context[key] = _checked(run, value, key)
        run.context = context

    return assign


def _if(params: dict[str, Any], where: str, registries: Registries) -> Block:
    branches = []
    asks = False
    weight = 0
    for branch in params["branches"]:
        test = compile_guard(branch.get("guard"), "guard of if", registries)
        inner = [_compile(action, where, registries) for action in branch["actions"]]
        asks = asks or test.asks_active or any(each.asks_active for each in inner)
        weight += test.weight + sum(each.weight for each in inner)
        branches.append((test.holds, tuple(each.op for each in inner)))

    def op(run: Run) -> None:
        for guard, ops in branches:
            if guard is None or guard(run):
                for each in ops:
                    each(run)
                return

    return Block(op, asks, weight)


def _foreach(params: dict[str, Any], where: str, registries: Registries) -> Block:
    items = compile_template(params["items"])
    inner = [_compile(action, where, registries) for action in params["actions"]]
    item, index = params["item"], params.get("index")
    weight = 2 + sum(each.weight for each in inner)

    def op(run: Run) -> None:
        listed = evaluate(run, items, "items of foreach")
        if not isinstance(listed, list):
            raise TypeError(f"foreach needs a list, not {type(listed).__name__}")
        for position, each in enumerate(listed):
            run.charge(weight + len(run.context))
            change = {item: each} if index is None else {item: each, index: position}
            run.context = {**run.context, **change}
            for action in inner:
                action.op(run)

    return Block(op, items.asks_active or any(each.asks_active for each in inner), items.weight + weight)


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

        return Block(raise_fixed, False, compile_template(data).weight)
    template = compile_template([event, data])

    def op(run: Run) -> None:
        kind, payload = evaluate(run, template, "raise")
        run.queue.append(Event(_text(kind, "the event of raise"), payload))

    return Block(op, template.asks_active, template.weight)


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
        run.charge(1, EFFECT)
        run.effects.append(Send("" if to == "self" else to, _text(kind, "the event of send"), data, wait_us, name))

    return Block(op, template.asks_active, template.weight)


def _cancel(params: dict[str, Any]) -> Block:
    template = compile_template(params["id"])

    def op(run: Run) -> None:
        run.charge(1, EFFECT)
        run.effects.append(CancelSend(_text(evaluate(run, template, "cancel"), "the id of cancel")))

    return Block(op, template.asks_active, template.weight)


def _log(params: dict[str, Any]) -> Block:
    template = compile_template([params.get("label", ""), params.get("value")])

    def op(run: Run) -> None:
        label, value = template.evaluate(run)
        try:
            value = checked_copy(value, "log", run)
        except NotJson:
            value = text(run, value)
        run.charge(1, EFFECT)
        run.effects.append(Log(text(run, label), value))

    return Block(op, template.asks_active, template.weight)


_BUILT_INS: dict[str, Callable[[dict[str, Any]], Block]] = {
    "raise": _raise,
    "send": _send,
    "cancel": _cancel,
    "log": _log,
}
