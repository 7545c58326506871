"""Records that RL keeps of a job and writes into its snapshots."""
