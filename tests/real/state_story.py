"""The story behind `test_states`: a save that meets a rollout in every state, a crash, a restore.

The rollouts are held in their states (`held_gym`) from before the save until each has been seen
there: what servers say they are busy with is asked once the save has closed admission. The
restore leaves one rollout restored and not sent again; a second save meets it so, and the job is
killed and restored once more.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import psutil
from temporalio.client import WorkflowHandle

from activities.contract import TASK_QUEUE, Progress, RestoreResult, SaveInput
from gym.protocol import Counts, Kind
from rl.config import ServerConfig
from rl.records.snapshot_part import RlRecords, read_records
from tests.ports import free_port, free_ports
from tests.real.held_gym import FOLDER
from tests.real.live import AGENT, JOB, KINDS, MODEL, RESOURCE, Live, published, until, wait_for
from tests.real.own_servers import OwnServers, is_healthy
from tests.real.state_rows import JUDGE, MAX_INFLIGHT, MAX_STEPS, ROLLOUTS, SCRIPT, State
from tests.twin.rows import write_rows

PORT_BASE = 28_800
POLICY_PORT, GENERATION_PORT = free_ports(2)
URLS = {name: f"http://127.0.0.1:{free_port()}" for name in (*KINDS, JUDGE)}
GENERATION = ["--generation-url", f"http://127.0.0.1:{GENERATION_PORT}/v1"]
MODULES = {
    MODEL: ["tests.real.held_gym", "model", *GENERATION],
    JUDGE: ["gym.model.server", "--role", "auxiliary", *GENERATION],
    AGENT: [
        *("tests.real.held_gym", "agent", "--model-url", URLS[MODEL]),
        *("--resource", f"{RESOURCE}={URLS[RESOURCE]}", "--max-steps", str(MAX_STEPS)),
    ],
    RESOURCE: ["tests.real.held_gym", "counter", "--judge-url", URLS[JUDGE]],
}
UNTIL_CLOSED = {State.UNACKNOWLEDGED: "agent.acknowledge"}
UNTIL_MODEL_CLOSES = {
    State.SEEDED: f"model.{ROLLOUTS[State.SEEDED]}.call-0",
    State.BETWEEN_TURNS: f"model.{ROLLOUTS[State.BETWEEN_TURNS]}.call-2",
    State.FAILING: f"policy.{ROLLOUTS[State.FAILING]}.call-1",
    State.MODEL_CALL: f"policy.{ROLLOUTS[State.MODEL_CALL]}.call-1",
}
UNTIL_AGENT_CLOSES = {
    State.SEEDING: f"counter.{ROLLOUTS[State.SEEDING]}.seed",
    State.TOOL_STEP: f"counter.{ROLLOUTS[State.TOOL_STEP]}.call-1",
    State.BEFORE_VERIFY: f"counter.{ROLLOUTS[State.BEFORE_VERIFY]}.call-3",
    State.VERIFY: "policy.completions",  # behind the judge, whom the verify has asked
    State.REDISPATCHED: f"counter.{ROLLOUTS[State.REDISPATCHED]}.call-1",
}
UNTIL_PREPARED = {State.NOT_ARRIVED: f"agent.{ROLLOUTS[State.NOT_ARRIVED]}.run-0"}
REFUSED = [
    f"policy.{ROLLOUTS[State.REDISPATCHED]}.call-1.refuse",
    f"policy.{ROLLOUTS[State.FAILING]}.call-1.refuse",
]
BROKEN = "agent.commit.500"
NOT_SENT_AGAIN = f"agent.{ROLLOUTS[State.BETWEEN_TURNS]}.run-1"


@dataclass(frozen=True)
class Snapshot:
    """The files of one save."""

    lines: dict[str, dict[str, Any]]
    """Continuations by rollout."""
    states: dict[str, dict[str, Any]]
    """The agent's saved state, by rollout."""
    sessions: dict[str, dict[str, Any]]
    captured: RlRecords
    """RL's own part."""

    @classmethod
    def read(cls, live: Live, name: str) -> Snapshot:
        """Read one, verified."""
        manifest = live.snapshots.verify(name)
        folder = live.snapshots.path / name
        return cls(
            lines=_by_rollout(folder / "gym" / AGENT / "continuations.jsonl"),
            states=_by_rollout(folder / "gym" / AGENT / "agent_state.jsonl"),
            sessions=_by_rollout(folder / "gym" / RESOURCE / "sessions.jsonl"),
            captured=read_records(folder, manifest.files),
        )


def _by_rollout(path: Path) -> dict[str, dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {line["rollout_id"]: line for line in lines}


@dataclass(frozen=True)
class Answered:
    """The answer to a call without identity, and its time."""

    at: float
    status: int
    body: dict[str, Any]


async def _answered(url: str, body: dict[str, Any]) -> Answered:
    async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
        answer = await http.post(url, json=body)
    return Answered(time.time(), answer.status_code, answer.json())


@dataclass(frozen=True)
class SavedInEveryState:
    """Observations around the first save."""

    checkpoint_id: str
    busy: dict[str, dict[str, str]]
    """By server, then by rollout: what it was busy with when the save began."""
    released: dict[State, float]
    """When its rollout was let go."""
    judging: Counts
    """The judge's work under way once the policy's model server was closed."""
    judged_in_the_pause: Answered
    """A call of the judge when every server was prepared."""
    in_flight: dict[str, int]
    """Calls in flight on each server while calls without identity were held."""
    owed: int
    """Acknowledgements owed when admission closed, as `close_admission` answered."""
    unidentified: dict[str, Answered]
    """By server: the call without identity that came in the pause."""


@dataclass(frozen=True)
class Broken:
    """A save that met a server which answered 500."""

    error: dict[str, Any]
    left_over: list[str]
    snapshots: list[str]
    all_open: bool


@dataclass(frozen=True)
class Story:
    """Everything that the tests look at, from the one run of this module."""

    live: Live
    undisturbed: dict[str, dict[str, Any]]
    began: float
    """When the saved job was started."""
    saved: SavedInEveryState
    first: Snapshot
    crashes: list[float]
    restored: RestoreResult
    broken: Broken
    second_checkpoint_id: str
    second: Snapshot
    restored_again: RestoreResult
    rows: dict[str, dict[str, Any]]

    def control(self, server: str, checkpoint_id: str, operation: str, state: str) -> float:
        """When a server's control operation of a save began or ended."""
        return next(
            float(line["ts"])
            for line in self.live.log(server, "control")
            if line["checkpoint_id"] == checkpoint_id
            and (line["operation"], line["state"]) == (operation, state)
        )

    def mutations(self, rollout_id: str) -> list[list[dict[str, Any]]]:
        """The rollout's mutations in each life of the job."""
        bounds = [self.began, *self.crashes, float("inf")]
        lines = self.live.log(RESOURCE, "mutation")
        return [
            [
                line
                for line in lines
                if line["rollout_id"] == rollout_id and start < line["ts"] < end
            ]
            for start, end in pairwise(bounds)
        ]


class Stage:
    """The stack with servers that can be held."""

    def __init__(self, folder: Path) -> None:
        self.live = Live(
            folder,
            {},
            port_base=PORT_BASE,
            policy=f"http://127.0.0.1:{POLICY_PORT}",
            generation_port=GENERATION_PORT,
            servers=[
                ServerConfig(
                    name=name, kind=KINDS.get(name, Kind.MODEL), url=URLS[name]
                ).model_dump(mode="json")
                for name in (MODEL, JUDGE, AGENT, RESOURCE)
            ],
            workers=1,
            lease_s=20,
        )
        self.holds = folder / "holds"
        self.holds.mkdir()
        env = {FOLDER: str(self.holds)}
        self.servers = OwnServers(self.live, URLS, MODULES, env)
        self.rows = folder / "rows.jsonl"
        write_rows(self.rows, len(State), SCRIPT)

    # --- processes ----------------------------------------------------------------------------

    def up(self, *, expect_restore: bool = False) -> None:
        """Start everything; the policy first, since `up` looks whether it is there."""
        self.start_policy()
        self.live.up()
        self.servers.start(expect_restore=expect_restore)

    def start_policy(self) -> None:
        """Start the policy and wait for it."""
        (self.live.folder / "logs").mkdir(exist_ok=True)
        self.servers.spawn("policy", ["tests.real.held_gym", "policy", "--port", str(POLICY_PORT)])
        wait_for(lambda: is_healthy(f"http://127.0.0.1:{POLICY_PORT}"), "the policy", 60)

    def crash(self) -> float:
        """SIGKILL to everything; nothing is held any more."""
        self.servers.kill()
        self.live.crash()
        for point in self.holds.iterdir():
            point.unlink()
        return time.time()

    def crash_job(self) -> float:
        """SIGKILL to the job's actors, the Gym servers and the policy: Ray and Temporal live on."""
        for actor in self.live.actors():
            with suppress(psutil.NoSuchProcess):  # it ended because another one did
                actor.kill()
        self.servers.kill()
        for point in self.holds.iterdir():
            point.unlink()
        return time.time()

    def run_job(self, *words: str) -> None:
        """Start the job anew."""
        self.live.cli(
            *("run", "--rows", str(self.rows), "--generations", "1"),
            *("--max-inflight", str(MAX_INFLIGHT), *words),
        )

    # --- points -------------------------------------------------------------------------------

    def ask(self, points: Iterable[str]) -> None:
        """Have calls held that get to these points."""
        for point in points:
            (self.holds / point).touch()

    def reached(self, points: Iterable[str]) -> bool:
        """Tell whether a call waits at each of them."""
        return all((self.holds / f"{point}.reached").exists() for point in points)

    def release(self, held: Mapping[State, str]) -> dict[State, float]:
        """Let these go on; when that was."""
        found = {}
        for state, point in held.items():
            found[state] = time.time()
            (self.holds / f"{point}.reached").unlink()
        return found

    # --- the story ----------------------------------------------------------------------------

    async def save_in_every_state(
        self,
    ) -> SavedInEveryState:
        """Save the job whose rollouts are held; let each go on as late as the save allows."""
        live, client = self.live, await self.live.client()
        committing = "commit_checkpoint.before"
        with live.hold(committing) as reached:
            handle = await client.start_workflow(
                "SaveSnapshot",
                SaveInput(job_id=JOB, name="states"),
                id=f"{JOB}/save/states",
                task_queue=TASK_QUEUE,
            )

            async def closing() -> bool:
                progress = await handle.query("progress", result_type=Progress)
                return bool(progress.phase == "close_admission")

            await until(closing, "admission to be closed", 30)
            await asyncio.to_thread(wait_for, self._is_closed, "the controller to close it", 30)
            busy = {
                name: {b.rollout_id: b.where for b in status.blockers if b.rollout_id}
                for name, status in (await live.statuses()).items()
            }
            released = self.release(UNTIL_CLOSED)
            await self._prepare_begins(MODEL)
            released |= self.release(UNTIL_MODEL_CLOSES)
            await self._prepare_begins(AGENT)
            judging = (await live.statuses())[JUDGE].counts
            released |= self.release(UNTIL_AGENT_CLOSES)
            await asyncio.to_thread(wait_for, reached.exists, "the commit", 30)
            judged = await asyncio.wait_for(
                _answered(f"{URLS[JUDGE]}/v1/responses", {"input": "and now?"}), 10
            )
            released |= self.release(UNTIL_PREPARED)
            strangers = await self._call_without_identity()
            in_flight = {
                name: status.counts.in_flight for name, status in (await live.statuses()).items()
            }
        saved = await published(handle)
        answers = dict(zip(KINDS, await asyncio.gather(*strangers), strict=True))
        owed = (await activity_result(handle, "close_admission"))["acknowledged"]
        return SavedInEveryState(
            saved.checkpoint_id, busy, released, judging, judged, in_flight, owed, answers
        )

    def _is_closed(self) -> bool:
        # It fails, as the product's worker is gone, and says how the job is all the same.
        return not self.live.cli("status", fails=True)["job"]["controller"]["admission_open"]

    async def _call_without_identity(self) -> list[asyncio.Task[Answered]]:
        """Call every server without headers; return when each call is held."""
        row = json.loads(self.rows.read_text().splitlines()[0])
        bodies = {
            MODEL: ("v1/responses", {"input": "who is there?"}),
            AGENT: ("run", row),
            RESOURCE: ("seed_session", row),
        }
        tasks = [
            asyncio.create_task(_answered(f"{URLS[name]}/{bodies[name][0]}", bodies[name][1]))
            for name in KINDS
        ]

        def held() -> bool:
            return all(self.live.log(name, "held") for name in KINDS)

        await asyncio.to_thread(wait_for, held, "calls without identity to be held", 30)
        await asyncio.sleep(0.5)  # by now the run that has failed is the controller's, too
        return tasks

    async def _prepare_begins(self, server: str) -> None:
        def begun() -> bool:
            lines = self.live.log(server, "control")
            return any(line["operation"] == "prepare" for line in lines)

        await asyncio.to_thread(wait_for, begun, f"{server} to prepare", 30)


async def activity_result(handle: WorkflowHandle[Any, Any], activity: str) -> dict[str, Any]:
    """The answer of an activity, from the workflow's history."""
    scheduled = set()
    async for event in handle.fetch_history_events():
        asked = event.activity_task_scheduled_event_attributes
        if asked.activity_type.name == activity:
            scheduled.add(event.event_id)
        answered = event.activity_task_completed_event_attributes
        if answered.scheduled_event_id in scheduled:
            found: dict[str, Any] = json.loads(answered.result.payloads[0].data)
            return found
    raise AssertionError(f"{activity} has not answered")


def _verified(live: Live, state: State, since: float) -> bool:
    wanted = f"{ROLLOUTS[state]}/verify/0"
    lines = live.log(RESOURCE, "mutation")
    return any(line["request_id"] == wanted and line["ts"] > since for line in lines)


def _save_that_fails(stage: Stage) -> Broken:
    stage.ask([BROKEN])
    answer = stage.live.cli("save", "--name", "broken", fails=True)
    return Broken(
        error=answer["error"],
        left_over=stage.live.left_over(),
        snapshots=stage.live.snapshots.snapshots(),
        all_open=asyncio.run(stage.live.all_open()),
    )


@contextmanager
def play(folder: Path) -> Iterator[Story]:
    """Run the story once; everything is down afterwards."""
    stage = Stage(folder)
    live, log = stage.live, folder / "logs" / "held_1.log"
    try:
        stage.up()
        live.start_held_worker("held_1", wait=False)  # gets ready meanwhile
        stage.run_job()
        undisturbed = live.rows()
        stage.servers.kill()
        stage.start_policy()
        stage.servers.start(expect_restore=False)
        live.stack.kill("worker_1")
        wait_for(lambda: b'"event": "ready"' in log.read_bytes(), "the held worker", 60)
        held = [*UNTIL_CLOSED.values(), *UNTIL_MODEL_CLOSES.values()]
        held += [*UNTIL_AGENT_CLOSES.values(), *UNTIL_PREPARED.values()]
        stage.ask([*held, *REFUSED])
        began = time.time()
        stage.run_job("--fresh", "--detach")
        wait_for(lambda: stage.reached(held), "a rollout in every state", 60)
        saved = asyncio.run(stage.save_in_every_state())
        first = Snapshot.read(live, "snapshot_000001")
        wait_for(lambda: _verified(live, State.BEFORE_VERIFY, began), "work after the save")
        crashes = [stage.crash()]

        stage.up(expect_restore=True)
        stage.ask([NOT_SENT_AGAIN])
        restored = RestoreResult.model_validate(live.cli("restore"))
        others = len(State) - 1
        wait_for(lambda: live.finished() == others, "the others to finish", 90)
        assert stage.reached([NOT_SENT_AGAIN])
        broken = _save_that_fails(stage)
        again = live.cli("save", "--name", "again")
        second = Snapshot.read(live, again["snapshot"])
        crashes.append(stage.crash_job())

        stage.start_policy()
        stage.servers.start(expect_restore=True)
        restored_again = RestoreResult.model_validate(live.cli("restore"))
        live.wait_until_finished()
        yield Story(
            live=live,
            undisturbed=undisturbed,
            began=began,
            saved=saved,
            first=first,
            crashes=crashes,
            restored=restored,
            broken=broken,
            second_checkpoint_id=again["checkpoint_id"],
            second=second,
            restored_again=restored_again,
            rows=live.rows(),
        )
    finally:
        stage.servers.kill()
        live.down()
