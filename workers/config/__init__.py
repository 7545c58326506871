"""Configuration, secrets and the list of Gym servers.

Begin with `workers.config.settings`: every key with its default.
"""
