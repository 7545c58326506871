"""Clients and workers of Temporal: how they are configured, and what a silent server costs."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import (
    AddSearchAttributesRequest,
    ListSearchAttributesResponse,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from workers import temporal
from workers.config.settings import load_settings
from workers.errors import NotRunning, SettingsError, TemporalRefused
from workflows.journal import SEARCH_ATTRIBUTES


@pytest.fixture
def silent() -> Iterator[str]:
    """Address of a listener that accepts connections and answers nothing."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


async def test_a_temporal_that_takes_the_connection_and_is_silent_is_given_up(
    silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Break: leave the limit to the SDK (30 s)."""
    monkeypatch.setattr(temporal, "CONNECT_TIMEOUT_S", 0.5)
    began = time.monotonic()
    with pytest.raises(NotRunning, match=f"{silent}: start the stack with `turnpoint up`"):
        await temporal.connect(load_settings(temporal_address=silent))
    assert time.monotonic() - began < 5


async def test_a_malformed_address_is_a_settings_error_that_does_not_show_it() -> None:
    """Break: workers/temporal.py: let the SDK's ValueError rise."""
    settings = load_settings(temporal_address="s3cret not:an:address")
    with pytest.raises(SettingsError, match="HOST:PORT") as caught:
        await temporal.connect(settings)
    assert "s3cret" not in str(caught.value)


def test_a_refused_call_names_the_status_and_nothing_of_the_server() -> None:
    with pytest.raises(TemporalRefused, match="NOT_FOUND") as caught, temporal.typed_refusals():
        raise RPCError("s3cret of the server", RPCStatusCode.NOT_FOUND, b"")
    assert "s3cret" not in str(caught.value)


async def test_only_missing_search_attributes_are_registered() -> None:
    """Break: workers/temporal.py: register all of them each time; Temporal refuses that."""
    there, *missing = SEARCH_ATTRIBUTES
    asked: list[AddSearchAttributesRequest] = []

    async def list_them(_: object) -> ListSearchAttributesResponse:
        kinds = {there.name: IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD}
        return ListSearchAttributesResponse(custom_attributes=kinds)

    async def add(request: AddSearchAttributesRequest) -> None:
        asked.append(request)

    service = SimpleNamespace(list_search_attributes=list_them, add_search_attributes=add)
    client = cast(Client, SimpleNamespace(namespace="default", operator_service=service))
    await temporal.register_search_attributes(client)
    assert [set(request.search_attributes) for request in asked] == [{key.name for key in missing}]
    assert asked[0].namespace == "default"
