"""The Single Controller: rollouts, saves and restores of one job."""
