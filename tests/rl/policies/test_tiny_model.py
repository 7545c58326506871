"""The tiny model: made once, the same for the same seed, with a tokenizer that fits it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("transformers")

from rl.policies.tiny_model import make_tiny_model, model_identity


def test_it_is_made_once_and_the_same_seed_gives_the_same_model(tmp_path: Path) -> None:
    identity = make_tiny_model(tmp_path / "a")
    weights = tmp_path / "a" / "model.safetensors"
    made_at = weights.stat().st_mtime_ns
    assert make_tiny_model(tmp_path / "a") == identity
    assert weights.stat().st_mtime_ns == made_at
    assert make_tiny_model(tmp_path / "b") == identity
    assert make_tiny_model(tmp_path / "b", seed=1) != identity
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    assert model_identity(tmp_path / "a") != identity
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_it_replaces_nothing_that_it_did_not_make(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(FileExistsError):
        make_tiny_model(tmp_path / "mine")


def test_the_next_prompt_extends_an_answer_with_a_tool_call(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoTokenizer

    make_tiny_model(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert len(tokenizer) == AutoConfig.from_pretrained(tmp_path / "model").vocab_size
    user = {"role": "user", "content": "grüße"}
    function = {"name": "increment_counter", "arguments": {"count": 3}}
    answer = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "x", "type": "function", "function": function}],
    }
    tool = {"role": "tool", "tool_call_id": "x", "content": "{}"}

    def ids(*messages: object) -> list[int]:
        rendered = tokenizer.apply_chat_template(
            list(messages), add_generation_prompt=True, tokenize=False
        )
        return tokenizer.encode(rendered)

    sampled = tokenizer.encode(
        '<tool_call>{"name": "increment_counter", "arguments": {"count":3}}</tool_call><|im_end|>'
    )
    known = ids(user) + sampled
    assert ids(user, answer, tool)[: len(known)] == known
    assert tokenizer.decode(ids(user), skip_special_tokens=True).count("grüße") == 1
