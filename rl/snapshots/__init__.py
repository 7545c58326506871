"""The job's folder on disk: snapshots, manifests and incarnations.

Begin with `rl.snapshots.folder`: reserve, publish, discard, verify, prune.
"""
