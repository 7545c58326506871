"""The connection to Temporal: a silent server is given up soon."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from workers import temporal
from workers.config.settings import load_settings
from workers.errors import NotRunning


@pytest.fixture
def silent() -> Iterator[str]:
    """Address of somebody who takes connections and answers nothing."""
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
