"""Secret files: one rule, and an error that names the file and the fix."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr

from gym.protocol import SecretFileRefused
from gym.secret_file import read_secret_file


def secret(tmp_path: Path, text: bytes = b"s3cret\n", mode: int = 0o600) -> Path:
    path = tmp_path / "token"
    path.write_bytes(text)
    path.chmod(mode)
    return path


def test_the_owner_reads_the_secret_without_its_line_end(tmp_path: Path) -> None:
    found = read_secret_file(secret(tmp_path), "token_file")
    assert found == SecretStr("s3cret")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o700 | 0o001])
def test_a_file_that_others_may_use_is_refused_with_the_fix(tmp_path: Path, mode: int) -> None:
    """Break: gym/secret_file.py: leave the mode out."""
    path = secret(tmp_path, mode=mode)
    with pytest.raises(SecretFileRefused, match=r"token_file: .*chmod 600") as refused:
        read_secret_file(path, "token_file")
    assert str(path) in refused.value.message and "s3cret" not in refused.value.message


def test_an_empty_a_missing_and_a_binary_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(SecretFileRefused, match="is empty"):
        read_secret_file(secret(tmp_path, b" \n"), "token_file")
    with pytest.raises(SecretFileRefused, match="is not text"):
        read_secret_file(secret(tmp_path, b"\xff\xfe\xfa"), "token_file")
    with pytest.raises(SecretFileRefused, match="No such file"):
        read_secret_file(tmp_path / "nowhere", "token_file")
