"""The rollouts in a snapshot, for a person who decides whether to restore it.

Guarantees: every file is checked against the manifest before it is shown; no conversation and no
token is read.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from gym.protocol import UNCERTAIN_REVISION, Continuation, Mode, UnsupportedSchema
from rl.records.rollout_record import RunPhase
from rl.records.snapshot_part import read_records
from rl.snapshots.check import verified_bytes
from rl.snapshots.manifest import SnapshotManifest

_CONTINUATIONS = "/continuations.jsonl"


class RolloutInSnapshot(BaseModel):
    """One rollout of a snapshot."""

    model_config = ConfigDict(frozen=True)

    rollout_id: str
    attempt_index: int
    """The run at the save; a restore gives an unfinished rollout the next."""
    state: RunPhase
    last_committed_model_call_id: str | None
    """The call after which it goes on; None: it has finished, or has called nothing yet."""
    resource_state_revisions: dict[str, int | None]
    """Of each resource server it has called; -1: uncertain, it starts over."""
    reward: float | None
    starts_over: str | None
    """The server that makes it start over, as far as the snapshot's own files say."""

    @property
    def outlook(self) -> str:
        """The effect of a restore of this snapshot on it, in a few words."""
        if self.state in (RunPhase.FINISHED, RunPhase.FAILED):
            return "stays as it is"
        run = f"run {self.attempt_index + 1}"
        if self.starts_over is not None:
            return f"{run} starts over ({self.starts_over})"
        if self.last_committed_model_call_id is None:
            return f"{run} begins at the start"
        return f"{run} goes on after {self.last_committed_model_call_id}"


def rollouts_in(folder: Path, manifest: SnapshotManifest) -> list[RolloutInSnapshot]:
    """Every rollout that the snapshot knows, by id.

    Args:
        folder: The snapshot's folder.
        manifest: Its manifest.

    Raises:
        DigestMismatch: A file is missing, or is not the file of the manifest; it is named.
        SnapshotDamaged, UnsupportedSchema: It is that file, and does not parse.
    """
    lines = {
        line.rollout_id: line
        for file in manifest.files
        if file.path.endswith(_CONTINUATIONS)
        for line in _lines(file.path, verified_bytes(folder, file.path, file))
    }
    kept = {
        server["name"]
        for server in manifest.topology.servers
        if server["mode"] in (Mode.EXPORT_RESTORE, Mode.STATELESS)
    }
    rollouts = []
    for rollout_id, record in sorted(read_records(folder, manifest.files).records.items()):
        line = lines.get(rollout_id)
        revisions = line.resource_state_revisions if line else {}
        rollouts.append(
            RolloutInSnapshot(
                rollout_id=rollout_id,
                attempt_index=record.run.attempt_index,
                state=record.run.state,
                last_committed_model_call_id=line and line.last_committed_model_call_id,
                resource_state_revisions=revisions,
                reward=record.reward,
                starts_over=next(
                    (
                        name
                        for name, revision in sorted(revisions.items())
                        if name not in kept or revision == UNCERTAIN_REVISION
                    ),
                    None,
                ),
            )
        )
    return rollouts


def _lines(path: str, data: bytes) -> list[Continuation]:
    try:
        return [Continuation.model_validate_json(line) for line in data.splitlines()]
    except ValidationError:
        raise UnsupportedSchema(f"{path} holds a line that does not parse") from None
