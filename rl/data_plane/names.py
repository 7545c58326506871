"""Names of TransferQueue's actors and of the partitions that a job keeps in it.

Imports nothing: a process that only names them does not wait seconds for torch.
"""

from __future__ import annotations

STAGING = "rollout_staging"
"""Partition of the model calls of rollouts, by staging key."""
TRAINING = "rollout_data"
"""Partition of the finished rollouts, by rollout id."""
PARTICIPANT = "TransferQueue"
CONTROLLER_ACTOR = "TransferQueueController"
CONTROLLER_NAMESPACE = "transfer_queue"
STORAGE_ACTOR = "TransferQueueStorageUnit#{}"
"""Names of its storage actors, in Turnpoint's own namespace."""
