"""TransferQueue: rows of model calls and finished rollouts; the actor that saves and loads it.

Begin with `rl.data_plane.rows`, what a row is.
"""
