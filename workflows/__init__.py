"""The three workflows: deterministic, without I/O.

Begin with `workflows.save_snapshot` and `workflows.restore_snapshot`; they read like the tables of
the design (sections 4 and 5).
"""

from workflows.prune_snapshots import PruneSnapshots
from workflows.restore_snapshot import RestoreSnapshot
from workflows.save_snapshot import SaveSnapshot

WORKFLOWS = [SaveSnapshot, RestoreSnapshot, PruneSnapshots]

__all__ = ["WORKFLOWS", "PruneSnapshots", "RestoreSnapshot", "SaveSnapshot"]
