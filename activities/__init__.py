"""Temporal activities: one class for each collaborator, thin.

`activities.contract` is what workflows import; the classes are for the worker.
"""
