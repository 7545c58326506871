"""The lines that `workers.job.ray_child` prints."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from rl.messages import ControllerStatus, JoinedServer


class ClusterView(BaseModel):
    """One look at the cluster."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    at: float
    """Begin of the look, on the machine's monotonic clock."""
    reachable: bool
    """True if the cluster answers."""
    silent: bool = False
    """True if there is a controller that does not answer."""
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


class StartLine(BaseModel):
    """Line of `ray_child start-fresh` and `start-stateless`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    claimed: int | None = None
    """The claimed incarnation; the child waits for a line of input then."""
    incarnation: int | None = None
    """The started incarnation, in the last line of a success."""
    code: str | None = None
    """Stable code of the error that it ended with."""
    message: str | None = None
