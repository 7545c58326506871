"""A Gym server's place in checkpoints and restores: what all three kinds share (section 6).

The state machine is in `gym.checkpoint.phases`, a save in `gym.checkpoint.save`, a restore in
`gym.checkpoint.restore`; what is saved is the `Part`'s. Used on one event loop.
"""

from __future__ import annotations

from pathlib import Path

from gym.checkpoint.part import Acknowledging, Part
from gym.checkpoint.phases import RESTORABLE, Phases
from gym.checkpoint.restore import Restore
from gym.checkpoint.save import Save
from gym.protocol import (
    AcknowledgeRequest,
    Answer,
    Capabilities,
    ForgetRequest,
    JoinRequest,
    Phase,
    StaleIncarnation,
    Status,
    StatusRequest,
)
from gym.protocol.control import MAX_BLOCKERS


class Participant:
    """One Gym server's place in checkpoints and restores.

    Args:
        phases: The state machine, which the part shares.
        part: The state that is saved and restored.
        root: Checkpoint folders are accepted only below it.
    """

    def __init__(self, phases: Phases, part: Part, root: Path) -> None:
        self.phases = phases
        self.part = part
        self.save = Save(phases, part, root)
        self.restore = Restore(phases, part, root)

    def capabilities(self) -> Capabilities:
        """`GET capabilities`; needs no join."""
        part = self.part
        return Capabilities(**self.phases.who(), kind=part.kind, mode=part.mode, role=part.role)

    def status(self, request: StatusRequest) -> Status:
        """`GET status`; answered before a join too."""
        phases = self.phases
        phases.require_addressed(request, joined=False)
        blockers = self.save.blockers()
        return Status(
            **phases.who(),
            checkpoint_id=phases.owner,
            lease_left_s=phases.lease.left_s,
            counts=self.save.counts(),
            blockers=blockers[:MAX_BLOCKERS],
            blocker_count=len(blockers),
        )

    async def join(self, request: JoinRequest) -> Answer:
        """Become part of a job's incarnation; idempotent per incarnation.

        Raises:
            StaleIncarnation: Another job, an older incarnation, or (from open on) any other.
        """
        phases = self.phases
        phase, known = phases.phase, phases.incarnation
        if known is not None and (
            request.job_id != phases.job_id
            or request.incarnation < known
            or (request.incarnation != known and phase not in RESTORABLE)
        ):
            raise StaleIncarnation(
                "the server has joined another incarnation",
                details={"job_id": phases.job_id, "incarnation": known},
            )
        if request.incarnation != known:
            phases.job_id, phases.incarnation = request.job_id, request.incarnation
            phases.end_operation()
            if phase is Phase.CLOSED:
                phases.open()
        # A repeat waits as well until nothing of the older incarnation is left.
        if phases.operation is not None and phases.operation.ended.is_set():
            await self.restore.dismantle(phases.operation)
        if phases.incarnation != request.incarnation:
            raise StaleIncarnation("a newer incarnation joined meanwhile")
        return Answer(**phases.who())

    def acknowledge(self, request: AcknowledgeRequest) -> Answer:
        """Release a finished result (agents only); a result that is gone counts as released.

        Raises:
            ResultConflict: The result has another digest.
        """
        self.phases.require_addressed(request)
        assert isinstance(self.part, Acknowledging)  # other kinds do not have the route
        self.part.acknowledge(request)
        self.phases.changed()
        return Answer(**self.phases.who())

    def forget(self, request: ForgetRequest) -> Answer:
        """Drop fences and receipts of rollouts that are finished for good."""
        self.phases.require_addressed(request)
        self.part.forget(request.rollout_ids)
        self.phases.changed()
        return Answer(**self.phases.who())

    def shut_down(self) -> None:
        """End what runs under an operation, and the lease's timer: the process ends."""
        self.phases.end_operation()
        self.phases.lease.release()
