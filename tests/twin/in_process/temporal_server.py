"""Temporal for the in-process twin: the SDK's test server, which skips idle time.

Timers, retries and deadlines of the workflows pass at once; while an activity runs, the server's
clock runs normally. Workflows, activities and the worker are the product's.
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
from tests.twin.in_process.commands import Commands
from tests.twin.in_process.crash_points import phase_of
from tests.twin.in_process.execution import CurrentExecution, Execution
from tests.twin.mishaps import Mishap
from workers.temporal import add_search_attributes, snapshot_worker
from workers.worker import activities_of

SERVER = Path(sys.executable).with_name("temporal-test-server")
LOST = "answer_lost"
"""Type of the failure that Temporal gets instead of an answer."""

HEARTBEAT_EVERY_S = 0.1


@asynccontextmanager
async def temporal() -> AsyncIterator[Client]:
    """The server, with its time unlocked."""
    environment = await WorkflowEnvironment.start_time_skipping(
        test_server_existing_path=str(SERVER)
    )
    async with environment:
        service = environment.client.service_client
        missing = _MissingFeatures()
        client = Client(service, data_converter=pydantic_data_converter, interceptors=[missing])
        missing.client = client
        await add_search_attributes(client)
        # Once, for all: waiting for a result unlocks and locks too, and a crash may end the wait.
        await client.test_service.unlock_time_skipping(UnlockTimeSkippingRequest())
        yield client


@asynccontextmanager
async def worker(
    client: Client, config: JobConfig, gym: GymClient, current: CurrentExecution, commands: Commands
) -> AsyncIterator[None]:
    """The product's worker, whose activities run in the current execution and end with it."""
    activities = activities_of(client, config, gym)
    async with snapshot_worker(
        client, activities, interceptors=[_InExecution(client, current, commands)]
    ):
        yield


class _MissingFeatures(Interceptor):
    """The test server has neither visibility nor Schedules."""

    client: Client

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        return _Outbound(next, self)


class _Outbound(OutboundInterceptor):
    def __init__(self, next: OutboundInterceptor, missing: _MissingFeatures) -> None:
        super().__init__(next)
        self._missing = missing

    def list_workflows(self, input: ListWorkflowsInput) -> Any:
        """List every open one; `tests.activities` tests the query on a real server."""
        return _open_workflows(self._missing.client)

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


class _InExecution(WorkerInterceptor):
    """Runs activities in the current execution; Temporal gets no answer of one that has crashed."""

    def __init__(self, client: Client, current: CurrentExecution, commands: Commands) -> None:
        self._client, self._current, self._commands = client, current, commands

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _ActivityInExecution(next, self._client, self._current, self._commands)


class _ActivityInExecution(ActivityInboundInterceptor):
    def __init__(
        self,
        next: ActivityInboundInterceptor,
        client: Client,
        current: CurrentExecution,
        commands: Commands,
    ) -> None:
        super().__init__(next)
        self._client, self._current, self._commands = client, current, commands

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        execution = self._current.now
        if execution is None:
            activity.raise_complete_async()
        there = execution.process.spawn(self._run(execution, input))
        ending = asyncio.ensure_future(execution.crash.happened.wait())
        try:
            await asyncio.wait({there, ending}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            there.cancel()
            await asyncio.wait({there, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not execution.crash.happened.is_set():
                raise
        finally:
            ending.cancel()
        if execution.crash.happened.is_set():
            # Nothing completes it: for Temporal, its worker has died.
            activity.raise_complete_async()
        return there.result()

    async def _run(self, execution: Execution, input: ExecuteActivityInput) -> Any:
        info = activity.info()
        await execution.crash.enter(phase_of(info.workflow_type, info.activity_type))
        answer = await super().execute_activity(input)
        self._commands.on_answer(execution, answer)
        await execution.crash.reach(f"{info.activity_type} done")
        mishap = None
        if info.attempt == 1:
            mishap = execution.mishaps.of_phase(info.workflow_id, info.activity_type)
        if mishap is Mishap.ANSWER_LOST:
            raise ApplicationError("a mishap of the twin run", type=LOST)
        if mishap is Mishap.CANCELLED:
            await self._cancelled(info)
        return answer

    async def _cancelled(self, info: activity.Info) -> None:
        """Cancel the workflow, and do not answer before the cancellation has reached this activity.

        The test server fails a workflow task that cancels an activity which has just ended.
        """
        await self._client.get_workflow_handle(info.workflow_id).cancel()
        while True:
            activity.heartbeat()
            await asyncio.sleep(HEARTBEAT_EVERY_S)
