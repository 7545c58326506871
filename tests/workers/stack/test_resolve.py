"""The decisions of `up`: ports that servers demand, names that there are."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.workers.named_servers import TAXI, settings_of
from workers.config.gym_servers import OWN
from workers.errors import PortInUse, SettingsError
from workers.stack.resolve import fixed_ports, ports_needed, require_known_names, resolve
from workers.stack.stack import Stack


def test_the_port_of_a_servers_url_is_its_own(tmp_path: Path) -> None:
    """Break: start it all the same, and another program answers in its place."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        stack = Stack(settings_of(tmp_path, {**TAXI, "url": f"http://127.0.0.1:{port}"}))
        try:
            with pytest.raises(PortInUse, match=rf"taxi: port {port} .* \(url of taxi\)"):
                stack.up(only={"taxi"})
        finally:
            stack.down(kill=True)
    with pytest.raises(SettingsError, match="taxi and twin listen on one port, 29001"):
        settings_of(tmp_path, TAXI, {**TAXI, "name": "twin", "url": "http://localhost:29001"})


def test_up_decides_the_addresses_that_are_not_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = settings_of(tmp_path / "state", TAXI, ray_address="elsewhere:6379")
    assert set(ports_needed(given)) == {
        *("temporal", "temporal_ui", "policy", "taxi", "generation")
    }
    ports = {name: 28_000 + n for n, name in enumerate(ports_needed(given))} | fixed_ports(given)
    found = resolve(given, ports)
    assert found.temporal_address == f"127.0.0.1:{ports['temporal']}"
    assert found.ray_address == "elsewhere:6379"
    assert found.policy_url == f"http://127.0.0.1:{ports['policy']}/v1"
    assert found.generation_port == ports["generation"]
    assert [server.folder for server in found.servers] == [tmp_path]
    own = resolve(settings_of(tmp_path), {**ports, "ray": 1, **dict.fromkeys(OWN, 2)})
    assert [server.name for server in own.servers] == list(OWN)


def test_names_of_no_process_are_refused_with_the_nearest(tmp_path: Path) -> None:
    """Break: workers/stack/resolve.py: compare with the stack's own servers alone."""
    require_known_names(settings_of(tmp_path, TAXI, options={"taxi": {"seed": "7"}}))
    with pytest.raises(SettingsError, match=r"options\.taxy: no such process; the nearest is taxi"):
        require_known_names(settings_of(tmp_path, TAXI, options={"taxy": {"seed": "7"}}))
    with pytest.raises(SettingsError, match=r"ports\.tempral: no such process"):
        require_known_names(settings_of(tmp_path, ports={"tempral": 1}))
