"""The worker process, the local stack, the supervisor and the command line.

Begin with `workers.worker`, which runs workflows and activities, and `workers.cli`, the command
`turnpoint` (design section 3, rooms).
"""
