"""`turnpoint run` keeps a job alive; `restore --replace` takes a live one back (issue 3).

Real parts with the scripted policy, one stack and two jobs. The first loses a worker and the
policy, then every kind of process with state, and runs to its end. The second is terminated with
too little time for a save, brought back by `run`, replaced by hand, loses every process at once,
and is terminated with time enough.

"The whole machine" means here: SIGKILL to every process of the stack, Temporal and Ray included,
while `turnpoint run` itself survives (as on a node of its own). Where it dies too, whatever
starts the machine's services starts `turnpoint up` and `turnpoint run` again, with the words of
the first time, and `run` restores by itself: `test_story` and the demo show that.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus

from rl import incarnations
from tests.real.live import AGENT, JOB, RESOURCE, TEMPORAL, TURNPOINT, Live, environment, wait_for
from workers.processes import names_left

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
ROLLOUTS = 5
TURNS = 50
OPTIONS = {
    "policy": {"delay-s": "0.3", "turns": str(TURNS), "turns-spread": "4"},
    AGENT: {"max-steps": "60"},
}
OTHER = "other"


class Command:
    """A `turnpoint` command that runs while the test goes on."""

    def __init__(self, live: Live, *words: str) -> None:
        self._process = subprocess.Popen(
            [str(TURNPOINT), *words, "--state-dir", str(live.folder), "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=live.folder,
            env=environment(),
        )

    def terminate(self) -> None:
        """What a machine that is preempted sends."""
        self._process.send_signal(signal.SIGTERM)

    def end(self, limit_s: float = 120) -> tuple[int, Any]:
        """Exit code, and what it printed."""
        printed, errors = self._process.communicate(timeout=limit_s)
        assert printed, errors[-2000:]
        return self._process.returncode, json.loads(printed)

    def kill(self) -> None:
        """Leave nothing."""
        if self._process.poll() is None:
            self._process.kill()
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()
        self._process.wait()


@contextmanager
def command(live: Live, *words: str) -> Iterator[Command]:
    started = Command(live, *words)
    try:
        yield started
    finally:
        started.kill()


@dataclass(frozen=True)
class First:
    """What the job left that lost processes one by one."""

    code: int
    summary: dict[str, Any]
    followed: tuple[int, Any]
    incarnation_before_the_losses: int
    rows: dict[str, dict[str, Any]]
    again: tuple[int, Any]
    incarnation_after_again: int


@dataclass(frozen=True)
class Short:
    """What was left of a supervision with too little time for a last save."""

    code: int
    summary: dict[str, Any]
    refused: dict[str, Any]
    newest_before: str
    newest_after: str


@dataclass(frozen=True)
class Second:
    """What the job left that was replaced, lost as a whole, and terminated."""

    code: int
    summary: dict[str, Any]
    replaced: dict[str, Any]
    workflows: dict[str, WorkflowExecutionStatus | None]
    newest_before_sigterm: str
    newest: str
    left: set[str]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    stack = Live(tmp_path_factory.mktemp("supervision"), OPTIONS, port_base=29_650)
    try:
        stack.up()
        yield stack
    finally:
        stack.down()


@pytest.fixture(scope="module")
def first(live: Live) -> First:
    with command(live, "run", "--generations", "1", "--fresh") as run:
        moves(live, 6)
        with command(live, "status", "--follow") as following:
            live.cli("save")
            live.stack.kill("worker_1")
            live.stack.kill("policy")
            told(live, "restarted", 1)  # the policy; a worker takes longer, nobody waits for it
            before = newest(live)
            live.stack.kill(RESOURCE)
            told(live, "alive", 1)
            moves(live, 2)
            live.actor("SingleController").kill()
            told(live, "alive", 2)
            moves(live, 2)
            live.actor("DataPlaneHost").kill()
            code, summary = run.end()
            followed = following.end(60)
    with command(live, "run", "--generations", "1") as again:
        ended = again.end()
    return First(code, summary, followed, before, live.rows(), ended, newest(live))


@pytest.fixture(scope="module")
def short(live: Live, first: First) -> Short:
    words = ("--generations", "1", "--epochs", "40", "--max-inflight", "3", "--fresh")
    with command(live, "run", *words, "--grace-s", "4") as run:
        moves(live, 6)
        refused = live.cli("run", "--job-id", OTHER, fails=True)
        before = live.snapshots.snapshots()[0]
        (policy,) = live.pids("policy")
        policy.suspend()  # the calls under way keep the save from ending
        run.terminate()
        code, summary = run.end()
        policy.resume()
    wait_for(lambda: live.snapshots.snapshots()[0] != before, "the save that goes on in Temporal")
    moves(live, 2)  # and the job
    return Short(code, summary, refused, before, live.snapshots.snapshots()[0])


@pytest.fixture(scope="module")
def second(live: Live, short: Short) -> Second:
    live.actor("SingleController").kill()
    lives = len(live.log("supervisor", "alive"))
    with command(live, "run", "--grace-s", "60", "--down") as run:
        told(live, "supervising", 3)
        left_open(live, "by-hand", JOB)
        left_open(live, f"{JOB}/save/of-another", OTHER)
        replaced = live.cli("restore", "--replace")
        told(live, "alive", lives + 1)
        workflows = asyncio.run(statuses(live, "by-hand", f"{JOB}/save/of-another"))
        live.crash()
        told(live, "alive", lives + 2, 120)
        moves(live, 3)
        before = live.snapshots.snapshots()[0]
        run.terminate()
        code, summary = run.end()
    record = live.stack.record()
    assert record is not None
    left = names_left(record.stack_id)
    return Second(code, summary, replaced, workflows, before, live.snapshots.snapshots()[0], left)


def moves(live: Live, turns: int) -> None:
    """Wait until some more mutations are applied."""
    wait_for((live.folder / "logs" / f"{RESOURCE}.log").exists, "the resource server's log")
    before = live.mutations()
    wait_for(lambda: live.mutations() >= before + turns, f"{turns} more mutations", 90)


def told(live: Live, event: str, times: int, limit_s: float = 90) -> None:
    """Wait until the supervisor has told of an event so often."""
    wait_for(lambda: len(live.log("supervisor", event)) >= times, f"{event} {times} times", limit_s)


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


def test_the_loss_of_a_worker_and_the_policy_costs_no_restore(first: First) -> None:
    """Break: treat every process as one with state."""
    assert first.incarnation_before_the_losses == 1
    names = {name for event in happened(first.summary, "restarted") for name in event["processes"]}
    assert names == {"worker_1", "policy"}
    assert first.summary["restarts"] == 2


def test_the_loss_of_each_process_with_state_is_restored_by_itself(first: First) -> None:
    assert (first.code, first.summary["state"]) == (0, "finished")
    restored = happened(first.summary, "restored")
    assert [event["reasons"][0] for event in restored] == [
        f"{RESOURCE} is gone",
        "the controller is gone",
        "DataPlaneHost is gone",
    ]
    assert {event["snapshot"] for event in restored} == {"snapshot_000001"}
    assert [event["incarnation"] for event in restored] == [2, 3, 4]
    assert (first.summary["restores"], first.summary["incarnation"]) == (3, 4)


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
    assert (status["state"], status["incarnation"]) == ("finished", 4)
    assert status["finished"] == ROLLOUTS


def test_a_finished_job_is_left_as_it_is(first: First) -> None:
    """Break: take it for none. The rows are read after it."""
    code, summary = first.again
    assert (code, summary["state"], summary["code"]) == (0, "finished", "job_finished")
    assert "--fresh" in summary["reason"]
    assert first.incarnation_after_again == 4


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
    (adopted,) = happened(second.summary, "adopted")
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
    (restored,) = happened(second.summary, "restored")
    assert "ray is gone" in restored["reasons"]
    assert {f"{name} is gone" for name in (AGENT, RESOURCE)} <= set(restored["reasons"])
    assert second.summary["incarnation"] == second.replaced["incarnation"] + 1


def test_sigterm_makes_a_last_save_and_says_so(live: Live, second: Second) -> None:
    assert second.code == 143
    assert second.summary["state"] == "terminated"
    assert second.summary["last_save"]["outcome"] == "published"
    assert second.summary["last_save"]["snapshot"] == second.newest
    assert second.newest > second.newest_before_sigterm
    live.snapshots.verify(second.newest)


def test_down_stops_the_stack_after_the_last_save(second: Second) -> None:
    assert second.left == set()
