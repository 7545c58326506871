"""A Gym server's side of saves and restores, the same for all three kinds.

Begin with `gym.checkpoint.phases`, the state machine; then `gym.checkpoint.save` and
`gym.checkpoint.restore`. `gym.checkpoint.part` is what each kind adds.
"""
