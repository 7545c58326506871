"""The two secrets of a job, in files of mode 0600 that the stack makes.

`python -m workers.config.key_files` makes them for a fleet that no local stack starts.

Guarantees: a key file is created exclusively and readable by its owner only; one that others
can read is refused, never repaired (`gym.secret_file`). No message shows a value.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from pydantic import SecretStr

from gym.protocol import SecretFileRefused
from gym.secret_file import read_secret_file
from workers.config.settings import ENV_PREFIX, Settings, load_settings
from workers.errors import SettingsError


def ensure_key_file(path: Path, key: str, given: SecretStr | None = None) -> Path:
    """Make the file of a secret, unless it is there.

    Args:
        path: The file.
        key: Name of the setting, for errors.
        given: The value from the environment; drawn at random if there is none.

    Returns:
        The path.

    Raises:
        SettingsError: The file is there but others can read it, or it holds another value than
            the environment gives.
    """
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        _require_same(path, key, given)
        return path
    with os.fdopen(handle, "w") as file:
        file.write(given.get_secret_value() if given else secrets.token_urlsafe(32))
        file.flush()
        os.fsync(file.fileno())
    return path


def read_key_file(path: Path, key: str) -> SecretStr:
    """The secret in a file; `key` is the setting's name, for errors.

    Raises:
        SettingsError: No such file, an empty one, or one that others can read.
    """
    try:
        return read_secret_file(path, key)
    except SecretFileRefused as error:
        raise SettingsError(str(error)) from None


def read_control_token(settings: Settings) -> SecretStr:
    """The bearer token of the control routes: the environment's, else its file's.

    Raises:
        SettingsError: There is none, others can read its file, or the file of the stack holds
            another value than the environment.
    """
    given, path = settings.control_token, settings.token_file
    if given is None:
        return read_key_file(path, "control_token")
    if path.exists():
        _require_same(path, "control_token", given)
    return given


def ensure_key_files(settings: Settings) -> None:
    """Make both files, unless they are there."""
    settings.token_file.parent.mkdir(parents=True, exist_ok=True)
    ensure_key_file(settings.token_file, "control_token", settings.control_token)
    ensure_key_file(settings.key_file, "snapshot_key", settings.snapshot_key)


def _require_same(path: Path, key: str, given: SecretStr | None) -> None:
    held = read_key_file(path, key)
    if given is not None and held != given:
        raise SettingsError(
            f"{key}: {path} holds another value than the environment variable "
            f"{ENV_PREFIX}{key.upper()}; remove one of them"
        )


if __name__ == "__main__":
    ensure_key_files(load_settings(attach=False))
