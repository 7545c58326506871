"""The local stack: every process that a job needs on one machine.

Begin with `workers.stack.stack`: start and stop all of them.
"""
