"""`turnpoint run` before anything is started: what it finds in Ray decides. Looks are given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rl.snapshots import incarnations
from tests.workers.cli.conftest import Began
from tests.workers.observations import cluster_view, status
from workers.cli import app as cli
from workers.cli.output import EXIT_OK, EXIT_REFUSED
from workers.job import commands as job_runs
from workers.job.cluster_view import ClusterView


@pytest.mark.parametrize("words", [[], ["--detach"]])
def test_a_job_that_has_finished_is_left_as_it_is_and_said_to_have(
    look: list[ClusterView], capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """Break: take it for none, and its rows are lost to a start from the beginning."""
    look.append(cluster_view(status("finished", incarnation=2, finished=10)))
    assert cli.run(["run", "--json", *words]) == EXIT_OK
    summary = json.loads(capsys.readouterr().out)
    assert (summary["state"], summary["code"]) == ("finished", "job_finished")
    assert (summary["incarnation"], summary["finished"]) == (2, 10)
    assert "nothing was started" in summary["reason"] and "--fresh" in summary["reason"]


def test_a_person_is_told_in_a_sentence(
    look: list[ClusterView], capsys: pytest.CaptureFixture[str]
) -> None:
    look.append(cluster_view(status("finished", incarnation=2, finished=10)))
    assert cli.run(["run"]) == EXIT_OK
    assert "it has finished already, as incarnation 2" in capsys.readouterr().out


def test_fresh_starts_a_finished_job_over(look: list[ClusterView]) -> None:
    look.append(cluster_view(status("finished")))
    with pytest.raises(Began):
        cli.run(["run", "--fresh"])


def test_a_job_that_runs_is_refused(
    look: list[ClusterView], capsys: pytest.CaptureFixture[str]
) -> None:
    look.append(cluster_view(status()))
    assert cli.run(["run", "--json", "--fresh"]) == EXIT_REFUSED
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "refused"


@pytest.mark.parametrize(("owner", "refused"), [({}, False), ({"workflow_id": "w"}, True)])
def test_a_start_that_died_before_it_was_through_is_no_job_that_runs(
    look: list[ClusterView],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    owner: dict[str, str],
    refused: bool,
) -> None:
    """Without a snapshot no restore could take it back. One by a workflow goes on by itself.

    Break: workers/cli/supervised_run.py: go by whether the job is over.
    """
    job_folder = tmp_path / ".turnpoint" / "snapshots" / "demo"
    for life in (1, 2):
        incarnations.claim(job_folder, {"run_id": f"run-{life}", **owner})
    look.append(cluster_view(status("starting", incarnation=2)))
    if not refused:
        with pytest.raises(Began):
            cli.run(["run", "--detach"])
        return
    assert cli.run(["run", "--json", "--detach"]) == EXIT_REFUSED
    assert "as incarnation 2" in json.loads(capsys.readouterr().out)["error"]["message"]


@pytest.mark.parametrize("as_json", [False, True])
def test_run_detach_warns_that_the_job_is_not_supervised(
    look: list[ClusterView],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    as_json: bool,
) -> None:
    """Break: workers/cli/supervised_run.py: print the JSON to everybody."""

    async def begin(*_: Any, **__: Any) -> job_runs.Begun:
        return job_runs.Begun(incarnation=3, restored=None)

    monkeypatch.setattr(job_runs, "begin", begin)
    look.append(cluster_view(None))
    assert cli.run(["run", "--detach", *(["--json"] if as_json else [])]) == EXIT_OK
    told = capsys.readouterr().out
    if as_json:
        assert json.loads(told) == {"incarnation": 3, "restored": None}
    else:
        assert "not brought back" in told and "turnpoint status --follow" in told


@pytest.mark.parametrize("words", [[], ["--fresh"]])
def test_the_cluster_of_another_job_is_refused(
    look: list[ClusterView], capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    look.append(ClusterView(at=1.0, reachable=True, other_job="theirs"))
    assert cli.run(["run", "--json", *words]) == EXIT_REFUSED
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "other_job" and "'theirs'" in error["message"]
