"""The worker, the local stack and the command line (design section 3, rooms)."""
