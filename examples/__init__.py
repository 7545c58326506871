"""Small environments, one for each way of taking part, and dataset rows for them.

Begin with `examples.dice` (restarts its rollouts) and `gym.environments.counter` (survives).
"""
