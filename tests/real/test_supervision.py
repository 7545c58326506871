"""`turnpoint run` keeps a job alive; `restore --replace` takes a live one back (issue 3).

Real parts with the scripted policy, one stack and two jobs. Its Gym servers are named as in
`turnpoint.toml`, each with its command, and are four. The first job loses a worker, the policy and
the actors without state, then every kind of process with state, and runs to its end. The second is
terminated with too little time for a save, brought back by `run`, replaced by hand, and loses the
whole machine twice: every process of the stack, Temporal and Ray included, while `turnpoint run`
survives (as on a node of its own), and then with it. `docker/turnpoint.service` brings it back
from that, and terminates it with time enough.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psutil
import pytest
from temporalio.client import WorkflowExecutionStatus

from rl.snapshots import incarnations
from tests.real.live import AGENT, JOB, MODEL, RESOURCE, TEMPORAL, Live, environment, wait_for
from tests.real.supervised import (
    DICE,
    SERVERS,
    URLS,
    as_systemd,
    command,
    started,
    unit_of_systemd,
)
from workers.stack.processes import end, names_left

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
ROLLOUTS = 5
TURNS = 50
OPTIONS = {
    "policy": {"delay-s": "0.3", "turns": str(TURNS), "turns-spread": "4"},
    AGENT: {"max-steps": "60"},
}
OTHER = "other"


@dataclass(frozen=True)
class First:
    """Observations of the job that lost processes one by one."""

    code: int
    summary: dict[str, Any]
    followed: tuple[int, Any]
    incarnation_before_the_losses: int
    generation_pids: tuple[int, int]
    rows: dict[str, dict[str, Any]]
    again: tuple[int, Any]
    incarnation_after_again: int


@dataclass(frozen=True)
class Short:
    """Observations of a supervision with too little time for a last save."""

    code: int
    summary: dict[str, Any]
    refused: dict[str, Any]
    newest_before: str
    newest_after: str


@dataclass(frozen=True)
class Second:
    """Observations of the job that was replaced, lost as a whole, and terminated."""

    code: int
    events: list[dict[str, Any]]
    """The supervisors' log, in order."""
    replaced: dict[str, Any]
    workflows: dict[str, WorkflowExecutionStatus | None]
    newest_when_all_was_lost: str
    restored_by_unit: str | None
    newest_before_sigterm: str
    newest: str
    left: set[str]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("supervision")
    stack = Live(folder, OPTIONS, port_base=29_650, servers=SERVERS)
    try:
        stack.up()
        yield stack
    finally:
        stack.down()


@pytest.fixture(scope="module")
def first(live: Live) -> First:
    with command(live, "run", "--generations", "1", "--fresh") as run:
        goes_on(live, 6)
        with command(live, "status", "--follow") as following:
            live.cli("save")
            live.stack.kill("worker_1")
            live.stack.kill("policy")
            runs_again(live, "policy")  # a worker takes longer; the test does not wait for it
            (policy,) = live.pids("policy")
            with stopped(policy):  # else the job comes to its end meanwhile
                live.end_actors("NemoGym")  # Ray does not start it again
                generation = live.actor("GenerationServer")
                generation.kill()  # Ray does
            runs_again(live, "NemoGym")
            pids = (generation.pid, live.actor("GenerationServer").pid)
            goes_on(live, 2)
            before = newest(live)
            kill_at_once(live, DICE, MODEL, AGENT)
            logged(live, "alive", 1)
            goes_on(live, 2)
            live.actor("SingleController").kill()
            logged(live, "alive", 2)
            goes_on(live, 2)
            live.actor("SimpleStorageUnit").kill()
            logged(live, "alive", 3)
            goes_on(live, 2)
            live.actor("DataPlaneHost").kill()
            code, summary = run.end()
            followed = following.end(60)
    with command(live, "run", "--generations", "1") as again:
        ended = again.end()
    return First(code, summary, followed, before, pids, live.rows(), ended, newest(live))


@pytest.fixture(scope="module")
def short(live: Live, first: First) -> Short:
    words = ("--generations", "1", "--epochs", "40", "--max-inflight", "3", "--fresh")
    with command(live, "run", *words, "--grace-s", "4") as run:
        goes_on(live, 6)
        refused = live.cli("run", "--job-id", OTHER, fails=True)
        before = live.snapshots.snapshots()[0]
        (policy,) = live.pids("policy")
        with stopped(policy):  # the calls under way keep the save from ending
            run.terminate()
            code, summary = run.end()
    wait_for(lambda: live.snapshots.snapshots()[0] != before, "the save that goes on in Temporal")
    goes_on(live, 2)  # and the job
    return Short(code, summary, refused, before, live.snapshots.snapshots()[0])


@pytest.fixture(scope="module")
def second(live: Live, short: Short) -> Second:
    live.actor("SingleController").kill()
    restarts, since = len(live.log("supervisor", "alive")), len(whole_log(live))
    with command(live, "run") as run:
        logged(live, "supervising", 3)
        left_open(live, "by-hand", JOB)
        left_open(live, f"{JOB}/save/of-another", OTHER)
        replaced = live.cli("restore", "--replace")
        logged(live, "alive", restarts + 1)
        workflows = asyncio.run(statuses(live, "by-hand", f"{JOB}/save/of-another"))
        live.crash()
        logged(live, "alive", restarts + 2, 120)
        goes_on(live, 3)
        record = live.stack.record()
        assert record is not None
        run.kill()
        end(record.stack_id, grace_s=0)
    lost = live.snapshots.snapshots()[0]
    with started(live, unit_of_systemd(), as_systemd(live)) as unit:
        logged(live, "supervising", 4, 150)
        origin = incarnations.origin(live.snapshots.path, newest(live))
        assert origin is not None
        goes_on(live, 3)
        before = live.snapshots.snapshots()[0]
        record = live.stack.record()
        assert record is not None
        unit.terminate()
        code = unit.code()
    left = names_left(record.stack_id)
    events, now = whole_log(live)[since:], live.snapshots.snapshots()[0]
    return Second(code, events, replaced, workflows, lost, origin.snapshot, before, now, left)


def goes_on(live: Live, turns: int) -> None:
    """Wait until some more mutations are applied."""
    wait_for((live.folder / "logs" / f"{RESOURCE}.log").exists, "the resource server's log")
    before = live.mutations()
    wait_for(lambda: live.mutations() >= before + turns, f"{turns} more mutations", 90)


def logged(live: Live, event: str, times: int, limit_s: float = 90) -> None:
    """Wait until the supervisor has logged an event so many times."""
    wait_for(lambda: len(live.log("supervisor", event)) >= times, f"{event} {times} times", limit_s)


def kill_at_once(live: Live, *names: str) -> None:
    """SIGKILL to processes of the stack."""
    for process in [process for name in names for process in live.pids(name)]:
        process.kill()


def runs_again(live: Live, name: str) -> None:
    """Wait until the supervisor has started a process without state again."""
    wait_for(
        lambda: any(
            line["message"].startswith(name) for line in live.log("supervisor", "restarted")
        ),
        f"{name} to run again",
        90,
    )


@contextmanager
def stopped(process: psutil.Process) -> Iterator[None]:
    process.suspend()
    try:
        yield
    finally:
        process.resume()


def whole_log(live: Live) -> list[dict[str, Any]]:
    log = (live.folder / "logs" / "supervisor.log").read_text()
    return [json.loads(line) for line in log.splitlines()]


def newest(live: Live) -> int:
    return incarnations.newest(live.snapshots.path)


def left_open(live: Live, workflow_id: str, job_id: str) -> None:
    """Start a save that stays open, for no worker has its task queue."""
    subprocess.run(
        [
            *(str(TEMPORAL), "workflow", "start", "--type", "SaveSnapshot"),
            *("--task-queue", "nobody", "--workflow-id", workflow_id),
            *("--input", json.dumps({"job_id": job_id})),
            *("--search-attribute", f"TurnpointJob={json.dumps(job_id)}"),
            *("--address", live.settings.temporal_address or ""),
        ],
        check=True,
        capture_output=True,
        timeout=30,
        env=environment(),
    )


async def statuses(live: Live, *ids: str) -> dict[str, WorkflowExecutionStatus | None]:
    client = await live.client()
    return {id: (await client.get_workflow_handle(id).describe()).status for id in ids}


def happened(summary: dict[str, Any], what: str) -> list[dict[str, Any]]:
    return [event for event in summary["events"] if event["what"] == what]


def said(second: Second, event: str, words: str = "") -> list[dict[str, Any]]:
    return [line for line in second.events if line["event"] == event and words in line["message"]]


def test_the_loss_of_what_holds_no_state_costs_no_restore(first: First) -> None:
    """Break: treat every process as one with state; or revive no actor."""
    assert first.incarnation_before_the_losses == 1
    names = {name for event in happened(first.summary, "restarted") for name in event["processes"]}
    assert names == {"worker_1", "policy", "NemoGym"}
    assert first.summary["restarts"] == 3
    assert len(set(first.generation_pids)) == 2


def test_the_loss_of_each_process_with_state_is_restored_by_itself(first: First) -> None:
    """Break: start no server that the settings name; the loss of `dice` is then never mended."""
    assert (first.code, first.summary["state"]) == (0, "finished")
    restored = happened(first.summary, "restored")
    *reasons, last = [set(event["reasons"]) for event in restored]
    assert reasons == [
        {f"{name} is gone" for name in (DICE, MODEL, AGENT)},
        {"the controller is gone"},
        {"TransferQueueStorageUnit#0 is gone"},
    ]
    assert "DataPlaneHost is gone" in last  # and what it had started
    assert {event["snapshot"] for event in restored} == {"snapshot_000001"}
    assert [event["incarnation"] for event in restored] == [2, 3, 4, 5]
    assert (first.summary["restores"], first.summary["incarnation"]) == (4, 5)


def test_all_rollouts_finish_and_are_in_the_rows_once(first: First) -> None:
    assert (first.summary["finished"], first.summary["failed"]) == (ROLLOUTS, 0)
    assert sorted(first.rows) == [f"p{n}_g0" for n in range(ROLLOUTS)]
    for rollout, row in first.rows.items():
        output = row["result"]["response"]["output"]
        steps = sum(item["type"] == "function_call_output" for item in output)
        # A seed, one for each tool output, a verify: none lost, none repeated.
        assert row["tag"]["mutations"] == 1 + steps + 1, rollout


def test_status_follow_follows_the_job_to_its_end_across_the_restores(first: First) -> None:
    code, status = first.followed
    assert code == 0
    assert (status["state"], status["incarnation"]) == ("finished", 5)
    assert status["finished"] == ROLLOUTS


def test_a_finished_job_is_left_as_it_is(first: First) -> None:
    """Break: take it for none. The rows are read after it."""
    code, summary = first.again
    assert (code, summary["state"], summary["code"]) == (0, "finished", "job_finished")
    assert "--fresh" in summary["reason"]
    assert first.incarnation_after_again == 5


def test_sigterm_without_time_for_a_save_says_so_and_leaves_job_and_save_going(
    live: Live, short: Short
) -> None:
    """Break: wait for the save, whatever the grace period is."""
    assert (short.code, short.summary["state"]) == (143, "terminated")
    assert short.summary["last_save"]["outcome"] == "not_finished"
    assert "goes on in Temporal" in short.summary["last_save"]["reason"]
    assert short.newest_after > short.newest_before
    live.snapshots.verify(short.newest_after)


def test_a_second_job_on_the_stack_is_refused_and_nothing_is_touched(
    live: Live, short: Short
) -> None:
    assert short.refused["error"]["code"] == "other_job"
    assert not (live.settings.snapshots / OTHER).exists()


def test_a_live_job_is_replaced_and_supervised_from_there(second: Second) -> None:
    """Break: believe the end of the restore together with an older look into Ray."""
    assert second.replaced["continued"]
    assert all(rollout["attempt_index"] >= 1 for rollout in second.replaced["continued"])
    (adopted,) = said(second, "alive", "started by another command")
    assert adopted["incarnation"] == second.replaced["incarnation"]


def test_a_restore_ends_the_jobs_open_workflows_whatever_their_id_and_no_other(
    second: Second,
) -> None:
    """Break: go by the ids."""
    assert second.workflows == {
        "by-hand": WorkflowExecutionStatus.TERMINATED,
        f"{JOB}/save/of-another": WorkflowExecutionStatus.RUNNING,
    }


def test_the_loss_of_everything_is_restored_by_itself(second: Second) -> None:
    (restored,) = said(second, "alive", "restored snapshot_")
    assert restored["incarnation"] == second.replaced["incarnation"] + 1
    lost = {reason for line in said(second, "lost") for reason in line["reasons"]}
    assert "ray is gone" in lost
    assert {f"{name} is gone" for name in URLS} <= lost


def test_after_the_loss_of_the_supervisor_too_the_unit_of_systemd_brings_the_job_back(
    second: Second,
) -> None:
    """Break: let the unit run with `--fresh`; or leave `turnpoint up` out of it."""
    began = said(second, "supervising")
    assert [line["incarnation"] for line in began][-1] == second.replaced["incarnation"] + 2
    assert second.restored_by_unit == second.newest_when_all_was_lost


def test_sigterm_makes_a_last_save_and_says_so(live: Live, second: Second) -> None:
    assert second.code == 143
    (saved,) = said(second, "last_save")
    assert (saved["outcome"], saved["snapshot"]) == ("published", second.newest)
    assert second.newest > second.newest_before_sigterm
    live.snapshots.verify(second.newest)


def test_down_stops_the_stack_after_the_last_save(second: Second) -> None:
    assert second.left == set()
