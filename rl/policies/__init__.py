"""Policies for the demo and the tests: a script, a tiny model, and how vLLM is started."""
