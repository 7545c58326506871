"""The supervisor's log: a line for each event, and the counts of the summary."""

from __future__ import annotations

import json
from pathlib import Path

from tests.workers.supervisor.given import FINISHED, LOST, Given, in_turn
from workers.config.settings import Settings
from workers.errors import ProcessFailed
from workers.supervisor.event_log import EventLog


async def test_the_log_has_one_json_line_for_each_thing_told(
    given: Given, settings: Settings
) -> None:
    await given.run(in_turn(given, iter([LOST, FINISHED])))
    log = (settings.state_dir / "logs" / "supervisor.log").read_text().splitlines()
    lines = [json.loads(line) for line in log]
    assert [line["message"] for line in lines] == given.told
    assert lines[0]["event"] == "lost"
    assert lines[0]["reasons"] == ["counter is gone"]


def test_restores_and_restarts_are_counted_and_failed_tries_give_no_reason(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "logs", lambda _: None)
    log.add("restored", reasons=["counter is gone"], snapshot="snapshot_000001")
    log.add("started_over", reasons=["ray is gone"])
    log.add("restarted", reasons=["worker_1 is gone"], processes=["worker_1"])
    log.add("failed_try", reasons=["process_failed"])
    log.add("unanswered", reasons=["judge"])
    assert (log.restores, log.restarts) == (2, 1)
    assert log.reasons == ["counter is gone", "ray is gone", "worker_1 is gone"]


def test_a_failed_try_shows_the_first_line_of_its_error(tmp_path: Path) -> None:
    lines: list[str] = []
    log = EventLog(tmp_path / "logs", lines.append)
    log.write_failed_try(ProcessFailed("ray has ended.\nits log"), "; again in 2 s")
    assert lines == ["process_failed: ray has ended.; again in 2 s"]
