"""Supervision of a job: observe, decide, act.

Begin with `workers.supervisor.decide`, a pure function.
"""
