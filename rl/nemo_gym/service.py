"""What the NemoGym actor does, as a plain class on one event loop.

Guarantees: the inventory of a commit or restore is the one that its servers answered for exactly
that id; another id's is refused. A repeat of a phase asks the servers again, which answer the
same. Runs go on while control calls are made, and the other way round.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from gym.protocol import (
    CommitAnswer,
    Kind,
    RestoreAnswer,
    StaleCheckpoint,
    Status,
    WrittenFile,
)
from rl.messages import (
    CommitAnswers,
    Inventory,
    PrepareAnswers,
    ServerReport,
)
from rl.nemo_gym import restore as restore_phases
from rl.nemo_gym import save as save_phases
from rl.nemo_gym.fleet import Answered, Fleet, each, report
from rl.nemo_gym.runs import Runs

_COUNT_S = 5.0
"""For an agent to count its runs in a save, while all stand still."""


class GymDesk:
    """Runs and phases of one incarnation.

    Args:
        fleet: The servers that joined.
    """

    def __init__(self, fleet: Fleet) -> None:
        """Nothing is under way."""
        self._fleet = fleet
        self.runs = Runs(fleet)
        self._prepared: str | None = None
        self._driven: tuple[str, float] | None = None
        """Checkpoint id, and when (monotonic) the last proof that somebody drives it ends."""
        self._committed: tuple[str, Inventory] | None = None
        self._restored: tuple[str, Inventory] | None = None

    async def prepare(self, checkpoint_id: str, budget_s: float, lease_s: float) -> PrepareAnswers:
        """See `save_phases.prepare`; the call proves a driver of the save for `lease_s`."""
        self._driven = (checkpoint_id, time.monotonic() + lease_s)
        answers = await save_phases.prepare(
            self._fleet, checkpoint_id, budget_s, lambda: self._driven_s(checkpoint_id)
        )
        self._prepared = checkpoint_id
        return answers

    async def commit(self, checkpoint_id: str, budget_s: float, folder: Path) -> CommitAnswers:
        """See `save_phases.commit`; keeps what the servers said they hold, for `inventory`."""
        answered = await save_phases.commit(
            self._fleet, checkpoint_id, budget_s, folder, lambda: self._driven_s(checkpoint_id)
        )
        patience_s = min(_COUNT_S, self._driven_s(checkpoint_id))
        inventory = await self._inventory(answered, patience_s)
        self._committed = (checkpoint_id, inventory)
        return CommitAnswers(
            servers=[
                report(item, counts=item.answer.counts, files=item.answer.files)
                for item in answered
            ],
            files=[file for item in answered for file in item.answer.files],
            continuations=sum(len(lines) for lines in inventory.continuations.values()),
        )

    def inventory(self, checkpoint_id: str) -> Inventory:
        """What the servers answered when they committed this checkpoint.

        Raises:
            StaleCheckpoint: This actor has not committed it (or has come back since).
        """
        if self._committed is None or self._committed[0] != checkpoint_id:
            raise StaleCheckpoint("this checkpoint was not committed here")
        return self._committed[1]

    async def confirm_held(self, checkpoint_id: str) -> list[ServerReport]:
        """See `save_phases.confirm_held`."""
        return await save_phases.confirm_held(self._fleet, checkpoint_id)

    async def renew(self, checkpoint_id: str, lease_s: float) -> bool:
        """Extend every server's lease, one try.

        Returns:
            Whether all of them hold this checkpoint; before its prepare has ended, when later
            kinds do not have it yet, whether any does.
        """
        self._driven = (checkpoint_id, time.monotonic() + lease_s)
        held = await save_phases.renew(self._fleet, checkpoint_id, lease_s)
        if self._prepared != checkpoint_id:
            return bool(held)
        return held == {server.name for server in self._fleet.controlled}

    def _driven_s(self, checkpoint_id: str) -> float:
        """Seconds left of the last proof; an actor never extends a lease by itself.

        Raises:
            StaleCheckpoint: None are: the workflow, its workers or Temporal have gone.
        """
        known, until = self._driven or (None, 0.0)
        left_s = until - time.monotonic()
        if known != checkpoint_id or left_s <= 0:
            raise StaleCheckpoint("nobody drives this checkpoint any more")
        return left_s

    async def resume(self, checkpoint_id: str, unreachable_s: float) -> list[ServerReport]:
        """See `save_phases.resume_servers`."""
        return await save_phases.resume_servers(
            self._fleet.client,
            self._fleet.servers,
            self._fleet.incarnation,
            checkpoint_id,
            unreachable_s,
        )

    async def restore(
        self,
        restore_id: str,
        source_checkpoint_id: str,
        folder: Path,
        files: Sequence[WrittenFile],
    ) -> list[ServerReport]:
        """See `restore_phases.restore`; keeps what the servers said they hold."""
        answered = await restore_phases.restore(
            self._fleet, restore_id, source_checkpoint_id, folder, files
        )
        self._restored = (restore_id, await self._inventory(answered, restore_phases.PATIENCE_S))
        return [report(item, counts=item.answer.counts) for item in answered]

    def restored_inventory(self, restore_id: str) -> Inventory:
        """What the servers answered when they restored under this id.

        Raises:
            StaleCheckpoint: Nothing was restored under it here (or the actor has come back).
        """
        if self._restored is None or self._restored[0] != restore_id:
            raise StaleCheckpoint("nothing was restored here under this id")
        return self._restored[1]

    async def discard(self, restore_id: str, rollout_ids: Sequence[str]) -> None:
        """See `restore_phases.discard`."""
        await restore_phases.discard(self._fleet, restore_id, rollout_ids)

    async def resume_restored(self, restore_id: str) -> list[ServerReport]:
        """See `restore_phases.resume_restored`."""
        return await restore_phases.resume_restored(self._fleet, restore_id)

    async def status(self) -> list[Status]:
        """See `save_phases.statuses`."""
        return await save_phases.statuses(self._fleet)

    async def _inventory(
        self,
        answered: Sequence[Answered[CommitAnswer]] | Sequence[Answered[RestoreAnswer]],
        patience_s: float,
    ) -> Inventory:
        """What the servers hold, and how many runs each agent counts.

        Raises:
            ServerUnreachable, StaleInstance: An agent that does not say it. Nothing disagrees by
                that: a restore must not take an older snapshot for it.
        """
        statuses = await each(
            self._fleet.of(Kind.AGENT),
            lambda agent: save_phases.status_of(self._fleet, agent, patience_s),
            patience_s=patience_s,
        )
        counted = {
            item.server.name: item.answer.counts.running + item.answer.counts.parked
            for item in statuses
        }
        return Inventory(
            continuations={
                item.server.name: item.answer.continuations
                for item in answered
                if item.server.kind is Kind.AGENT
            },
            sessions={
                item.server.name: item.answer.sessions
                for item in answered
                if item.server.kind is Kind.RESOURCE
            },
            storage={
                item.server.name: item.answer.storage
                for item in answered
                if item.server.kind is Kind.MODEL
            },
            line_counts=counted,
        )
