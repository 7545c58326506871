"""The generation endpoint between the policy model server and vLLM."""
