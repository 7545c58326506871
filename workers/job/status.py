"""The state of a job from outside: its controller, its Gym servers, its folder."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from gym.client import GymClient
from gym.protocol import Capabilities, Phase, TurnpointError, Unauthorized
from rl.config import JobConfig, ServerConfig
from rl.messages import ControllerStatus
from rl.snapshots import incarnations
from rl.snapshots.folder import SnapshotFolder
from workers.config import gym_servers
from workers.config.key_files import read_control_token
from workers.config.settings import Settings
from workers.errors import SettingsError
from workers.stack import ray_head

_NO_SUCH_ROUTE = 404


class JobView(BaseModel):
    """The job in the result of `turnpoint status`."""

    model_config = ConfigDict(frozen=True)

    job_id: str
    incarnation: int
    """The newest on disk; 0 if the job never lived."""
    controller: ControllerStatus | None
    """None: it does not answer; there is no live job."""
    phases: dict[str, Phase | None]
    """Phase of each Gym server; None: it does not answer."""
    snapshots: list[str]
    """Newest first."""
    problems: dict[str, str] = {}
    """Reasons of Gym servers without a phase, by name: the error's code and the next step."""
    being_raised: str | None = None
    """`incarnation k is being restored` (or started), while that is so."""

    @property
    def is_alive(self) -> bool:
        """True if a controller works on the job."""
        return self.controller is not None and not self.controller.state.is_over

    def sentence(self) -> str:
        """One line for a person."""
        controller = self.controller
        if self.being_raised is not None and not self.is_alive:
            return (
                f"job {self.job_id}: {self.being_raised}; `turnpoint status --follow` waits for "
                "it. If that has failed, `turnpoint run` begins the next one"
            )
        if controller is None:
            newest = self.snapshots[0] if self.snapshots else "none"
            return f"job {self.job_id}: not running; newest snapshot: {newest}"
        state = (controller.checkpoint_id and "saving") or controller.state
        return (
            f"job {self.job_id}, incarnation {controller.incarnation}: {state}, "
            f"{controller.finished} of {controller.rollouts_total} finished, "
            f"{controller.running} running, {controller.failed} failed"
        )


def being_raised(job_folder: Path) -> str | None:
    """`incarnation k is being restored`: claimed, and without a line of its own yet."""
    number = incarnations.not_begun(job_folder)
    if number is None:
        return None
    by_workflow = "workflow_id" in incarnations.owner(job_folder, number)
    return f"incarnation {number} is being {'restored' if by_workflow else 'started'}"


def use_ray_of(settings: Settings) -> None:
    """Make this process a future driver of the configured cluster, and of no other.

    Call it before Ray is imported: Ray reads the environment at its import.

    Raises:
        SettingsError: No cluster is configured.
    """
    if settings.ray_address is None:
        raise SettingsError("ray_address: not set; start the stack with `turnpoint up`")
    os.environ.update(ray_head.environment(settings.ray_address))
    # Its lines about connecting and about signal handlers do not belong on the terminal.
    logging.getLogger("ray._private.worker").setLevel(logging.ERROR)


async def look_at_job(
    settings: Settings, *, with_controller: bool = True, with_servers: bool = True
) -> JobView:
    """Ask the controller and the Gym servers once; a silent participant is None.

    Args:
        settings: Of the job.
        with_controller: Ask the controller too (needs a Ray cluster that answers).
        with_servers: Ask the Gym servers too.
    """
    config = settings.job_config()
    controller = await controller_status(settings, config) if with_controller else None
    found: dict[str, Capabilities | None] = {server.name: None for server in config.servers}
    problems: dict[str, str] = {}
    if with_servers:
        found, problems = await gym_capabilities(settings, config)
    return JobView(
        job_id=config.job_id,
        incarnation=incarnations.newest(config.job_folder),
        being_raised=being_raised(config.job_folder) if with_controller else None,
        controller=controller,
        phases={name: answer.phase if answer else None for name, answer in found.items()},
        problems=problems,
        snapshots=SnapshotFolder(config).snapshots(),
    )


async def controller_status(settings: Settings, config: JobConfig) -> ControllerStatus | None:
    """The controller's own status; None if there is no controller of this job."""
    use_ray_of(settings)
    from rl import job

    return await job.alive(config)


async def gym_capabilities(
    settings: Settings, config: JobConfig
) -> tuple[dict[str, Capabilities | None], dict[str, str]]:
    """Capabilities of each Gym server by name, None for a silent one; and the reasons of those."""
    async with GymClient(read_control_token(settings)) as gym:
        answers = await asyncio.gather(
            *(gym.capabilities(server.url, server.name) for server in config.servers),
            return_exceptions=True,
        )
    found: dict[str, Capabilities | None] = {}
    problems: dict[str, str] = {}
    for server, answer in zip(config.servers, answers, strict=True):
        if isinstance(answer, TurnpointError):
            found[server.name] = None
            if answer.details.get("http") != _NO_SUCH_ROUTE:  # an unmodified server has none
                owned = server.name in gym_servers.started(settings.servers)
                then = _next_step(answer, server, owned)
                problems[server.name] = f"{answer.code}: {answer.message}; {then}"
        elif isinstance(answer, BaseException):
            raise answer
        else:
            found[server.name] = answer
    return found, problems


def _next_step(error: TurnpointError, server: ServerConfig, owned: bool) -> str:
    if isinstance(error, Unauthorized):
        return "it has another token than this command: restart it, or give this command its token"
    if owned:
        return f"look at `turnpoint logs {server.name}` and at the process behind {server.url}"
    return f"the stack does not start it (no `command`): look at the process behind {server.url}"
