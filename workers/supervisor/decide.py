"""The supervisor's decisions: one pure function from an observation to an action.

- `End`: the job has finished. `Leave`: the stack was ended with `turnpoint down`.
- Another incarnation was claimed: `Adopt` it if it lives; `Wait` while its claimant works on it,
  or while its controller is there and silent; `Recover` if neither holds, or Ray is lost to it.
- `Recover` (the whole job is restored): Ray, a Gym server, the controller or an actor of the
  data plane is gone or another instance; the job has failed; the controller stays silent.
- `Restart`: a worker, Temporal or the policy is gone. `Revive`: the generation endpoint's or the
  NemoGym actor is. The job goes on meanwhile.

A Gym server without a `command` that does not answer is only reported (`unanswered`): its owner
starts it again, and another instance is a loss like any other.

Guarantees: losing a process without state never costs a restore; losing one with state always
does (design section 4).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rl.messages import GENERATION, NEMO_GYM, ControllerStatus
from workers.job.cluster_view import ClusterView

RAY = "ray"
SILENT_S = 120.0
"""A controller that stays silent so long is lost. A status takes milliseconds, and up to 10 s on
a machine that swaps; a restore that was not needed costs every rollout its running turn."""
UNREACHABLE_S = 30.0
"""The stack's own Ray, alive and without an answer so long: its GCS is lost."""
UNHEARD_S = 10.0
"""A Gym server without an answer so long is reported. It is asked twice a second, for 2 s each
time: one that only works hard, or is started again at once, is not reported."""
STATELESS_ACTORS = (GENERATION, NEMO_GYM)


@dataclass(frozen=True)
class Observation:
    """The state of a job and its stack at one moment."""

    incarnation: int
    """The one that is supervised."""
    newest: int
    """The newest that is claimed."""
    job: ClusterView | None = None
    """None: there is no look into Ray since the job came to life."""
    gone: frozenset[str] = frozenset()
    """Processes of the stack that should run and do not."""
    owned: frozenset[str] = frozenset()
    """All processes of the stack, by name."""
    gym: frozenset[str] = frozenset()
    """The Gym servers among them, which have state of the job."""
    answering: Mapping[str, str] = field(default_factory=dict)
    """Instance id of each Gym server that answers."""
    unheard_s: Mapping[str, float] = field(default_factory=dict)
    """Since the last answer of each Gym server that the stack does not start."""
    silent_s: float = 0.0
    """Since the controller's last answer."""
    unreachable_s: float = 0.0
    """Since Ray's last answer."""
    stopped: bool = False
    """`turnpoint down` has ended the stack."""
    claim_driven: bool = False
    """The newest incarnation is not the supervised one, and its claimant works on it."""
    recovering: bool = False
    """A recovery is under way: what it has not brought back yet is no news."""

    @property
    def status(self) -> ControllerStatus | None:
        """The controller's last status."""
        return self.job.controller if self.job is not None else None

    @property
    def ray_is_lost(self) -> bool:
        """True if the stack's own Ray is gone, or has not answered for too long."""
        if RAY in self.gone:
            return True
        silent = RAY in self.owned and self.unreachable_s > UNREACHABLE_S
        return silent and not self.recovering


@dataclass(frozen=True)
class Wait:
    """Nothing is to be done now."""


@dataclass(frozen=True)
class End:
    """The job has come to its end."""

    status: ControllerStatus


@dataclass(frozen=True)
class Leave:
    """The job must not be brought back."""

    reason: str


@dataclass(frozen=True)
class Adopt:
    """The job lives under an incarnation that another command has started."""

    incarnation: int


@dataclass(frozen=True)
class Restart:
    """Start processes without state again, under the live job."""

    names: frozenset[str]


@dataclass(frozen=True)
class Revive:
    """Start actors without state again, under the live job."""

    actors: tuple[str, ...]


@dataclass(frozen=True)
class Recover:
    """Restore the whole job."""

    reasons: tuple[str, ...]
    ray_is_lost: bool = False
    """Ray is started again, and the workers with it: their connection is to the old one."""


Action = Wait | End | Leave | Adopt | Restart | Revive | Recover


def decide(seen: Observation) -> Action:
    """The action that an observation asks for."""
    status = seen.status
    if status is not None and status.state == "finished" and status.incarnation >= seen.incarnation:
        return End(status)
    if seen.stopped:
        return Leave("the stack was ended with `turnpoint down`")
    if not seen.recovering and seen.newest > seen.incarnation:
        if status is not None and status.incarnation == seen.newest and status.state == "running":
            return Adopt(seen.newest)
        if seen.ray_is_lost:  # the claimant cannot succeed: all that it has started is gone
            return Recover(tuple(_ray_losses(seen)), ray_is_lost=True)
        if seen.claim_driven or _may_live(seen):
            return _repair(seen)
        return Recover((f"incarnation {seen.newest} was claimed and is not alive",))
    if reasons := tuple(_losses(seen)):
        return Recover(reasons, seen.ray_is_lost)
    return _repair(seen)


def unanswered(seen: Observation) -> frozenset[str]:
    """Silent Gym servers that the stack cannot start: the supervisor can only report them."""
    return frozenset(name for name, unheard_s in seen.unheard_s.items() if unheard_s > UNHEARD_S)


def _losses(seen: Observation) -> Iterator[str]:
    """Everything with state that is lost, a sentence each."""
    yield from _ray_losses(seen)
    for name in sorted(seen.gone & seen.gym):
        yield f"{name} is gone"
    if seen.recovering or seen.job is None or not seen.job.reachable:
        return  # the job in Ray is not known to be lost
    if seen.job.silent:
        if seen.silent_s > SILENT_S:
            yield f"the controller has not answered for {seen.silent_s:.0f} s"
        return
    status = seen.status
    if status is None or status.incarnation != seen.incarnation:
        yield "the controller is gone"
        return
    if status.state != "running":
        yield f"the job is {status.state}" + (f" ({status.reason})" if status.reason else "")
    for name in seen.job.missing:
        yield f"{name} is gone"
    for server in seen.job.servers:
        answers = seen.answering.get(server.name)
        is_gone = server.name in seen.gone
        if not is_gone and answers and server.instance_id and answers != server.instance_id:
            yield f"{server.name} is another instance than the one that joined"


def _ray_losses(seen: Observation) -> Iterator[str]:
    if RAY in seen.gone:
        yield "ray is gone"
    elif seen.ray_is_lost:
        yield f"ray has not answered for {seen.unreachable_s:.0f} s"


def _may_live(seen: Observation) -> bool:
    """True if the newest incarnation may be alive, as far as the observation shows."""
    if seen.job is None or not seen.job.reachable:
        return True
    return seen.job.silent and seen.silent_s <= SILENT_S


def _repair(seen: Observation) -> Action:
    if stateless := seen.gone - seen.gym - {RAY}:
        return Restart(frozenset(stateless))
    if seen.status is None or seen.job is None or seen.recovering:
        return Wait()
    if missing := tuple(name for name in STATELESS_ACTORS if name not in seen.job.actors):
        return Revive(missing)
    return Wait()
