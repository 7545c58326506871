"""Tests of `rl.policies`."""
