"""The cut of a save: RL's records and TransferQueue, of one moment (design section 4).

Guarantees: nothing changes in TransferQueue or in RL's records between the copy of the records and
the end of TransferQueue's save. The answer is given only if every server held the checkpoint after
all files were on disk.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from gym.protocol import TurnpointError, WrittenFile
from rl.controller.collaborators import Collaborators
from rl.controller.job_state import JobState, Mark
from rl.data_plane.client import DataPlaneHostClient
from rl.data_plane.names import STAGING, TRAINING
from rl.messages import CutAnswer
from rl.records.snapshot_part import capture, write_records
from rl.snapshots.topology import topology_of

_log = logging.getLogger(__name__)


async def take_cut(
    job: JobState, others: Collaborators, checkpoint_id: str, folder: Path
) -> tuple[CutAnswer, Mark]:
    """Save RL's part of a snapshot below `folder`; answers it with the mark of its moment.

    When it is cancelled, or a file of RL's cannot be written, TransferQueue's save goes on.

    Raises:
        NotReady: An acknowledgement is owed.
        InventoryMismatch: Ledger, servers and TransferQueue disagree.
        DataPlaneLost: TransferQueue does not answer, or did not save.
        NoSpace, NotWritten: The disk refuses.
        NotHeld: A server no longer has this checkpoint.
    """
    inventory = await others.gym.inventory(checkpoint_id)
    await job.ledger.wait_paid()
    async with job.barrier.cut():
        staging_keys = await job.data_plane(others.data_plane.keys(STAGING))
        training_keys = await job.data_plane(others.data_plane.keys(TRAINING))
        mark, rows_put = job.mark(staging_keys), job.rows_put
        captured = capture(
            job.ledger,
            job.loader,
            job.index,
            inventory,
            staging_keys=staging_keys,
            training_keys=training_keys,
        )
        stored, own = await asyncio.gather(
            job.storing.run(checkpoint_id, None, lambda: _store(others.host, folder)),
            asyncio.to_thread(write_records, captured, folder),
        )
    servers = await others.gym.confirm_held(checkpoint_id)
    answer = CutAnswer(
        files=[*stored, *own],
        unfinished=captured.unfinished,
        finished=len(captured.records) - captured.unfinished,
        rows_put=rows_put,
        topology=topology_of(job.config, job.servers, job.loader.semantic),
        servers=servers,
    )
    return answer, mark


async def _store(host: DataPlaneHostClient, folder: Path) -> list[WrittenFile]:
    try:
        return await host.save(str(folder))
    except TurnpointError as error:
        # Logged, too: the cut that waits for it may have ended.
        _log.warning(error.code, extra={"event": "background_error"})
        raise
