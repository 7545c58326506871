"""`turnpoint run` before anything is started: what it finds in Ray decides. Looks are given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.workers.test_supervision import sighting, status
from workers import cli, cli_run, job_runs
from workers.cli_output import EXIT_OK, EXIT_REFUSED
from workers.job_sighting import JobSighting


class Began(Exception):
    """The job was begun: the test has seen enough."""


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[JobSighting]:
    """The first look into Ray, to be appended."""
    looks: list[JobSighting] = []

    class Watch:
        def __init__(self, *_: object) -> None:
            pass

        async def __aenter__(self) -> Watch:
            return self

        async def __aexit__(self, *_: object) -> None:
            pass

        async def first(self, _: float) -> JobSighting:
            return looks[0]

    async def begin(*_: Any, **__: Any) -> job_runs.Begun:
        raise Began

    monkeypatch.chdir(tmp_path)
    servers = [{"name": "counter", "kind": "resource", "url": "http://127.0.0.1:1"}]
    monkeypatch.setenv("TURNPOINT_SERVERS", json.dumps(servers))
    monkeypatch.setattr(cli_run, "JobWatch", Watch)
    monkeypatch.setattr(job_runs, "begin", begin)
    return looks


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
