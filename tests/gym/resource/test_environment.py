"""Environments: tools, modes, and the identity of inner calls."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gym.environments.counter import Counter
from gym.protocol import Mode
from gym.protocol.control import BASE_PATH
from gym.resource import (
    Environment,
    Session,
    environment_app,
    tool,
)
from tests.gym.parts import checkpoint_folder, settings
from tests.gym.resource_server import (
    RestartOnly,
    Scripted,
    served,
)


async def test_a_judge_inside_a_step_has_the_steps_request_id_and_no_model_call_id(
    tmp_path: Path,
) -> None:
    environment = Scripted()
    async with served(environment, tmp_path) as server:
        await server.seed()
        await server.call("/append", {"name": "a"}, "call-0")
        assert environment.inner is not None
        assert environment.inner.request_id == "p0_g0/call-0/0"
        assert environment.inner.model_call_id is None


async def test_a_server_without_the_two_methods_is_restart_only(tmp_path: Path) -> None:
    async with served(RestartOnly(), tmp_path) as server:
        capabilities = await server.http.get(
            f"{BASE_PATH}/capabilities", headers={"authorization": "Bearer token"}
        )
        assert capabilities.json()["mode"] == "restart_only"
        seeded = await server.seed()
        assert "x-turnpoint-resource-revision" not in seeded.headers
        await server.prepare()
        committed = await server.commit(checkpoint_folder(tmp_path))
        assert (committed.files, committed.sessions) == ([], [])

    class Half(Scripted):
        import_state = Environment.import_state

    with pytest.raises(TypeError):
        environment_app(Half(), settings(tmp_path))
    assert Counter().mode is Mode.EXPORT_RESTORE


@pytest.mark.parametrize("name", ["verify", "health", "reset", "close", "my tool", "a.b"])
def test_a_tool_that_no_agent_would_call_is_refused_at_the_start(name: str, tmp_path: Path) -> None:
    """Break: gym/resource/environment.py: refuse the server's own routes alone."""

    class Named(Scripted):
        def tools(self) -> Mapping[str, Any]:
            return {name: self.refuse}

    with pytest.raises(ValueError, match=f"cannot be called {name}"):
        environment_app(Named(), settings(tmp_path))


class Words(Environment[list[str]]):
    """Tools whose arguments have a type, a default or neither."""

    stateless = True

    async def seed(self, row: dict[str, Any]) -> list[str]:
        return []

    @tool
    async def repeat(
        self, session: Session[list[str]], word: str, times: int = 2
    ) -> dict[str, Any]:
        return {"said": word * times}

    @tool
    async def anything(self, session, model_name):  # type: ignore[no-untyped-def]
        return {"given": model_name}

    async def verify(
        self, session: Session[list[str]], row: dict[str, Any], response: dict[str, Any]
    ) -> dict[str, Any]:
        return {"reward": 0.0}


@pytest.mark.parametrize(
    ("path", "arguments", "answer"),
    [
        ("/repeat", {"word": "ab"}, {"said": "abab"}),
        ("/repeat", {"word": "ab", "times": "3", "more": 1}, {"said": "ababab"}),
        ("/anything", {"model_name": [1, None]}, {"given": [1, None]}),
        ("/repeat", {"times": 1}, ["word"]),
        ("/repeat", {"word": "s3cret", "times": "s3cret"}, ["times"]),
        ("/anything", {}, ["model_name"]),
    ],
)
async def test_a_tools_arguments_are_those_of_its_method(
    path: str, arguments: dict[str, Any], answer: object, tmp_path: Path
) -> None:
    """Break: gym/resource/environment.py: make every argument of `_tool_route` optional."""
    async with served(Words(), tmp_path) as server:
        given = await server.call(path, arguments, "call-0")
        if isinstance(answer, dict):
            assert (given.status_code, given.json()) == (200, answer)
        else:
            assert (given.status_code, given.json()["details"]) == (422, {"fields": answer})
            assert "s3cret" not in given.text


def test_tools_are_the_marked_methods_and_those_of_base_classes() -> None:
    class More(Words):
        @tool
        async def shout(self, session: Session[list[str]]) -> dict[str, Any]:
            return {}

    assert set(More().tools()) == {"anything", "repeat", "shout"}
