"""Policies for demo and tests: a script, a tiny model, vLLM's command line."""
