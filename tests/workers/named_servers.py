"""Gym servers as `turnpoint.toml` may name them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from workers.config.settings import Settings, load_settings

TAXI = {
    "name": "taxi",
    "kind": "resource",
    "url": "http://127.0.0.1:29001",
    "command": ["python", "-m", "gym.environments.gymnasium_server"],
}


JUDGE = {"name": "judge", "kind": "model", "url": "http://127.0.0.1:29002"}


def settings_of(folder: Path, *servers: dict[str, Any], **more: Any) -> Settings:
    given = {"attach": False, "state_dir": folder, "policy": "scripted", **more}
    return load_settings(**given, **({"servers": list(servers)} if servers else {}))
