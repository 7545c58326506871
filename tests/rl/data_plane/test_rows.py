"""Rows and their digests; the training row of a chain of calls."""

from __future__ import annotations

import dataclasses
from array import array
from typing import Any

import pytest

from rl.data_plane.rows import StagingRow, TrainingRow, assemble


def row(prompt: list[int], generated: list[int], **more: Any) -> StagingRow:
    given: dict[str, Any] = {
        "response": b"{}",
        "request_sha256": "0" * 64,
        "weight_version": "v1",
        "log_probs": [-0.5] * len(generated),
    }
    return StagingRow(prompt_ids=prompt, generation_ids=generated, **(given | more))


def test_a_prompt_that_extends_the_row_adds_only_its_new_part() -> None:
    chain = [row([1, 2], [3]), row([1, 2, 3, 4], [5, 6]), row([1, 2, 3, 4, 5, 6], [7])]
    assert assemble(chain, 1.0, b"{}") == TrainingRow(
        token_ids=[1, 2, 3, 4, 5, 6, 7],
        token_mask=[0, 0, 1, 0, 1, 1, 1],
        log_probs=[0.0, 0.0, -0.5, 0.0, -0.5, -0.5, -0.5],
        reward=1.0,
        result=b"{}",
    )


def test_any_other_prompt_is_added_whole() -> None:
    made = assemble([row([1, 2], [3]), row([1, 9], [4])], 0.0, b"{}")
    assert made.token_ids == [1, 2, 3, 1, 9, 4]
    assert made.token_mask == [0, 0, 1, 0, 0, 1]
    # A prompt that is shorter than what is there extends nothing, even if it is its beginning.
    assert assemble([row([1, 2], [3]), row([1], [4])], 0.0, b"{}").token_ids == [1, 2, 3, 1, 4]


def test_a_failed_rollout_is_an_empty_row_without_a_reward() -> None:
    made = assemble([], None, b"null")
    assert (made.token_ids, made.token_mask, made.log_probs, made.reward) == ([], [], [], None)


@pytest.mark.parametrize(
    "change",
    [
        {"prompt_ids": [1, 3]},
        {"generation_ids": [4]},
        {"log_probs": [-0.25]},
        {"response": b"{ }"},
        {"request_sha256": "1" * 64},
        {"weight_version": "v2"},
        {"parent_key": "1/p0_g0/call-0"},
    ],
)
def test_the_digest_covers_every_field(change: dict[str, Any]) -> None:
    base = row([1, 2], [3])
    changed = dataclasses.replace(base, **change)
    assert changed.coordinates("k").sha256 != base.coordinates("k").sha256


def test_the_digest_covers_where_a_field_ends() -> None:
    half = array("f", [-0.5]).tobytes()
    one = row([1, 2], [3], response=half + b"{}")
    other = row([1], [2, 3], response=b"{}")
    assert one.coordinates("k").sha256 != other.coordinates("k").sha256


def test_the_digest_covers_the_key() -> None:
    assert row([1], [2]).coordinates("a").sha256 != row([1], [2]).coordinates("b").sha256
    made = assemble([row([1], [2])], 1.0, b"{}")
    assert made.digest("a") != made.digest("b")
    assert made.digest("a") != dataclasses.replace(made, reward=None).digest("a")


def test_log_probs_are_what_float32_keeps() -> None:
    made = row([1], [2], log_probs=[-0.1])
    assert made.log_probs != [-0.1]
    assert dataclasses.replace(made) == made


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match="1 generated tokens"):
        row([1], [2], log_probs=[])
    with pytest.raises(ValueError, match="differ in length"):
        TrainingRow([1], [0], [], 0.0, b"")
