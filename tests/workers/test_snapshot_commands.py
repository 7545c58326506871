"""`list`, `inspect`, `verify` of a damaged snapshot; exit codes of errors from other processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rl.snapshots.folder import SnapshotFolder
from tests.rl.folder_cases import FIRST, config_of, save, start_job
from workers.cli import app as cli
from workers.cli.output import EXIT_FAILED, EXIT_NOT_REACHABLE, EXIT_OK, EXIT_REFUSED, EXIT_USAGE
from workers.job.ray_client import RayCallFailed
from workers.stack.stack import Stack


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One snapshot, and the words that name its job to a command."""
    monkeypatch.chdir(tmp_path)
    config = config_of(tmp_path)
    start_job(config)
    save(SnapshotFolder(config), FIRST)
    settings = {
        "SNAPSHOT_ROOT": str(config.snapshot_root),
        "POLICY_URL": "http://127.0.0.1:1/v1",
        "GENERATION_PORT": "2",
        "SERVERS": '[{"name": "a", "kind": "agent", "url": "http://127.0.0.1:3"}]',
    }
    for name, value in settings.items():
        monkeypatch.setenv(f"TURNPOINT_{name}", value)
    return ["--job-id", config.job_id, "--state-dir", str(tmp_path / "state"), "--json"]


@pytest.mark.parametrize("file", ["rl/loader.json", "manifest.json"])
def test_a_damaged_snapshot_is_named_by_file_with_the_next_step(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str
) -> None:
    """Break: print the bare reason."""
    assert cli.run(["verify", *words]) == EXIT_OK
    capsys.readouterr()
    path = tmp_path / "snapshots" / "job-1" / "snapshot_000001" / file
    path.write_bytes(b"hunter2")
    assert cli.run(["verify", *words]) == EXIT_FAILED
    answer = json.loads(capsys.readouterr().out)
    assert (answer["intact"], answer["file"]) == (False, file)
    assert "turnpoint restore" in answer["next"]
    if file == "manifest.json":
        assert cli.run(["inspect", *words]) == EXIT_FAILED
        error = json.loads(capsys.readouterr().out)["error"]
        assert error["code"] == "snapshot_damaged"
        for said in ("manifest.json", "snapshot_000001", "turnpoint restore", "snapshot key"):
            assert said in error["message"]
        assert cli.run(["list", *words]) == EXIT_OK
        (row,) = json.loads(capsys.readouterr().out)
        assert "manifest.json" in row["damaged"] and "hunter2" not in row["damaged"]
        assert cli.run(["list", *words[:-1]]) == EXIT_OK
        assert "turnpoint restore" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("dataset_invalid", EXIT_USAGE),
        ("job_alive", EXIT_REFUSED),
        ("ray_unreachable", EXIT_NOT_REACHABLE),
        ("servers_missing", EXIT_NOT_REACHABLE),
        ("server_unfit", EXIT_FAILED),
    ],
)
def test_an_error_of_another_process_has_the_exit_code_of_its_kind(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    code: str,
    exit_code: int,
) -> None:
    def fail(self: Stack, **_: object) -> int:
        raise RayCallFailed(code, "rows.jsonl:2: not an object")

    monkeypatch.setattr(Stack, "down", fail)
    assert cli.run(["down", "--json", "--state-dir", str(tmp_path)]) == exit_code
    error = json.loads(capsys.readouterr().out)["error"]
    assert error == {"code": code, "message": "rows.jsonl:2: not an object"}


def test_a_record_of_the_stack_that_is_damaged_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "stack.json").write_text('{"settings": {}}')
    for command in ("up", "status", "down"):
        assert cli.run([command, "--json", "--state-dir", str(tmp_path)]) == EXIT_USAGE
        error = json.loads(capsys.readouterr().out)["error"]
        assert error["code"] == "settings" and "stack.json" in error["message"]
