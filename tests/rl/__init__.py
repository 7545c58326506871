"""Tests of the RL side."""
