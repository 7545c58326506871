"""Every module has a test file at the mirrored path, or a reason why not."""

from __future__ import annotations

from pathlib import Path

from tests.mirrors import WITHOUT_A_TEST, not_mirrored

ROOT = Path(__file__).parents[1]


def test_every_module_has_a_test_of_its_name_or_a_reason() -> None:
    assert not_mirrored(ROOT, WITHOUT_A_TEST) == []


def test_a_module_without_a_test_and_entries_without_a_purpose_are_named(tmp_path: Path) -> None:
    for file in (
        "gym/__init__.py",
        "gym/lease.py",
        "gym/protocol/control.py",
        "rl/job.py",
        "workers/worker.py",
        "tests/gym/test_lease.py",
        "tests/rl/test_other.py",
    ):
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    reasons = {"gym.lease": "said twice", "gym.gone": "old", "workers.worker": " "}
    assert sorted(not_mirrored(tmp_path, reasons)) == [
        "gym.gone does not exist: remove it from tests/mirrors.py",
        "gym.lease has a test: remove it from tests/mirrors.py",
        "gym.protocol.control has no tests/gym/protocol/test_control.py and no reason in "
        "tests/mirrors.py",
        "rl.job has no tests/rl/test_job.py and no reason in tests/mirrors.py",
        "workers.worker needs a reason",
    ]
