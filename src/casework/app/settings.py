"""What a store decides for every process that opens it: its settings, one item of the registry.

A process takes them over when it opens the store, so nothing that changes what a store means depends on how a process
was started. What it was given and differs is refused, with a sentence; ``casework settings`` changes the store's.

**The codec.** Its name stands here, with a text that it encoded. Who opens the store must have a codec of that name
that gives the text back, else it is refused: nothing is ever decoded by another one. The first process that opens the
store with machines decides; an application without machines neither starts nor reads executions of its own accord, so
it does not decide that there is no codec.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import msgspec

from casework.app.core import Core, codec_name
from casework.arguments import check_count
from casework.errors import ConditionFailed, MissingTable, Misuse, OutcomeUnknown
from casework.executions.buckets import COMPONENT, RUNTIME, SETTINGS, read_number
from casework.executions.runtime import Codec
from casework.kernel.conditions import Condition, absent, all_of, equals, present
from casework.kernel.containment import guarded, in_words
from casework.kernel.items import Put, Scalar, Update
from casework.kernel.programs import Program, get, now, write
from casework.kernel.schema import FORMAT, REGISTRY, TABLES, check_format

MAX_DEDUPE_WINDOW_S = 10 * 366 * 86_400
"""The longest dedupe window, ten years."""

TRACE_MAX = 1_000_000
"""The longest trace of an execution."""

PROBE = '"casework"'
"""What the store's codec encodes into the settings; without a codec it stands there as it is."""

_ROUNDS = 5


def read_settings(core: Core) -> Program[bool]:
    """Take over the store's own settings; False when it has none yet.

    Raises MissingTable when it has no tables, or was made by an earlier casework that had fewer of them; Misuse when
    this process was given another dedupe window or another codec than the store has.
    """
    for _ in range(_ROUNDS):
        item = yield from get(SETTINGS)
        if item is None:
            return False
        check_format(item, "the store")
        _take_over(core, item)
        if int(item.get("tables", 0)) < len(TABLES):
            raise MissingTable(
                "the store was made by an earlier casework and lacks tables; make them with `casework dynamodb "
                "create`, or open(..., create=True)"
            )
        decided = _decisions(core, item)
        if not decided:
            return True
        condition: Condition = all_of(present(), *(absent(name) for name in decided))
        try:
            yield from write(Update(SETTINGS, decided, when=condition))
        except (ConditionFailed, OutcomeUnknown):
            continue  # somebody else decides at this moment; what that is counts
        return True
    return True


def _take_over(core: Core, item: Mapping[str, Any]) -> None:
    """Let this process have what the store has decided; Misuse where it was given something else."""
    options = core.rt.options
    window_s = int(item.get("dedupe_window_s", 0))
    if options.dedupe_window_s is not None and options.dedupe_window_s != window_s:
        change = _command(core, f"--dedupe-window-s {options.dedupe_window_s}")
        raise Misuse(
            f"dedupe_window_s is {options.dedupe_window_s}, but the store's window is {window_s}, and all its "
            f"processes must have the same; leave it out, or change the store's: {change}"
        )
    if item.get("owner") == COMPONENT and core.rt.machines:
        raise Misuse(
            "another engine keeps its executions in these tables, through the execution store as a component: ours "
            "would be mixed up with them. Give one of them another prefix, or another file"
        )
    if core.reads_executions:
        _check_codec(core.rt.codec, item)
    trace_max = int(item.get("trace_max", 0)) if options.trace_max is None else options.trace_max
    core.rt.options = msgspec.structs.replace(
        options, buckets=int(item["buckets"]), dedupe_window_s=window_s, trace_max=trace_max
    )
    core.rt.read_buckets = read_number(item)


def _decisions(core: Core, item: Mapping[str, Any]) -> dict[str, Scalar]:
    """What the store leaves open and this process decides."""
    decided: dict[str, Scalar] = {}
    if "trace_max" not in item and core.rt.options.trace_max:
        decided["trace_max"] = core.rt.options.trace_max
    if "codec" not in item and (core.rt.codec is not None or core.rt.machines):
        decided |= _encoded_by(core.rt.codec)
    if "owner" not in item and core.rt.machines:
        decided["owner"] = RUNTIME
    return decided


def write_settings(core: Core) -> Program[None]:
    """Give a new store its settings, whoever comes first decides; tell an older one of its new tables."""
    moment = yield from now()
    options = core.rt.options
    window_s = options.dedupe_window_s or 0
    item: dict[str, Any] = {
        "kind": "settings",
        "name": "store",
        "format": FORMAT,
        "buckets": options.buckets,
        "dedupe_window_s": window_s,
        "tables": len(TABLES),
        "created_at_us": moment.middle_us,
        **_decisions(core, {}),
    }
    try:
        yield from write(Put(REGISTRY, item, absent()))
    except (ConditionFailed, OutcomeUnknown):
        yield from write(Update(SETTINGS, {"tables": len(TABLES)}, when=present()))
        yield from read_settings(core)
    else:
        core.rt.options = msgspec.structs.replace(options, dedupe_window_s=window_s, trace_max=options.trace_max or 0)


def stored_settings() -> Program[dict[str, Any]]:
    """What the store has decided, for people; None for what it leaves open. ``codec`` is empty where there is none."""
    item = (yield from get(SETTINGS)) or {}
    return {name: item.get(name) for name in ("buckets", "dedupe_window_s", "trace_max", "codec")}


def change_settings(*, dedupe_window_s: int | None = None, trace_max: int | None = None) -> Program[None]:
    """Change what a store decides. Processes that have it open keep the old values until they open it again.

    Raises Misuse for values that cannot be, ConditionFailed where the store has no settings.
    """
    changes: dict[str, Scalar] = {}
    if dedupe_window_s is not None:
        check_count("dedupe_window_s", dedupe_window_s, 0, MAX_DEDUPE_WINDOW_S)
        changes["dedupe_window_s"] = dedupe_window_s
    if trace_max is not None:
        check_count("trace_max", trace_max, 0, TRACE_MAX)
        changes["trace_max"] = trace_max
    if changes:
        yield from write(Update(SETTINGS, changes, when=present()))


# --- the codec --------------------------------------------------------------------------------------------------------


def take_codec(codec: Codec | None) -> Program[None]:
    """Make a codec the store's: one of another name, or, under the same name, one that encodes with another key.

    It must decode what the present one encoded. Processes that have the store open go on with theirs.

    Raises Misuse when it does not, or another process changes the settings at this moment; nothing was written then.
    """
    item = yield from get(SETTINGS)
    if item is None:
        raise Misuse("this store has no settings yet, so any codec is its first: open it with one and its machines")
    check_format(item, "the store")
    problem = _unreadable(codec, str(item.get("codec_probe", PROBE)))
    if problem:
        raise Misuse(
            f"{_named(codec)} cannot read what {_called(str(item.get('codec', '')))} stored: {problem}; what is "
            "stored must stay readable, so give a codec that decodes both and encodes the new way"
        )
    before = "codec_probe" in item
    when: Condition = equals("codec_probe", item["codec_probe"]) if before else all_of(present(), absent("codec_probe"))
    try:
        yield from write(Update(SETTINGS, _encoded_by(codec), when=when))
    except ConditionFailed:
        raise Misuse("another process changed the store's codec at this moment; look at `casework settings`") from None


def _encoded_by(codec: Codec | None) -> dict[str, Scalar]:
    """The attributes that say which codec a store has. Misuse for one that does not give back what it is given."""
    if codec is None:
        return {"codec": "", "codec_probe": PROBE}
    try:
        probe = guarded(codec.encode, PROBE)
    except Exception as error:
        raise Misuse(f"{_named(codec)} cannot encode {PROBE}: {in_words(error)}") from error
    problem = _unreadable(codec, probe)
    if problem:
        raise Misuse(f"{_named(codec)} does not give back what it is given: {problem}")
    return {"codec": codec_name(codec), "codec_probe": probe}


def _check_codec(codec: Codec | None, item: Mapping[str, Any]) -> None:
    """Misuse unless this process's codec is the store's."""
    if "codec" not in item:
        return
    stored, given = str(item["codec"]), "" if codec is None else codec_name(codec)
    fix = (
        "give the store's codec (casework.open(..., codec=...); for a command --app MODULE:FUNCTION), or let the store "
        "take another one that can read what is there: `casework settings --take-codec --app MODULE:FUNCTION`"
    )
    if stored != given:
        raise Misuse(
            f"this store's executions are stored with {_called(stored)}, and this process has {_named(codec)}; {fix}"
        )
    problem = _unreadable(codec, str(item["codec_probe"]))
    if problem:
        raise Misuse(
            f"{_named(codec)} of this process cannot read what this store's codec of that name wrote ({problem}): it "
            f"has another key; {fix}"
        )


def _unreadable(codec: Codec | None, probe: str) -> str:
    """Why a codec does not read the text in the settings; empty when it does."""
    if codec is None:
        return "" if probe == PROBE else "there is no codec to decode it"
    if type(probe) is not str:
        return f"it encodes to {type(probe).__name__}, not to text"
    try:
        found = guarded(codec.decode, probe)
    except Exception as error:  # noqa: BLE001 - the codec is the user's, and may raise anything
        return in_words(error)[:200]
    return "" if found == PROBE else "it decodes to something else"


def _called(name: str) -> str:
    return f"the codec {name!r}" if name else "no codec"


def _named(codec: Codec | None) -> str:
    return _called("" if codec is None else codec_name(codec))


def _command(core: Core, what: str) -> str:
    where = f" --store {shlex.quote(core.url)}" if core.url else ""
    return f"`casework settings {what}{where}`"
