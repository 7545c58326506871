"""`python -m workers.worker`: one snapshot worker of a job.

It has no state of its own: when it is killed, another worker continues its activities. It joins Ray
as a driver of `RAY_ADDRESS`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from temporalio.client import Client
from temporalio.worker import Interceptor

from activities.controller import ControllerActivities
from activities.folder import FolderActivities
from activities.gym import GymActivities
from activities.job import JobActivities
from gym.client import GymClient
from gym.logs import configure_logging
from rl.actors import attached
from rl.config import JobConfig
from rl.errors import RayUnreachable
from workers.config.key_files import read_control_token
from workers.config.settings import Settings, load_settings
from workers.temporal import connect, register_search_attributes, snapshot_worker

logger = logging.getLogger(__name__)


async def run(settings: Settings, *, interceptors: Sequence[Interceptor] = ()) -> None:
    """Serve the task queue until SIGTERM or SIGINT.

    Args:
        settings: The job's.
        interceptors: Further interceptors, around Turnpoint's own (traces, fault injection).
    """
    config = settings.job_config()
    client = await connect(settings)
    await register_search_attributes(client)
    async with GymClient(read_control_token(settings)) as gym:
        worker = snapshot_worker(
            client, activities_of(client, config, gym), interceptors=interceptors
        )
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        async with worker:
            await _join_ray()
            logger.info("ready", extra={"event": "ready", "job_id": config.job_id})
            await stop.wait()


def activities_of(client: Client, config: JobConfig, gym: GymClient) -> list[Callable[..., Any]]:
    """Every activity of saves and restores, for one job.

    Args:
        client: The worker's Temporal client.
        config: The job that is served.
        gym: A client with the job's control token.
    """
    controller = ControllerActivities(client, config)
    servers = GymActivities(client, config, gym)
    folder = FolderActivities(client, config)
    job = JobActivities(client, config, gym)
    return [
        controller.begin_checkpoint,
        controller.close_admission,
        servers.prepare_checkpoint,
        servers.commit_checkpoint,
        controller.cut_rl_state,
        folder.publish_snapshot,
        folder.unpublish_snapshot,
        servers.resume_checkpoint,
        folder.prune_snapshots,
        job.claim_job,
        servers.discover_capabilities,
        folder.select_snapshot,
        job.load_data_plane,
        servers.restore_checkpoint,
        job.start_controller,
        job.discard_continuations,
        servers.resume_restored,
        job.start_pumps,
        job.drop_restored,
    ]


async def _join_ray() -> None:
    """Join Ray now, so that the first activity of a pause does not wait a second for it.

    Without a cluster the worker serves all the same: an activity that needs one tries again.
    """
    try:
        await attached()
    except RayUnreachable as error:
        logger.warning("no Ray cluster yet", extra={"event": "ray_unreachable", "code": error.code})


def main() -> None:
    """Run a worker; exit code 0: a signal asked it to stop."""
    configure_logging("worker")
    settings = load_settings()
    asyncio.run(run(settings))
    # The interpreter's shutdown can abort in the SDK's native threads; there is nothing to lose.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
