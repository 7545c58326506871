"""Configuration keys: which values are allowed, and what an error says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from gym.agent.server import AgentServerSettings
from workers.config.settings import load_settings
from workers.errors import SettingsError

SECRET = "hunter2-very-secret"


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
