"""Behaviour of the RL side that spans modules, named by behaviour."""
