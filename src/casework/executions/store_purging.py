"""Purging from the execution store as a component; see :mod:`casework.executions.store`."""

from __future__ import annotations

from casework.arguments import check_count
from casework.errors import ConditionFailed
from casework.executions.deliver import check_id
from casework.executions.state import BEHIND_STATE, STATE
from casework.executions.store import Shared
from casework.kernel.conditions import Condition, absent, all_of, equals
from casework.kernel.items import Check, Delete, Key, Update
from casework.kernel.programs import Program, get, query, transact, write
from casework.kernel.schema import EXECUTIONS, bucket_of, check_format


def purge(shared: Shared, id: str, version: int) -> Program[bool]:
    """Delete an execution and what is its own, while it has that version; False: it moved on, or is gone.

    Emits stay until they are acknowledged, those to it and those of its own without a target. While it is under way
    ``list_executions(status="purging")`` finds it. What an interrupted purge left is removed by the next one. A stale
    copy cannot bring it back.
    """
    check_id(id)
    check_count("version", version)
    state = yield from get(EXECUTIONS.key(id, STATE))
    if state is None:
        return False  # what stands here was sent to an execution that is to come
    check_format(state, f"the state of execution {id!r:.200}")
    if state["status"] != "purging":
        if state["version"] != version:
            return False
        mark = Update(
            EXECUTIONS.key(id, STATE),
            {"status": "purging", "version": version + 1, "listing": f"purging/{bucket_of(id, shared.buckets)}"},
            ("pending", "rank_us"), equals("version", version),
        )  # fmt: skip
        try:
            yield from write(mark)
        except ConditionFailed:
            return False
        state = {**state, "version": version + 1}
    # As it was marked: another purge may be done meanwhile, and the id in use again.
    born_us = state.get("created_at_us")
    same = absent("created_at_us") if born_us is None else equals("created_at_us", born_us)
    marked = all_of(equals("status", "purging"), equals("version", state["version"]), same)
    try:
        yield from _delete_rest(id, marked)
        yield from transact([Delete(EXECUTIONS.key(id, STATE), marked)])
    except ConditionFailed:
        return False
    return True


def _delete_rest(id: str, marked: Condition) -> Program[None]:
    """Delete all but the state and the emits, ``o/...``."""
    for low, high in ((BEHIND_STATE, "o."), ("o0", None)):
        while True:
            page = yield from query(EXECUTIONS, id, low=low, high=high, limit=90)
            keys = [Key(EXECUTIONS, id, str(item["sort"])) for item in page.items]
            if not keys:
                break
            yield from transact([Check(EXECUTIONS.key(id, STATE), marked), *(Delete(key) for key in keys)])
