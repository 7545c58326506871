"""What a look into Ray shows of a job, as `workers.job.ray_child` prints it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from rl.messages import ControllerStatus, JoinedServer


class ClusterView(BaseModel):
    """One look at the cluster."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    at: float
    """When the look began, on the machine's monotonic clock."""
    reachable: bool
    """Whether the cluster answers."""
    silent: bool = False
    """There is a controller, and it does not answer."""
    controller: ControllerStatus | None = None
    """None: there is none (or it is silent, or another job's)."""
    other_job: str | None = None
    """The job whose controller is there instead."""
    servers: list[JoinedServer] = []
    """The Gym servers as they joined the controller's incarnation."""
    actors: list[str] = []
    """Names of the job's actors that live or are being restarted by Ray."""
    missing: list[str] = []
    """Names of those that hold the data plane and are not among them."""


class Claimed(BaseModel):
    """What `ray_child start-fresh` prints of its claim; a line from the other side answers it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    claimed: int
    """The incarnation."""


class FreshStart(BaseModel):
    """Answer of `ray_child start-fresh`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    incarnation: int | None = None
    code: str | None = None
    """Stable code of the error that it ended with."""
    message: str | None = None
