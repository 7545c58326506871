"""TransferQueue as Turnpoint uses it: rows in and out by key, on the caller's event loop.

Guarantees: a put returns only when the controller shows the row as readable (TransferQueue
itself only logs a lost ready-notification); a get answers what is there under the right digest
and leaves out keys that are missing, half written or just cleared; no call blocks the loop it
is awaited on, and calls may come from several loops (TransferQueue's sockets are per loop).

Does not guarantee consistency of a save: the barrier keeps clears and overwrites out
(`rl.controller.barrier`). Values are bytes and jagged tensors of one row, because TransferQueue
pickles a row of a dense batch together with the whole batch (reference, size trap).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import time
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

# Read at import. Rows are small, and with its default of 8 it warns at each put on fewer cores.
os.environ.setdefault("TQ_NUM_THREADS", "1")

import ray
import torch
import transfer_queue as tq
from tensordict import NonTensorStack, TensorDict
from transfer_queue.storage.simple_storage import StorageKeyNotFoundError

from gym.protocol import DigestMismatch, canonical_json
from rl.data_plane.names import (
    CONTROLLER_ACTOR,
    CONTROLLER_NAMESPACE,
    PARTICIPANT,
    STAGING,
    TRAINING,
)
from rl.data_plane.rows import StagingRow, TrainingRow
from rl.errors import DataPlaneLost

_STAGING_FIELDS = ("head", "prompt_ids", "generation_ids", "log_probs", "response")
_TRAINING_FIELDS = ("head", "token_ids", "token_mask", "log_probs", "reward", "result")
_PUT_TRIES = 3
_ATTACH_POLL_S = 0.1


class DataPlane:
    """A process's access to TransferQueue. Made by `attach`; nothing to close.

    An attached process must not close TransferQueue: that would end it for all processes.
    """

    @classmethod
    async def attach(cls, timeout_s: float = 60.0) -> DataPlane:
        """Attach this Ray process to the job's TransferQueue.

        Args:
            timeout_s: Seconds to wait for its controller to appear.

        Raises:
            DataPlaneLost: There is none. (`tq.init` would start one, owned by this process.)
        """
        await asyncio.to_thread(_attach, timeout_s)
        return cls()

    async def put_staging(self, key: str, row: StagingRow) -> None:
        """Store one model call; readable when it returns. The same key again overwrites.

        Raises:
            DataPlaneLost: It never became readable.
        """
        head = {
            "key": key,
            "request_sha256": row.request_sha256,
            "weight_version": row.weight_version,
            "parent_key": row.parent_key,
            "sha256": row.coordinates(key).sha256,
        }
        values = {
            "head": canonical_json(head),
            "prompt_ids": array("i", row.prompt_ids).tobytes(),
            "generation_ids": array("i", row.generation_ids).tobytes(),
            "log_probs": array("f", row.log_probs).tobytes(),
            "response": row.response,
        }
        fields = {name: NonTensorStack(value) for name, value in values.items()}
        await self._put(STAGING, key, fields, {})

    async def get_staging(self, keys: Iterable[str]) -> dict[str, StagingRow]:
        """Rows by key; missing ones are absent.

        Raises:
            DigestMismatch: A row is not the one that was stored; its key is named.
        """
        return {
            key: _staging_row(key, values)
            for key, values in (await self._get(STAGING, keys, _STAGING_FIELDS)).items()
        }

    async def put_training(self, rollout_id: str, row: TrainingRow, tag: dict[str, Any]) -> None:
        """Store one finished rollout with its tag (small JSON values); readable on return.

        The trainer finds tensors: `token_ids` and `token_mask` (int32), `log_probs` (float32),
        jagged, and `reward` (float64, NaN for a failed rollout).

        Raises:
            DataPlaneLost: It never became readable.
        """
        head = {"key": rollout_id, "sha256": row.digest(rollout_id)}
        reward = math.nan if row.reward is None else row.reward
        fields = {
            "head": NonTensorStack(canonical_json(head)),
            "token_ids": _jagged(row.token_ids, torch.int32),
            "token_mask": _jagged(row.token_mask, torch.int32),
            "log_probs": _jagged(row.log_probs, torch.float32),
            "reward": torch.tensor([reward], dtype=torch.float64),
            "result": NonTensorStack(row.result),
        }
        await self._put(TRAINING, rollout_id, fields, tag)

    async def get_training(
        self, rollout_ids: Iterable[str]
    ) -> dict[str, tuple[TrainingRow, dict[str, Any]]]:
        """Rows and tags by rollout; missing ones are absent.

        Raises:
            DigestMismatch: A row is not the one that was stored; its rollout is named.
        """
        rows = await self._get(TRAINING, rollout_ids, _TRAINING_FIELDS)
        if not rows:
            return {}
        tags = await self.tags(TRAINING)
        return {
            rollout_id: (_training_row(rollout_id, values), tags[rollout_id])
            for rollout_id, values in rows.items()
            if rollout_id in tags
        }

    async def keys(self, partition: str) -> set[str]:
        """Every key the controller knows, half-written ones included."""
        return set(await self.tags(partition))

    async def tags(self, partition: str) -> dict[str, dict[str, Any]]:
        """Tags by key; an unknown partition has none."""
        listed = await tq.async_kv_list(partition_id=partition)
        return {key: dict(tag) for key, tag in listed.get(partition, {}).items()}

    async def clear(self, partition: str, keys: Iterable[str]) -> None:
        """Remove rows; unknown keys are no error.

        Raises:
            DataPlaneLost: A key is still there (its storage did not answer).
        """
        gone = sorted(set(keys) & await self.keys(partition))
        if not gone:
            return
        await tq.async_kv_clear(keys=gone, partition_id=partition)
        if left := set(gone) & await self.keys(partition):
            raise DataPlaneLost(
                f"{len(left)} rows of {partition} were not cleared", participant=PARTICIPANT
            )

    async def reset_claims(self, partition: str) -> None:
        """Forget all claims of readers (after a restore); an empty partition has none."""
        if await self.keys(partition):
            await tq.get_client().async_reset_consumption(partition)

    async def _put(
        self, partition: str, key: str, fields: dict[str, Any], tag: dict[str, Any]
    ) -> None:
        for _ in range(_PUT_TRIES):
            await tq.async_kv_batch_put(
                keys=[key],
                partition_id=partition,
                fields=TensorDict(fields, batch_size=[1]),
                tags=[tag],
            )
            # TransferQueue's put succeeds even if its controller never heard of the data.
            meta = await self._meta(partition, [key])
            if set(fields) <= set(meta.field_names):
                return
        raise DataPlaneLost(
            f"a row of {partition} did not become readable in {_PUT_TRIES} tries",
            participant=PARTICIPANT,
        )

    async def _get(
        self, partition: str, keys: Iterable[str], fields: Sequence[str]
    ) -> dict[str, dict[str, Any]]:
        wanted = list(dict.fromkeys(keys))
        if not wanted:
            return {}
        # The list spares TransferQueue's controller a warning for each key that is not there.
        known = await self.keys(partition)
        present = [key for key in wanted if key in known]
        if not present:
            return {}
        rows = await self._fetch(partition, present, fields)
        if rows is not None:
            return dict(zip(present, rows, strict=True))
        # One unreadable row makes the whole batch unreadable: ask for each.
        found = {key: await self._fetch(partition, [key], fields) for key in present}
        return {key: single[0] for key, single in found.items() if single}

    async def _fetch(
        self, partition: str, keys: list[str], fields: Sequence[str]
    ) -> list[dict[str, Any]] | None:
        """The rows of `keys` in their order, or None if one of them is not readable."""
        meta = await self._meta(partition, keys)
        if meta.size != len(keys) or not set(fields) <= set(meta.field_names):
            return None
        with contextlib.suppress(StorageKeyNotFoundError):  # cleared since the line above
            data = await tq.get_client().async_get_data(meta.select_fields(list(fields)))
            columns = {name: _column(data[name]) for name in fields}
            return [{name: columns[name][i] for name in fields} for i in range(meta.size)]
        return None

    @staticmethod
    async def _meta(partition: str, keys: list[str]) -> Any:
        return await tq.get_client().async_kv_retrieve_meta(keys=keys, partition_id=partition)


def _attach(timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            ray.get_actor(CONTROLLER_ACTOR, namespace=CONTROLLER_NAMESPACE)
        except ValueError:
            if time.monotonic() > deadline:
                raise DataPlaneLost(
                    f"no TransferQueue in this cluster after {timeout_s:g} s: no job runs here; "
                    "`turnpoint run` starts one",
                    participant=PARTICIPANT,
                ) from None
            time.sleep(_ATTACH_POLL_S)  # Ray announces no names
        else:
            tq.init()
            return


def _jagged(values: Sequence[float], dtype: torch.dtype) -> torch.Tensor:
    return torch.nested.as_nested_tensor([torch.tensor(values, dtype=dtype)], layout=torch.jagged)


def _column(values: Any) -> list[Any]:
    if isinstance(values, torch.Tensor):
        return [value.tolist() for value in values.unbind()]
    return list(values.tolist())


def _array(code: str, data: bytes) -> list[Any]:
    values = array(code)
    values.frombytes(data)
    return values.tolist()


def _staging_row(key: str, values: dict[str, Any]) -> StagingRow:
    head = json.loads(values["head"])  # the digest tells if it is another key's
    row = StagingRow(
        prompt_ids=_array("i", values["prompt_ids"]),
        generation_ids=_array("i", values["generation_ids"]),
        log_probs=_array("f", values["log_probs"]),
        response=values["response"],
        request_sha256=head["request_sha256"],
        weight_version=head["weight_version"],
        parent_key=head["parent_key"],
    )
    _compare(STAGING, key, row.coordinates(key).sha256, head["sha256"])
    return row


def _training_row(key: str, values: dict[str, Any]) -> TrainingRow:
    reward = values["reward"]
    row = TrainingRow(
        token_ids=values["token_ids"],
        token_mask=values["token_mask"],
        log_probs=values["log_probs"],
        reward=None if math.isnan(reward) else reward,
        result=values["result"],
    )
    _compare(TRAINING, key, row.digest(key), json.loads(values["head"])["sha256"])
    return row


def _compare(partition: str, key: str, found: str, expected: str) -> None:
    if found != expected:
        raise DigestMismatch(
            f"a row of {partition} is not the one that was stored",
            participant=PARTICIPANT,
            details={"key": key},
        )
