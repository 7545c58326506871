"""Files with a secret: one rule, only their owner may read them (mode 0600)."""

from __future__ import annotations

import stat
from pathlib import Path

from pydantic import SecretStr

from gym.protocol import SecretFileRefused


def read_secret_file(path: Path, key: str) -> SecretStr:
    """The secret in a file, without surrounding white space.

    Args:
        path: The file.
        key: Name of the setting that names the file, for the error.

    Raises:
        SecretFileRefused: It cannot be read, is empty, or others may read it. Such a file is
            never repaired: it may have been read already.
    """
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        secret = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise SecretFileRefused(f"{key}: {path} cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise SecretFileRefused(f"{key}: {path} is not text; write the secret anew") from None
    if mode & 0o077:
        raise SecretFileRefused(
            f"{key}: {path} has mode {mode:04o}; allowed: 0600. Run `chmod 600` on it"
        )
    if not secret:
        raise SecretFileRefused(f"{key}: {path} is empty; write the secret into it")
    return SecretStr(secret)
