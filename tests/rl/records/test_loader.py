"""The loader: every prompt once, whatever place it goes on from."""

import json
from pathlib import Path

import pytest

from gym.protocol import UnsupportedSchema
from rl.errors import DatasetInvalid, SnapshotDamaged, TopologyMismatch
from rl.messages import Workload
from rl.records.loader import Loader, LoaderPlace
from tests.rl.fakes import dataset


def _all(loader: Loader) -> list[str]:
    found = []
    while (prompt := loader.next()) is not None:
        found.append(prompt.rollout_id)
    return found


def _workload(path: Path, **changes: object) -> Workload:
    return Workload.model_validate({"dataset": path, "generations": 2, "epochs": 2, **changes})


def test_prompts_come_in_order_over_epochs(tmp_path: Path) -> None:
    loader = Loader.open(_workload(dataset(tmp_path, 2)))
    assert _all(loader) == [f"p{k}_g{j}" for k in range(4) for j in range(2)]
    assert loader.total == 8
    assert loader.next() is None
    assert [loader.prompt(f"p{k}_g1").row["n"] for k in range(4)] == [0, 1, 0, 1]
    assert loader.group("p3_g0") == ("p3", ["p3_g0", "p3_g1"])


@pytest.mark.parametrize("place", range(9))
def test_no_prompt_is_skipped_or_repeated_from_any_place(tmp_path: Path, place: int) -> None:
    workload = _workload(dataset(tmp_path, 2))
    first = Loader.open(workload)
    before = [first.next().rollout_id for _ in range(place)]  # type: ignore[union-attr]
    saved = LoaderPlace.decode(first.place.encode())
    again = Loader.resume(saved)
    assert again.given() == before
    assert before + _all(again) == _all(Loader.open(workload))


def test_a_changed_dataset_is_refused(tmp_path: Path) -> None:
    path = dataset(tmp_path)
    saved = Loader.open(_workload(path)).place
    path.write_text(path.read_text().replace("prompt 1", "prompt 9"))
    with pytest.raises(TopologyMismatch) as caught:
        Loader.resume(saved)
    assert "dataset_sha256" in caught.value.details["differences"][0]


def test_a_place_beyond_the_end_is_refused(tmp_path: Path) -> None:
    saved = Loader.open(_workload(dataset(tmp_path))).place.model_copy(update={"place": 9})
    with pytest.raises(SnapshotDamaged):
        Loader.resume(saved)


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
    """Break: rl/records/loader.py: take what no JSON body can hold.

    Sending it ends the job, each time.
    """
    path = dataset(tmp_path, 2)
    with path.open("a") as file:
        file.write("\n" + row + "\n")  # the blank line counts as one
    with pytest.raises(DatasetInvalid) as caught:
        Loader.open(_workload(path))
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
    """Python reads it. Break: rl/records/loader.py: leave the row to its first `/run`.

    The job fails.
    """
    path = dataset(tmp_path, 1)
    with path.open("a") as file:
        file.write(f'{{"responses_create_params": {{"input": "secret"}}, "more": {value}}}\n')
    with pytest.raises(DatasetInvalid, match=r"rows\.jsonl:2: not JSON") as caught:
        Loader.open(_workload(path))
    assert "secret" not in str(caught.value)


def test_a_missing_or_empty_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetInvalid, match="No such file"):
        Loader.open(_workload(tmp_path / "none.jsonl"))
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(DatasetInvalid, match="no rows"):
        Loader.open(_workload(tmp_path / "empty.jsonl"))


def test_the_file_is_read_strictly(tmp_path: Path) -> None:
    place = json.loads(Loader.open(_workload(dataset(tmp_path))).place.encode())
    with pytest.raises(UnsupportedSchema):
        LoaderPlace.decode(json.dumps({**place, "schema_version": 2}).encode())
    for damaged in (b"", b"[]", json.dumps({**place, "more": 1}).encode()):
        with pytest.raises(SnapshotDamaged) as caught:
            LoaderPlace.decode(damaged)
        assert caught.value.details["file"] == "rl/loader.json"
    del place["place"]
    with pytest.raises(SnapshotDamaged, match="place"):
        LoaderPlace.decode(json.dumps(place).encode())


def test_unknown_rollouts_have_no_prompt(tmp_path: Path) -> None:
    loader = Loader.open(_workload(dataset(tmp_path)))
    for unknown in ("p4_g0", "p0_g2", "p00_g0"):
        with pytest.raises(KeyError):
            loader.prompt(unknown)


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
    """Break: let the only agent have every row, whomever it names."""
    path = dataset(tmp_path, 2)
    row = {"responses_create_params": {"input": "secret"}, "agent_ref": {"name": "gone"}}
    with path.open("a") as file:
        file.write("\n" + json.dumps(row) + "\n")  # the blank line counts as one
    loader = Loader.open(_workload(path))
    with pytest.raises(DatasetInvalid) as caught:
        loader.demand_agents(agents)
    assert f"{path}:{line}: the row {said}" in str(caught.value)
    assert "agent_ref.name" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_the_only_agent_takes_rows_that_name_it_or_nobody(tmp_path: Path) -> None:
    path = dataset(tmp_path, 2)
    row = {"responses_create_params": {"input": "x"}, "agent_ref": {"name": "only"}}
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")
    Loader.open(_workload(path)).demand_agents(["only"])
