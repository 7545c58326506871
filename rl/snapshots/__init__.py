"""The job's folder of snapshots and incarnations."""
