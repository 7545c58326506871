"""A saved run is read back byte for byte."""

from __future__ import annotations

import hashlib
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from gym.agent.state import AgentExport, RunState, Stage, read_states
from gym.checkpoint.folder import CheckpointFolder
from gym.checkpoint.part_files import PartWriter, WriterStopped, read_continuations
from gym.protocol import Counts, DigestMismatch, UnsupportedSchema

ODD: dict[str, Any] = {
    "z": [0.1, 1e-7, 1.0, 12345678901234567890123, True, None],
    "a": {"\u00e9\u2028": "\U0001f600", "lone": "\ud800", "line": "a\nb\r\u0085c"},
    "arguments": '{"b": 1,  "a":2}',
}


def state(rollout_id: str = "p0_g0", **more: Any) -> RunState:
    row = {"responses_create_params": {"input": [ODD], "tools": [ODD]}, "extra": ODD}
    begun = RunState.begin(rollout_id, 1, row)
    return begun.model_copy(update=more)


def written(tmp_path: Path, *states: RunState) -> Path:
    folder = tmp_path / "root" / "tmp_snapshot_000001-c1"
    (folder / "gym").mkdir(parents=True)
    stop = threading.Event()
    writer = PartWriter(CheckpointFolder(tmp_path / "root", str(folder)), "agent", stop)
    AgentExport(list(states), Counts()).write(writer)
    for file in writer.files:
        data = (folder / file.path).read_bytes()
        assert (file.bytes, file.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    return folder / "gym" / "agent"


def test_the_round_trip_changes_nothing_not_even_the_order_of_keys(tmp_path: Path) -> None:
    one = state(
        stage=Stage.LOOP,
        usage={"total_tokens": 3},
        steps=2,
        last_committed_model_call_id="call-1",
        last_committed_capture_key="p0_g0",
        resource_state_revisions={"tools": 3, "other": None},
        resource_cookies={"tools": {"session": "x=="}},
        last_response={"id": "resp", "output": [ODD]},
    )
    folder = written(tmp_path, one, state("p1_g0"))
    lines = read_continuations(folder / "continuations.jsonl")
    read = read_states(folder / "agent_state.jsonl", lines)
    assert read == [one, state("p1_g0")]
    assert json.dumps(read[0].conversation) == json.dumps(one.conversation)
    assert json.dumps(read[0].row) == json.dumps(one.row)
    saved = json.loads((folder / "continuations.jsonl").read_bytes().splitlines()[0])
    assert saved == {
        "schema_version": 1,
        "rollout_id": "p0_g0",
        "attempt_index": 1,
        "capture_key": "p0_g0",
        "last_committed_model_call_id": "call-1",
        "resource_state_revisions": {"tools": 3, "other": None},
    }


def test_a_run_that_has_called_nothing_names_itself(tmp_path: Path) -> None:
    line = state().continuation()
    assert (line.capture_key, line.last_committed_model_call_id) == ("p0_g0-a1", None)
    assert line.resource_state_revisions == {}


def test_files_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    folder = written(tmp_path, state())
    other = state("p1_g0").continuation()
    with pytest.raises(DigestMismatch):
        read_states(folder / "agent_state.jsonl", [other])
    with pytest.raises(DigestMismatch):
        read_states(folder / "agent_state.jsonl", [])


@pytest.mark.parametrize("line", [b"{\n", b"[]\n", b'{"schema_version": 2}\n', b"\xff\n"])
def test_lines_that_do_not_parse_name_the_file(tmp_path: Path, line: bytes) -> None:
    broken = tmp_path / "agent_state.jsonl"
    broken.write_bytes(line)
    with pytest.raises(UnsupportedSchema, match=r"agent_state\.jsonl"):
        read_states(broken, [])


def test_a_frozen_copy_does_not_follow_the_run() -> None:
    live = state(resource_cookies={"tools": {"a": "1"}}, resource_state_revisions={"tools": 1})
    copy = live.frozen()
    live.conversation.append({"new": 1})
    live.resource_cookies["tools"]["a"] = "2"
    live.resource_state_revisions["tools"] = 2
    assert copy == state(
        resource_cookies={"tools": {"a": "1"}}, resource_state_revisions={"tools": 1}
    )


def test_a_stopped_writer_writes_no_state(tmp_path: Path) -> None:
    folder = tmp_path / "root" / "tmp_snapshot_000001-c1"
    (folder / "gym").mkdir(parents=True)
    stop = threading.Event()
    stop.set()
    writer = PartWriter(CheckpointFolder(tmp_path / "root", str(folder)), "agent", stop)
    with pytest.raises(WriterStopped):
        AgentExport([state()], Counts()).write(writer)
    assert writer.files == []
