"""`turnpoint run` keeps a job alive; `restore --replace` takes a live one back (issue 3).

Real parts with the scripted policy, one stack and two jobs. The first loses a worker, the policy
and then the resource server, and runs to its end. The second is replaced by hand, loses every
process at once, and ends by SIGTERM.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from rl import incarnations
from tests.real.live import AGENT, RESOURCE, TURNPOINT, Live, environment, wait_for
from workers.processes import names_left

pytestmark = [pytest.mark.real, pytest.mark.long, pytest.mark.timeout(420)]
ROLLOUTS = 5
TURNS = 36
OPTIONS = {
    "policy": {"delay-s": "0.3", "turns": str(TURNS), "turns-spread": "4"},
    AGENT: {"max-steps": "50"},
}


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
    incarnation_before_the_loss: int
    rows: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Second:
    """What the job left that was replaced, lost as a whole, and terminated."""

    code: int
    summary: dict[str, Any]
    replaced: dict[str, Any]
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
    with command(live, "run", "--generations", "1", "--max-inflight", "2", "--fresh") as run:
        moves(live, 6)
        with command(live, "status", "--follow") as following:
            live.cli("save")
            live.stack.kill("worker_1")
            live.stack.kill("policy")
            told(live, "restarted", 1)  # the policy; a worker takes longer, nobody waits for it
            moves(live, 2)
            before = newest(live)
            live.stack.kill(RESOURCE)
            code, summary = run.end()
            return First(code, summary, following.end(60), before, live.rows())


@pytest.fixture(scope="module")
def second(live: Live, first: First) -> Second:
    words = ("--generations", "1", "--epochs", "40", "--max-inflight", "3", "--fresh")
    lives = len(live.log("supervisor", "alive"))
    with command(live, "run", *words, "--grace-s", "60", "--down") as run:
        moves(live, 6)
        live.cli("save")
        replaced = live.cli("restore", "--replace")
        told(live, "alive", lives + 1)
        live.crash()
        told(live, "alive", lives + 2, 120)
        moves(live, 3)
        before = live.snapshots.snapshots()[0]
        run.terminate()
        code, summary = run.end()
    record = live.stack.record()
    assert record is not None
    left = names_left(record.stack_id)
    return Second(code, summary, replaced, before, live.snapshots.snapshots()[0], left)


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


def test_the_loss_of_a_worker_and_the_policy_costs_no_restore(first: First) -> None:
    """Break: treat every process as one with state."""
    assert first.incarnation_before_the_loss == 1
    restarted = [event for event in first.summary["events"] if event["what"] == "restarted"]
    assert {name for event in restarted for name in event["processes"]} == {"worker_1", "policy"}
    assert first.summary["restarts"] == 2


def test_the_loss_of_a_gym_server_is_restored_by_itself(first: First) -> None:
    assert (first.code, first.summary["state"]) == (0, "finished")
    assert first.summary["restores"] == 1
    (restored,) = [event for event in first.summary["events"] if event["what"] == "restored"]
    assert restored["reasons"] == [f"{RESOURCE} is gone"]
    assert restored["snapshot"] == "snapshot_000001"
    assert first.summary["incarnation"] == restored["incarnation"] == 2


def test_all_rollouts_finish_and_are_in_the_rows_once(first: First) -> None:
    assert (first.summary["finished"], first.summary["failed"]) == (ROLLOUTS, 0)
    assert sorted(first.rows) == [f"p{n}_g0" for n in range(ROLLOUTS)]
    for rollout, row in first.rows.items():
        output = row["result"]["response"]["output"]
        steps = sum(item["type"] == "function_call_output" for item in output)
        # A seed, one for each tool output, a verify: none lost, none repeated.
        assert row["tag"]["mutations"] == 1 + steps + 1, rollout


def test_status_follow_follows_the_job_to_its_end_across_the_restore(first: First) -> None:
    code, status = first.followed
    assert code == 0
    assert (status["state"], status["incarnation"]) == ("finished", 2)
    assert status["finished"] == ROLLOUTS


def test_a_live_job_is_replaced_and_supervised_from_there(second: Second) -> None:
    assert second.replaced["continued"]
    assert all(rollout["attempt_index"] >= 1 for rollout in second.replaced["continued"])
    (adopted,) = [event for event in second.summary["events"] if event["what"] == "adopted"]
    assert adopted["incarnation"] == second.replaced["incarnation"]


def test_the_loss_of_everything_is_restored_by_itself(second: Second) -> None:
    (restored,) = [event for event in second.summary["events"] if event["what"] == "restored"]
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
