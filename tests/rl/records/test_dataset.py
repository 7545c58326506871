"""The dataset: a row that could not be sent, or has no agent, is refused by file and line."""

import json
from pathlib import Path

import pytest

from rl.errors import DatasetInvalid
from rl.records.dataset import read_dataset
from tests.rl.fakes import dataset


@pytest.mark.parametrize(
    "row",
    [
        "{not json secret",
        "[]",
        '{"secret": 1}',
        '{"responses_create_params": {"input": 3, "secret": 1}}',
        '{"responses_create_params": {"input": "secret"}, "agent_ref": {}}',
        '{"responses_create_params": {"input": "secret"}, "score": NaN}',
        '{"responses_create_params": {"input": "secret"}, "score": -1e999}',
        '{"responses_create_params": {"input": "secret \\ud800"}}',
    ],
)
def test_a_bad_row_is_named_by_file_and_line_and_not_shown(tmp_path: Path, row: str) -> None:
    """Otherwise sending the row would end the job, after each restore again.

    Break: rl/records/dataset.py: accept values that JSON cannot hold.
    """
    path = dataset(tmp_path, 2)
    with path.open("a") as file:
        file.write("\n" + row + "\n")  # the blank line counts as one
    with pytest.raises(DatasetInvalid) as caught:
        read_dataset(path)
    assert f"{path}:4" in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "value",
    ["NaN", "-Infinity", "1e400", '"\\ud800"', "[" * 100_000],
    ids=["nan", "infinity", "a number beyond all", "half a character", "nested"],
)
def test_a_row_that_could_not_be_sent_is_refused_before_the_job_runs(
    tmp_path: Path, value: str
) -> None:
    """Python reads such a row; the job would fail at its first `/run`.

    Break: rl/records/dataset.py: do not try to write the row.
    """
    path = dataset(tmp_path, 1)
    with path.open("a") as file:
        file.write(f'{{"responses_create_params": {{"input": "secret"}}, "more": {value}}}\n')
    with pytest.raises(DatasetInvalid, match=r"rows\.jsonl:2: not JSON") as caught:
        read_dataset(path)
    assert "secret" not in str(caught.value)


def test_a_missing_or_empty_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetInvalid, match="No such file"):
        read_dataset(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(DatasetInvalid, match="no rows"):
        read_dataset(tmp_path / "empty.jsonl")


@pytest.mark.parametrize(
    ("agents", "line", "said"),
    [
        (["only"], 4, "is for the agent 'gone'; this job has: only."),
        (["gone", "other"], 1, "names no agent; this job has: gone, other."),
        ([], 1, "names no agent; this job has: none."),
    ],
)
def test_a_row_for_an_agent_that_is_not_there_is_named_by_file_and_line(
    tmp_path: Path, agents: list[str], line: int, said: str
) -> None:
    """Break: rl/records/dataset.py: give the only agent every row, also one for another agent."""
    path = dataset(tmp_path, 2)
    row = {"responses_create_params": {"input": "secret"}, "agent_ref": {"name": "gone"}}
    with path.open("a") as file:
        file.write("\n" + json.dumps(row) + "\n")  # the blank line counts as one
    rows = read_dataset(path)
    with pytest.raises(DatasetInvalid) as caught:
        rows.require_agents(agents)
    assert f"{path}:{line}: the row {said}" in str(caught.value)
    assert "agent_ref.name" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_the_only_agent_takes_rows_that_name_it_or_none(tmp_path: Path) -> None:
    path = dataset(tmp_path, 2)
    row = {"responses_create_params": {"input": "x"}, "agent_ref": {"name": "only"}}
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")
    read_dataset(path).require_agents(["only"])
