"""Supervision of a job: observe, decide, act."""
