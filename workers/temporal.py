"""One place that configures every Temporal client and worker of Turnpoint.

Guarantees: converter, identity, sandbox, failure types and the timeouts that keep a pause short are
set together (design section 9).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from pydantic import ValidationError
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import (
    AddSearchAttributesRequest,
    ListSearchAttributesRequest,
)
from temporalio.client import Client
from temporalio.common import SearchAttributeIndexedValueType, SearchAttributeKey
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.service import RPCError
from temporalio.worker import Interceptor, Worker

from activities.contract import TASK_QUEUE
from activities.errors import TypedFailures
from gym.protocol import TurnpointError
from workers.config.settings import Settings
from workers.errors import NotRunning, SettingsError, TemporalRefused
from workflows import WORKFLOWS
from workflows.journal import SEARCH_ATTRIBUTES

STICKY_TIMEOUT = timedelta(seconds=1)
"""With the default of 10 s a killed worker costs the pause 11 s instead of 2 (measured)."""
CONNECT_TIMEOUT_S = 10.0
"""The SDK itself waits 30 s for a listener that does not answer."""
ACTIVITIES_AT_ONCE = 16
GRACE = timedelta(seconds=10)


async def connect(settings: Settings) -> Client:
    """A client of the configured Temporal.

    Raises:
        NotRunning: No server answers; the address and the next step are named.
        SettingsError: The configured address is none, or Temporal's configuration is damaged.
    """
    connection = settings.temporal_connection()
    target = connection.get("target_host", "")
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            return await Client.connect(
                **connection,
                data_converter=pydantic_data_converter,
                identity=f"turnpoint-{uuid.uuid4().hex[:8]}",  # the default names host and user
            )
    except ValueError:  # its text may show the value
        raise SettingsError(
            "the address of Temporal is none; allowed: HOST:PORT (TEMPORAL_ADDRESS, a profile of "
            "Temporal's own, or TURNPOINT_TEMPORAL_ADDRESS)"
        ) from None
    except (RuntimeError, RPCError, TimeoutError) as error:
        raise NotRunning(
            f"no Temporal server answers at {target}: start the stack with `turnpoint up`, or "
            "set TEMPORAL_ADDRESS"
        ) from error


@contextmanager
def typed_refusals() -> Iterator[None]:
    """Turn errors of a connected client's calls into `TemporalRefused`."""
    try:
        yield
    except RPCError as error:
        raise TemporalRefused(error.status.name) from None


def snapshot_worker(
    client: Client,
    activities: Sequence[Callable[..., Any]],
    *,
    interceptors: Sequence[Interceptor] = (),
) -> Worker:
    """A worker for the task queue of saves and restores."""
    return Worker(
        client,
        task_queue=TASK_QUEUE,
        workflows=WORKFLOWS,
        activities=activities,
        interceptors=[*interceptors, TypedFailures()],
        sticky_queue_schedule_to_start_timeout=STICKY_TIMEOUT,
        max_concurrent_activities=ACTIVITIES_AT_ONCE,
        graceful_shutdown_timeout=GRACE,
        # The SDK's default keeps a workflow with such an error running for ever.
        workflow_failure_exception_types=[TurnpointError, ValidationError],
    )


async def register_search_attributes(client: Client) -> None:
    """Register those of our search attributes that the namespace does not have."""
    found = await client.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace=client.namespace)
    )
    missing = [key for key in SEARCH_ATTRIBUTES if key.name not in found.custom_attributes]
    if missing:
        await add_search_attributes(client, missing)


async def add_search_attributes(
    client: Client, keys: Sequence[SearchAttributeKey[Any]] = SEARCH_ATTRIBUTES
) -> None:
    """Register search attributes that the namespace does not have.

    Milliseconds and bytes are integers: the dev server allows three doubles (design section 9).
    """
    wanted = {key.name: _indexed(key.indexed_value_type) for key in keys}
    await client.operator_service.add_search_attributes(
        AddSearchAttributesRequest(namespace=client.namespace, search_attributes=wanted)
    )


def _indexed(kind: SearchAttributeIndexedValueType) -> IndexedValueType.ValueType:
    if kind == SearchAttributeIndexedValueType.INT:
        return IndexedValueType.INDEXED_VALUE_TYPE_INT
    return IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
