"""Makes the tiny policy model of demo and tests on this machine: no hub, no download.

`python -m rl.policies.tiny_model DIR [--seed N]` writes a Qwen3-shaped model with random weights
and a byte-level tokenizer whose chat template renders tools (Hermes style), and prints its
identity: one sha256 over names and contents of all files. Guarantees: the folder appears complete
(a rename) or not at all; the same seed gives the same weights; a folder made by the same recipe and
seed is kept as it is.

Does not guarantee sensible answers: valid tool calls come from `tool_choice: "required"` and
`"strict": true` functions, which make vLLM sample under a grammar. The weights are random but
for a built-in leaning towards ending: without it a grammar lets random weights string digits and
calls together until the answer is cut off (seen in the third turn).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import uuid
from pathlib import Path
from typing import Any

RECIPE = 1
"""Raised whenever the same seed gives other files."""
MARKER = "turnpoint_model.json"
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""`<tool_call>` is none of them: as a token of its own it could be spelled two ways, and the next
prompt would not extend the answer that spelled it in bytes."""
MAX_POSITIONS = 32_768
LEANINGS = {"<|im_end|>": 5.0, "}": 3.0, "Ġ": -14.0, "ĉ": -14.0, "č": -14.0, "Ċ": -14.0}
"""Added to the logit of a token (about; the hidden state's norm varies a little): mostly one
call an answer, numbers of about two digits, and no whitespace where JSON leaves a choice, so
that the next prompt extends this answer token for token."""

CHAT_TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\\nTools:\\n' }}
{%- for tool in tools %}{{- tool | tojson }}{{- '\\n' }}{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}{{- message.content }}
{%- elif message.content %}
{%- for part in message.content %}{{- part.text }}{%- endfor %}
{%- endif %}
{%- if message.tool_calls %}
{%- for call in message.tool_calls %}
{{- '<tool_call>{"name": "' + call.function.name + '", "arguments": ' }}
{%- if call.function.arguments is string %}{{- call.function.arguments }}
{%- else %}{{- call.function.arguments | tojson(separators=(',', ':')) }}{%- endif %}
{{- '}</tool_call>' }}
{%- endfor %}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""


def make_tiny_model(folder: Path, seed: int = 0) -> str:
    """Make the model, unless the same recipe and seed made it before.

    Args:
        folder: Where it goes; created. A folder of another recipe or seed is replaced, one
            that holds anything else is refused.
        seed: Seed of the weights.

    Returns:
        Its identity (sha256, hex).

    Raises:
        FileExistsError: The folder holds something that this module did not make.
    """
    if folder.exists():
        marker = folder / MARKER
        if not marker.is_file():
            raise FileExistsError(f"{folder} is there and is no model of this recipe")
        made = json.loads(marker.read_text())
        if (made["recipe"], made["seed"]) == (RECIPE, seed):
            return model_identity(folder)
        shutil.rmtree(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    trial = folder.parent / f".{folder.name}-{uuid.uuid4().hex}"
    trial.mkdir()
    try:
        tokenizer = _tokenizer()
        tokenizer.save_pretrained(trial)
        _model(len(tokenizer), seed, tokenizer).save_pretrained(trial)
        (trial / MARKER).write_text(json.dumps({"recipe": RECIPE, "seed": seed}))
        trial.rename(folder)
    except BaseException:
        shutil.rmtree(trial)
        raise
    return model_identity(folder)


def model_identity(folder: Path) -> str:
    """One sha256 over names and contents of all files of a model folder."""
    digest = hashlib.sha256()
    for path in sorted(item for item in folder.rglob("*") if item.is_file()):
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"{path.relative_to(folder).as_posix()}\0{content}\n".encode())
    return digest.hexdigest()


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bare = Tokenizer(
        models.BPE(vocab={symbol: index for index, symbol in enumerate(alphabet)}, merges=[])
    )
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bare.decoder = decoders.ByteLevel()
    bare.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bare,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def _model(vocabulary: int, seed: int, tokenizer: Any) -> Any:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            # Exactly the tokenizer's size: padded ids would be sampled and decode to nothing.
            vocab_size=vocabulary,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            head_dim=32,
            max_position_embeddings=MAX_POSITIONS,
            tie_word_embeddings=False,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    ).float()
    _lean(model, {tokenizer.convert_tokens_to_ids(token): by for token, by in LEANINGS.items()})
    return model


def _lean(model: Any, leanings: dict[int, float]) -> None:
    """Make hidden dimension 0 a constant that no layer writes, and read logit biases off it."""
    import torch

    with torch.no_grad():
        model.model.embed_tokens.weight[:, 0] = 1.0
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight[0] = 0.0
            layer.mlp.down_proj.weight[0] = 0.0
        model.lm_head.weight[:, 0] = 0.0
        # After the last norm the constant is about sqrt(hidden size): it outweighs the rest.
        constant = model.config.hidden_size**0.5
        for token, by in leanings.items():
            model.lm_head.weight[token, 0] = by / constant


def main() -> None:
    """Command line: make the model and print its identity."""
    parser = argparse.ArgumentParser(
        prog="python -m rl.policies.tiny_model", description=main.__doc__
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    print(make_tiny_model(arguments.folder, arguments.seed))


if __name__ == "__main__":
    main()
