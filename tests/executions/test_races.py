"""The races behind the fussy sentences of the design, each decided by hand: who goes first, and who is in between."""

from __future__ import annotations

import pytest

from casework.backends.drive import run
from casework.backends.memory import MemoryBackend
from casework.backends.surroundings import VirtualClock
from casework.errors import Contention, OutcomeUnknown
from casework.executions import control, deliver, tasks
from casework.executions.advance import advance
from casework.executions.runtime import Options, Runtime
from casework.executions.state import STATE
from casework.kernel.effects import Query, Transact, Write
from casework.kernel.items import Key
from casework.kernel.schema import EXECUTIONS
from casework.statechart import Machine
from tests.executions.stepping import LosesAnswers, Stepped, Torn, fresh_backend, items_of

COUNTER = """
id: counter
initial: on
context: {n: 0, seen: []}
states:
  on:
    on:
      Add: {actions: [{type: assign, params: {n: {expr: "context.n + 1"}}}]}
      Note: {actions: [{type: assign, params: {seen: {expr: "context.seen + [event.i]"}}}]}
      Leave: 'off'
  'off': {on: {Back: 'on'}}
"""

JOB = """
id: job
initial: idle
context: {got: []}
states:
  idle: {on: {Begin: working}}
  working:
    invoke:
      id: work
      src: work
      onDone: {target: idle, actions: [{type: assign, params: {got: {expr: "context.got + [event]"}}}]}
    on: {Leave: idle}
"""

SENDER = """
id: sender
initial: on
states:
  on:
    on:
      Say: {actions: [{type: send, params: {event: Note, to: receiver, data: {i: {expr: "event.i"}}}}]}
"""


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def backend(clock: VirtualClock) -> MemoryBackend:
    return fresh_backend(clock=clock)


def runtime(*texts: str, **options: int) -> Runtime:
    return Runtime([Machine.from_yaml(text) for text in texts], Options(**options))


def context_of(rt: Runtime, backend: object, id: str) -> dict:
    return run(deliver.load(rt, id), backend).context


# --- two who advance the same execution ---------------------------------------------------------------------


def test_of_two_workers_with_one_message_one_commits_and_the_other_changes_nothing(backend: MemoryBackend) -> None:
    rt = runtime(COUNTER)
    run(deliver.start(rt, "counter", "c", None), backend)
    run(deliver.send(rt, "c", "Add", {}), backend)
    slow = Stepped(advance(rt, "c"), backend).until(Transact)
    run(advance(rt, "c"), backend)
    slow.finish()
    assert context_of(rt, backend, "c")["n"] == 1
    assert items_of(backend, "c", "e/") == []


def test_an_event_in_line_and_a_worker_with_another_event_both_take_effect_once(backend: MemoryBackend) -> None:
    rt = runtime(COUNTER)
    run(deliver.start(rt, "counter", "c", None), backend)
    run(deliver.send(rt, "c", "Add", {}), backend)
    worker = Stepped(advance(rt, "c"), backend).until(Transact)
    run(deliver.handle(rt, "c", "Add", {}), backend)
    worker.finish()
    assert context_of(rt, backend, "c")["n"] == 2


def test_a_message_that_arrives_between_the_look_and_the_commit_is_not_lost(backend: MemoryBackend) -> None:
    rt = runtime(COUNTER)
    run(deliver.start(rt, "counter", "c", None), backend)
    run(deliver.send(rt, "c", "Note", {"i": 1}), backend)
    worker = Stepped(advance(rt, "c"), backend).until(Transact)
    run(deliver.send(rt, "c", "Note", {"i": 2}), backend)
    worker.finish()
    run(advance(rt, "c"), backend)
    assert context_of(rt, backend, "c")["seen"] == [1, 2]


# --- lost answers -------------------------------------------------------------------------------------------


def test_a_lost_answer_followed_by_somebody_elses_commit_applies_the_event_once(backend: MemoryBackend) -> None:
    """A commits 7 to 8 and does not hear of it, B commits 8 to 9, A looks again and finds its event taken."""
    rt = runtime(COUNTER)
    run(deliver.start(rt, "counter", "c", None), backend)
    lossy = LosesAnswers(backend, [1])
    first = Stepped(deliver.handle(rt, "c", "Add", {}, event_id="p-1"), lossy).until(Write)
    first.step()  # applied; the answer is lost
    run(deliver.handle(rt, "c", "Add", {}, event_id="p-2"), backend)
    execution, _ = first.finish()
    assert execution.is_duplicate
    assert context_of(rt, backend, "c")["n"] == 2


def test_a_worker_that_lost_its_answer_looks_again_and_finds_the_message_gone(backend: MemoryBackend) -> None:
    rt = runtime(COUNTER)
    run(deliver.start(rt, "counter", "c", None), backend)
    run(deliver.send(rt, "c", "Add", {}), backend)
    done = run(advance(rt, "c"), LosesAnswers(backend, [1]))
    assert done.state is not None and done.state.version == 2
    assert context_of(rt, backend, "c")["n"] == 1


def test_a_start_whose_answer_was_lost_is_the_start_of_that_execution(backend: MemoryBackend) -> None:
    rt = runtime(COUNTER)
    execution = run(deliver.start(rt, "counter", "c", {"a": 1}), LosesAnswers(backend, [2]))
    assert execution.version == 1


def test_an_event_sent_again_after_it_was_consumed_has_no_second_effect(backend: MemoryBackend) -> None:
    rt = runtime(COUNTER)
    run(deliver.start(rt, "counter", "c", None), backend)
    for _ in range(2):
        run(deliver.send(rt, "c", "Add", {}, event_id="p-1"), backend)
        run(advance(rt, "c"), backend)
    assert context_of(rt, backend, "c")["n"] == 1


def test_a_task_whose_finish_lost_its_answer_reports_once(backend: MemoryBackend) -> None:
    rt = runtime(JOB)
    run(deliver.start(rt, "job", "j", None), backend)
    run(deliver.handle(rt, "j", "Begin", {}), backend)
    task = run(tasks.claim_task(rt, Key(EXECUTIONS, "j", "w/00000001/work")), backend)
    assert task is not None
    assert run(tasks.finish_task(rt, task, "r"), LosesAnswers(backend, [1])) is True
    run(advance(rt, "j"), backend)
    assert context_of(rt, backend, "j")["got"] == ["r"]


# --- generations --------------------------------------------------------------------------------------------


def test_a_result_that_arrives_after_its_state_was_left_and_entered_again_is_dropped(backend: MemoryBackend) -> None:
    rt = runtime(JOB)
    run(deliver.start(rt, "job", "j", None), backend)
    run(deliver.handle(rt, "j", "Begin", {}), backend)
    task = run(tasks.claim_task(rt, Key(EXECUTIONS, "j", "w/00000001/work")), backend)
    assert task is not None
    assert run(tasks.finish_task(rt, task, "old"), backend) is True  # stored, and not yet consumed
    run(deliver.handle(rt, "j", "Leave", {}), backend)
    run(deliver.handle(rt, "j", "Begin", {}), backend)
    run(advance(rt, "j"), backend)
    execution = run(deliver.load(rt, "j"), backend)
    assert execution.configuration == ["working"]
    assert execution.context["got"] == []


def test_a_task_that_finishes_after_its_state_was_left_is_refused(backend: MemoryBackend) -> None:
    rt = runtime(JOB)
    run(deliver.start(rt, "job", "j", None), backend)
    run(deliver.handle(rt, "j", "Begin", {}), backend)
    task = run(tasks.claim_task(rt, Key(EXECUTIONS, "j", "w/00000001/work")), backend)
    assert task is not None
    run(deliver.handle(rt, "j", "Leave", {}), backend)
    assert run(tasks.finish_task(rt, task, "late"), backend) is False
    assert items_of(backend, "j", "e/") == []


# --- leases -------------------------------------------------------------------------------------------------


def test_a_renewal_between_the_look_and_the_takeover_refuses_the_takeover(
    backend: MemoryBackend, clock: VirtualClock
) -> None:
    rt = runtime(JOB)
    run(deliver.start(rt, "job", "j", None), backend)
    run(deliver.handle(rt, "j", "Begin", {}), backend)
    place = Key(EXECUTIONS, "j", "w/00000001/work")
    holder = run(tasks.claim_task(rt, place, lease_s=10), backend)
    assert holder is not None
    clock.advance(11)
    thief = Stepped(tasks.claim_task(rt, place, lease_s=10), backend).until(Write)
    assert run(tasks.renew_task(holder), backend) is True
    assert thief.finish() is None
    assert run(tasks.finish_task(rt, holder, "mine"), backend) is True


def test_a_task_that_was_taken_over_is_finished_by_its_new_holder_only(
    backend: MemoryBackend, clock: VirtualClock
) -> None:
    rt = runtime(JOB)
    run(deliver.start(rt, "job", "j", None), backend)
    run(deliver.handle(rt, "j", "Begin", {}), backend)
    place = Key(EXECUTIONS, "j", "w/00000001/work")
    zombie = run(tasks.claim_task(rt, place, lease_s=10), backend)
    assert zombie is not None
    assert run(tasks.claim_task(rt, place, lease_s=10), backend) is None
    clock.advance(11)
    holder = run(tasks.claim_task(rt, place, lease_s=10), backend)
    assert holder is not None
    assert holder.attempt == 2
    assert holder.key == zombie.key
    assert run(tasks.renew_task(zombie), backend) is False
    assert run(tasks.finish_task(rt, zombie, "zombie"), backend) is False
    assert run(tasks.finish_task(rt, holder, "holder"), backend) is True
    run(advance(rt, "j"), backend)
    assert context_of(rt, backend, "j")["got"] == ["holder"]


# --- order --------------------------------------------------------------------------------------------------


def test_a_senders_second_message_is_never_visible_before_its_first(backend: MemoryBackend) -> None:
    rt = runtime(SENDER, COUNTER)
    run(deliver.start(rt, "sender", "s", None), backend)
    run(deliver.start(rt, "counter", "receiver", None), backend)
    torn = Torn(backend)
    run(deliver.handle(rt, "s", "Say", {"i": 1}), torn)
    assert torn.in_flight, "the message of the first commit is not visible yet"
    other = Stepped(deliver.handle(rt, "s", "Say", {"i": 2}), torn).until(Transact)
    other.step()  # another process read the state and tries to send
    assert items_of(backend, "receiver", "e/") == []
    torn.land()
    torn.tears = False
    other.finish()
    run(advance(rt, "receiver"), backend)
    assert context_of(rt, backend, "receiver")["seen"] == [1, 2]


def test_a_process_that_saw_its_commit_acknowledged_pays_for_no_check(backend: MemoryBackend) -> None:
    rt = runtime(SENDER, COUNTER)
    run(deliver.start(rt, "sender", "s", None), backend)
    run(deliver.start(rt, "counter", "receiver", None), backend)
    _, held = run(deliver.handle(rt, "s", "Say", {"i": 1}), backend)
    reader = Stepped(deliver.handle(rt, "s", "Say", {"i": 2}), backend).until(Transact)
    holder = Stepped(deliver.handle(rt, "s", "Say", {"i": 2}, held=held), backend).until(Transact)
    assert len(reader.effect.writes) == len(holder.effect.writes) + 1


def test_two_hosts_with_skewed_clocks_send_for_one_execution_in_the_order_of_its_commits() -> None:
    ahead, behind = VirtualClock(), VirtualClock()
    ahead.advance(60)
    first = fresh_backend(clock=ahead)
    second = MemoryBackend(seed=2, clock=behind)
    second.tables = first.tables
    rt = runtime(SENDER, COUNTER)
    run(deliver.start(rt, "sender", "s", None), first)
    run(deliver.start(rt, "counter", "receiver", None), first)
    for i, host in enumerate([first, second, first, second, second]):
        run(deliver.handle(rt, "s", "Say", {"i": i}), host)
    run(advance(rt, "receiver"), second)
    assert context_of(rt, first, "receiver")["seen"] == [0, 1, 2, 3, 4]


# --- start, cancel, suspend ---------------------------------------------------------------------------------


def test_a_cancel_that_is_visible_before_the_start_leaves_a_state_for_the_start_to_find(backend: MemoryBackend) -> None:
    from casework.executions.joins import ChildStart
    from casework.executions.mailbox import Mail, mail_sort, put_message

    rt = runtime(COUNTER)
    sort = mail_sort(1, "p", 1)
    cancel = put_message("p/kid.1.0", sort, [Mail("cancel", kind="cancel", source="p")], 16, sent_at_us=1, now_us=1)
    backend.execute(Transact([cancel]))
    run(advance(rt, "p/kid.1.0"), backend)
    machine = rt.machines["counter"]
    start = ChildStart("p/kid.1.0", "p", "kid", 1, 0, machine.name, machine.hash, None)
    from casework.errors import ConditionFailed

    with pytest.raises(ConditionFailed):
        backend.execute(Transact([start.put(rt, 2)]))
    assert items_of(backend, "p/kid.1.0", STATE)[0]["status"] == "cancelled"


def test_a_worker_in_the_middle_of_a_step_loses_to_suspend_and_changes_nothing(backend: MemoryBackend) -> None:
    rt = runtime(COUNTER)
    run(deliver.start(rt, "counter", "c", None), backend)
    run(deliver.send(rt, "c", "Add", {}), backend)
    worker = Stepped(advance(rt, "c"), backend).until(Transact)
    run(control.suspend(rt, "c"), backend)
    worker.finish()
    assert context_of(rt, backend, "c")["n"] == 0
    assert "pending" not in items_of(backend, "c", "e/")[0]
    run(control.resume(rt, "c"), backend)
    run(advance(rt, "c"), backend)
    assert context_of(rt, backend, "c")["n"] == 1


def test_a_message_put_while_an_execution_is_being_suspended_waits_and_is_taken_after_resume(
    backend: MemoryBackend,
) -> None:
    rt = runtime(COUNTER)
    run(deliver.start(rt, "counter", "c", None), backend)
    sender = Stepped(deliver.send(rt, "c", "Add", {}), backend).until(Transact)
    run(control.suspend(rt, "c"), backend)
    sender.finish()
    run(advance(rt, "c"), backend)  # a worker finds it in the index, and takes it out
    assert "pending" not in items_of(backend, "c", "e/")[0]
    run(control.resume(rt, "c"), backend)
    assert "pending" in items_of(backend, "c", "e/")[0]


def test_a_stale_worker_cannot_bring_back_a_purged_execution(backend: MemoryBackend) -> None:
    rt = runtime(COUNTER)
    run(deliver.start(rt, "counter", "c", None), backend)
    run(deliver.send(rt, "c", "Add", {}), backend)
    worker = Stepped(advance(rt, "c"), backend).until(Transact)
    run(control.purge(rt, "c", force=True), backend)
    worker.finish()
    assert items_of(backend, "c") == []


# --- deploys ------------------------------------------------------------------------------------------------


def test_an_old_worker_that_meets_new_work_parks_it_and_a_new_one_takes_it(
    backend: MemoryBackend, clock: VirtualClock
) -> None:
    old, new = runtime(COUNTER), runtime(COUNTER, JOB)
    run(deliver.start(new, "job", "j", None), backend)
    run(deliver.send(new, "j", "Begin", {}), backend)
    parked = run(advance(old, "j"), backend)
    assert "no machine 'job'" in parked.parked
    message = items_of(backend, "j", "e/")[0]
    assert message["parked_n"] == 1
    assert message["rank_us"] == clock.now().latest_us + 60_000_000
    assert run(deliver.load(new, "j"), backend).status == "running"
    run(advance(new, "j"), backend)
    assert run(deliver.load(new, "j"), backend).configuration == ["working"]


def test_contention_is_reported_after_a_bounded_number_of_lost_rounds(backend: MemoryBackend) -> None:
    rt = runtime(COUNTER)
    run(deliver.start(rt, "counter", "c", None), backend)
    run(deliver.send(rt, "c", "Add", {}), backend)

    class Busy:
        def execute(self, effect: object) -> object:
            if isinstance(effect, Transact):
                raise Contention("an item is in another transaction")
            return backend.execute(effect)

        def __getattr__(self, name: str) -> object:
            return getattr(backend, name)

    with pytest.raises(Contention, match="10 races in a row"):
        run(advance(rt, "c"), Busy())
    assert len(items_of(backend, "c", "e/")) == 1


def test_the_look_for_work_is_one_query(backend: MemoryBackend) -> None:
    rt = runtime(COUNTER)
    run(deliver.start(rt, "counter", "c", None), backend)
    for i in range(3):
        run(deliver.send(rt, "c", "Note", {"i": i}), backend)
    stepped = Stepped(advance(rt, "c"), backend)
    effects = []
    while not stepped.done:
        effects.append(type(stepped.effect))
        stepped.step()
    assert effects.count(Query) == 1
    assert effects.count(Transact) == 1
    assert context_of(rt, backend, "c")["seen"] == [0, 1, 2]


def test_a_start_that_never_arrived_is_tried_again(backend: MemoryBackend) -> None:
    """Found by the simulator: an unknown outcome with nothing stored was reported as ``NoSuchExecution``."""
    rt = runtime(COUNTER)

    class LosesTheFirstStart:
        lost = False

        def execute(self, effect: object) -> object:
            if isinstance(effect, Write) and effect.write.key.table is EXECUTIONS and not self.lost:
                self.lost = True
                raise OutcomeUnknown("the request was lost")
            return backend.execute(effect)

        def __getattr__(self, name: str) -> object:
            return getattr(backend, name)

    assert run(deliver.start(rt, "counter", "c", None), LosesTheFirstStart()).version == 1
