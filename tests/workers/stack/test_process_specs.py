"""The parts of a stack: command, environment and folder of each process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.workers.named_servers import JUDGE, TAXI, settings_of
from workers.config.key_files import ensure_key_files
from workers.config.settings import Settings
from workers.stack.policy import FLAGS
from workers.stack.process_specs import Part, parts
from workers.stack.resolve import fixed_ports, ports_needed, resolve


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


def test_random_weights_get_a_grammar_and_a_bound_in_every_stack(
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
