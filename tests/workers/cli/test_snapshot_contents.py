"""`turnpoint inspect`: the line of each rollout."""

from __future__ import annotations

from pathlib import Path

import pytest

from gym.protocol import Continuation, DigestMismatch, UnsupportedSchema, WrittenFile
from rl.config import Workload
from rl.records.loader import LoaderPlace
from rl.records.rollout_record import RolloutRecord, Run, RunPhase
from rl.records.snapshot_part import RlRecords, write_records
from rl.snapshots.folder import Reserved
from rl.snapshots.manifest import SnapshotManifest
from tests.rl.folder_cases import manifest_of, topology, write_files
from workers.cli.snapshot_contents import rollouts_in

SHA = "0" * 64
LINES = "gym/simple_agent/continuations.jsonl"


def record(rollout_id: str, state: RunPhase, *, attempt: int = 0) -> RolloutRecord:
    older = [Run(attempt_index=n, incarnation=1, state=RunPhase.SUPERSEDED) for n in range(attempt)]
    done = {"reward": 1.0, "result_digest": SHA} if state is RunPhase.FINISHED else {}
    newest = Run(attempt_index=attempt, incarnation=1, state=state)
    return RolloutRecord(rollout_id=rollout_id, agent="simple_agent", runs=[*older, newest], **done)


def line(rollout_id: str, after: str | None, attempt: int, **revisions: int | None) -> bytes:
    return (
        Continuation(
            rollout_id=rollout_id,
            attempt_index=attempt,
            capture_key=rollout_id,
            last_committed_model_call_id=after,
            resource_state_revisions=revisions,
        )
        .model_dump_json()
        .encode()
    )


async def snapshot(folder: Path, lines: list[bytes]) -> SnapshotManifest:
    records = [
        record("p0_g0", RunPhase.FINISHED),
        record("p1_g0", RunPhase.STARTED, attempt=1),
        record("p2_g0", RunPhase.STARTED),
        record("p3_g0", RunPhase.STARTED),
        record("p4_g0", RunPhase.WAITING),
    ]
    captured = RlRecords(
        records={record.rollout_id: record for record in records},
        groups={},
        place=LoaderPlace(
            workload=Workload(dataset=Path("/rows.jsonl")), place=5, dataset_sha256=SHA
        ),
    )
    (folder / "rl").mkdir()
    files: list[WrittenFile] = [
        *write_files(folder, {LINES: b"\n".join(lines)}),
        *write_records(captured, folder),
    ]
    modes = {"counter": "export_restore", "search": "stateless", "shell": "restart_only"}
    servers = [{"name": name, "mode": mode} for name, mode in modes.items()]
    return manifest_of(Reserved(tmp="t", snapshot="snapshot_000001"), "ck").model_copy(
        update={"files": files, "topology": topology().model_copy(update={"servers": servers})}
    )


async def test_each_rollout_is_told_what_a_restore_does_with_it(tmp_path: Path) -> None:
    lines = [
        line("p1_g0", "call-4", 1, counter=7, search=None),
        line("p2_g0", "call-0", 0, counter=2, shell=None),
        line("p3_g0", None, 0, counter=-1),
    ]
    manifest = await snapshot(tmp_path, lines)
    assert {rollout.rollout_id: rollout.outlook for rollout in rollouts_in(tmp_path, manifest)} == {
        "p0_g0": "stays as it is",
        "p1_g0": "run 2 goes on after call-4",
        "p2_g0": "run 1 starts over (shell)",
        "p3_g0": "run 1 starts over (counter)",
        "p4_g0": "run 1 begins at the start",
    }


async def test_a_file_that_was_changed_is_named_and_nothing_of_it_shown(tmp_path: Path) -> None:
    manifest = await snapshot(tmp_path, [line("p1_g0", "call-4", 1, counter=7)])
    (tmp_path / LINES).write_bytes(line("p1_g0", "call-9", 1, counter=7))
    with pytest.raises(DigestMismatch) as changed:
        rollouts_in(tmp_path, manifest)
    assert changed.value.details == {"file": LINES}


async def test_a_line_that_does_not_parse_names_its_file_and_not_its_content(
    tmp_path: Path,
) -> None:
    manifest = await snapshot(tmp_path, [b'{"rollout_id": "s3cret"}'])
    with pytest.raises(UnsupportedSchema) as refused:
        rollouts_in(tmp_path, manifest)
    assert LINES in str(refused.value) and "s3cret" not in str(refused.value)
