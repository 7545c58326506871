"""Gym servers that `turnpoint.toml` names: which of them are parts of the stack, and how."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from gym.protocol import Phase
from tests.ports import free_port
from workers.cli.doctor import examine
from workers.config.key_files import ensure_key_files
from workers.config.settings import Settings, load_settings
from workers.errors import PortInUse, ProcessFailed, SettingsError
from workers.job.status import gym_capabilities
from workers.stack.policy import FLAGS
from workers.stack.process_specs import Part, parts
from workers.stack.resolve import fixed_ports, ports_needed, resolve
from workers.stack.stack import Stack

TAXI = {
    "name": "taxi",
    "kind": "resource",
    "url": "http://127.0.0.1:29001",
    "command": ["python", "-m", "gym.environments.gymnasium_server"],
}
JUDGE = {"name": "judge", "kind": "model", "url": "http://127.0.0.1:29002"}


def settings_of(folder: Path, *servers: dict[str, Any], **more: Any) -> Settings:
    given = {"attach": False, "state_dir": folder, "policy": "scripted", **more}
    return load_settings(**given, **({"servers": list(servers)} if servers else {}))


def parts_of(settings: Settings, *, expect_restore: bool = False) -> dict[str, Part]:
    names = ports_needed(settings)
    ports = {name: 28_000 + n for n, name in enumerate(names)} | fixed_ports(settings)
    settings.state_dir.mkdir(exist_ok=True)
    ensure_key_files(settings)
    resolved = resolve(settings, ports)
    found = parts(resolved, ports, ray_folder=Path("/r"), expect_restore=expect_restore)
    return {part.name: part for part in found}


def test_a_server_with_a_command_is_a_part_of_the_stack_and_one_without_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Break: start none of those that the settings name."""
    monkeypatch.chdir(tmp_path)
    for key, value in {"MY_KEY": "mine", "NAME": "another", "CONTROL_TOKEN": "another"}.items():
        monkeypatch.setenv(f"TURNPOINT_SERVER_{key}", value)
    settings = settings_of(tmp_path / "state", TAXI, JUDGE, options={"taxi": {"seed": "7"}})
    found = parts_of(settings, expect_restore=True)
    assert {"taxi", "judge", "counter"} & found.keys() == {"taxi"}
    taxi = found["taxi"]
    assert taxi.command == ["python", "-P", *TAXI["command"][1:], "--seed", "7"]
    assert taxi.folder == tmp_path
    assert taxi.url == "http://127.0.0.1:29001"
    assert taxi.env["TURNPOINT_SERVER_NAME"] == "taxi"
    assert (taxi.env["TURNPOINT_SERVER_HOST"], taxi.env["TURNPOINT_SERVER_PORT"]) == (
        "127.0.0.1",
        "29001",
    )
    assert taxi.env["TURNPOINT_SERVER_EXPECT_RESTORE"] == "true"
    assert taxi.env["TURNPOINT_SERVER_GENERATION_URL"].startswith("http://127.0.0.1:")
    assert taxi.env["TURNPOINT_SERVER_SNAPSHOT_ROOT"] == str(tmp_path / "state" / "snapshots")
    token_file = str(tmp_path / "state" / "control_token")
    assert taxi.env["TURNPOINT_SERVER_CONTROL_TOKEN_FILE"] == token_file
    assert taxi.env["TURNPOINT_SERVER_MY_KEY"] == "mine"
    assert "TURNPOINT_SERVER_CONTROL_TOKEN" not in taxi.env
    assert taxi.env["PATH"].startswith(str(Path(sys.executable).parent))


def test_the_stacks_own_three_are_servers_of_the_same_kind(tmp_path: Path) -> None:
    found = parts_of(settings_of(tmp_path))
    for name in ("policy_model", "simple_agent", "counter"):
        assert found[name].env["TURNPOINT_SERVER_EXPECT_RESTORE"] == "false"
        assert found[name].env["TURNPOINT_SERVER_NAME"] == name
    assert "--model-url" in found["simple_agent"].command


def test_random_weights_get_a_grammar_and_a_bound_whoever_starts_the_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Break: leave it to the demo; then `turnpoint up` leaves tool use to chance."""
    monkeypatch.setattr("workers.stack.resolve.make_tiny_model", lambda _: "0" * 64)
    found = parts_of(settings_of(tmp_path, policy="vllm"))
    assert found["policy_model"].command[-2:] == [
        "--extra-body",
        '{"tool_choice": "required", "max_tokens": 256}',
    ]
    assert found["simple_agent"].command[-2:] == ["--max-steps", "8"]
    own = {"simple_agent": {"max-steps": "3"}}
    changed = parts_of(settings_of(tmp_path, policy="vllm", options=own))
    assert changed["simple_agent"].command[-2:] == ["--max-steps", "3"]
    assert changed["policy_model"].command == found["policy_model"].command
    named = {**TAXI, "name": "policy_model"}  # whose rows may offer no tool
    assert (
        "--extra-body"
        not in parts_of(settings_of(tmp_path, named, policy="vllm"))["policy_model"].command
    )
    scripted = parts_of(settings_of(tmp_path))
    assert "--extra-body" not in scripted["policy_model"].command
    delay_s = FLAGS["scripted"]["policy"]["delay-s"]
    assert list(scripted["policy"].command[-6:-4]) == ["--delay-s", delay_s]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"name": "worker_1"}, "worker_1 is the name of another process of the stack"),
        ({"name": "ray"}, "ray is the name of another process of the stack"),
        ({"url": "http://taxi.example"}, "a url with the port it listens on"),
        ({"command": [""]}, "at least 1 character"),
        ({"comand": ["python"]}, "no such key"),
    ],
)
def test_a_command_that_cannot_work_is_refused(
    tmp_path: Path, change: dict[str, Any], told: str
) -> None:
    """Break: take the name of Ray, and its loss is taken for that of a Gym server."""
    with pytest.raises(SettingsError, match=told):
        settings_of(tmp_path, {**TAXI, **change})


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


def test_a_program_that_is_not_there_is_named_with_what_to_correct(tmp_path: Path) -> None:
    """Break: let the system's error rise."""
    url = f"http://127.0.0.1:{free_port()}"
    settings = settings_of(tmp_path, {**TAXI, "url": url, "command": ["no-such-program"]})
    with pytest.raises(ProcessFailed, match=r"taxi cannot be started.*no-such-program.*`command`"):
        Stack(settings).up(only={"taxi"})
    problems = {finding.check: finding.problem for finding in examine(settings)}
    assert "no program 'no-such-program'" in (problems["server taxi"] or "")
    assert {f.check: f.problem for f in examine(settings_of(tmp_path, TAXI, JUDGE))}[
        "server taxi"
    ] is None


@pytest.mark.real
def test_a_server_with_a_command_starts_answers_and_is_started_again(tmp_path: Path) -> None:
    """Break: do not tell it its name; it then cannot start."""
    url = f"http://127.0.0.1:{free_port()}"
    dice = {**TAXI, "name": "dice", "url": url, "command": ["python", "-m", "examples.dice"]}
    root = str(Path(__file__).parents[3])
    stack = Stack(settings_of(tmp_path, {**dice, "folder": root}, port_base=26_450))
    try:
        stack.up(only={"dice"})
        assert stack.status() == {"dice": True}
        stack.kill("dice")
        assert "dice" in stack.gone()
        stack.restart("dice", expect_restore=True)
        running = load_settings(state_dir=tmp_path)
        found = asyncio.run(gym_capabilities(running, running.job_config()))["dice"]
        assert found is not None and found.phase is Phase.AWAITING_RESTORE
    finally:
        stack.down(kill=True)
    assert stack.record() is not None and stack.status() == {}
