"""Answers for errors: fields without values, faults without texts."""

from __future__ import annotations

import httpx
import pytest

from gym.protocol.control import BASE_PATH

AUTHORIZED = {"authorization": "Bearer token"}


async def test_a_bad_field_is_named_and_its_value_hidden(http: httpx.AsyncClient) -> None:
    answer = await http.post(
        f"{BASE_PATH}/prepare",
        json={
            "incarnation": 1,
            "instance_id": "x",
            "checkpoint_id": "../secret",
            "budget_s": "s3cret",
            "lease_s": 5,
            "unknown_field": "s3cret",
        },
        headers=AUTHORIZED,
    )
    assert answer.status_code == 422
    assert answer.json()["details"]["fields"] == ["budget_s", "checkpoint_id", "unknown_field"]
    assert "s3cret" not in answer.text
    assert "secret" not in answer.text


async def test_an_unexpected_error_tells_nothing(
    http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await http.get("/broken")
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert "secret words" not in answer.text
    assert "secret words" not in caplog.text
    assert any(r.__dict__.get("error") == "RuntimeError" for r in caplog.records)
