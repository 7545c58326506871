"""The NemoGym actor: makes every call to Gym servers that concerns rollouts.

Begin with `rl.nemo_gym.save` and `rl.nemo_gym.restore`: the phases, kind by kind.
"""
