"""DynamoDB over aiobotocore: the async transport. What a call means is decided in ``plan.py``."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
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
    time_question,
    time_steps,
    watch,
)
from casework.backends.dynamodb.clock import ServiceClock
from casework.backends.dynamodb.faults import Reply
from casework.backends.dynamodb.metering import Meter
from casework.backends.dynamodb.plan import CallPolicy, Pause, Planner, Send, Steps
from casework.backends.dynamodb.tables import WAIT_S, answers_steps, create_steps, verify_steps
from casework.backends.port import StoreEffect
from casework.backends.surroundings import random_token
from casework.errors import Misuse
from casework.kernel.effects import Instant, Outcome
from casework.kernel.items import Table
from casework.kernel.schema import TABLES

T = TypeVar("T")


class AsyncDynamoDBBackend:
    """An :class:`~casework.backends.port.AsyncBackend` on DynamoDB, for one event loop.

    Nothing is contacted before ``async with``, ``await create()`` or the first call. It belongs to the loop of its
    first use; another loop gets ``Misuse``.

    Args:
        client: an aiobotocore client for DynamoDB, left open by ``close()``. None: one of its own (connect timeout 5 s,
            read timeout 10 s, no repeats by the SDK).
        prefix: of the tables' names: ``{prefix}_{table}``.
        endpoint_url: another server than AWS. Credentials and region are made up when none are found.
        region_name: the AWS region; None: as botocore finds it.
        meter: count what calls consume, in :attr:`meter`.
        policy: how long calls are repeated.
        concurrency: calls of one ``execute_many`` under way at once, and connections of its own client.
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
        self._endpoint_url, self._region_name = endpoint_url, region_name
        self._concurrency = concurrency
        self._planner = Planner(prefix, policy or CallPolicy(), random_token)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening = asyncio.Lock()
        self._own = AsyncExitStack()
        self._threads: ThreadPoolExecutor | None = None
        self._closed = False
        self._asks = Asks()

    # --- the client -------------------------------------------------------------------------------------------------

    async def _open(self) -> Any:
        if self._closed:
            raise Misuse("this backend was closed; make another one")
        loop = asyncio.get_running_loop()
        if self._loop is not None and self._loop is not loop:
            raise Misuse("this backend belongs to another event loop; make one for each loop, or use DynamoDBBackend")
        if self._client is None:
            async with self._opening:
                if self._client is None:
                    client = self._given if self._given is not None else await self._make_client()
                    watch(client)
                    self._planner.trust_items(returns_items(client))
                    self._client, self._loop = client, loop
        return self._client

    async def _make_client(self) -> Any:
        session = import_extra("aiobotocore.session", "dynamodb-async").get_session()
        config = make_config(
            import_extra("aiobotocore.config", "dynamodb-async").AioConfig,
            self._concurrency,
            self._settings,
            self._config,
        )
        known = self._endpoint_url is None or await session.get_credentials() is not None
        found_region = session.get_config_variable("region")
        where = arguments_of(self._endpoint_url, self._region_name, found_region, has_credentials=known)
        return await self._own.enter_async_context(session.create_client("dynamodb", config=config, **where))

    async def create(self) -> AsyncDynamoDBBackend:
        """Make the client and learn the service's time by one cheap read, whose failure is an answer too."""
        await self._open()
        if not self.clock.has_sample:
            await self._send(time_question(self._planner.prefix))
        return self

    async def _send(self, send: Send) -> Reply:
        call = Call(send, self.clock, self.meter)
        try:
            method = getattr(await self._open(), call.method)
            call.begin()
            response = await method(**call.request)
        except Exception as error:
            return call.failed(error)
        return call.answered(response)

    async def carry(self, steps: Steps[T]) -> T:
        """Carry out steps of ``plan.py`` or ``tables.py``."""
        reply: Reply | None = None
        while True:
            try:
                step = steps.send(reply)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            reply = None
            if isinstance(step, Pause):
                await self.sleep(step.seconds)
            else:
                reply = await self._send(step)

    # --- the port ---------------------------------------------------------------------------------------------------

    async def execute(self, effect: StoreEffect) -> Any:
        """Carry out one effect; see :class:`casework.backends.port.Backend`."""
        return await self.carry(self._planner.steps(effect))

    async def execute_many(self, effects: Sequence[StoreEffect]) -> list[Outcome[Any]]:
        """Carry out independent effects side by side, at most ``concurrency`` at once."""
        places = asyncio.Semaphore(self._concurrency)

        async def outcome(effect: StoreEffect) -> Outcome[Any]:
            async with places:
                try:
                    return Outcome(await self.execute(effect))
                except Exception as error:
                    return Outcome(error=error)

        return list(await asyncio.gather(*(outcome(effect) for effect in effects)))

    def now(self) -> Instant:
        """The service's time as far as it is known; :meth:`tell_time` asks first where the clock is in doubt."""
        return self.clock.now()

    async def tell_time(self) -> Instant:
        """The service's time; a cheap read is sent first where the clock is in doubt. A refusal tells the time too.

        Unavailable when one of the host's clocks has failed and the service does not answer.
        """
        if (doubt := self.clock.doubt()) is not None and self._asks.may_ask(doubt, self.clock.mark()[0]):
            await self.carry(time_steps(self.clock, self._planner.prefix, self._planner.policy))
        return self.clock.now()

    def token(self) -> str:
        """A fresh token."""
        return random_token()

    async def sleep(self, seconds: float) -> None:
        """Let time pass on the loop."""
        await asyncio.sleep(seconds)

    def in_thread(self, function: Callable[..., Any], *args: Any) -> Awaitable[Any]:
        """Run a blocking function in a bounded pool of threads beside the loop."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._concurrency, thread_name_prefix="casework")
        return asyncio.get_running_loop().run_in_executor(self._threads, partial(function, *args))

    async def wait_until_it_answers(self, wait_s: float = 30.0) -> None:
        """Return once the service answers at all; Unavailable, naming it, after ``wait_s`` seconds without."""
        await self.carry(answers_steps(self._planner.prefix, TABLES[0], wait_s))

    async def create_tables(self, tables: Sequence[Table] = TABLES, *, wait_s: float = WAIT_S) -> None:
        """Make the tables that are missing and wait until all are active; warns of what it could not do."""
        for note in await self.carry(
            create_steps(self._planner.prefix, tables, wait_s, self._planner.policy.control_max)
        ):
            warnings.warn(note, stacklevel=2)

    async def verify_tables(self, tables: Sequence[Table] = TABLES) -> list[str]:
        """Everything that is missing or different, permissions included; empty when all is well."""
        return await self.carry(verify_steps(self._planner.prefix, tables, self.token()))

    def for_another_loop(self) -> AsyncDynamoDBBackend | None:
        """The same store for a second event loop, with a client of its own; None where it was given a client."""
        if self._given is not None:
            return None
        other = AsyncDynamoDBBackend(
            prefix=self._planner.prefix, endpoint_url=self._endpoint_url, region_name=self._region_name,
            policy=self._planner.policy, concurrency=self._concurrency, clock=self.clock, settings=self._settings,
            config=self._config,
        )  # fmt: skip
        other.meter = self.meter
        return other

    async def close(self) -> None:
        """Give back the threads and the client, if it is its own; harmless when done twice."""
        self._closed, self._client = True, None
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)
        await self._own.aclose()

    async def __aenter__(self) -> AsyncDynamoDBBackend:
        try:
            return await self.create()
        except BaseException:
            await self.close()
            raise

    async def __aexit__(self, *_: object) -> None:
        await self.close()
