"""Bodies as NeMo Gym and OpenAI-compatible servers write them; no server is in here."""
