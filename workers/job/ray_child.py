"""`python -m workers.job.ray_child`: a supervising command's work in Ray, in its own process.

Ray ends a driver's process when its cluster's GCS is gone, and `turnpoint run` has to outlive
that. So it never joins Ray itself: it starts this program, configured by environment as every
process of the stack is.

- `watch`: one `ClusterView` a line, until its reader is gone.
- `start-fresh [--replace]`: starts the job; the first line of its input is the `Workload`. It
  prints the claimed incarnation, and goes on after a second line.
- `start-stateless K`: the generation endpoint and NemoGym of incarnation K again.

Guarantees: the last line it prints is JSON; it prints nothing of a rollout.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import uuid

from pydantic import BaseModel

from gym.client import GymClient
from gym.protocol import DeadlineExceeded, TurnpointError
from rl import job, living_actors
from rl.config import JobConfig, Workload
from rl.controller.client import SingleControllerClient
from rl.errors import ActorLost, RayUnreachable
from rl.messages import JoinedServer
from workers.config.key_files import read_control_token
from workers.config.settings import Settings, load_settings
from workers.errors import WorkerRoomError
from workers.job.cluster_view import ClusterView, StartLine

LOOK_EVERY_S = 0.5
STATUS_TIMEOUT_S = 10.0
"""A look that waits longer shows neither a silent controller nor an answering Ray meanwhile; a
supervisor would take Ray for lost (`workers.supervisor.decide.UNREACHABLE_S`)."""
SERVERS_TIMEOUT_S = 5.0


async def watch(config: JobConfig) -> None:
    """Look and print twice a second."""
    joined: tuple[int, list[JoinedServer]] | None = None
    while True:
        seen, joined = await look(config, joined)
        _print(seen)
        await asyncio.sleep(LOOK_EVERY_S)


async def look(
    config: JobConfig, joined: tuple[int, list[JoinedServer]] | None = None
) -> tuple[ClusterView, tuple[int, list[JoinedServer]] | None]:
    """Look once.

    Args:
        config: The job's.
        joined: The answer of the look before: the servers of an incarnation stay the same for as
            long as it lives.

    Returns:
        The look, and `joined` for the next one.
    """
    at = time.monotonic()
    try:
        actors = await living_actors.names()
        status = await job.alive(config, STATUS_TIMEOUT_S)
        if status is None or status.job_id != config.job_id:
            other = status.job_id if status is not None else None
            return ClusterView(at=at, reachable=True, actors=actors, other_job=other), None
        if joined is None or joined[0] != status.incarnation:
            controller = SingleControllerClient(status.incarnation)
            servers = await controller.servers(timeout_s=SERVERS_TIMEOUT_S)
            joined = (status.incarnation, servers)
    except RayUnreachable:
        return ClusterView(at=at, reachable=False), None
    except ActorLost:  # it died between two calls: the next look says so
        return ClusterView(at=at, reachable=True), None
    except DeadlineExceeded:
        return ClusterView(at=at, reachable=True, silent=True), joined
    seen = ClusterView(
        at=at,
        reachable=True,
        controller=status,
        servers=joined[1],
        actors=actors,
        missing=[name for name in living_actors.data_plane_names(config) if name not in actors],
    )
    return seen, joined


async def start_fresh(settings: Settings, *, replace: bool) -> StartLine:
    """Start the job at its first prompt; the second input line says that the servers are ready."""
    workload = Workload.model_validate_json(await _line())

    async def on_claimed(incarnation: int) -> None:
        _print(StartLine(claimed=incarnation))
        await _line()

    owner = {"run_id": str(uuid.uuid4()), "started_by": "turnpoint run"}
    try:
        async with GymClient(read_control_token(settings)) as gym:
            incarnation = await job.start_fresh(
                settings.job_config(), workload, owner, gym, replace=replace, on_claimed=on_claimed
            )
    except (TurnpointError, WorkerRoomError) as error:
        return StartLine(code=error.code, message=str(error))
    return StartLine(incarnation=incarnation)


async def start_stateless(config: JobConfig, incarnation: int) -> StartLine:
    """Start the actors that hold no state again."""
    try:
        await job.start_stateless(config, incarnation)
    except TurnpointError as error:
        return StartLine(code=error.code, message=str(error))
    return StartLine(incarnation=incarnation)


async def _line() -> str:
    line: str = await asyncio.to_thread(sys.stdin.readline)
    if not line:
        raise EOFError("the command that started this has gone")
    return line


def _print(answer: BaseModel) -> None:
    print(json.dumps(answer.model_dump(mode="json")), flush=True)


async def main(words: list[str]) -> None:
    """Run one of the three subcommands."""
    settings = load_settings()
    config = settings.job_config()
    if words == ["watch"]:
        await watch(config)
    elif words[:1] == ["start-fresh"]:
        _print(await start_fresh(settings, replace="--replace" in words))
    elif words[:1] == ["start-stateless"]:
        _print(await start_stateless(config, int(words[1])))
    else:
        raise SystemExit(f"unknown: {' '.join(words)}")


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[1:]))
    except (BrokenPipeError, EOFError):
        os._exit(0)  # the command that started this has ended
    sys.stdout.flush()
    os._exit(0)  # Ray's own shutdown takes seconds, and can abort
