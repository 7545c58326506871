"""A job as commands see it: its workflows, its status, its actors in Ray.

Begin with `workers.job.commands`: start, save, restore.
"""
