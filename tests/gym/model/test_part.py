"""Calls of a model server under way, and its part of a snapshot."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest

from gym.checkpoint.phases import Phases
from gym.model.generation_client import GenerationEndpoint
from gym.model.ledger import references
from gym.model.ledger_files import index_table, ledger_table
from gym.model.part import ModelPart
from gym.protocol import (
    DigestMismatch,
    LedgerRow,
    Role,
    StorageReference,
    WrittenFile,
)
from tests.gym.ledger_rows import row
from tests.gym.model_server import AUTH, BODY, Server


def read_as_part(folder: Path, rows: list[LedgerRow], index: list[StorageReference]) -> object:
    pq.write_table(ledger_table(rows), folder / "ledger.parquet")
    pq.write_table(index_table(index), folder / "token_storage_index.parquet")
    endpoint = GenerationEndpoint("http://127.0.0.1:1/v1", participant="policy_model")
    files = [
        WrittenFile(path=name, bytes=1, sha256="0" * 64)
        for name in ("ledger.parquet", "token_storage_index.parquet")
    ]
    return ModelPart(Phases("policy_model"), endpoint, Role.POLICY).read(folder, files)


@pytest.mark.parametrize(
    "rows",
    [
        [row(1)],
        [row(0), row(2)],
        [row(1), row(0)],
        [row(0), row(1, attempt=1)],
        [row(0), row(0)],
    ],
)
def test_files_whose_calls_are_no_chain_are_refused(tmp_path: Path, rows: list[LedgerRow]) -> None:
    with pytest.raises(DigestMismatch, match=r"ledger\.parquet"):
        read_as_part(tmp_path, rows, references(rows))


def test_files_that_name_different_calls_are_refused(tmp_path: Path) -> None:
    rows = [row(0), row(1)]
    assert read_as_part(tmp_path, rows, references(rows)) == rows
    with pytest.raises(DigestMismatch, match="token_storage_index"):
        read_as_part(tmp_path, rows, references(rows[:1]))


async def test_the_same_call_again_is_one_call(server: Server) -> None:
    await server.join()
    server.generation.delay_s = 0.1
    together = await asyncio.gather(server.call(), server.call())
    later = await server.call()
    assert together[0].json() == together[1].json() == later.json()
    assert server.generation.generated == ["1/p0_g0/call-0"]
    other = await server.call(body={"input": "something else"})
    assert (other.status_code, other.json()["code"]) == (409, "request_conflict")
    # The second call joined the first, the third was answered from the endpoint's row, and the
    # fourth went nowhere.
    assert len(server.generation.asked) == 2


async def test_a_call_whose_caller_left_still_gets_its_row(server: Server) -> None:
    await server.join()
    await server.generation.hold_from(0)
    left = asyncio.create_task(server.call())
    await server.generation.until_waiting("call-0")
    left.cancel()
    await asyncio.sleep(0)
    await server.generation.hold_from(None)
    assert (await server.prepare()).json()["ready"]
    assert (await server.control("resume", checkpoint_id="c1")).status_code == 200
    assert (await server.call(1)).status_code == 200
    assert server.generation.generated == ["1/p0_g0/call-0", "1/p0_g0/call-1"]


async def test_prepare_waits_for_the_call_under_way(server: Server) -> None:
    await server.join()
    await server.generation.hold_from(0)
    call = asyncio.create_task(server.call())
    await server.generation.until_waiting("call-0")
    early = (await server.prepare(budget_s=0.05)).json()
    assert not early["ready"]
    assert [b["where"] for b in early["blockers"]] == ["model_call"]
    assert early["counts"]["in_flight"] == 1
    await server.generation.hold_from(None)
    assert (await server.prepare()).json()["ready"]
    assert (await call).status_code == 200


async def test_a_newer_run_ends_the_older_ones_call_and_rows(server: Server) -> None:
    await server.join()
    await server.call()
    await server.generation.hold_from(1)
    old = asyncio.create_task(server.call(1))
    await server.generation.until_waiting("call-1")
    assert (await server.call(0, attempt=1)).status_code == 200
    assert (await old).json()["code"] == "stale_attempt"
    await server.generation.hold_from(None)
    assert (await server.call(1)).json()["code"] == "stale_attempt"
    await server.prepare()
    assert (await server.call(1)).json()["code"] == "stale_attempt"
    assert (await server.call(1, attempt=1)).json()["code"] == "checkpoint_parked"
    path = "/training-token-capture/control/rollouts/{}/manifest"
    gone = await server.http.get(path.format("p0_g0"), headers=AUTH)
    assert (gone.status_code, gone.json()["code"]) == (410, "session_lost")
    rows = (await server.http.get(path.format("p0_g0-a1"), headers=AUTH)).json()["records"]
    assert [row["capture_key"] for row in rows] == ["p0_g0-a1"]


async def test_a_commit_without_a_known_call_or_with_a_damaged_index_fails(
    server: Server, tmp_path: Path
) -> None:
    await server.join()
    await server.call()
    await server.prepare()
    folder = tmp_path / "job" / "tmp_snapshot_000001-c1"
    index = folder / "gym" / "simple_agent" / "continuations.jsonl"
    index.parent.mkdir(parents=True)
    line = {
        "schema_version": 1,
        "rollout_id": "p0_g0",
        "attempt_index": 0,
        "capture_key": "p0_g0",
        "last_committed_model_call_id": "call-1",
        "resource_state_revisions": {},
    }
    index.write_text(json.dumps(line) + "\n")

    def reference() -> dict[str, Any]:
        data = index.read_bytes()
        return {
            "path": "gym/simple_agent/continuations.jsonl",
            "bytes": len(data),
            "records": 1,
            "sha256": hashlib.sha256(data).hexdigest(),
        }

    async def commit(file: dict[str, Any]) -> httpx.Response:
        return await server.control(
            "commit",
            checkpoint_id="c1",
            budget_s=5,
            folder=str(folder),
            continuation_indexes=[file],
        )

    unknown = await commit(reference())
    assert (unknown.status_code, unknown.json()["code"]) == (422, "invalid_request")
    assert unknown.json()["details"]["model_call_id"] == "call-1"
    index.write_text(json.dumps(line | {"last_committed_model_call_id": "call-0"}) + "\n")
    good = reference()
    damaged = await commit(good | {"sha256": "0" * 64})
    assert damaged.json()["code"] == "digest_mismatch"
    written = await commit(good)
    assert [file["path"] for file in written.json()["files"]] == [
        "gym/policy_model/ledger.parquet",
        "gym/policy_model/token_storage_index.parquet",
    ]
    assert written.json()["storage"] == [
        {"rollout_id": "p0_g0", "model_call_id": "call-0", "key": "1/p0_g0/call-0"}
    ]


async def test_an_auxiliary_server_never_closes_and_keeps_nothing(tmp_path: Path) -> None:
    judge = Server(tmp_path, role=Role.AUXILIARY)
    await judge.join()
    assert (await judge.prepare()).json()["ready"]
    assert (await judge.http.post("/v1/responses", json=BODY)).status_code == 200
    assert (await judge.call()).json()["code"] == "identity_mismatch"
    folder = tmp_path / "job" / "tmp_snapshot_000001-c1"
    (folder / "gym").mkdir(parents=True)
    answer = await judge.control("commit", checkpoint_id="c1", budget_s=5, folder=str(folder))
    assert answer.json()["files"] == []
    await judge.http.aclose()
