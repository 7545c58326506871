"""The Gym servers, the control protocol that they speak, and its client.

Begin with `gym.protocol`, then `gym.checkpoint` (what all kinds share) and the kinds `gym.model`,
`gym.agent` and `gym.resource`. Nothing here imports Ray or Temporal (design section 3, rooms).
"""
