"""The agent servers: one run of a rollout, turn by turn."""
