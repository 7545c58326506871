"""The stateless example."""

from __future__ import annotations

from pathlib import Path

from examples.weather import Weather
from gym.protocol import Mode
from tests.gym.resource_server import served


async def test_it_answers_the_rows_tool_also_to_a_session_of_another_life(tmp_path: Path) -> None:
    assert Weather().mode is Mode.STATELESS
    async with served(Weather(), tmp_path, name="weather") as server:
        told = await server.call("/get_weather", {"city": "Ulm"}, "call-0")
        assert told.json() == {"city": "Ulm", "weather_description": "The weather in Ulm is cold."}
        verified = await server.call("/verify", {"response": {}}, "verify")
        assert verified.json()["reward"] == 1.0
