"""Sessions of a resource server: bound to runs, lost, restored."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from gym.environments.counter import Counter
from gym.protocol import RestoreAnswer
from tests.gym.parts import checkpoint_folder
from tests.gym.resource_server import (
    Scripted,
    revision,
    saved,
    served,
)


async def test_a_seed_that_fails_leaves_no_session(tmp_path: Path) -> None:
    async with served(Counter(), tmp_path) as server:
        bad = await server.seed({"initial_count": "many"})
        assert (bad.status_code, bad.json()["details"]) == (422, {"fields": ["initial_count"]})
        lost = await server.call("/increment_counter", {"count": 1}, "call-0")
        assert (lost.status_code, lost.json()["code"]) == (410, "session_lost")
        await server.prepare()
        committed = await server.commit(checkpoint_folder(tmp_path))
        assert committed.sessions == []
        assert committed.files[0].records == 0


async def test_the_first_call_of_a_newer_run_ends_the_older_one(tmp_path: Path) -> None:
    """Invariant 7. Break: gym/checkpoint/fences.py: refuse no older run; seen red."""
    environment = Scripted()
    async with served(environment, tmp_path) as server:
        await server.seed()
        environment.gate.clear()
        running = asyncio.ensure_future(server.call("/append", {"name": "old"}, "call-0"))
        await environment.entered.wait()
        queued = asyncio.ensure_future(server.call("/append", {"name": "queued"}, "call-0", 1))
        await asyncio.sleep(0.01)
        assert (await server.seed(run=1)).status_code == 200
        environment.gate.set()
        assert (await running).status_code == 200
        assert (await queued).json()["code"] == "stale_attempt"
        late = await server.call("/append", {"name": "late"}, "call-1")
        assert (late.status_code, late.json()["code"]) == (409, "stale_attempt")
        fresh = await server.call("/append", {"name": "new"}, "call-0", run=1)
        assert fresh.json() == {"all": ["new"]}
        # Run 2 ends run 1 even by a call that finds no session.
        lost = await server.call("/append", {"name": "x"}, "call-0", run=2)
        assert lost.json()["code"] == "session_lost"
        assert (await server.seed(run=1)).json()["code"] == "stale_attempt"


async def test_a_restored_session_goes_on_as_the_next_run(tmp_path: Path) -> None:
    folder, committed, cookie = await saved(Scripted(), tmp_path)
    assert [file.path for file in committed.files] == ["gym/counter/sessions.jsonl"]
    line = json.loads((folder / committed.files[0].path).read_text().splitlines()[0])
    assert set(line) == {
        "schema_version", "rollout_id", "attempt_index", "session_id", "revision", "state",
        "receipts",
    }  # fmt: skip
    assert [receipt["status"] for receipt in line["receipts"]] == [200, 200, 400]
    async with served(Scripted(), tmp_path, expect_restore=True, incarnation=2) as server:
        parked = await server.call("/append", {"name": "x"}, "call-1", run=1)
        assert parked.json()["code"] == "checkpoint_parked"
        restored = RestoreAnswer.model_validate(
            (await server.restore(folder, committed.files)).json()
        )
        assert [(e.rollout_id, e.attempt_index, e.revision) for e in restored.sessions] == [
            ("p0_g0", 1, 2),
            ("p1_g0", 1, 1),
        ]
        await server.control("discard", restore_id="rs", rollout_ids=["p1_g0"])
        await server.control("resume", checkpoint_id="rs")
        old = await server.call("/append", {"name": "old"}, "call-1")
        assert old.json()["code"] == "stale_attempt"
        cookies = {"Scripted___counter": cookie}
        on = await server.call("/append", {"name": "b"}, "call-1", run=1, cookies=cookies)
        assert (on.json(), revision(on)) == ({"all": ["a", "b"]}, 3)
        again = await server.seed(run=1)
        assert again.json()["code"] == "request_conflict"
        # The discarded one starts over as run 1; without a seed it is lost, not fresh.
        lost = await server.call("/append", {"name": "x"}, "call-0", run=1, rollout="p1_g0")
        assert (lost.status_code, lost.json()["code"]) == (410, "session_lost")
        assert (await server.seed(run=1, rollout="p1_g0")).status_code == 200
        await server.control("forget", rollout_ids=["p0_g0"])
        gone = await server.call("/append", {"name": "x"}, "call-2", run=1)
        assert gone.json()["code"] == "session_lost"
