"""A microstep, computed once: what is left, what is done, what is entered (SCXML appendix D: exitStates, enterStates).

A :class:`Move` is the recipe of one microstep from one configuration: a flat list of operations in the right order,
and the configuration that it leads to. It depends on the configuration, the transitions and (only where a history
state is entered) the recorded history, so it is kept and reused wherever history plays no part.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from casework.statechart.actions import evaluate, raise_error
from casework.statechart.configuration import (
    KNOWN_BYTES,
    OP_BYTES,
    Candidates,
    Configuration,
    count_cached,
    domain_of,
    effective_targets,
    exit_set,
    intern,
    names_of,
    restored,
    without_conflicts,
)
from casework.statechart.durations import delay_us
from casework.statechart.nodes import Block, Op, Run, StateNode, Transition
from casework.statechart.snapshot import CancelTimer, Event, StopInvoke

if TYPE_CHECKING:
    from casework.statechart.compile import Tables


class Move:
    """The recipe of one microstep."""

    __slots__ = ("configuration", "history", "is_settled", "ops", "weight")

    def __init__(
        self, configuration: Configuration, ops: tuple[Op, ...], history: dict[str, list[str]], weight: int
    ) -> None:
        self.configuration = configuration
        self.ops = ops
        self.history = history
        """What is recorded on the way out."""
        self.is_settled = configuration.always is None
        """No eventless transition can follow."""
        self.weight = weight
        """Operations in it, each counted once."""


def move_for(
    tables: Tables, configuration: Configuration, transitions: list[Transition], history: dict[str, list[str]]
) -> Move:
    """The move for these transitions, from the cache where it is there."""
    key = tuple([transition.index for transition in transitions])
    found: Move | None = configuration.moves.get(key)
    if found is None:
        asked = AskedHistory(history)
        found = _compute(tables, configuration, transitions, asked)
        if not asked.was_read():
            count_cached(tables, KNOWN_BYTES + OP_BYTES * (len(found.ops) + len(key)))
            configuration.moves[key] = found
    return found


def fixed_move(tables: Tables, configuration: Configuration, candidates: Candidates) -> Move | None:
    """The one move that these candidates always lead to; None when guards or history decide."""
    if any(group[0].guard is not None for group in candidates.groups):
        return None
    enabled = list(dict.fromkeys(group[0] for group in candidates.groups))
    asked = AskedHistory({})
    chosen = without_conflicts(enabled, asked) if len(enabled) > 1 else enabled
    move = _compute(tables, configuration, chosen, asked)
    return None if asked.was_read() else move


def initial_move(tables: Tables) -> Move:
    """The move into the initial configuration."""
    entry = Entry(AskedHistory({}))
    entry.add_descendants(tables.root)
    return _assemble(tables, [], [], entry, [], {})


def exit_ops(configuration: Configuration) -> list[Op]:
    """The operations of leaving every state, for a machine that ends."""
    states = list(reversed(configuration.active))
    asks = any(state.exit is not None and state.exit.asks_active for state in states)
    return _leave(states, set(configuration.active), _Names(configuration.names) if asks else None)


class AskedHistory(dict[str, list[str]]):
    """What history states recorded, mostly nothing; remembers whether anybody asked."""

    _was_read = False

    def get(self, key: str, default: Any = None) -> Any:
        self._was_read = True
        return super().get(key, default)

    def was_read(self) -> bool:
        return self._was_read


# --- what is entered ----------------------------------------------------------------------------------------------


class Entry:
    """The entry set, collected as in appendix D."""

    def __init__(self, history: dict[str, list[str]]) -> None:
        self.history = history
        self.states: set[StateNode] = set()
        self.around: set[StateNode] = set()
        """All ancestors of ``states``, so that a region knows whether one of them is in it."""
        self.filled: set[StateNode] = set()
        """Parallel states of which every region has a state that is entered."""
        self.defaults: set[StateNode] = set()
        """Compound states that are entered by default, so that their initial transition's actions run."""
        self.history_blocks: dict[StateNode, Block | None] = {}
        """Parent of a history state that had nothing recorded: the actions of its default."""

    def add_descendants(self, state: StateNode) -> None:
        """Add ``state`` and the states below it that are entered with it."""
        if state.kind == "history":
            self._add_history(state)
            return
        self._add(state)
        if state.kind == "compound":
            self.defaults.add(state)
            self._add_all(state.default, state)
        elif state.kind == "parallel":
            self._add_regions(state)

    def add_ancestors(self, state: StateNode, domain: StateNode | None) -> None:
        """Add the ancestors of ``state`` below ``domain``, and the other regions of the parallel ones."""
        for ancestor in state.ancestors:
            if ancestor is domain:
                if ancestor.kind == "parallel":
                    self._add_regions(ancestor)
                return
            self._add(ancestor)
            if ancestor.kind == "parallel":
                self._add_regions(ancestor)

    def merge(self, other: Entry, domain: StateNode | None) -> None:
        """Add what one transition enters: all that it reached below its domain, which itself stays active."""
        self.states |= {each for each in other.states if domain is None or domain.holds(each)}
        self.defaults |= {each for each in other.defaults if domain is None or domain.holds(each)}
        self.history_blocks.update(other.history_blocks)

    def _add_all(self, targets: tuple[StateNode, ...], domain: StateNode | None) -> None:
        for target in targets:
            self.add_descendants(target)
        for target in targets:
            self.add_ancestors(target, domain)

    def _add_history(self, state: StateNode) -> None:
        parent = state.parent
        assert parent is not None
        self.history.get(state.path)
        found = restored(state, self.history)
        if found:
            self._add_all(found, parent)
            return
        if state.default_block is not None:
            self.history_blocks[parent] = state.default_block
        if state.default:
            self._add_all(state.default, parent)
        elif parent.kind == "parallel":
            self._add_regions(parent)
        else:
            self.defaults.add(parent)
            self._add_all(parent.default, parent)

    def _add(self, state: StateNode) -> None:
        self.states.add(state)
        self.around.update(state.ancestors)

    def _add_regions(self, state: StateNode) -> None:
        if state in self.filled:
            return
        for child in state.children:
            if child not in self.states and child not in self.around:
                self.add_descendants(child)
        self.filled.add(state)


# --- the whole microstep ------------------------------------------------------------------------------------------


def _compute(
    tables: Tables, configuration: Configuration, transitions: list[Transition], history: dict[str, list[str]]
) -> Move:
    left: set[StateNode] = set()
    overlay = AskedHistory({})
    entry = Entry(history)
    for transition in transitions:
        left.update(exit_set(configuration, transition, history))
    recorded = {
        node.path: _record(node, configuration, left) for state in left for node in state.histories
    }  # fmt: skip
    if recorded:
        entry.history = overlay = AskedHistory({**history, **recorded})
    for transition in transitions:
        if not transition.targets:
            continue
        # Domain and exit set are fixed before anything is recorded (appendix D); the entry sees what was recorded.
        domain = domain_of(transition, effective_targets(transition.targets, history))
        reached = effective_targets(transition.targets, entry.history)
        own = Entry(entry.history)
        for target in transition.targets:
            own.add_descendants(target)
        for target in reached:
            own.add_ancestors(target, domain)
        entry.merge(own, domain)
    if overlay.was_read():
        history.get("")  # the move depends on history, although only on what it records itself
    ordered = sorted(left, key=lambda state: -state.index)
    return _assemble(tables, ordered, transitions, entry, list(configuration.active), recorded)


def _record(node: StateNode, configuration: Configuration, left: set[StateNode]) -> list[str]:
    parent = node.parent
    assert parent is not None
    if node.is_deep:
        return [atomic.path for atomic in configuration.nodes if parent.holds(atomic)]
    return [child.path for child in parent.children if child in left]  # the parent is left, so all inside it is


def _assemble(
    tables: Tables, left: list[StateNode], transitions: list[Transition], entry: Entry, active: list[StateNode],
    recorded: dict[str, list[str]],
) -> Move:  # fmt: skip
    entered = sorted(entry.states, key=lambda state: state.index)
    now_active = set(active)
    blocks = [state.exit for state in left] + [transition.block for transition in transitions]
    for state in entered:
        blocks += [state.entry, state.default_block, entry.history_blocks.get(state)]
    asks = any(block is not None and block.asks_active for block in blocks)
    asks = asks or any(state.output is not None and state.output.asks_active for state in entered)
    asks = asks or any(_asks(state) for state in entered)
    names = _Names(names_of(active)) if asks else None
    ops = _leave(left, now_active, names)
    ops += [transition.block.op for transition in transitions if transition.block is not None]
    done = _Done(now_active)
    for state in entered:
        now_active.add(state)
        if names is not None:
            ops.append(names.with_also(state))
        ops += _enter(state, entry, done)
    atomic = sorted((state for state in now_active if state.is_atomic), key=lambda state: state.index)
    weight = len(ops) + sum(block.weight for block in blocks if block is not None)
    return Move(intern(tables, tuple(atomic)), tuple(ops), recorded, weight)


def _leave(states: list[StateNode], active: set[StateNode], names: _Names | None) -> list[Op]:
    ops: list[Op] = [] if names is None else [names.now()]
    for state in states:
        if state.exit is not None:
            ops.append(state.exit.op)
        if state.has_stay:
            ops.append(_end_stay(state))
        active.discard(state)
        if names is not None:
            ops.append(names.without(state))
    return ops


def _enter(state: StateNode, entry: Entry, done: _Done) -> list[Op]:
    ops: list[Op] = []
    if state.has_stay:
        ops.append(begin_stay(state))
    if state.entry is not None:
        ops.append(state.entry.op)
    if state in entry.defaults and state.default_block is not None:
        ops.append(state.default_block.op)
    history_block = entry.history_blocks.get(state)
    if history_block is not None:
        ops.append(history_block.op)
    if state.kind == "final":
        ops.append(_reach_final(state, _done_with(state, done)))
    return ops


def _asks(state: StateNode) -> bool:
    return any(timer.template is not None and timer.template.asks_active for timer in state.timers)


class _Names:
    """What ``In()`` knows at each point of a microstep: the names before it, and when each was left or entered."""

    def __init__(self, before: frozenset[str]) -> None:
        self.before = before
        self.left_at: dict[str, int] = {}
        self.entered_at: dict[str, int] = {}
        self.at = 0

    def now(self) -> Op:
        """The names at this point."""
        names: Any = _NamesAt(self, self.at)

        def op(run: Run) -> None:
            run.active = names

        return op

    def without(self, state: StateNode) -> Op:
        """The names once ``state`` is left."""
        self.at += 1
        for name in names_of((state,)):
            self.left_at[name] = self.at
        return self.now()

    def with_also(self, state: StateNode) -> Op:
        """The names once ``state`` is entered."""
        self.at += 1
        for name in names_of((state,)):
            self.entered_at[name] = self.at
        return self.now()


class _NamesAt:
    """The active names at one point; only ``in`` is asked of it."""

    __slots__ = ("at", "names")

    def __init__(self, names: _Names, at: int) -> None:
        self.names = names
        self.at = at

    def __contains__(self, name: object) -> bool:
        names: Any = self.names
        if name in names.entered_at and names.entered_at[name] <= self.at:
            return True
        return name in names.before and names.left_at.get(name, self.at + 1) > self.at


# --- final states -------------------------------------------------------------------------------------------------


class _Done:
    """Which states have come to their end, while more and more of them are entered.

    What is done stays done, so each region of a parallel state is looked at until it is, and never again.
    """

    def __init__(self, active: set[StateNode]) -> None:
        self.active = active
        self.regions_done: dict[StateNode, int] = {}

    def __call__(self, state: StateNode) -> bool:
        if state.kind == "compound":
            return any(child.kind == "final" and child in self.active for child in state.children)
        if state.kind == "parallel":
            count = self.regions_done.get(state, 0)
            while count < len(state.children) and self(state.children[count]):
                count += 1
            self.regions_done[state] = count
            return count == len(state.children)
        return state.kind == "final" and state in self.active


def _done_with(state: StateNode, done: _Done) -> list[StateNode]:
    """The parallel ancestors that are done as well once ``state`` is active, the innermost first; perhaps the root.

    A final state may be a region itself (XState), and is done from the start; its parent is done when all regions are.
    """
    found = []
    parent = state.parent
    assert parent is not None
    ancestor = parent if parent.kind == "parallel" else parent.parent
    while ancestor is not None and ancestor.kind == "parallel" and done(ancestor):
        found.append(ancestor)
        ancestor = ancestor.parent
    return found


def is_done(state: StateNode, active: Collection[StateNode]) -> bool:
    """Whether a state, with these states active, has come to its end."""
    if state.kind == "compound":
        return any(child.kind == "final" and child in active for child in state.children)
    if state.kind == "parallel":
        return all(is_done(child, active) for child in state.children)
    return state.kind == "final" and state in active


def _reach_final(state: StateNode, parallels: list[StateNode]) -> Callable[[Run], None]:
    parent = state.parent
    assert parent is not None
    completed = parallels if parent.kind == "parallel" else [parent, *parallels]
    names = [each.done_name for each in completed if each.parent is not None]
    ends = any(each.parent is None for each in completed)
    is_inside = parent.kind == "compound" and parent.parent is not None
    """The parent's own done event carries the output; those of parallel states carry none."""
    output = state.output
    where = f"output of {state.path}"

    def op(run: Run) -> None:
        data: Any = None
        if output is not None:
            try:
                data = evaluate(run, output, where)
            except BaseException as error:  # noqa: BLE001 - it belongs to the chart
                raise_error(run, error, where)
        for index, name in enumerate(names):
            run.queue.append(Event(name, data if is_inside and index == 0 else None))
        if ends:
            run.has_ended = True
            if parent.kind == "compound" and parent.parent is None:
                run.output = data

    return op


# --- stays --------------------------------------------------------------------------------------------------------


def begin_stay(state: StateNode) -> Op:
    """Number the stay; its timers and invocations start when the macrostep is over and the state is still active."""
    path = state.path
    where = f"after of {path or 'the machine'}"

    def op(run: Run) -> None:
        delays: list[tuple[str, int]] = []
        for timer in state.timers:
            wait_us = timer.delay_us
            if wait_us is None:
                assert timer.template is not None
                try:
                    wait_us = delay_us(evaluate(run, timer.template, where))
                except BaseException as error:  # noqa: BLE001 - it belongs to the chart
                    raise_error(run, error, where)
                    continue
            delays.append((timer.name, wait_us))
        run.stay_n += 1
        run.stays = {**run.stays, path: run.stay_n}
        run.pending = [*run.pending, (state, run.stay_n, delays, state.invokes)]

    return op


def _end_stay(state: StateNode) -> Op:
    path = state.path
    timer_names = [timer.name for timer in state.timers]
    invokes = [(invoke.id, invoke.each is not None) for invoke in state.invokes]

    def op(run: Run) -> None:
        stays = dict(run.stays)
        stay = stays.pop(path, 0)
        run.stays = stays
        if not stay:
            return
        still_pending = [each for each in run.pending if each[0] is not state]
        if len(still_pending) < len(run.pending):
            run.pending = still_pending
            return
        for name in timer_names:
            run.effects.append(CancelTimer(name, stay))
        for invoke_id, _ in invokes:
            run.effects.append(StopInvoke(invoke_id, stay))

    return op
