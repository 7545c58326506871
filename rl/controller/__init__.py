"""The Single Controller: sends rollouts, takes results over, agrees to saves, restores its records.

Begin with `rl.controller.controller`; a save is in `rl.controller.save`, a restore in
`rl.controller.restore`.
"""
