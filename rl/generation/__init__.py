"""The generation endpoint: asks vLLM, keeps the tokens in TransferQueue, answers without them.

Begin with `rl.generation.app`.
"""
