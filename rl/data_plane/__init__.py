"""TransferQueue: rows of model calls and finished rollouts; the actor that saves and loads it.

Begin with `rl.data_plane.rows`, the content of a row. Importing this package imports neither Ray
nor torch.
"""

from rl.data_plane.training_rows import FinishedRollout, read_training_rows

__all__ = ["FinishedRollout", "read_training_rows"]
