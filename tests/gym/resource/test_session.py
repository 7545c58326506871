"""Mutations of a session: exactly once, one at a time, uncertain after an error."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from gym.environments.counter import Counter
from gym.peer import Reply
from gym.protocol.control import BASE_PATH
from tests.gym.parts import checkpoint_folder
from tests.gym.resource_server import (
    Harmless,
    Scripted,
    revision,
    served,
)


async def test_the_same_request_id_has_one_effect_and_the_same_answer(tmp_path: Path) -> None:
    """Invariant 4. Break: gym/resource/session.py: record no receipt in `_run`; seen red."""
    async with served(Counter(), tmp_path) as server:
        await server.seed()
        answers = [
            await server.call("/increment_counter", {"count": 2}, "call-0") for _ in range(3)
        ]
        assert {answer.content for answer in answers} == {answers[0].content}
        assert {revision(answer) for answer in answers} == {2}
        value = await server.call("/get_counter_value", {}, "call-1")
        assert value.json() == {"count": 5}
        other = await server.call("/increment_counter", {"count": 9}, "call-0")
        assert (other.status_code, other.json()["code"]) == (409, "request_conflict")
        elsewhere = await server.call("/get_counter_value", {"count": 2}, "call-0")
        assert elsewhere.json()["code"] == "request_conflict"


async def test_errors_are_receipts_too_and_raise_no_revision(tmp_path: Path) -> None:
    async with served(Scripted(), tmp_path) as server:
        await server.seed()
        for _ in range(2):
            refused = await server.call("/refuse", {}, "call-0")
            assert (refused.status_code, refused.json()) == (400, {"detail": "not today"})
            invalid = await server.call("/append", {"name": 17}, "call-0", 1)
            assert (invalid.status_code, invalid.json()["code"]) == (422, "invalid_request")
            assert invalid.json()["details"] == {"fields": ["name"]}
            assert "17" not in invalid.text
            assert revision(invalid) == revision(refused) == 1
        conflict = await server.call("/refuse", {"name": "x"}, "call-0")
        assert conflict.json()["code"] == "request_conflict"
        assert (await server.call("/append", {"name": "a"}, "call-1")).json() == {"all": ["a"]}


@pytest.mark.parametrize("tool", ["fail", "lose", "unserialisable"])
async def test_a_handler_that_raises_makes_the_session_uncertain(
    tool: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Break: gym/resource/session.py: catch `Exception` alone.

    What was cancelled takes effect twice.
    """
    async with served(Scripted(), tmp_path) as server:
        await server.seed()
        for _ in range(2):
            answer = await server.call(f"/{tool}", {}, "call-0")
            assert (answer.status_code, answer.json()["code"]) == (409, "session_uncertain")
            assert revision(answer) == -1
        after = await server.call("/append", {}, "call-1")
        assert after.json()["code"] == "session_uncertain"
        # It is not exported, and the inventory says -1.
        await server.seed(rollout="p0_g1")
        await server.prepare()
        committed = await server.commit(checkpoint_folder(tmp_path))
        assert {entry.rollout_id: entry.revision for entry in committed.sessions} == {
            "p0_g0": -1,
            "p0_g1": 1,
        }
        assert committed.files[0].records == 1
    assert "secret words" not in caplog.text


async def test_errors_declared_free_of_effect_leave_the_session_certain(tmp_path: Path) -> None:
    """Break: gym/resource/session.py: answer them in this protocol's shape.

    The agent fails the run.
    """
    async with served(Harmless(), tmp_path) as server:
        await server.seed()
        for _ in range(2):
            failed = await server.call("/fail", {}, "call-0")
            assert (failed.status_code, failed.json()) == (500, {"detail": "RuntimeError"})
            assert Reply("counter", failed).error is None  # shown to the model
        after = await server.call("/append", {"name": "b"}, "call-1")
        assert after.json() == {"all": ["half", "b"]}  # once, not twice
        assert revision(after) == 2


async def test_one_mutation_at_a_time_and_to_its_end_though_the_caller_leaves(
    tmp_path: Path,
) -> None:
    environment = Scripted()
    async with served(environment, tmp_path) as server:
        await server.seed()
        environment.gate.clear()
        first = asyncio.ensure_future(server.call("/append", {"name": "a"}, "call-0"))
        await environment.entered.wait()
        second = asyncio.ensure_future(server.call("/append", {"name": "b"}, "call-0", 1))
        joined = asyncio.ensure_future(server.call("/append", {"name": "a"}, "call-0"))
        await asyncio.sleep(0.02)
        status = await server.http.get(
            f"{BASE_PATH}/status",
            params={"incarnation": 1, "instance_id": server.instance_id},
            headers={"authorization": "Bearer token"},
        )
        assert status.json()["counts"]["in_flight"] == 2
        first.cancel()
        await asyncio.sleep(0)
        # Resources close last: a step that arrives while `preparing` is admitted.
        preparing = asyncio.ensure_future(server.prepare())
        await asyncio.sleep(0.02)
        third = asyncio.ensure_future(server.call("/append", {"name": "c"}, "call-0", 2))
        await asyncio.sleep(0.02)
        assert not preparing.done()
        environment.gate.set()
        assert (await joined).json() == {"all": ["a"]}
        assert (await second).json() == {"all": ["a", "b"]}
        assert (await third).json() == {"all": ["a", "b", "c"]}
        await preparing
        parked = await server.call("/append", {"name": "d"}, "call-1")
        assert (parked.status_code, parked.json()["code"]) == (409, "checkpoint_parked")
        assert int(parked.headers["retry-after"]) >= 1
        await server.control("resume", checkpoint_id="ck")
        after = await server.call("/append", {"name": "d"}, "call-1")
        assert after.json() == {"all": ["a", "b", "c", "d"]}


async def test_an_effective_mutation_is_logged_once_and_without_arguments(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="turnpoint.gym")
    async with served(Scripted(), tmp_path) as server:
        await server.seed()
        for _ in range(2):
            await server.call("/append", {"name": "private"}, "call-0")
    logged = [r.__dict__ for r in caplog.records if r.__dict__.get("event") == "mutation"]
    assert [(r["request_id"], r["revision"]) for r in logged] == [
        ("p0_g0/seed/0", 1),
        ("p0_g0/call-0/0", 2),
    ]
    assert "private" not in str(logged)
