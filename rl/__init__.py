"""The RL side: Ray actors, ledger, barrier, data plane and the snapshot folder.

Importing this package imports neither Ray nor torch; the modules that need them do.
"""
