"""`turnpoint run` before anything is started: what it finds in Ray decides. Looks are given."""

from __future__ import annotations

import json

import pytest

from tests.workers.conftest import Began
from tests.workers.test_supervision import sighting, status
from workers import cli
from workers.cli_output import EXIT_OK, EXIT_REFUSED
from workers.job_sighting import JobSighting


@pytest.mark.parametrize("words", [[], ["--detach"]])
def test_a_job_that_has_finished_is_left_as_it_is_and_said_to_have(
    look: list[JobSighting], capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """Break: take it for none, and its rows are lost to a start from the beginning."""
    look.append(sighting(status("finished", incarnation=2, finished=10)))
    assert cli.run(["run", "--json", *words]) == EXIT_OK
    summary = json.loads(capsys.readouterr().out)
    assert (summary["state"], summary["code"]) == ("finished", "job_finished")
    assert (summary["incarnation"], summary["finished"]) == (2, 10)
    assert "nothing was started" in summary["reason"] and "--fresh" in summary["reason"]


def test_a_person_is_told_in_a_sentence(
    look: list[JobSighting], capsys: pytest.CaptureFixture[str]
) -> None:
    look.append(sighting(status("finished", incarnation=2, finished=10)))
    assert cli.run(["run"]) == EXIT_OK
    assert "it has finished already, as incarnation 2" in capsys.readouterr().out


def test_fresh_starts_a_finished_job_over(look: list[JobSighting]) -> None:
    look.append(sighting(status("finished")))
    with pytest.raises(Began):
        cli.run(["run", "--fresh"])


def test_a_job_that_runs_is_refused(
    look: list[JobSighting], capsys: pytest.CaptureFixture[str]
) -> None:
    look.append(sighting(status()))
    assert cli.run(["run", "--json", "--fresh"]) == EXIT_REFUSED
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "refused"


@pytest.mark.parametrize("words", [[], ["--fresh"]])
def test_the_cluster_of_another_job_is_refused(
    look: list[JobSighting], capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    look.append(JobSighting(at=1.0, reachable=True, other_job="theirs"))
    assert cli.run(["run", "--json", *words]) == EXIT_REFUSED
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "other_job" and "'theirs'" in error["message"]
