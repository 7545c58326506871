"""Tests of `rl.controller`."""
