"""Where settings come from, and what their errors say and hide."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from gym.agent.server import AgentServerSettings
from gym.protocol import Kind
from gym.server.settings import ServerSettings
from rl.messages import SaveSettings
from workers.config.gym_servers import GymServer
from workers.config.origins import MARKS
from workers.config.settings import Settings, load_settings
from workers.errors import SettingsError
from workers.stack.processes import NAME_MARK, STACK_MARK

SECRET = "hunter2-very-secret"


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, and nothing of Turnpoint in the environment."""
    for name in list(os.environ):
        if name.startswith(("TURNPOINT_", "TEMPORAL_")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_defaults_are_the_designs() -> None:
    settings = load_settings()
    assert settings.snapshot_attempt_interval_s is None
    assert settings.save_settings() == SaveSettings(
        prepare_timeout_s=300,
        commit_timeout_s=300,
        cut_timeout_s=300,
        publish_timeout_s=600,
        lease_s=30,
        keep_latest_k=2,
    )
    assert (settings.restore_wait_s, settings.data_plane_timeout_s, settings.max_runs) == (
        120,
        20,
        3,
    )


def test_flag_beats_environment_beats_file(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (alone / "turnpoint.toml").write_text('lease_s = 11\nmax_runs = 5\njob_id = "file"\n')
    monkeypatch.setenv("TURNPOINT_LEASE_S", "12")
    monkeypatch.setenv("TURNPOINT_JOB_ID", "environment")
    settings = load_settings(job_id="flag")
    assert (settings.job_id, settings.lease_s, settings.max_runs) == ("flag", 12, 5)


def test_running_stack_beats_file_for_commands_that_speak_to_it(alone: Path) -> None:
    (alone / "turnpoint.toml").write_text('job_id = "file"\nstate_dir = "here"\n')
    (alone / "here").mkdir()
    stack = {"settings": {"job_id": "stack", "policy_url": "http://127.0.0.1:1/v1"}}
    (alone / "here" / "stack.json").write_text(json.dumps(stack))
    assert load_settings().job_id == "stack"
    assert load_settings().policy_url == "http://127.0.0.1:1/v1"
    assert load_settings(attach=False).job_id == "file"


@pytest.mark.parametrize(
    ("flags", "key"),
    [
        ({"lease_s": -1}, "lease_s: Input should be greater than 0"),
        ({"policy": "gpt"}, "policy: "),
        ({"keep_latest_k": 0}, "keep_latest_k: Input should be greater than or equal to 1"),
        ({"lease": 3}, "lease: no such key in flag --lease; the nearest is lease_s; allowed: "),
    ],
)
def test_error_names_the_key_and_what_is_allowed(flags: dict[str, object], key: str) -> None:
    with pytest.raises(SettingsError, match=key):
        load_settings(**flags)


def test_error_never_shows_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNPOINT_SERVERS", f'[{{"name": "{SECRET} {SECRET}"}}]')
    with pytest.raises(SettingsError) as caught:
        load_settings()
    assert "servers.0" in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("place", ["flag", "environment", "file", "stack"])
def test_error_says_where_the_wrong_value_stands(
    alone: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Break: look for the place in the file first. Each place here overrules those after it."""
    (alone / "turnpoint.toml").write_text(f'lease_s = "{SECRET}"\n')
    said, flags = str(alone / "turnpoint.toml"), {}
    if place in ("stack", "environment", "flag"):
        (alone / ".turnpoint").mkdir()
        stack = alone / ".turnpoint" / "stack.json"
        stack.write_text(json.dumps({"settings": {"lease_s": SECRET}}))
        said = f"{stack}, written by `turnpoint up`"
    if place in ("environment", "flag"):
        monkeypatch.setenv("TURNPOINT_LEASE_S", SECRET)
        said = "environment variable TURNPOINT_LEASE_S"
    if place == "flag":
        flags, said = {"lease_s": SECRET}, "flag --lease-s"
    with pytest.raises(SettingsError) as caught:
        load_settings(**flags)
    assert str(caught.value).startswith("lease_s: ")
    assert str(caught.value).endswith(f"({said})")
    assert SECRET not in str(caught.value)


def test_error_in_a_nested_key_says_where_that_key_stands(
    alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (alone / "turnpoint.toml").write_text("[options.counter]\ntool-delay-s = [1]\n")
    monkeypatch.setenv("TURNPOINT_OPTIONS", '{"policy": {"turns": "3"}}')
    with pytest.raises(SettingsError) as caught:
        load_settings()
    assert "options.counter.tool-delay-s" in str(caught.value)
    assert str(alone / "turnpoint.toml") in str(caught.value)


def test_unknown_key_in_the_file_is_named_with_file_and_the_nearest(alone: Path) -> None:
    (alone / "turnpoint.toml").write_text("keep_latest = 3\n")
    with pytest.raises(SettingsError, match=r"keep_latest: no such key in .*turnpoint\.toml") as e:
        load_settings()
    assert "the nearest is keep_latest_k" in str(e.value)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("TURNPOINT_LEASES", "TURNPOINT_LEASE_S"),
        ("TURNPOINT_KEEP_LATEST", "TURNPOINT_KEEP_LATEST_K"),
    ],
)
def test_unknown_environment_variable_is_refused_with_the_nearest(
    monkeypatch: pytest.MonkeyPatch, name: str, nearest: str
) -> None:
    """Break: leave `require_known_variables` out."""
    monkeypatch.setenv(name, SECRET)
    with pytest.raises(SettingsError, match=f"{name}: no such key; the nearest is {nearest}") as e:
        load_settings()
    assert SECRET not in str(e.value)


@pytest.mark.parametrize(
    "name",
    [
        *("TURNPOINT_WORKER_SERVICE_HOST", "TURNPOINT_UI_PORT_80_TCP_ADDR", "TURNPOINT_STACK_ID"),
        "TURNPOINT_SERVER_MY_KEY",
    ],
)
def test_variables_of_clusters_marks_and_gym_servers_are_no_settings(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Break: workers/config/origins.py: refuse `TURNPOINT_SERVER_*` too."""
    monkeypatch.setenv(name, "10.0.0.1")
    load_settings()


def test_every_variable_of_the_compose_file_is_read_by_the_job_or_by_its_gym_servers() -> None:
    """Break: keep a name that has changed; then each command refuses, or a server has a default."""
    compose = (Path(__file__).parents[3] / "docker-compose.yml").read_text()
    given = set(re.findall(r"TURNPOINT_([A-Z_]+)", compose))
    marks = {mark.removeprefix("TURNPOINT_") for mark in (STACK_MARK, NAME_MARK)}
    of_servers = {f"SERVER_{name.upper()}" for name in ServerSettings.model_fields}
    assert marks == MARKS
    assert given <= of_servers | {name.upper() for name in Settings.model_fields}


@pytest.mark.parametrize("url", [f"http://user:{SECRET}@host:1", f"http://{SECRET}@host/v1"])
@pytest.mark.parametrize("key", ["policy", "policy_url", "servers"])
def test_a_credential_in_a_url_is_refused_and_hidden(
    monkeypatch: pytest.MonkeyPatch, key: str, url: str
) -> None:
    """It would be shown in logs, histories and the manifest's topology. Break: take any string."""
    value = url if key != "servers" else json.dumps([{"name": "a", "kind": "agent", "url": url}])
    monkeypatch.setenv(f"TURNPOINT_{key.upper()}", value)
    with pytest.raises(SettingsError, match="user name or password") as caught:
        load_settings()
    assert f"environment variable TURNPOINT_{key.upper()}" in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["http://", "http://:80", "ftp://host", "http://host:port", "http://a b", "host:80", ""]
)
def test_what_is_no_url_of_a_server_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match=r"policy: .*allowed: "):
        load_settings(policy=url or " ")
    with pytest.raises(SettingsError, match=r"servers\.0\.url: .*allowed: http"):
        load_settings(servers=[{"name": "a", "kind": "agent", "url": url}])
    with pytest.raises(ValidationError):
        AgentServerSettings(
            name="a", port=1, snapshot_root=Path("/"), model_url=url, resource=f"counter={url}"
        )


def test_two_servers_with_one_name_are_refused() -> None:
    """Break: take any list. Both would write into one folder of the snapshot."""
    servers = [
        {"name": "tools", "kind": "resource", "url": f"http://127.0.0.1:{port}"} for port in (1, 2)
    ]
    with pytest.raises(SettingsError, match="servers: two servers have the name tools"):
        load_settings(servers=servers)


def test_one_url_under_two_names_is_refused_with_both() -> None:
    """Break: compare the names alone. Every call to one of them would be answered by the other."""
    urls = {"tools": "http://127.0.0.1:1/", "counter": "http://127.0.0.1:1", "x": "http://x:1"}
    servers = [{"name": name, "kind": "resource", "url": url} for name, url in urls.items()]
    with pytest.raises(SettingsError, match="servers: one url under two names: tools and counter"):
        load_settings(servers=servers)


def test_numbers_and_booleans_need_no_quotes_in_options(alone: Path) -> None:
    """Break: take strings alone."""
    (alone / "turnpoint.toml").write_text(
        "[options.counter]\ntool-delay-s = 0.5\n"
        "[options.simple_agent]\nmax-steps = 8\nexpect-restore = true\n"
    )
    assert load_settings().options == {
        "counter": {"tool-delay-s": "0.5"},
        "simple_agent": {"max-steps": "8", "expect-restore": "true"},
    }


def test_files_that_cannot_be_read_are_named(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (alone / ".turnpoint").mkdir()
    (alone / ".turnpoint" / "stack.json").write_text("{")
    with pytest.raises(SettingsError, match=r"stack\.json cannot be read .*turnpoint up"):
        load_settings()
    (alone / "turnpoint.toml").write_bytes(b"job_id = \xff")
    with pytest.raises(SettingsError, match=r"turnpoint\.toml cannot be read: it is not UTF-8"):
        load_settings(attach=False)
    (alone / "turnpoint.toml").write_text("job_id =")
    with pytest.raises(SettingsError, match=r"turnpoint\.toml is not TOML"):
        load_settings(attach=False)
    (alone / "turnpoint.toml").unlink()
    monkeypatch.setenv("TURNPOINT_OPTIONS", SECRET)
    with pytest.raises(SettingsError, match=r"options: not JSON .*TURNPOINT_OPTIONS") as caught:
        load_settings(attach=False)
    assert SECRET not in str(caught.value)


def test_secret_in_the_file_is_refused(alone: Path) -> None:
    (alone / "turnpoint.toml").write_text(f'control_token = "{SECRET}"\n')
    with pytest.raises(SettingsError, match=r"control_token: not allowed in turnpoint\.toml") as e:
        load_settings()
    assert SECRET not in str(e.value)


def test_children_get_everything_but_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    given = Settings(
        control_token=SECRET,
        snapshot_key=SECRET,
        lease_s=7,
        servers=[
            GymServer(name="a", kind=Kind.AGENT, url="http://127.0.0.1:1", command=["a", "--b"])
        ],
        options={"simple_agent": {"max-steps": "8"}},
    )
    env = given.environment()
    assert SECRET not in repr(env)
    assert not {"TURNPOINT_CONTROL_TOKEN", "TURNPOINT_SNAPSHOT_KEY"} & set(env)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    got = load_settings()
    assert got.model_dump(exclude={"control_token", "snapshot_key"}) == given.model_dump(
        exclude={"control_token", "snapshot_key"}
    )


def test_job_config_names_what_is_missing() -> None:
    servers = [{"name": "a", "kind": "agent", "url": "http://127.0.0.1:1"}]
    with pytest.raises(SettingsError, match=r"policy_url, generation_port.*turnpoint up"):
        load_settings(servers=servers).job_config()


def test_own_temporal_ignores_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", "elsewhere:1")
    assert load_settings().temporal_connection().get("target_host") == "elsewhere:1"
    own = load_settings(temporal_address="127.0.0.1:2").temporal_connection()
    assert own.get("target_host") == "127.0.0.1:2"
