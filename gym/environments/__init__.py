"""Environments that Turnpoint brings along: a counter, and games of the package `gymnasium`.

Begin with `gym.environments.counter`, a whole environment in one file.
"""
