"""The policy model server."""
