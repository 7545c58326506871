"""State of the NemoGym actor, as a plain class on one event loop.

Guarantees: the inventory of a commit or restore is the one that its servers answered for exactly
that id; another id's is refused. A repeat of a phase asks the servers again, which answer the
same. Runs go on while control calls are made, and the other way round.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from gym.protocol import CommitAnswer, Kind, RestoreAnswer, StaleCheckpoint, WrittenFile
from rl.messages import CommitAnswers, Inventory, PrepareAnswers, ServerReport
from rl.nemo_gym import restore as restore_phases
from rl.nemo_gym import save as save_phases
from rl.nemo_gym.fleet import Answered, Fleet, each, report
from rl.nemo_gym.runs import Runs

_COUNT_S = 5.0
"""Longest wait for the agents' counts of runs in a save, while all rollouts are paused."""


class NemoGymService:
    """Runs and phases of one incarnation.

    Args:
        fleet: The servers that joined.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.runs = Runs(fleet)
        self._prepared: str | None = None
        self._lease: tuple[str, float] | None = None
        """Checkpoint id, and the end (monotonic) of the lease that its workflow gave last."""
        self._committed: tuple[str, Inventory] | None = None
        self._restored: tuple[str, Inventory] | None = None

    async def prepare(self, checkpoint_id: str, timeout_s: float, lease_s: float) -> PrepareAnswers:
        """See `rl.nemo_gym.save.prepare`; the call gives the save a lease of `lease_s`."""
        self._lease = (checkpoint_id, time.monotonic() + lease_s)
        answers = await save_phases.prepare(
            self.fleet, checkpoint_id, timeout_s, lambda: self._lease_left_s(checkpoint_id)
        )
        self._prepared = checkpoint_id
        return answers

    async def commit(self, checkpoint_id: str, timeout_s: float, folder: Path) -> CommitAnswers:
        """See `rl.nemo_gym.save.commit`; keeps the servers' answers for `inventory`."""
        answered = await save_phases.commit(
            self.fleet, checkpoint_id, timeout_s, folder, lambda: self._lease_left_s(checkpoint_id)
        )
        count_s = min(_COUNT_S, self._lease_left_s(checkpoint_id))
        inventory = await self._inventory(answered, count_s)
        self._committed = (checkpoint_id, inventory)
        return CommitAnswers(
            servers=[
                report(item, counts=item.answer.counts, files=item.answer.files)
                for item in answered
            ],
            files=[file for item in answered for file in item.answer.files],
            continuations=sum(len(lines) for lines in inventory.continuations.values()),
        )

    async def inventory(self, checkpoint_id: str) -> Inventory:
        """Inventory that the servers answered when they committed this checkpoint.

        Raises:
            StaleCheckpoint: This life of the actor has not committed it.
        """
        if self._committed is None or self._committed[0] != checkpoint_id:
            raise StaleCheckpoint("this checkpoint was not committed here")
        return self._committed[1]

    async def renew(self, checkpoint_id: str, lease_s: float) -> bool:
        """Extend every server's lease, one try.

        Returns:
            True if all of them hold this checkpoint; before its prepare has ended, when later
            kinds do not have it yet, if any of them does.
        """
        self._lease = (checkpoint_id, time.monotonic() + lease_s)
        held = await save_phases.renew(self.fleet, checkpoint_id, lease_s)
        if self._prepared != checkpoint_id:
            return bool(held)
        return held == {server.name for server in self.fleet.controlled}

    async def restore(
        self,
        restore_id: str,
        source_checkpoint_id: str,
        folder: Path,
        files: Sequence[WrittenFile],
    ) -> list[ServerReport]:
        """See `rl.nemo_gym.restore.restore`; keeps the answers for `restored_inventory`."""
        answered = await restore_phases.restore(
            self.fleet, restore_id, source_checkpoint_id, folder, files
        )
        inventory = await self._inventory(answered, restore_phases.ANSWER_S)
        self._restored = (restore_id, inventory)
        return [report(item, counts=item.answer.counts) for item in answered]

    async def restored_inventory(self, restore_id: str) -> Inventory:
        """Inventory that the servers answered when they restored under this id.

        Raises:
            StaleCheckpoint: This life of the actor has restored nothing under it.
        """
        if self._restored is None or self._restored[0] != restore_id:
            raise StaleCheckpoint("nothing was restored here under this id")
        return self._restored[1]

    def _lease_left_s(self, checkpoint_id: str) -> float:
        """Seconds left of the lease that the workflow gave; no actor extends it by itself.

        Raises:
            StaleCheckpoint: It has ended: the workflow, its workers or Temporal are gone.
        """
        known, ends_at = self._lease or (None, 0.0)
        left_s = ends_at - time.monotonic()
        if known != checkpoint_id or left_s <= 0:
            raise StaleCheckpoint("the save's lease has ended: its workflow renews it no more")
        return left_s

    async def _inventory(
        self,
        answered: Sequence[Answered[CommitAnswer]] | Sequence[Answered[RestoreAnswer]],
        timeout_s: float,
    ) -> Inventory:
        """Inventory of the servers, and the number of runs that each agent counts.

        Raises:
            ServerUnreachable, StaleInstance: An agent did not answer. The inventories do not
                disagree by that, so a restore must not go back to an older snapshot for it.
        """
        statuses = await each(
            self.fleet.of(Kind.AGENT),
            lambda agent: self.fleet.status(agent, timeout_s),
            retry_deadline=time.monotonic() + timeout_s,
        )
        held = {item.server.name: (item.server.kind, item.answer) for item in answered}
        return Inventory(
            continuations={
                n: a.continuations for n, (kind, a) in held.items() if kind is Kind.AGENT
            },
            sessions={n: a.sessions for n, (kind, a) in held.items() if kind is Kind.RESOURCE},
            storage={n: a.storage for n, (kind, a) in held.items() if kind is Kind.MODEL},
            line_counts={
                item.server.name: item.answer.counts.running + item.answer.counts.parked
                for item in statuses
            },
        )
