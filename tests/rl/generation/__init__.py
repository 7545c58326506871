"""Tests of `rl.generation`."""
