"""Tests of `rl.data_plane`."""
