"""Tests of `rl.records`."""
