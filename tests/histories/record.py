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

from temporalio.client import Client, WorkflowFailureError

from activities.contract import TASK_QUEUE, RestoreInput, SaveInput
from tests.real.live import AGENT, JOB, RESOURCE, Live, wait_for

FOLDER = Path(__file__).parent
OPTIONS = {
    "policy": {"delay-s": "0.5", "turns": "200", "turns-spread": "0"},
    AGENT: {"max-steps": "300"},
}


async def record(folder: Path) -> None:
    """Run a job, save it in three ways, lose it, restore it; keep the four histories."""
    live = Live(
        folder, OPTIONS, port_base=27_400, workers=1, prepare_timeout_s=2, ready_timeout_s=60
    )
    try:
        live.up()
        live.stack.kill("worker_1")
        live.start_held_worker("held_1")
        live.cli("run", "--generations", "1", "--detach")
        client = await live.client()
        await _another_turn(live)
        await _keep(client, "SaveSnapshot", "published", SaveInput(job_id=JOB))

        await _another_turn(live)
        with live.hold("commit_checkpoint.before") as reached:
            cancelled = asyncio.create_task(
                _keep(client, "SaveSnapshot", "cancelled", SaveInput(job_id=JOB))
            )
            await asyncio.to_thread(wait_for, reached.exists, "the commit")
            await client.get_workflow_handle(f"{JOB}/SaveSnapshot/cancelled").cancel()
            await cancelled

        await _another_turn(live)
        for process in live.pids(RESOURCE):
            process.send_signal(signal.SIGSTOP)
        await _keep(client, "SaveSnapshot", "failed", SaveInput(job_id=JOB))

        live.crash()
        live.up()
        client = await live.client()
        await _keep(client, "RestoreSnapshot", "restored", RestoreInput(job_id=JOB))
    finally:
        live.down()


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
    here = f"{FOLDER.parents[1]}/"  # stack traces name the machine's folders
    target.write_text(text.replace(here, "") + "\n")


def main() -> None:
    """Record into this folder."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(record(Path(folder)))


if __name__ == "__main__":
    main()
