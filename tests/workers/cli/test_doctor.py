"""`turnpoint doctor`: each problem is one sentence with the next step."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from workers.cli import doctor
from workers.cli.doctor import examine
from workers.config.settings import Settings, load_settings


def settings(tmp_path: Path, **keys: Any) -> Settings:
    return load_settings(attach=False, state_dir=tmp_path / "state", policy="scripted", **keys)


def problems(settings: Settings) -> dict[str, str]:
    return {finding.check: finding.problem for finding in examine(settings) if finding.problem}


def test_a_gym_server_whose_program_or_folder_is_not_there_is_named(tmp_path: Path) -> None:
    servers = [
        {
            "name": name,
            "kind": "resource",
            "url": f"http://127.0.0.1:{port}",
            "command": ["no-such-program"],
            "folder": str(folder),
        }
        for name, port, folder in (("dice", 26901, tmp_path), ("cards", 26902, tmp_path / "gone"))
    ]
    found = problems(settings(tmp_path, servers=servers))
    assert "no program 'no-such-program'; correct its `command`" in found["server dice"]
    assert found["server cards"].endswith("is not there; correct its `folder` in turnpoint.toml")


def test_a_disk_that_is_almost_full_and_a_long_temporary_folder_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1024**2)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: usage)
    monkeypatch.setenv("TMPDIR", "/" + "x" * 60)
    found = problems(settings(tmp_path))
    assert found["state folder"].startswith("1 MiB free at ")
    assert "set TMPDIR to a short path" in found["temporary folder"]


def test_vllm_is_asked_for_where_the_policy_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    assert "vllm" not in problems(settings(tmp_path))
    vllm = settings(tmp_path).model_copy(update={"policy": "vllm"})
    assert "--policy scripted" in problems(vllm)["vllm"]
