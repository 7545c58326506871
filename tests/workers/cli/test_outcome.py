"""Output and exit code of `run` and `status --follow` after rollouts that failed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rl.messages import ControllerStatus
from tests.workers.observations import cluster_view, status
from workers.cli import app as cli
from workers.cli import stack as cli_stack
from workers.cli.output import EXIT_FAILED, EXIT_OK
from workers.job.cluster_view import ClusterView

SOME = {"finished": 2, "failed": 8, "failures": {"server_unreachable": 7, "agent_failed": 1}}
ALL = {"finished": 0, "failed": 10, "failures": {"server_unreachable": 10}}
NONE = {"finished": 10, "failed": 0}
CASES = pytest.mark.parametrize(
    ("counts", "code"), [(NONE, EXIT_OK), (SOME, EXIT_OK), (ALL, EXIT_FAILED)]
)


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> None:
    servers = [{"name": "my_agent", "kind": "agent", "url": "http://127.0.0.1:3"}]
    monkeypatch.setenv("TURNPOINT_SERVERS", json.dumps(servers))


def _demand(body: dict[str, Any], counts: dict[str, Any]) -> None:
    assert (body["failed"], body["failures"]) == (counts["failed"], counts.get("failures", {}))
    told = "look at `turnpoint logs my_agent`" if counts["failed"] else None
    assert body.get("next") == told


def _demand_told(sentence: str, counts: dict[str, Any]) -> None:
    assert f"{counts['failed']} failed" in sentence
    for code, count in counts.get("failures", {}).items():
        assert f"{code}: {count}" in sentence
    assert ("`turnpoint logs my_agent`" in sentence) == bool(counts["failed"])


@CASES
def test_run_tells_the_failures_and_is_1_when_all_failed(
    look: list[ClusterView],
    servers: None,
    capsys: pytest.CaptureFixture[str],
    counts: dict[str, Any],
    code: int,
) -> None:
    """Break: answer 0 whenever the job has come to its end."""
    look.append(cluster_view(status("finished", **counts)))
    for words in (["run"], ["run", "--detach"]):
        assert cli.run([*words, "--json"]) == code
        _demand(json.loads(capsys.readouterr().out), counts)
        assert cli.run(words) == code
        _demand_told(" ".join(capsys.readouterr().out.split()), counts)


@CASES
def test_status_follow_tells_the_failures_and_is_1_when_all_failed(
    monkeypatch: pytest.MonkeyPatch,
    servers: None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    counts: dict[str, Any],
    code: int,
) -> None:
    async def end(*_: object) -> ControllerStatus:
        return status("finished", **counts)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli_stack, "follow_to_the_end", end)
    assert cli.run(["status", "--follow", "--json"]) == code
    _demand(json.loads(capsys.readouterr().out), counts)
    assert cli.run(["status", "--follow"]) == code
    _demand_told(" ".join(capsys.readouterr().out.split()), counts)


def test_a_status_from_before_the_codes_were_counted_still_parses() -> None:
    old = status("finished").model_dump(mode="json")
    del old["failures"]
    assert ControllerStatus.model_validate(old).failures == {}
