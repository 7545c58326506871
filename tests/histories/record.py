"""`python -m tests.histories.record`: record the histories of real runs, one for each outcome.

Run it when a workflow has changed in a way that old histories still replay; a change that they do
not replay needs `workflow.patched`, and keeps the old files beside the new ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import tempfile
from pathlib import Path
from typing import Any

import temporalio.service
from temporalio.client import Client, WorkflowFailureError

from activities.contract import TASK_QUEUE, PruneInput, RestoreInput, SaveInput
from tests.real.live import AGENT, JOB, RESOURCE, Live, wait_for

FOLDER = Path(__file__).parent
OPTIONS = {
    "policy": {"delay-s": "0.5", "turns": "200", "turns-spread": "0"},
    AGENT: {"max-steps": "300"},
}


async def record(folder: Path) -> None:
    """Run a job, save it in four ways, lose it, restore it in three, prune; keep each history."""
    live = Live(
        folder, OPTIONS, port_base=27_400, workers=1, prepare_timeout_s=2, ready_timeout_s=60
    )
    try:
        await _up(live)
        await asyncio.to_thread(live.cli, "run", "--generations", "1", "--detach")
        await _saves(live)
        live.crash()
        await _up(live)
        await _restores_from_a_damaged_snapshot(live)
        live.crash()
        await _up(live)
        client = await live.client()
        await _keep(client, "RestoreSnapshot", "restored", RestoreInput(job_id=JOB))
        await _another_turn(live)
        await asyncio.to_thread(live.cli, "save")
        prune = PruneInput(job_id=JOB, keep_latest_k=1)
        await _keep(client, "PruneSnapshots", "pruned", prune)
    finally:
        live.down()


async def _up(live: Live) -> None:
    await asyncio.to_thread(live.up)
    live.start_held_worker("held_1")
    live.stack.kill("worker_1")


async def _saves(live: Live) -> None:
    """Published, cancelled, skipped because another one runs, published again, failed."""
    client, save = await live.client(), SaveInput(job_id=JOB)
    await _another_turn(live)
    await _keep(client, "SaveSnapshot", "published", save)

    await _another_turn(live)
    with live.hold("commit_checkpoint.before") as reached:
        cancelled = asyncio.create_task(_keep(client, "SaveSnapshot", "cancelled", save))
        await asyncio.to_thread(wait_for, reached.exists, "the commit")
        scheduled = save.model_copy(update={"trigger": "scheduled"})
        await _keep(client, "SaveSnapshot", "skipped", scheduled)
        await client.get_workflow_handle(f"{JOB}/SaveSnapshot/cancelled").cancel()
        await cancelled

    await _another_turn(live)
    await asyncio.to_thread(live.cli, "save")
    await _another_turn(live)
    with live.hold("close_admission.before") as reached:
        failed = asyncio.create_task(_keep(client, "SaveSnapshot", "failed", save))
        # Only now: a save is refused when a server does not answer before it.
        await asyncio.to_thread(wait_for, reached.exists, "admission to be closed")
        for process in live.pids(RESOURCE):
            process.send_signal(signal.SIGSTOP)
    await failed


async def _restores_from_a_damaged_snapshot(live: Live) -> None:
    """Damaged after it was selected: a strict restore fails, another takes the older one."""
    client = await live.client()
    damaged = live.snapshots.path / live.snapshots.snapshots()[0] / "gym" / RESOURCE
    path = damaged / "sessions.jsonl"
    whole = path.read_bytes()
    for outcome, strict in (("failed", True), ("fell_back", False)):
        path.write_bytes(whole)
        with live.hold("select_snapshot.after") as reached:
            restore = RestoreInput(job_id=JOB, strict=strict)
            ended = asyncio.create_task(_keep(client, "RestoreSnapshot", outcome, restore))
            await asyncio.to_thread(wait_for, reached.exists, "the selection", 60)
            path.write_bytes(whole[:-1])
        await ended


async def _another_turn(live: Live) -> None:
    """A save without one is refused as unchanged."""
    before = live.mutations()
    await asyncio.to_thread(wait_for, lambda: live.mutations() > before, "another turn")


async def _keep(client: Client, workflow: str, outcome: str, given: Any) -> None:
    handle = await client.start_workflow(
        workflow, given, id=f"{JOB}/{workflow}/{outcome}", task_queue=TASK_QUEUE
    )
    with contextlib.suppress(WorkflowFailureError):  # that is what some outcomes are
        await asyncio.wait_for(handle.result(), 120)
    _write(workflow, outcome, (await handle.fetch_history()).to_json())


def _write(workflow: str, outcome: str, text: str) -> None:
    target = FOLDER / workflow / f"{outcome}.json"
    target.parent.mkdir(exist_ok=True)
    # Stack traces name the machine's folders: that of the packages, and this one.
    for folder in (Path(temporalio.service.__file__).parents[1], FOLDER.parents[1]):
        text = text.replace(f"{folder}/", "")
    target.write_text(text + "\n")


def main() -> None:
    """Record into this folder."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(record(Path(folder)))


if __name__ == "__main__":
    main()
