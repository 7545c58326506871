"""Tests of `rl.snapshots`."""
