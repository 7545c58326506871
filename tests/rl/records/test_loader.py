"""The loader: every prompt once, from any place."""

import json
from pathlib import Path

import pytest

from gym.protocol import UnsupportedSchema
from rl.config import Workload
from rl.errors import SnapshotDamaged, TopologyMismatch
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
