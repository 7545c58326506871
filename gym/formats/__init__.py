"""Bodies as NeMo Gym and OpenAI-compatible servers write them."""
