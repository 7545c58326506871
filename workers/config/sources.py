"""The two files that the settings are read from, besides flags and environment.

Guarantees: no secret is taken from `turnpoint.toml`; a file that cannot be read is named.
"""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any

from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, TomlConfigSettingsSource

from workers.errors import SettingsError

CONFIG_FILE = "turnpoint.toml"
ENV_PREFIX = "TURNPOINT_"
SECRETS = ("control_token", "snapshot_key")
STACK_FILE = "stack.json"


class ConfigFile(TomlConfigSettingsSource):
    """`turnpoint.toml` in the current folder, in which no secret may stand."""

    def __init__(self, kind: type[BaseSettings]) -> None:
        """Read the file, if there is one."""
        path = Path(CONFIG_FILE).absolute()
        if os.path.lexists(path) and not path.is_file():  # it would be passed over in silence
            raise SettingsError(f"{path} cannot be read: it is not a file")
        try:
            super().__init__(kind)
        except tomllib.TOMLDecodeError as error:
            raise SettingsError(f"{path} is not TOML: {error}") from None
        except RecursionError:
            raise SettingsError(f"{path} is not TOML: it is nested too deeply") from None
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is not UTF-8"
            raise SettingsError(f"{path} cannot be read: {why}") from None

    def __call__(self) -> dict[str, Any]:
        """The keys in the file; empty without one."""
        values = super().__call__()
        for name in SECRETS:
            if name in values:
                raise SettingsError(
                    f"{name}: not allowed in {CONFIG_FILE}; allowed: {ENV_PREFIX}{name.upper()} "
                    f"or a file of mode 0600 named by {name}_file"
                )
        return values


class StackFile(PydanticBaseSettingsSource):
    """The settings that `up` wrote into `<state_dir>/stack.json`, if there is a stack."""

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        """Not used: the source answers as a whole."""
        return None, field_name, False

    @property
    def path(self) -> Path:
        """The file, in the `state_dir` that the sources before this one name."""
        folder = self.current_state.get("state_dir")
        if folder is None:
            folder = ConfigFile(self.settings_cls)().get(
                "state_dir", self.settings_cls.model_fields["state_dir"].default
            )
        # A value that is no path, or of an unknown user, is refused where the key is checked.
        return Path(os.path.expanduser(folder if isinstance(folder, (str, Path)) else "")) / (
            STACK_FILE
        )

    def __call__(self) -> dict[str, Any]:
        """The keys in the file; empty without one."""
        path = self.path
        try:
            found = json.loads(path.read_bytes())["settings"]
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise SettingsError(
                f"state_dir: {path.absolute()} cannot be read ({error.strerror}); mend that, or "
                "give another folder with --state-dir"
            ) from None
        except (ValueError, KeyError, TypeError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise SettingsError(
                f"{path.absolute()} cannot be read as a stack's record; remove it, and "
                "`turnpoint up` makes one"
            )
        return found
