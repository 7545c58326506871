"""Temporal activities: thin calls to the controller, Gym servers, the disk and the job's actors.

Begin with `activities.contract`: every request and result, which is all that workflows import.
`activities.driving` keeps heartbeats and leases alive while an activity runs.
"""
