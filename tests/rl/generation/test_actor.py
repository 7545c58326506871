"""The port of the generation endpoint: taken by another process, or by a killed predecessor."""

from __future__ import annotations

import socket
import threading

import pytest

from gym.protocol import TurnpointError
from rl.errors import PortTaken
from rl.generation import actor as generation

HOST = "127.0.0.1"


@pytest.fixture
def holder() -> socket.socket:
    """A listener on a port."""
    with socket.socket() as found:
        found.bind((HOST, 0))
        found.listen()
        yield found


def test_a_port_in_use_is_typed_with_port_and_setting(
    holder: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Break: let the OSError rise: `run` would say no more than its class."""
    monkeypatch.setattr(generation, "_BIND_TIMEOUT_S", 0.2)
    port = holder.getsockname()[1]
    with pytest.raises(PortTaken, match=rf"{HOST}:{port} .*generation_port") as refused:
        generation._bound(HOST, port)
    assert isinstance(refused.value, TurnpointError)
    assert (refused.value.code, refused.value.retryable) == ("port_taken", False)


def test_a_killed_predecessor_may_hold_it_for_a_moment(holder: socket.socket) -> None:
    """Break: raise at the first try: an actor that Ray restarts would never serve."""
    leaving = threading.Timer(0.3, holder.close)
    leaving.start()
    with generation._bound(HOST, holder.getsockname()[1]) as listener:
        assert listener.getsockname()[1] > 0
    leaving.join()
