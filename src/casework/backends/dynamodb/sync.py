"""DynamoDB over boto3: the blocking transport. What a call means is decided in ``plan.py``."""

from __future__ import annotations

import contextvars
import os
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from casework.backends.dynamodb.client import (
    CONCURRENCY,
    Asks,
    Call,
    arguments_of,
    check_own,
    import_extra,
    make_config,
    returns_items,
    time_steps,
    watch,
)
from casework.backends.dynamodb.clock import ServiceClock
from casework.backends.dynamodb.faults import Reply
from casework.backends.dynamodb.metering import Meter
from casework.backends.dynamodb.plan import CallPolicy, Pause, Planner, Send, Steps
from casework.backends.dynamodb.tables import WAIT_S, answers_steps, create_steps, verify_steps
from casework.backends.dynamodb.walking import walk_steps
from casework.backends.port import StoreEffect
from casework.backends.surroundings import random_token
from casework.errors import Misuse
from casework.kernel.effects import Instant, Outcome
from casework.kernel.items import Item, Table
from casework.kernel.schema import TABLES

T = TypeVar("T")


class DynamoDBBackend:
    """A :class:`~casework.backends.port.Backend` on DynamoDB, blocking. Nothing is contacted before the first call.

    Args:
        client: a boto3 client for DynamoDB, left open by ``close()``. None: one of its own, made at the first call
            (connect timeout 5 s, read timeout 10 s, no repeats by the SDK), and made again in a forked child.
        prefix: of the tables' names: ``{prefix}_{table}``.
        endpoint_url: another server than AWS. Credentials and region are made up when none are found.
        region_name: the AWS region; None: as boto3 finds it.
        meter: count what calls consume, in :attr:`meter`.
        policy: how long calls are repeated.
        concurrency: calls of one ``execute_many`` under way at once.
        clock: the service's time; for tests.
        settings: arguments for the config of its own client, such as ``connect_timeout``.
        config: a config of yours, merged over that of its own client.
    """

    shares_commits = False

    def __init__(
        self,
        client: Any = None,
        *,
        prefix: str = "casework",
        endpoint_url: str | None = None,
        region_name: str | None = None,
        meter: bool = False,
        policy: CallPolicy | None = None,
        concurrency: int = CONCURRENCY,
        clock: ServiceClock | None = None,
        settings: Mapping[str, Any] | None = None,
        config: Any = None,
    ) -> None:
        check_own(client, endpoint_url=endpoint_url, region_name=region_name, settings=settings, config=config)
        self.meter = Meter() if meter else None
        self.clock = clock or ServiceClock()
        self._given = client
        self._settings, self._config = dict(settings or {}), config
        self._client: Any = None
        self._client_pid = 0
        self._endpoint_url, self._region_name = endpoint_url, region_name
        self._concurrency = concurrency
        self._planner = Planner(prefix, policy or CallPolicy(), random_token)
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._asks = Asks()

    # --- the client -------------------------------------------------------------------------------------------------

    def _open(self) -> Any:
        """The client; a forked child gets one of its own, since two processes cannot share a connection."""
        if self._client is not None and self._client_pid == os.getpid():
            return self._client
        with self._lock:
            if self._closed:
                raise Misuse("this backend was closed; make another one")
            if self._client is None or self._client_pid != os.getpid():
                client = self._given if self._given is not None else self._make_client()
                watch(client)
                self._planner.trust_items(returns_items(client))
                self._pool = None
                self._client, self._client_pid = client, os.getpid()
        return self._client

    def _make_client(self) -> Any:
        boto3 = import_extra("boto3", "dynamodb")
        config = make_config(
            import_extra("botocore.config", "dynamodb").Config, self._concurrency, self._settings, self._config
        )
        session = boto3.session.Session()
        known = self._endpoint_url is None or session.get_credentials() is not None
        where = arguments_of(self._endpoint_url, self._region_name, session.region_name, has_credentials=known)
        return session.client("dynamodb", config=config, **where)

    def _send(self, send: Send) -> Reply:
        call = Call(send, self.clock, self.meter)
        try:
            method = getattr(self._open(), call.method)
            call.begin()
            response = method(**call.request)
        except Exception as error:
            return call.failed(error)
        return call.answered(response)

    def carry(self, steps: Steps[T]) -> T:
        """Carry out steps of ``plan.py`` or ``tables.py``."""
        reply: Reply | None = None
        while True:
            try:
                step = steps.send(reply)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            reply = None
            if isinstance(step, Pause):
                self.sleep(step.seconds)
            else:
                reply = self._send(step)

    # --- the port ---------------------------------------------------------------------------------------------------

    def execute(self, effect: StoreEffect) -> Any:
        """Carry out one effect; see :class:`casework.backends.port.Backend`."""
        return self.carry(self._planner.steps(effect))

    def _outcome(self, effect: StoreEffect) -> Outcome[Any]:
        try:
            return Outcome(self.execute(effect))
        except Exception as error:
            return Outcome(error=error)

    def execute_many(self, effects: Sequence[StoreEffect]) -> list[Outcome[Any]]:
        """Carry out independent effects side by side, at most ``concurrency`` at once."""
        if len(effects) < 2:
            return [self._outcome(effect) for effect in effects]
        self._open()
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._concurrency, thread_name_prefix="casework-dynamodb")
            pool = self._pool
        futures = [pool.submit(contextvars.copy_context().run, self._outcome, effect) for effect in effects]
        return [future.result() for future in futures]

    def now(self) -> Instant:
        """The service's time; a cheap read is sent first where the clock is in doubt. A refusal tells the time too.

        Unavailable when one of the host's clocks has failed and the service does not answer.
        """
        if (doubt := self.clock.doubt()) is not None and self._asks.may_ask(doubt, self.clock.mark()[0]):
            self.carry(time_steps(self.clock, self._planner.prefix, self._planner.policy))
        return self.clock.now()

    def is_time_in_doubt(self) -> bool:
        """Whether :meth:`now` may ask the service, and so take a while."""
        return self.clock.doubt() is not None

    def look_at_clock(self) -> Instant:
        """The service's time as far as it is known; asks nobody."""
        return self.clock.now()

    def token(self) -> str:
        """A fresh token."""
        return random_token()

    def sleep(self, seconds: float) -> None:
        """Block the calling thread."""
        time.sleep(seconds)

    def wait_until_it_answers(self, wait_s: float = 30.0) -> None:
        """Return once the service answers at all; Unavailable, naming it, after ``wait_s`` seconds without."""
        self.carry(answers_steps(self._planner.prefix, TABLES[0], wait_s))

    def create_tables(self, tables: Sequence[Table] = TABLES, *, wait_s: float = WAIT_S) -> None:
        """Make the tables that are missing and wait until all are active; warns of what it could not do."""
        for note in self.carry(create_steps(self._planner.prefix, tables, wait_s, self._planner.policy.control_max)):
            warnings.warn(note, stacklevel=2)

    def verify_tables(self, tables: Sequence[Table] = TABLES) -> list[str]:
        """Everything that is missing or different, permissions included; empty when all is well."""
        return self.carry(verify_steps(self._planner.prefix, tables, self.token()))

    def walk(self, table: Table, limit: int, after: str | None) -> tuple[list[Item], str | None]:
        """A page of a whole table, for operators (dynamodb:Scan); ``after`` is what the page before handed back."""
        return self.carry(walk_steps(self._planner.prefix, table, limit, after))

    def close(self) -> None:
        """Give back the threads and the client, if it is its own; harmless when done twice."""
        with self._lock:
            self._closed = True
            client, self._client = self._client, None
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)
        if client is not None and self._given is None and self._client_pid == os.getpid():
            client.close()

    def __enter__(self) -> DynamoDBBackend:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
