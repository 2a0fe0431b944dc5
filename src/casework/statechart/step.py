"""Stepping a chart: the macrostep of the SCXML recommendation, appendix D, as a pure function.

``start`` enters the initial configuration, ``step`` takes one external event to the next stable configuration. Both
return what to remember and what to do; neither reads a clock, draws a random number or changes its arguments.

The short way through: for most events in most configurations one :class:`~casework.statechart.moves.Move` is known
beforehand, and a step is to run its operations. Everything else goes through ``_macrostep``.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Any

from casework.errors import InvalidMachine, Misuse, NotJson, StepLimit
from casework.statechart.actions import evaluate, raise_error
from casework.statechart.budget import OverBudget
from casework.statechart.configuration import (
    KNOWN_BYTES,
    OP_BYTES,
    Candidates,
    Configuration,
    configuration_of,
    count_cached,
    names_of,
    select,
)
from casework.statechart.deferring import failed_on, fate_of
from casework.statechart.ecmascript_values import UNDEFINED
from casework.statechart.jsonable import checked_copy
from casework.statechart.moves import Move, begin_stay, exit_ops, fixed_move, initial_move, move_for
from casework.statechart.nodes import Invoke, Run, StateNode
from casework.statechart.snapshot import (
    ArmTimer,
    CancelTimer,
    Event,
    Snapshot,
    StartChildren,
    StartTask,
    Step,
    StopInvoke,
    does_something,
)

if TYPE_CHECKING:
    from casework.statechart.compile import Tables
    from casework.statechart.model import Machine

MAX_MICROSTEPS = 1000
"""Microsteps for one event; a chart that needs more goes round in a circle."""


def start(machine: Machine, input: Any, now_us: int) -> Step:
    """Enter the initial configuration, with ``input`` for the expressions of the initial context.

    A machine without ``context`` begins with ``input`` itself. Raises ``NotJson`` or ``Misuse`` when the input is not
    JSON or the context cannot be computed from it, ``StepLimit`` when the chart does not come to rest.
    """
    tables = machine.tables
    run = Run(machine, _first_context(machine, input), Event("init"), {}, now_us, {}, 0, {})
    move: Move | None = next(iter(tables.initial_moves), None)
    if move is None:
        move = initial_move(tables)
        tables.initial_moves.append(move)
    for op in move.ops:
        op(run)
    configuration = _macrostep(run, move.configuration, 1)
    return Step(_snapshot(run, configuration), run.effects, True)


def step(machine: Machine, snapshot: Snapshot, event: Event, now_us: int) -> Step:
    """Process ``event`` up to the next stable configuration; ``snapshot`` stays as it is.

    ``taken`` is False, and the snapshot the given one, when no transition is enabled (unless the active states say that
    the chart fails by that: see ``fate``), when the event belongs to a stay
    that is over, and when the chart has ended. Raises ``StepLimit`` when the chart does not come to rest, and
    :class:`~casework.statechart.UnboundFunction` when a function that it needs is not registered; then nothing counts.
    """
    if snapshot.status != "running":
        return Step(snapshot, [], False)
    tables = machine.tables
    paths = snapshot.configuration
    kind = event.type
    configuration: Configuration | None = tables.configurations.get(paths[0] if len(paths) == 1 else tuple(paths))
    if configuration is None:
        configuration = _find(machine, paths)
    if event.stay or kind in tables.owners:
        owner = tables.owners.get(kind)
        if owner is None or not event.stay or snapshot.stays.get(owner) != event.stay:
            return Step(snapshot, [], False)
    try:
        candidates = configuration.by_type[kind]
    except KeyError:
        candidates = _look_up(tables, configuration, kind)
    run = Run(
        machine, snapshot.context, event, event.data, now_us, snapshot.stays, snapshot.stay_n, snapshot.history
    )  # fmt: skip
    if candidates is not None and candidates.fixed is not None:
        move: Move = candidates.fixed
        # A guard or history could not have changed it, so there is nothing to select.
        if move.history:
            run.history = {**run.history, **move.history}
        for op in move.ops:
            op(run)
        if move.is_settled and not run.queue and not run.pending and not run.has_ended:
            return Step(
                Snapshot(move.configuration.paths.copy(), run.context, "running", run.history, run.stays, run.stay_n),
                run.effects,
                True,
            )
        return _settled(run, move.configuration)
    enabled = select(run, configuration, candidates.groups) if candidates is not None else []
    if not enabled:
        if run.queue:  # a guard failed: its error event counts, although the event itself did nothing
            return _settled(run, configuration)
        if event.invoke and kind.startswith("error."):
            _fail(run, configuration, event)
            return Step(_snapshot(run, configuration), run.effects, True, is_unhandled=True)
        if configuration.always is not None:  # its guards may read the event, although nothing takes it (appendix D)
            enabled = select(run, configuration, configuration.always.groups)
        if not enabled:
            if run.queue:
                return _settled(run, configuration)
            fate = fate_of(configuration, event) if tables.has_fates else ""
            after = failed_on(snapshot, configuration, event) if fate == "fail" else snapshot
            return Step(after, [], False, fate)
    return _settled(run, _microstep(run, configuration, enabled))


def first_taken(
    machine: Machine, snapshot: Snapshot, events: Sequence[Event], now_us: int, begin: int = 0
) -> tuple[int, Step] | None:
    """The first of the deferred ``events``, from position ``begin`` on, that does something now, and its step.

    Call it when the configuration changed; and again from the start when it did by that step, else from the same
    position, with that event removed. The others stay deferred.
    """
    for index in range(begin, len(events)):
        result = step(machine, snapshot, events[index], now_us)
        if does_something(result):
            return index, result
    return None


def rearm(machine: Machine, snapshot: Snapshot, now_us: int, timers: Container[str], invokes: Container[str]) -> Step:
    """Begin the stays of the active states again: new stay numbers, timers from now, tasks and children anew.

    Nothing is entered or left and no action runs. For an execution that failed and is to go on where it stood; the
    snapshot's status must be ``running`` again. Only these ``timers`` and ``invokes`` begin: what a stay no longer
    waited for is not done a second time.
    """
    configuration = _find(machine, snapshot.configuration)
    first = Event("init")
    run = Run(machine, snapshot.context, first, first.data, now_us, {}, snapshot.stay_n, snapshot.history)
    for state in configuration.active:
        if state.has_stay:
            begin_stay(state)(run)
    run.pending = [
        (state, stay, [each for each in delays if each[0] in timers], [each for each in own if each.id in invokes])
        for state, stay, delays, own in run.pending
    ]
    return _settled(run, configuration)


def active_names(machine: Machine, snapshot: Snapshot) -> frozenset[str]:
    """Paths and ids of every active state, ancestors included; the root is not among them."""
    return _find(machine, snapshot.configuration).names


def awaited_events(machine: Machine, snapshot: Snapshot) -> tuple[str, ...]:
    """The event descriptors that some active state mentions, sorted; guards are not asked."""
    active = _find(machine, snapshot.configuration).active
    found = {name for state in active for each in state.transitions if not each.exact for name in each.descriptors}
    return tuple(sorted(found)) if snapshot.status == "running" else ()


def misfits(machine: Machine, snapshot: Snapshot) -> list[str]:
    """Why a snapshot of another definition cannot go on with this machine; empty when it can (migration).

    The configuration must be legal here, recorded history must name states of this machine, and every stay must be of
    a state that still has timers or invocations. What is armed or running already keeps its old delay and input.
    """
    try:
        configuration = _find(machine, snapshot.configuration)
    except Misuse as error:
        return [str(error)]
    found = []
    for path, restored in snapshot.history.items():
        unknown = [each for each in (path, *restored) if each not in machine.tables.by_path]
        if unknown:
            found.append(f"history of {path!r}: no state {', '.join(map(repr, unknown))}")
        elif machine.tables.by_path[path].kind != "history":
            found.append(f"history of {path!r}: it is no history state")
    with_stay = {state.path for state in configuration.active if state.has_stay}
    found += [f"state {path!r} has a running timer or task, and none here" for path in set(snapshot.stays) - with_stay]
    found += [
        f"state {path!r} has a timer or task here, and none was started" for path in with_stay - set(snapshot.stays)
    ]
    return sorted(found)


def tags_of(machine: Machine, snapshot: Snapshot) -> frozenset[str]:
    """The tags of every active state."""
    return frozenset(tag for state in _find(machine, snapshot.configuration).active for tag in state.tags)


# --- the macrostep ------------------------------------------------------------------------------------------------


def _find(machine: Machine, paths: list[str]) -> Configuration:
    try:
        return configuration_of(machine.tables, paths)
    except KeyError as error:
        wrong = f"has no state {error.args[0]!r}"
    except ValueError:
        wrong = f"cannot be in {', '.join(map(repr, paths)) or 'no state'} at once"
    raise Misuse(
        f"{machine.name}: this definition ({machine.hash[:12]}) {wrong}; the snapshot belongs to another one "
        "(step it with its own definition, or migrate it)"
    )


def _look_up(tables: Tables, configuration: Configuration, event_type: str) -> Candidates | None:
    is_new = event_type not in configuration.by_type
    candidates = configuration.candidates(event_type)
    if is_new and candidates is not None:
        candidates.fixed = fixed_move(tables, configuration, candidates)
    if is_new:
        operations = 0 if candidates is None else sum(map(len, candidates.groups))
        if candidates is not None and candidates.fixed is not None:
            operations += len(candidates.fixed.ops)
        count_cached(tables, KNOWN_BYTES + OP_BYTES * operations)
    return candidates


def _settled(run: Run, configuration: Configuration) -> Step:
    configuration = _macrostep(run, configuration, 1)
    return Step(_snapshot(run, configuration), run.effects, True)


def _snapshot(run: Run, configuration: Configuration) -> Snapshot:
    status = "failed" if run.error is not None else "done" if run.has_ended else "running"
    return Snapshot(
        configuration.paths.copy(), run.context, status, run.history, run.stays, run.stay_n, run.output, run.error
    )


def _microstep(run: Run, configuration: Configuration, enabled: list[Any]) -> Configuration:
    move = move_for(run.machine.tables, configuration, enabled, run.history)
    asked = configuration.always
    try:
        run.charge(move.weight + (asked.weight if asked is not None else 0))
    except OverBudget as error:
        raise_error(run, error, f"step in {', '.join(configuration.paths)}")
    if move.history:
        run.history = {**run.history, **move.history}
    for op in move.ops:
        op(run)
    return move.configuration


def _macrostep(run: Run, configuration: Configuration, count: int) -> Configuration:
    """Eventless transitions first, then internal events, until there are neither; then what was entered starts."""
    position = 0
    while True:
        if run.has_ended:
            return _end(run, configuration, position)
        if run.exhausted > 1:  # nor could anything handle it
            _fail(run, configuration, next(event for event in reversed(run.queue) if _is_error(event.type)))
            return configuration
        enabled: list[Any] = []
        if configuration.always is not None:
            enabled = select(run, configuration, configuration.always.groups)
        if not enabled:
            if position == len(run.queue):
                if not run.pending:
                    return configuration
                _start_pending(run, configuration)
                continue
            event = run.queue[position]
            position += 1
            run.event, run.data = event, event.data
            candidates = _look_up(run.machine.tables, configuration, event.type)
            enabled = select(run, configuration, candidates.groups) if candidates is not None else []
            if not enabled and _is_error(event.type) and not run.machine.tables.ignores_errors:
                _fail(run, configuration, event)
                return configuration
        count += 1
        if count > MAX_MICROSTEPS or len(run.queue) - position > MAX_MICROSTEPS:
            where = ", ".join(configuration.paths)
            raise StepLimit(
                f"{run.machine.name}: no rest within {MAX_MICROSTEPS} microsteps in {where} "
                "(look for eventless transitions or raised events that go round in a circle)"
            )
        if enabled:
            configuration = _microstep(run, configuration, enabled)


def _is_error(event_type: str) -> bool:
    return event_type == "error" or event_type.startswith("error.")


def _end(run: Run, configuration: Configuration, position: int) -> Configuration:
    """A final state of the root was reached: leave everything, keep the configuration for whoever looks.

    An error event that was raised on the way, and stands in the queue from ``position`` on, can be taken by nobody any
    more: the chart has failed, though it came to its end.
    """
    for op in exit_ops(configuration):
        op(run)
    _give_output(run, configuration, position)
    return configuration


def _give_output(run: Run, configuration: Configuration, position: int) -> None:
    output = run.output
    root = run.machine.tables.root
    if root.output is not None:
        run.event, run.data = Event("done.state." + run.machine.name, output), output
        run.active = names_of(configuration.active)
        try:
            run.output = evaluate(run, root.output, "output of the machine")
        except BaseException as error:  # noqa: BLE001 - it belongs to the chart
            raise_error(run, error, "output of the machine")
    errors = [event for event in run.queue[position:] if _is_error(event.type)]
    if errors and not run.machine.tables.ignores_errors:
        run.error = errors[0].data
        run.output = None


def _fail(run: Run, configuration: Configuration, event: Event) -> None:
    """An error that nothing handles ends the execution; its timers and invocations end with it."""
    error = event.data
    if not isinstance(error, dict):
        error = {"message": "" if error is None else str(error)}
    run.error = {"type": event.type, "message": "", "where": event.invoke or ",".join(configuration.paths), **error}
    started = {state.path for state, *_ in run.pending}
    for path, stay in run.stays.items():
        if path not in started:
            state = run.machine.tables.by_path[path]
            run.effects += [CancelTimer(timer.name, stay) for timer in state.timers]
            run.effects += [StopInvoke(invoke.id, stay) for invoke in state.invokes]
    run.stays, run.pending = {}, []


def _start_pending(run: Run, configuration: Configuration) -> None:
    """Arm the timers and start the invocations of the states entered in this macrostep (SCXML: at its end)."""
    pending, run.pending = run.pending, []
    run.active = configuration.names
    for state, stay, delays, invokes in pending:
        for name, wait_us in delays:
            run.effects.append(ArmTimer(name, stay, run.now_us + wait_us))
        for invoke in invokes:
            where = f"invoke of {state.path or 'the machine'}"
            try:
                _invoke(run, state, stay, invoke)
            except InvalidMachine:
                raise
            except BaseException as error:  # noqa: BLE001 - it belongs to the chart
                raise_error(run, error, where)


def _invoke(run: Run, state: StateNode, stay: int, invoke: Invoke) -> None:
    kind = run.machine.kind_of(invoke)
    if invoke.each is not None:
        items = evaluate(run, invoke.each, "each")
        if not isinstance(items, list):
            raise TypeError(f"each needs a list, not {type(items).__name__}")
        run.charge(len(items) * invoke.input.weight)
        inputs = [evaluate(run, invoke.input, "input", item, index) for index, item in enumerate(items)]
    else:
        inputs = [evaluate(run, invoke.input, "input")]
    if kind == "machine":
        run.effects.append(StartChildren(
            invoke.id, state.path, stay, invoke.src, inputs, invoke.each is not None, invoke.join, invoke.options
        ))  # fmt: skip
    else:
        run.effects.append(StartTask(invoke.id, state.path, stay, invoke.src, inputs[0], invoke.options))


def _first_context(machine: Machine, input: Any) -> dict[str, Any]:
    given = checked_copy({} if input is None else input, "input")
    template = machine.tables.context
    if template is None:
        if not isinstance(given, dict):
            kind = type(given).__name__
            raise Misuse(f"{machine.name}: the input is a mapping, not {kind} (or give the machine a context)")
        return given
    first = Event("init")
    run = Run(machine, {}, first, first.data, 0, {}, 0, {})
    try:
        context = template.evaluate(run, given)
        if isinstance(context, dict):  # a document's data without a value (ECMAScript) are not in the context
            context = {name: value for name, value in context.items() if value is not UNDEFINED}
        context = checked_copy(context, "context", run)
    except NotJson:
        raise
    except Exception as error:
        missing = f"the input has no {error.args[0]!r}" if isinstance(error, KeyError) and error.args else str(error)
        raise Misuse(f"{machine.name}: the context cannot be computed: {missing} (input: {_shown(given)})") from error
    if not isinstance(context, dict):
        raise Misuse(f"{machine.name}: the context is a mapping, not {type(context).__name__}")
    return context


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:197] + "..."
