"""Tests of `rl.nemo_gym`."""
