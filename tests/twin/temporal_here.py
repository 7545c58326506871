"""Temporal for the in-process twin: its test server, which skips the time nobody works in.

Timers, retries and deadlines of the workflows pass at once; while an activity runs, the server's
clock goes as any other. Workflows, activities and the worker are the product's.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from temporalio import activity
from temporalio.api.filter.v1 import StartTimeFilter
from temporalio.api.testservice.v1 import UnlockTimeSkippingRequest
from temporalio.api.workflowservice.v1 import ListOpenWorkflowExecutionsRequest
from temporalio.client import (
    Client,
    DescribeScheduleInput,
    Interceptor,
    ListWorkflowsInput,
    OutboundInterceptor,
    ScheduleDescription,
)
from temporalio.common import TypedSearchAttributes
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import (
    ActivityInboundInterceptor,
    ExecuteActivityInput,
)
from temporalio.worker import Interceptor as WorkerInterceptor

from gym.client import GymClient
from rl.config import JobConfig
from tests.twin.life import Life, Lives
from tests.twin.mishaps import Mishap
from tests.twin.moments import phase_of
from tests.twin.steps import Steps
from workers.temporal import add_search_attributes, snapshot_worker
from workers.worker import activities_of

SERVER = Path(sys.executable).with_name("temporal-test-server")
LOST = "answer_lost"
"""Type of the failure that Temporal hears of instead of an answer."""

HEARD_EVERY_S = 0.1


@asynccontextmanager
async def temporal() -> AsyncIterator[Client]:
    """The server, with its time unlocked."""
    environment = await WorkflowEnvironment.start_time_skipping(
        test_server_existing_path=str(SERVER)
    )
    async with environment:
        service = environment.client.service_client
        lacks = _WhatItLacks()
        client = Client(service, data_converter=pydantic_data_converter, interceptors=[lacks])
        lacks.client = client
        await add_search_attributes(client)
        # For good: whoever waits for a result may end, and would leave it locked or not by chance.
        await client.test_service.unlock_time_skipping(UnlockTimeSkippingRequest())
        yield client


@asynccontextmanager
async def worker(
    client: Client, config: JobConfig, gym: GymClient, lives: Lives, steps: Steps
) -> AsyncIterator[None]:
    """The product's worker: its activities run in the life there is, and end with it."""
    activities = activities_of(client, config, gym)
    async with snapshot_worker(client, activities, interceptors=[_Mortal(client, lives, steps)]):
        yield


class _WhatItLacks(Interceptor):
    """The test server has neither visibility nor Schedules."""

    client: Client

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        return _Outbound(next, self)


class _Outbound(OutboundInterceptor):
    def __init__(self, next: OutboundInterceptor, lacks: _WhatItLacks) -> None:
        super().__init__(next)
        self._lacks = lacks

    def list_workflows(self, input: ListWorkflowsInput) -> Any:
        """Every open one; the query is the real server's to judge (`tests.activities`)."""
        return _open_workflows(self._lacks.client)

    async def describe_schedule(self, input: DescribeScheduleInput) -> ScheduleDescription:
        raise RPCError("there are no Schedules here", RPCStatusCode.NOT_FOUND, b"")


async def _open_workflows(client: Client) -> AsyncIterator[Any]:
    asked = ListOpenWorkflowExecutionsRequest(
        namespace=client.namespace, maximum_page_size=100, start_time_filter=StartTimeFilter()
    )
    found = await client.workflow_service.list_open_workflow_executions(asked)
    for each in found.executions:
        yield SimpleNamespace(
            id=each.execution.workflow_id,
            run_id=each.execution.run_id,
            typed_search_attributes=TypedSearchAttributes.empty,
        )


class _Mortal(WorkerInterceptor):
    """Activities run in the life there is; of a life that has ended Temporal never hears."""

    def __init__(self, client: Client, lives: Lives, steps: Steps) -> None:
        self._client, self._lives, self._steps = client, lives, steps

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _MortalActivity(next, self._client, self._lives, self._steps)


class _MortalActivity(ActivityInboundInterceptor):
    def __init__(
        self, next: ActivityInboundInterceptor, client: Client, lives: Lives, steps: Steps
    ) -> None:
        super().__init__(next)
        self._client, self._lives, self._steps = client, lives, steps

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        life = self._lives.now
        if life is None:
            activity.raise_complete_async()
        there = life.process.spawn(self._there(life, input))
        ending = asyncio.ensure_future(life.dead.happened.wait())
        try:
            await asyncio.wait({there, ending}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            there.cancel()
            await asyncio.wait({there, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not life.dead.happened.is_set():
                raise
        finally:
            ending.cancel()
        if life.dead.happened.is_set():
            # Nobody completes it: for Temporal, a worker that has died over it.
            activity.raise_complete_async()
        return there.result()

    async def _there(self, life: Life, input: ExecuteActivityInput) -> Any:
        info = activity.info()
        await life.dead.enter(phase_of(info.workflow_type, info.activity_type))
        answer = await super().execute_activity(input)
        self._steps.saw(life, answer)
        await life.dead.moment(f"{info.activity_type} done")
        mishap = None
        if info.attempt == 1:
            mishap = life.mishaps.of_phase(info.workflow_id, info.activity_type)
        if mishap is Mishap.ANSWER_LOST:
            raise ApplicationError("a mishap of the twin run", type=LOST)
        if mishap is Mishap.CANCELLED:
            await self._cancelled(info)
        return answer

    async def _cancelled(self, info: activity.Info) -> None:
        """Cancel the workflow, and do not answer before this activity has heard of it.

        The test server fails a workflow task that cancels an activity which has just ended.
        """
        await self._client.get_workflow_handle(info.workflow_id).cancel()
        while True:
            activity.heartbeat()
            await asyncio.sleep(HEARD_EVERY_S)
