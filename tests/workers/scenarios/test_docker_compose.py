"""`docker-compose.yml` is valid and publishes nothing beyond loopback."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from workers.stack.policy import FLAGS

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, object]]:
    program = shutil.which("docker-compose")
    if program is None:
        pytest.skip("docker-compose is not installed here; .ci/run installs it")
    shown = subprocess.run(
        [program, "-f", str(ROOT / "docker-compose.yml"), "config"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr
    found: dict[str, dict[str, object]] = yaml.safe_load(shown.stdout)["services"]
    return found


def test_every_piece_is_there(services: dict[str, dict[str, object]]) -> None:
    assert set(services) >= {
        *("postgresql", "temporal", "temporal-ui", "ray", "vllm", "worker"),
        *("policy_model", "simple_agent", "counter"),
    }


def test_nothing_is_published_beyond_loopback(services: dict[str, dict[str, object]]) -> None:
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert published
    assert all(str(port).startswith("127.0.0.1:") for port in published)


def test_no_token_is_in_the_file() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    assert "TURNPOINT_CONTROL_TOKEN:" not in text
    assert "TURNPOINT_SNAPSHOT_KEY:" not in text


@pytest.mark.parametrize("name", sorted(FLAGS["vllm"]))
def test_the_tiny_model_plays_under_the_flags_of_a_local_stack(name: str) -> None:
    """Break: change them in one place alone."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    for flag, value in FLAGS["vllm"][name].items():
        assert f"--{flag}={value}" in services[name]["command"]
