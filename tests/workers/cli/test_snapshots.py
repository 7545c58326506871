"""`list`, `inspect`, `verify`: intact and damaged snapshots, the current line and others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rl.snapshots.folder import SnapshotFolder
from tests.rl.folder_cases import FIRST, config_of, save, start_job
from tests.rl.folder_cases import save as save_folder
from workers.cli import app as cli
from workers.cli.output import EXIT_FAILED, EXIT_OK
from workers.config.settings import load_settings


def test_a_snapshot_root_is_enough_to_look_at_snapshots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Break: ask for the whole configuration of the job."""
    config = config_of(tmp_path)
    start_job(config)
    save_folder(SnapshotFolder(config), "00000001")
    monkeypatch.setenv("TURNPOINT_SNAPSHOT_ROOT", str(config.snapshot_root))
    for command in ("list", "verify"):
        assert cli.run([command, "--json", "--job-id", config.job_id]) == EXIT_OK
        assert "snapshot_000001" in capsys.readouterr().out


def test_the_snapshots_of_another_job_are_listed_if_it_has_a_folder(
    ended_stack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Break: refuse every job but the stack's."""
    folder = load_settings(state_dir=ended_stack, job_id="other").job_config().job_folder
    folder.mkdir(parents=True)
    words = ["list", "--job-id", "other", "--json", "--state-dir", str(ended_stack)]
    assert cli.run(words) == EXIT_OK
    assert json.loads(capsys.readouterr().out) == []


def test_list_of_no_snapshots_is_empty(
    ended_stack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["list", "--json", "--state-dir", str(ended_stack)]) == EXIT_OK
    assert json.loads(capsys.readouterr().out) == []
    assert cli.run(["verify", "--json", "--state-dir", str(ended_stack)]) == EXIT_FAILED
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "no_snapshot"


def test_list_tells_the_current_line_from_others(
    ended_stack: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Break: let `Line.holds` look at incarnations alone."""
    config = config_of(ended_stack)
    folder = SnapshotFolder(config)
    start_job(config)
    for number in (1, 2):
        save_folder(folder, f"{number:08d}")
    start_job(config, "snapshot_000001")
    monkeypatch.setenv("TURNPOINT_SNAPSHOT_ROOT", str(config.snapshot_root))
    words = ["list", "--json", "--job-id", config.job_id, "--state-dir", str(ended_stack)]
    assert cli.run(words) == EXIT_OK
    rows = json.loads(capsys.readouterr().out)
    assert [(row["snapshot"], row["line"]) for row in rows] == [
        ("snapshot_000002", "other"),
        ("snapshot_000001", "current"),
    ]


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
