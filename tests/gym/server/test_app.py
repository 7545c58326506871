"""The application: health for all, the token for guarded prefixes, none without a token."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr

from gym.checkpoint.phases import Phases
from gym.server.app import create_app
from gym.server.settings import ServerSettings
from tests.gym.parts import FakePart

AUTHORIZED = {"authorization": "Bearer token"}


async def test_health_is_open_to_all_and_guarded_prefixes_are_not(http: httpx.AsyncClient) -> None:
    assert (await http.get("/health")).json() == {"status": "ok"}
    assert (await http.get("/private/thing")).status_code == 401
    assert (await http.get("/private/thing", headers=AUTHORIZED)).json() == {"a": "b"}


def test_without_a_token_the_routes_are_not_installed(tmp_path: Path) -> None:
    for token in (None, SecretStr("")):
        bare = ServerSettings(name="fake", port=21_999, snapshot_root=tmp_path, control_token=token)
        with pytest.raises(ValueError, match="control_token_file"):
            create_app(Phases("fake"), FakePart(), bare)
