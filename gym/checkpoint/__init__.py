"""The state machine of a Gym server's checkpoints, the same for all three kinds of servers."""
