"""What a supervisor does about what it sees: one pure function, `decide`.

- `End`: the job has finished. `Leave`: the stack was ended with `turnpoint down`.
- Another incarnation was claimed: `Adopt` it if it lives, `Wait` while somebody works on it (and
  while its controller is there and silent), `Recover` if nobody does or Ray is lost to it.
- `Recover` (the whole job is restored): Ray, a Gym server, the controller or an actor of the
  data plane is gone or another instance; the job has failed; the controller stays silent.
- `Restart`: a worker, Temporal or the policy is gone. `Revive`: the generation endpoint's or the
  NemoGym actor is. The job goes on meanwhile.

A Gym server without a `command` that does not answer is told of, once (`unanswered`): whoever
owns it starts it again, and another instance is a loss like any other.

Guarantees: it looks at nothing but its argument. Losing a process without state never costs a
restore; losing one with state always does (design section 4).
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
"""The stack's own Ray, alive and without an answer: its GCS is lost."""
UNHEARD_S = 10.0
"""A Gym server that answers nothing for so long is told of. Asked twice a second, each time for
2 s: one that only works hard, or is started again at once, is not."""
STATELESS_ACTORS = (GENERATION, NEMO_GYM)


@dataclass(frozen=True)
class Observation:
    """One look at everything."""

    incarnation: int
    """The one that is supervised."""
    newest: int
    """The newest that anybody has claimed."""
    job: ClusterView | None = None
    """None: nobody could look (yet)."""
    gone: frozenset[str] = frozenset()
    """Processes of the stack that should run and do not."""
    owned: frozenset[str] = frozenset()
    """All processes of the stack, by name."""
    gym: frozenset[str] = frozenset()
    """Those of them that are Gym servers: they hold the job's state."""
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
    """Somebody works on the newest incarnation, if that is not the supervised one."""
    recovering: bool = False
    """A recovery is under way: what it has not brought back yet is no news."""

    @property
    def status(self) -> ControllerStatus | None:
        """The controller's own word."""
        return self.job.controller if self.job is not None else None


@dataclass(frozen=True)
class Wait:
    """All is as it should be, or somebody works on it."""


@dataclass(frozen=True)
class End:
    """The job has come to its end."""

    status: ControllerStatus


@dataclass(frozen=True)
class Leave:
    """Nobody wants the job to go on."""

    reason: str


@dataclass(frozen=True)
class Adopt:
    """The job lives under an incarnation that somebody else has started."""

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
    """What to do now."""
    status = seen.status
    if status is not None and status.state == "finished" and status.incarnation >= seen.incarnation:
        return End(status)
    if seen.stopped:
        return Leave("the stack was ended with `turnpoint down`")
    if not seen.recovering and seen.newest > seen.incarnation:
        if status is not None and status.incarnation == seen.newest and status.state == "running":
            return Adopt(seen.newest)
        if _ray_is_lost(seen):  # whoever works on it gets nowhere: all it has started is gone
            return Recover(tuple(_ray_losses(seen)), ray_is_lost=True)
        if seen.claim_driven or _may_live(seen):
            return _mended(seen)
        return Recover((f"incarnation {seen.newest} was claimed and is not alive",))
    if reasons := tuple(_losses(seen)):
        return Recover(reasons, _ray_is_lost(seen))
    return _mended(seen)


def unanswered(seen: Observation) -> frozenset[str]:
    """Gym servers that somebody else has to start again; until then nothing can be done."""
    return frozenset(name for name, unheard_s in seen.unheard_s.items() if unheard_s > UNHEARD_S)


def _losses(seen: Observation) -> Iterator[str]:
    """Everything with state that is lost, a sentence each."""
    yield from _ray_losses(seen)
    for name in sorted(seen.gone & seen.gym):
        yield f"{name} is gone"
    if seen.recovering:
        return
    if seen.job is None or not seen.job.reachable:
        return  # what nobody could look at is not lost by that
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
    elif _ray_is_lost(seen):
        yield f"ray has not answered for {seen.unreachable_s:.0f} s"


def _may_live(seen: Observation) -> bool:
    """Whether the newest incarnation may be alive for all that anybody could see."""
    if seen.job is None or not seen.job.reachable:
        return True
    return seen.job.silent and seen.silent_s <= SILENT_S


def _ray_is_lost(seen: Observation) -> bool:
    if RAY in seen.gone:
        return True
    return RAY in seen.owned and seen.unreachable_s > UNREACHABLE_S and not seen.recovering


def _mended(seen: Observation) -> Action:
    if stateless := seen.gone - seen.gym - {RAY}:
        return Restart(frozenset(stateless))
    if seen.status is None or seen.job is None or seen.recovering:
        return Wait()
    if missing := tuple(name for name in STATELESS_ACTORS if name not in seen.job.actors):
        return Revive(missing)
    return Wait()
