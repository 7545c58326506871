"""`sessions.jsonl`: lines that do not parse, and the export of one session."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gym.protocol.control import BASE_PATH
from tests.gym.parts import checkpoint_folder
from tests.gym.resource_server import (
    Scripted,
    saved,
    served,
)


async def test_a_line_or_state_that_does_not_parse_is_named_and_nothing_is_restored(
    tmp_path: Path,
) -> None:
    import hashlib

    folder, committed, _ = await saved(Scripted(), tmp_path)
    at = folder / committed.files[0].path
    good = at.read_bytes()
    lines = good.splitlines(keepends=True)
    for bad, named in (
        (good.replace(b'"revision":1', b'"revision":"one"'), "line 2: revision"),
        (good + b"{", "line 3"),
        (good.replace(b'"state":"W10="', b'"state":"W10"'), "line 2"),
        (good.replace(b'"state":"W10="', b'"state":"eHg="'), "line 2: import_state"),
        (good + lines[0], "twice"),
    ):
        assert bad != good
        at.write_bytes(bad)
        file = committed.files[0].model_copy(
            update={"bytes": len(bad), "sha256": hashlib.sha256(bad).hexdigest()}
        )
        async with served(Scripted(), tmp_path, expect_restore=True) as server:
            answer = await server.restore(folder, [file])
            assert (answer.status_code, answer.json()["code"]) == (409, "unsupported_schema")
            assert named in answer.json()["message"]
            assert answer.json()["details"]["file"] == file.path
            status = await server.http.get(
                f"{BASE_PATH}/status",
                params={"incarnation": 1, "instance_id": server.instance_id},
                headers={"authorization": "Bearer token"},
            )
            assert status.json()["counts"]["sessions"] == 0
            assert status.json()["phase"] == "awaiting_restore"


async def test_a_step_right_after_an_early_resume_waits_for_one_sessions_export_only(
    tmp_path: Path,
) -> None:
    import threading

    class Slow(Scripted):
        exporting = threading.Event()
        gate_export = threading.Event()
        seen: list[str] | None = None

        def export_state(self, state: list[str]) -> bytes:
            self.exporting.set()
            assert self.gate_export.wait(10)
            self.seen = list(state)
            return super().export_state(state)

    environment = Slow()
    async with served(environment, tmp_path) as server:
        await server.seed()
        await server.seed(rollout="p1_g0")
        await server.prepare()
        committing = asyncio.ensure_future(
            server.control(
                "commit", checkpoint_id="ck", budget_s=5, folder=str(checkpoint_folder(tmp_path))
            )
        )
        assert await asyncio.to_thread(environment.exporting.wait, 5)
        await server.control("resume", checkpoint_id="ck")
        other = await server.call("/append", {"name": "b"}, "call-0", rollout="p1_g0")
        assert other.json() == {"all": ["b"]}
        same = asyncio.ensure_future(server.call("/append", {"name": "a"}, "call-0"))
        await asyncio.sleep(0.02)
        assert not same.done()
        environment.gate_export.set()
        assert (await same).json() == {"all": ["a"]}
        assert environment.seen == []
        assert (await committing).json()["code"] == "stale_checkpoint"
