"""Children and joins: who is started, who has reported, and when a join decides.

A parent creates its children's state items itself, pending. Their ids derive from the parent, the stay and an ordinal,
so that a start that runs twice finds itself. A child always reports its end, in the transaction that ends it; the
parent counts reports in its own state and takes no step until the join decides.

A parent whose process does not know the children's machine creates them all the same, with the machine's name and no
definition: the first process that has a machine of that name begins them with its own, and until then they wait.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from casework.executions.mailbox import Mail, mail_sort, put_message
from casework.executions.runtime import Runtime
from casework.executions.state import MAX_ID_BYTES, Data, Invoke, Parent, State, encode_data, short_birth
from casework.kernel.conditions import absent
from casework.kernel.items import Put
from casework.kernel.schema import EXECUTIONS
from casework.statechart import Machine
from casework.statechart import snapshot as chart

MAX_INLINE_RESULTS_BYTES = 64 * 1024
"""Results of a join are handed to the chart while they are no larger in all; else they are read from the children."""


FAILED_KEPT = 10
"""Ordinals of so many children that failed are remembered with their invocation."""


def id_digest(text: str) -> str:
    """A short digest, where an id is only to be told from others."""
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def child_id(parent: str, invoke: str, stay: int, ordinal: int, born_us: int) -> str:
    """The id of a child, always the same for the same parent, stay and ordinal.

    The parent's time of birth is a part of it: its id may be purged and started again while old children are there.
    """
    id = f"{parent}/{invoke}.{stay}.{ordinal}-{short_birth(born_us)}"
    if len(id.encode()) <= MAX_ID_BYTES:
        return id
    return f"~{hashlib.blake2b(id.encode(), digest_size=24).hexdigest()}"


class ChildStart(NamedTuple):
    """One child to start."""

    id: str
    parent: str
    invoke: str
    stay: int
    ordinal: int
    machine: str
    machine_hash: str
    """Empty where the parent's process does not know the machine: whoever begins the child decides."""
    input: Any

    def put(self, rt: Runtime, now_us: int) -> Put:
        """The write that creates the child, pending, unless something is there."""
        data = Data(
            chart.Snapshot([]),
            input=self.input,
            input_digest=input_digest(self.input),
            parent=Parent(self.parent, self.invoke, self.stay, self.ordinal),
        )
        state = State(
            id=self.id,
            version=1,
            status="pending",
            machine=self.machine,
            machine_hash=self.machine_hash,
            data=rt.encode(encode_data(data)),
            parent_id=self.parent,
            created_at_us=now_us,
            updated_at_us=now_us,
            listed=False,
        )
        return Put(EXECUTIONS, state.to_item(rt.options.buckets), absent())


def input_digest(input: Any) -> str:
    """A digest of an execution's input, by which a repeated start is told from another one."""
    return hashlib.blake2b(msgspec.json.encode(input, order="deterministic"), digest_size=12).hexdigest()


class Fan(msgspec.Struct):
    """All children of one invocation; a large one is spilled as this frozen list and started in chunks."""

    parent: str
    invoke: str
    stay: int
    machine: str
    machine_hash: str
    """Empty where the parent's process does not know the machine."""
    inputs: list[Any]
    born_us: int
    """When the parent was started."""
    first: int = 0
    """Ordinal of the first input."""

    def starts(self, begin: int, end: int) -> list[ChildStart]:
        """The children from position ``begin`` to before ``end`` of this list."""
        return [
            ChildStart(
                child_id(self.parent, self.invoke, self.stay, self.first + i, self.born_us), self.parent, self.invoke,
                self.stay, self.first + i, self.machine, self.machine_hash, self.inputs[i],
            )
            for i in range(begin, min(end, len(self.inputs)))
        ]  # fmt: skip


class Recall(msgspec.Struct):
    """The children of one invocation that are to end before they have reported; a large one is spilled as this."""

    parent: str
    invoke: str
    stay: int
    born_us: int
    total: int
    seen: str
    """Those that have reported, as in :class:`~casework.executions.state.Invoke`."""
    version: int = 0
    """Of the parent's state, for the keys of its messages."""

    def ordinals(self) -> list[int]:
        """The children that are told."""
        return list(unreported(Invoke(self.stay, total=self.total, seen=self.seen)))

    def target(self, ordinal: int) -> str:
        """The id of one of them."""
        return child_id(self.parent, self.invoke, self.stay, ordinal, self.born_us)

    def mail(self) -> Mail:
        """What they are told."""
        return Mail("cancel", None, "", self.parent, kind="cancel")

    def puts(self, rt: Runtime, begin: int, end: int, now_us: int) -> list[Put]:
        """The messages from position ``begin`` to before ``end``."""
        sort = mail_sort(now_us, self.parent, self.version)
        return [
            put_message(self.target(ordinal), sort, [self.mail()], rt.options.buckets, sent_at_us=now_us, rt=rt)
            for ordinal in self.ordinals()[begin:end]
        ]


def plan_children(effect: chart.StartChildren, machine: Machine | None, parent: State) -> tuple[Invoke, Fan]:
    """What the parent remembers about an invocation of children, and the children.

    ``machine`` is None where this process does not know it.
    """
    total = len(effect.inputs)
    need = total if effect.join == "all" else 1 if effect.join == "any" else min(int(effect.join), total)
    waiting = Invoke(effect.stay, each=effect.each, total=total, machine=effect.src, need=need)
    hash = "" if machine is None else machine.hash
    return waiting, Fan(parent.id, effect.invoke_id, effect.stay, effect.src, hash, effect.inputs, parent.created_at_us)


class Verdict(NamedTuple):
    """A join's decision."""

    is_done: bool
    value: Any


def count(waiting: Invoke, report: Mail) -> Verdict | None:
    """Count a child's report; the verdict once the join is decided, None before.

    A join fails as soon as too few children are left to satisfy it: ``all`` on the first failure.
    """
    bit = 1 << report.ordinal
    seen = int(waiting.seen, 16) if waiting.seen else 0
    if seen & bit or report.ordinal >= waiting.total:
        return None
    seen |= bit
    waiting.seen = f"{seen:x}"
    body = report.data
    if not body["ok"]:
        waiting.failed = [*waiting.failed, report.ordinal][:FAILED_KEPT]
    if body["ok"]:
        waiting.done += 1
        _keep(waiting, report.ordinal, body["value"])
        if waiting.done >= waiting.need:
            return Verdict(True, _output(waiting, report.invoke))
    elif seen.bit_count() - waiting.done > waiting.total - waiting.need:
        error = body["value"] if isinstance(body["value"], dict) else {"message": str(body["value"])}
        return Verdict(False, {**error, "child": report.source, "index": report.ordinal})
    return None


def _keep(waiting: Invoke, ordinal: int, value: Any) -> None:
    """Keep a child's result, unless the results of all outgrow the state."""
    if not waiting.inline:
        return
    waiting.bytes += len(msgspec.json.encode(value)) + len(str(ordinal)) + 4
    if waiting.bytes > MAX_INLINE_RESULTS_BYTES:
        waiting.results = {}
        waiting.inline = False
    else:
        waiting.results[str(ordinal)] = value


def _output(waiting: Invoke, invoke: str) -> Any:
    """The results, or where they are: see :func:`casework.executions.results.child_results`."""
    if not waiting.inline:
        return {
            "invoke": invoke,
            "stay": waiting.stay,
            "total": waiting.total,
            "done": waiting.done,
            "each": waiting.each,
        }
    values = [waiting.results[key] for key in sorted(waiting.results, key=int)]
    return values if waiting.each else values[0]


def unreported(waiting: Invoke) -> Iterator[int]:
    """Ordinals of the children that have not reported."""
    seen = int(waiting.seen, 16) if waiting.seen else 0
    for ordinal in range(waiting.total):
        if not seen >> ordinal & 1:
            yield ordinal
