"""The NemoGym actor: every call to Gym servers that concerns rollouts."""
