"""Agent servers: they run rollouts turn by turn and park them at turn boundaries.

Begin with `gym.agent.run`: one run, cut at turn boundaries.
"""
