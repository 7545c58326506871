"""Secrets lie in files that their owner alone can read."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from pydantic import SecretStr

from rl.errors import FolderError
from rl.snapshots.folder import SnapshotFolder
from tests.rl.folder_cases import FIRST, config_of, save, start_job
from workers.config.key_files import (
    ensure_key_file,
    ensure_key_files,
    read_control_token,
    read_key_file,
)
from workers.config.settings import Settings
from workers.errors import SettingsError


def test_made_for_the_owner_alone_and_kept(tmp_path: Path) -> None:
    path = ensure_key_file(tmp_path / "key", "snapshot_key")
    first = path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(first) >= 32
    ensure_key_file(path, "snapshot_key")
    assert path.read_text() == first


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("key", ["control_token", "snapshot_key"])
def test_one_that_others_can_read_is_refused_by_each_of_its_readers(
    tmp_path: Path, key: str, given: bool
) -> None:
    """Break: workers/config/settings.py, key_files.py: read the file without `read_secret_file`."""
    path = ensure_key_file(tmp_path / key, key, SecretStr("s3cret"))
    path.chmod(0o640)
    in_environment = {key: SecretStr("s3cret")} if given else {}
    settings = Settings(state_dir=tmp_path, snapshot_root=tmp_path, **in_environment)
    readers = [lambda: ensure_key_files(settings)]
    if key == "control_token":
        readers.append(lambda: read_control_token(settings))
    elif given:
        readers.append(settings.snapshot_place)
    for reader in readers:
        with pytest.raises(SettingsError, match="mode 0640; allowed: 0600") as caught:
            reader()
        assert "s3cret" not in str(caught.value)


def test_environment_and_file_must_agree(tmp_path: Path) -> None:
    path = ensure_key_file(tmp_path / "token", "control_token", SecretStr("first-s3cret"))
    assert read_key_file(path, "control_token").get_secret_value() == "first-s3cret"
    with pytest.raises(SettingsError, match="another value") as caught:
        ensure_key_file(path, "control_token", SecretStr("second-s3cret"))
    assert "s3cret" not in str(caught.value)


def test_a_command_with_another_token_than_the_stacks_is_told_so(tmp_path: Path) -> None:
    """Break: take the environment's without a look. Every server would refuse it."""
    path = ensure_key_file(tmp_path / "control_token", "control_token", SecretStr("first-s3cret"))
    right = Settings(state_dir=tmp_path, control_token=SecretStr("first-s3cret"))
    assert read_control_token(right).get_secret_value() == "first-s3cret"
    wrong = Settings(state_dir=tmp_path, control_token=SecretStr("second-s3cret"))
    with pytest.raises(SettingsError, match="TURNPOINT_CONTROL_TOKEN") as caught:
        read_control_token(wrong)
    assert str(path) in str(caught.value) and "s3cret" not in str(caught.value)


@pytest.mark.parametrize("content", [None, ""])
def test_missing_or_empty_is_an_error(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.touch(mode=0o600)
    with pytest.raises(SettingsError, match="snapshot_key: "):
        read_key_file(path, "snapshot_key")


def test_a_configured_key_file_that_is_gone_is_not_taken_for_no_key(tmp_path: Path) -> None:
    """Without its key every writer could forge a snapshot.

    A default file that was never made counts as no key.

    Break: workers/config/settings.py: hand on a file that exists, and else none.
    """
    config = config_of(tmp_path, key=b"sealed-s3cret")
    start_job(config)
    name = save(SnapshotFolder(config), FIRST)
    assert config.snapshot_key_file is not None
    given = {"job_id": config.job_id, "snapshot_root": config.snapshot_root}
    settings = Settings(**given, snapshot_key_file=config.snapshot_key_file)
    SnapshotFolder(settings.snapshot_place()).verify(name)
    config.snapshot_key_file.unlink()
    with pytest.raises(FolderError, match=r"snapshot_key_file: .* cannot be read"):
        SnapshotFolder(settings.snapshot_place()).verify(name)
    keyless = Settings(**given, state_dir=tmp_path / "state")
    assert keyless.snapshot_place().snapshot_key_file is None


def test_a_snapshot_key_that_would_not_be_used_is_refused(tmp_path: Path) -> None:
    """Seals are checked with the file alone. Break: workers/config/settings.py.

    Look at no variable.
    """
    given = {"state_dir": tmp_path, "snapshot_root": tmp_path}
    with_key = Settings(**given, snapshot_key=SecretStr("first-s3cret"))
    with pytest.raises(SettingsError, match="TURNPOINT_SNAPSHOT_KEY") as caught:
        with_key.snapshot_place()
    assert str(tmp_path / "snapshot_key") in str(caught.value)
    path = ensure_key_file(tmp_path / "snapshot_key", "snapshot_key", SecretStr("first-s3cret"))
    assert with_key.snapshot_place().snapshot_key_file == path
    with pytest.raises(SettingsError, match="TURNPOINT_SNAPSHOT_KEY") as caught:
        Settings(**given, snapshot_key=SecretStr("second-s3cret")).snapshot_place()
    assert "s3cret" not in str(caught.value)
