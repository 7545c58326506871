"""The local stack: every process that a job needs on one machine."""
