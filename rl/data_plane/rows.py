"""Rows in TransferQueue: one staging row per model call, one training row per rollout.

Guarantees: a row's digest covers every field and the key it is stored under, so that a damaged
row, or another row under the same key, is found when it is read. Log-probabilities are rounded
to float32 when a row is made (it is what they are sampled in), so a row equals itself after any
number of saves. `assemble` is a pure function.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from gym.protocol import StagingCoordinates, canonical_json


def _float32(values: Sequence[float]) -> list[float]:
    return array("f", values).tolist()


def _row_digest(key: str, scalars: dict[str, object], parts: Sequence[bytes]) -> str:
    digest = hashlib.sha256(canonical_json({"key": key, **scalars}))
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class StagingRow:
    """One answered model call: its tokens, and the response as it was answered (section 3)."""

    prompt_ids: list[int]
    generation_ids: list[int]
    log_probs: list[float]
    """Of the generated tokens, as sampled."""
    response: bytes
    """JSON of the answer, without tokens and coordinates."""
    request_sha256: str
    weight_version: str
    parent_key: str | None = None
    """Staging key of the call before, perhaps of an older run or incarnation."""

    def __post_init__(self) -> None:
        """Round to float32 and check the lengths.

        Raises:
            ValueError: Log-probabilities and generated tokens are not of equal number.
        """
        object.__setattr__(self, "log_probs", _float32(self.log_probs))
        if len(self.log_probs) != len(self.generation_ids):
            raise ValueError(
                f"{len(self.generation_ids)} generated tokens have "
                f"{len(self.log_probs)} log-probabilities"
            )

    def coordinates(self, key: str) -> StagingCoordinates:
        """The answer in place of the tokens; its sha256 covers the whole row and its key."""
        scalars: dict[str, object] = {
            "request_sha256": self.request_sha256,
            "weight_version": self.weight_version,
            "parent_key": self.parent_key,
        }
        parts = (
            array("i", self.prompt_ids).tobytes(),
            array("i", self.generation_ids).tobytes(),
            array("f", self.log_probs).tobytes(),
            self.response,
        )
        return StagingCoordinates(
            key=key,
            prompt_length=len(self.prompt_ids),
            generation_length=len(self.generation_ids),
            sha256=_row_digest(key, scalars, parts),
            weight_version=self.weight_version,
            parent_key=self.parent_key,
        )


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """One finished rollout, as the trainer reads it; key `<rollout_id>` (section 7)."""

    token_ids: list[int]
    token_mask: list[int]
    """1 for tokens the policy generated, 0 for all others."""
    log_probs: list[float]
    """0.0 where the mask is 0."""
    reward: float | None
    """Null for a rollout that finished as failed."""
    result: bytes
    """Canonical JSON of the verify answer."""

    def __post_init__(self) -> None:
        """Round to float32 and check the lengths.

        Raises:
            ValueError: Ids, mask and log-probabilities are not of equal number.
        """
        object.__setattr__(self, "log_probs", _float32(self.log_probs))
        if not len(self.token_ids) == len(self.token_mask) == len(self.log_probs):
            raise ValueError("token ids, mask and log-probabilities differ in length")

    def digest(self, key: str) -> str:
        """sha256 (hex) over the whole row and its key."""
        parts = (
            array("i", self.token_ids).tobytes(),
            bytes(self.token_mask),
            array("f", self.log_probs).tobytes(),
            self.result,
        )
        return _row_digest(key, {"reward": self.reward}, parts)


def assemble(chain: Sequence[StagingRow], reward: float | None, result: bytes) -> TrainingRow:
    """One training row of a rollout's chain of model calls.

    A call whose prompt extends what is there (the usual case: the conversation so far, then the
    tool results) adds only its new part; any other prompt (a compacted conversation) is added
    whole. Prompt tokens have mask 0, generated ones 1.

    Args:
        chain: The rollout's calls, oldest first; empty for a rollout that failed before one.
        reward: Of the verify answer; None for a failed rollout.
        result: Canonical JSON of the verify answer.
    """
    token_ids: list[int] = []
    token_mask: list[int] = []
    log_probs: list[float] = []
    for row in chain:
        known = len(token_ids) if row.prompt_ids[: len(token_ids)] == token_ids else 0
        new = row.prompt_ids[known:]
        token_ids += new + row.generation_ids
        token_mask += [0] * len(new) + [1] * len(row.generation_ids)
        log_probs += [0.0] * len(new) + row.log_probs
    return TrainingRow(token_ids, token_mask, log_probs, reward, result)
