"""The file, variable or flag in which a wrong setting stands, and the key that may be meant.

Guarantees: nothing here ever shows a value.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic_settings import BaseSettings
from pydantic_settings import SettingsError as SourceError

from gym.server import settings as gym_settings
from workers.config.gym_servers import GymServer
from workers.config.sources import CONFIG_FILE, ENV_PREFIX, STACK_FILE, ConfigFile, StackFile
from workers.errors import SettingsError

MARKS = {"STACK_ID", "PROCESS"}
"""Marks of a stack's processes: variables that are no settings."""
_OF_KUBERNETES = re.compile(r"_SERVICE_(HOST|PORT(_.*)?)$|_PORT_\d+_(TCP|UDP|SCTP)(_.*)?$")
"""A cluster sets these for every service; one called `turnpoint-...` is no typing error."""


def require_known_variables(keys: Collection[str]) -> None:
    """Refuse a variable `TURNPOINT_...` that no process reads: it would be ignored in silence.

    Raises:
        SettingsError: Each one is named, with the nearest that there is.
    """
    known = {name.upper() for name in keys} | MARKS
    unknown = [
        name
        for name in sorted(os.environ)
        if name.upper().startswith(ENV_PREFIX)  # pydantic-settings reads `turnpoint_lease_s` too
        and name.upper().removeprefix(ENV_PREFIX) not in known
        and not name.upper().startswith(gym_settings.ENV_PREFIX)  # read by Gym servers alone
        and not _OF_KUBERNETES.search(name)
    ]
    if unknown:
        sentences = "; ".join(
            f"environment variable {name}: no such key{nearest(name, known, ENV_PREFIX)}"
            for name in unknown
        )
        raise SettingsError(f"{sentences}. Unset it: no process reads it")


def nearest(name: str, known: Collection[str], prefix: str = "") -> str:
    """`; the nearest is ...`, if one is near."""
    bare = name.removeprefix(prefix)
    near = difflib.get_close_matches(bare, sorted(known), n=1)
    return f"; the nearest is {prefix}{near[0]}" if near else ""


def not_json(error: SourceError, keys: Collection[str]) -> str:
    """The sentence for a variable that should hold JSON and does not."""
    for key in keys:
        if f'"{key}"' in str(error):
            return f"{key}: not JSON (environment variable {ENV_PREFIX}{key.upper()})"
    return "an environment variable is not JSON"


class Places:
    """The places of the values of one reading of the settings.

    Args:
        flags: What the command line gave.
        kind: The settings' class.
        attach: Whether the record of a running stack was read.
    """

    def __init__(self, flags: Mapping[str, Any], kind: type[BaseSettings], *, attach: bool) -> None:
        """Read the files again, to report an error."""
        self._flags = flags
        self._environment = {
            name.upper().removeprefix(ENV_PREFIX).lower(): _parsed(value)
            for name, value in os.environ.items()
            if name.upper().startswith(ENV_PREFIX)
        }
        self._file = ConfigFile(kind)()
        self._stack: dict[str, Any] = {}
        self._stack_file = Path(STACK_FILE)
        if attach:
            source = StackFile(kind)
            source._set_current_state({**self._file, **self._environment, **flags})
            self._stack, self._stack_file = source(), source.path

    def of(self, loc: tuple[int | str, ...]) -> str:
        """The place from which one key has its value."""
        key = str(loc[0]) if loc else ""
        if _has(self._flags, loc):
            return f"flag --{key.replace('_', '-')}"
        if _has(self._environment, loc):
            return f"environment variable {ENV_PREFIX}{key.upper()}"
        if _has(self._stack, loc):
            return f"{self._stack_file.absolute()}, written by `turnpoint up`"
        if _has(self._file, loc):
            return f"{Path(CONFIG_FILE).absolute()}"
        return "its default" if len(loc) == 1 else self.of(loc[:-1])


def sentence_of(item: Any, places: Places, known: Collection[str]) -> str:
    """The sentence for one error of pydantic: key, reason and place.

    Args:
        item: The error as `ValidationError.errors` lists it.
        places: Of the reading that failed.
        known: All keys.
    """
    key = ".".join(str(part) for part in item["loc"])
    where = places.of(item["loc"])
    if item["type"] != "extra_forbidden":
        return f"{key}: {item['msg'].removeprefix('Value error, ')} ({where})"
    allowed = known if len(item["loc"]) == 1 else GymServer.model_fields
    near = nearest(str(item["loc"][-1]), allowed)
    return f"{key}: no such key in {where}{near}; allowed: {', '.join(sorted(allowed))}"


def _has(values: Any, loc: tuple[int | str, ...]) -> bool:
    for part in loc:
        if isinstance(values, list):
            values = dict(enumerate(values))
        if not isinstance(values, Mapping) or part not in values:
            return False
        values = values[part]
    return bool(loc)


def _parsed(value: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value
