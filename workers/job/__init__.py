"""A job as commands see it: its workflows, its state, its actors in Ray."""
