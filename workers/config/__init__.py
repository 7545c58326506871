"""Configuration, secrets and the list of Gym servers."""
