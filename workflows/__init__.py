"""The three workflows: deterministic, without I/O, readable as the design's tables."""

from workflows.prune_snapshots import PruneSnapshots
from workflows.restore_snapshot import RestoreSnapshot
from workflows.save_snapshot import SaveSnapshot

WORKFLOWS = [SaveSnapshot, RestoreSnapshot, PruneSnapshots]

__all__ = ["WORKFLOWS", "PruneSnapshots", "RestoreSnapshot", "SaveSnapshot"]
