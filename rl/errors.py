"""Every error that the RL side raises, as one tree (below `gym.protocol.TurnpointError`).

TurnpointError
├── JobError                   the job as a whole
│   ├── OtherJob               other_job: this worker or cluster serves another job
│   ├── JobAlive               job_alive: a live job is in the way
│   ├── Superseded             superseded: a newer incarnation exists
│   ├── ControllerLost         controller_lost: the controller of this incarnation is gone
│   ├── DataPlaneLost          data_plane_lost: TransferQueue is gone or its state unknown
│   ├── DataPlaneBusy          data_plane_busy: a save of TransferQueue has not returned
│   ├── ActorLost              actor_lost: an actor of the job is not there or died
│   ├── RayUnreachable         ray_unreachable: no Ray cluster answers
│   ├── PortTaken              port_taken: the generation endpoint's port is in use
│   ├── DatasetInvalid         dataset_invalid: `file:line` of the row that does not parse
│   ├── RestoreNotFinished     restore_not_finished: the newest incarnation has no line yet
│   ├── OriginConflict         origin_conflict: an incarnation names two origins
│   └── IncarnationDamaged     incarnation_damaged: a record of who lived does not parse
├── FleetError                 the Gym servers as a whole
│   ├── ServersMissing         servers_missing: not there within the wait, each named
│   ├── ServersNotAwaiting     servers_not_awaiting: there, and not started for a restore
│   ├── ServerUnfit            server_unfit: it is there, and not what the job needs
│   └── NotHeld                not_held: a participant no longer has this checkpoint
├── FolderError                the snapshot folder
│   ├── NotFound               not_found: no snapshot of that name
│   ├── NoSnapshot             no_snapshot: the line has none that is usable
│   ├── SnapshotDamaged        snapshot_damaged: the damaged file is named
│   ├── PublishRefused         publish_refused: the folder is not what its writers answered
│   └── Unpublished            unpublished: compensation or sweep won the rename
└── StateError                 saved state that does not fit
    ├── TopologyMismatch       topology_mismatch: the entries that differ, old and new
    ├── InventoryMismatch      inventory_mismatch: ledger and servers disagree
    └── ChainBroken            chain_broken: a model call that the ledger does not know

Guarantees: as for `TurnpointError`: pickled whole, stable codes, no conversation, token or
credential in a message or its details.
"""

from __future__ import annotations

from gym.protocol import TurnpointError


class JobError(TurnpointError):
    """The job as a whole cannot go on this way."""

    code = "job_error"
    status = 409


class OtherJob(JobError):
    """The request names another job than the one served here."""

    code = "other_job"


class JobAlive(JobError):
    """A live job is in the way; a restore needs `--replace` or its end."""

    code = "job_alive"


class Superseded(JobError):
    """A newer incarnation exists: calls of the older one have no effect any more."""

    code = "superseded"


class ControllerLost(JobError):
    """The controller of this incarnation is gone: the answer is a restore of the job."""

    code = "controller_lost"


class DataPlaneLost(JobError):
    """TransferQueue is gone, or what took effect in it is unknown: restore the job."""

    code = "data_plane_lost"


class DataPlaneBusy(JobError):
    """TransferQueue's save of an ended checkpoint has not returned yet."""

    code = "data_plane_busy"
    retryable = True


class RayUnreachable(JobError):
    """No Ray cluster answers."""

    code = "ray_unreachable"
    status = 503
    retryable = True


class PortTaken(JobError):
    """Another process listens on the generation endpoint's port."""

    code = "port_taken"


class ActorLost(JobError):
    """An actor of the job is not there, or died over a call; the actor is the participant."""

    code = "actor_lost"
    status = 503


class DatasetInvalid(JobError):
    """A dataset row does not parse, or is for an agent that is not there.

    The message names `file:line` and that agent, never the row's content.
    """

    code = "dataset_invalid"
    status = 422


class RestoreNotFinished(JobError):
    """The newest incarnation has not named its origin: the current line is not known yet."""

    code = "restore_not_finished"


class OriginConflict(JobError):
    """An incarnation can name one origin only, and has named another one before."""

    code = "origin_conflict"


class IncarnationDamaged(JobError):
    """A record below `incarnations/` does not parse; `details["file"]` names it."""

    code = "incarnation_damaged"


class FleetError(TurnpointError):
    """The Gym servers as a whole are not what the job needs."""

    code = "fleet_error"
    status = 409


class ServersMissing(FleetError):
    """Servers that did not answer within the wait; `details["servers"]` names them all."""

    code = "servers_missing"
    status = 503


class ServersNotAwaiting(FleetError):
    """Servers that still are what the old job left; `details["servers"]` says which and how."""

    code = "servers_not_awaiting"


class ServerUnfit(FleetError):
    """A server that answers is of another name, kind, role, schema or process count."""

    code = "server_unfit"


class NotHeld(FleetError):
    """A participant no longer has this checkpoint: the cut may not be published."""

    code = "not_held"


class FolderError(TurnpointError):
    """The snapshot folder refuses."""

    code = "folder_error"
    status = 409


class NotFound(FolderError):
    """There is no snapshot of that name."""

    code = "not_found"
    status = 404


class NoSnapshot(FolderError):
    """The job's current line has no snapshot that is usable."""

    code = "no_snapshot"
    status = 404


class SnapshotDamaged(FolderError):
    """A file is missing, too much, another one or forged; `details["file"]` names it."""

    code = "snapshot_damaged"


class PublishRefused(FolderError):
    """The unpublished folder is not what its writers answered; `details["file"]` names why."""

    code = "publish_refused"


class Unpublished(FolderError):
    """The unpublished folder is gone: compensation or a sweep has won the rename."""

    code = "unpublished"


class StateError(TurnpointError):
    """Saved state that does not fit what is there."""

    code = "state_error"
    status = 409


class TopologyMismatch(StateError):
    """Snapshot and fleet differ; `details["differences"]` lists entry, old and new."""

    code = "topology_mismatch"


class InventoryMismatch(StateError):
    """The recovery ledger and what the servers hold disagree."""

    code = "inventory_mismatch"


class ChainBroken(StateError):
    """The chain of model calls that ended a rollout cannot be followed in the ledger."""

    code = "chain_broken"
