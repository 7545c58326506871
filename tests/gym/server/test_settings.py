"""Settings of a Gym server: flags, then the environment; values stay hidden."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr

from gym.protocol import SecretFileRefused
from gym.server.settings import ServerSettings, settings_from_command_line


def test_flags_win_over_the_environment_and_errors_hide_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TURNPOINT_SERVER_PORT", "21998")
    monkeypatch.setenv("TURNPOINT_SERVER_SNAPSHOT_ROOT", str(tmp_path))
    read = settings_from_command_line(ServerSettings, ["--name", "x", "--expect_restore", "true"])
    assert (read.port, read.expect_restore, read.snapshot_root) == (21_998, True, tmp_path)
    read = settings_from_command_line(ServerSettings, ["--name=x", "--port", "21997"])
    assert read.port == 21_997
    for flag in ("port", "worker-processes"):
        with pytest.raises(SystemExit) as ended:
            settings_from_command_line(ServerSettings, ["--name", "x", f"--{flag}", "99999999"])
        said = capsys.readouterr().err
        assert ended.value.code == 2
        assert said.startswith(f"--{flag}: ") and "99999999" not in said


def test_a_token_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    """Break: gym/server/settings.py: read the file without `read_secret_file`."""
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text("s3cret\n")
    given = ServerSettings(
        name="fake", port=21_999, snapshot_root=tmp_path, control_token_file=token
    )
    assert given.token() == SecretStr("s3cret")
    token.chmod(0o640)
    with pytest.raises(SecretFileRefused, match=r"control_token_file: .* 0600"):
        given.token()
