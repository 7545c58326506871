"""Bodies as NeMo Gym and OpenAI-compatible servers write them. No server is in here."""
