"""`stack.json` is read as it was written; a damaged one is named."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from workers.errors import NotRunning, SettingsError
from workers.stack.record import RunningProcess, StackRecord, read_record, write_record

RECORD = StackRecord(
    stack_id="s",
    settings={"job_id": "demo"},
    ports={"ray": 1},
    ray_folder=Path("/r"),
    expect_restore=False,
    ray_address=None,
    temporal_ui=None,
)


def process(name: str = "ray", pid: int | None = None, shift_s: float = 0) -> RunningProcess:
    me = psutil.Process()
    return RunningProcess(
        name=name,
        pid=me.pid if pid is None else pid,
        create_time=me.create_time() + shift_s,
        log=Path("/log"),
        url=None,
    )


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_record(tmp_path) is None
    record = RECORD.with_(process()).with_(process("temporal"))
    write_record(tmp_path, record)
    assert read_record(tmp_path) == record
    assert [path.name for path in tmp_path.iterdir()] == ["stack.json"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"stack_id": "s"}', '{"processes": 1}'])
def test_a_damaged_record_is_named_with_the_next_step(tmp_path: Path, content: str) -> None:
    (tmp_path / "stack.json").write_text(content)
    with pytest.raises(SettingsError, match=r"stack\.json cannot be read .*`turnpoint up`"):
        read_record(tmp_path)


def test_a_process_replaces_the_earlier_one_of_its_name() -> None:
    record = RECORD.with_(process("ray", 1)).with_(process("temporal", 2)).with_(process("ray", 3))
    assert record.process("ray").pid == 3
    with pytest.raises(NotRunning, match="no process 'policy'; it has: temporal, ray"):
        record.process("policy")


def test_a_pid_that_another_process_has_by_now_is_not_alive() -> None:
    """Break: workers/stack/record.py: compare the pid alone."""
    assert process().lives
    assert not process(shift_s=-60).lives
    assert not process(pid=2**22 + 1).lives
