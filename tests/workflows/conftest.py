"""A real Temporal dev server, and activities whose every outcome a test chooses."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest_asyncio
from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from activities import contract as c
from activities.contract import restore, save
from rl.messages import Topology
from workers.temporal import snapshot_worker

SHA = "0" * 64
SAVE_PHASES = [
    "begin_checkpoint",
    "close_admission",
    "prepare_checkpoint",
    "commit_checkpoint",
    "cut_rl_state",
    "publish_snapshot",
    "resume_checkpoint",
]
TOPOLOGY = Topology(servers=[], policy_model="m", policy_sha256="", storage_units=1, semantic={})


class FakeActivities:
    """Every activity of saves and restores, answering at once; a test bends single ones.

    Attributes:
        calls: Names in the order of their starts.
        fail: What an activity raises, by name.
        hang: Activities that wait until they are cancelled.
        lose_answer: Activities that do their work and then fail.
        published: Whether the disk holds this save.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fail: dict[str, list[Exception]] = {}
        self.hang: set[str] = set()
        self.hang_uncancellable: dict[str, asyncio.Event] = {}
        self.deaf_until: dict[str, asyncio.Event] = {}
        self.started: dict[str, asyncio.Event] = {}
        self.lose_answer: set[str] = set()
        self.refusal: str | None = None
        self.published: str | None = None
        self.requests: dict[str, Any] = {}
        self.excluded: list[str] = []

    def registered(self) -> list[Callable[..., Any]]:
        """The activity functions for a worker."""
        made: list[Callable[..., Any]] = []
        for name, request_type in _REQUESTS.items():
            made.append(self._activity(name, request_type))
        return made

    def started_event(self, name: str) -> asyncio.Event:
        return self.started.setdefault(name, asyncio.Event())

    def _activity(self, name: str, request_type: type) -> Callable[..., Any]:
        async def body(request: Any) -> Any:
            self.calls.append(name)
            self.requests[name] = request
            self.started_event(name).set()
            if name in self.hang:
                while True:
                    activity.heartbeat()
                    await asyncio.sleep(0.1)
            if name in self.deaf_until:
                await self.deaf_until[name].wait()  # never heartbeats: hears of no cancellation
            if name in self.hang_uncancellable:
                while not self.hang_uncancellable[name].is_set():
                    activity.heartbeat()
                    try:
                        await asyncio.sleep(0.05)
                    except asyncio.CancelledError:
                        continue
            errors = self.fail.get(name)
            if errors and name not in self.lose_answer:
                raise errors.pop(0)
            answer = getattr(self, f"_{name}")(request)
            if errors:
                raise errors.pop(0)
            return answer

        body.__annotations__ = {"request": request_type, "return": Any}
        return activity.defn(name=name)(body)

    # --- a save ---

    def _begin_checkpoint(self, request: save.BeginRequest) -> save.BeginResult:
        if self.refusal:
            return save.BeginResult(
                agreed=False, refusal=self.refusal, reason="nothing changed", incarnation=3
            )
        return save.BeginResult(
            agreed=True, incarnation=3, folder="tmp_snapshot_000001-x", snapshot="snapshot_000001"
        )

    def _close_admission(self, request: save.CheckpointRequest) -> save.CloseResult:
        return save.CloseResult(acknowledged=0, ms=1)

    def _prepare_checkpoint(self, request: save.CheckpointRequest) -> Any:
        return save.PrepareResult(servers=[], parked=4, ms=1)

    def _commit_checkpoint(self, request: save.FolderRequest) -> Any:
        return save.CommitResult(servers=[], files=[], continuations=4, ms=1)

    def _cut_rl_state(self, request: save.FolderRequest) -> save.CutResult:
        counts = {"unfinished": 4, "finished": 1, "rows_put": 1}
        return save.CutResult(files=[], **counts, topology=TOPOLOGY, servers=[], ms=1)

    def _publish_snapshot(self, request: save.PublishRequest) -> save.PublishResult:
        self.published = request.snapshot
        return save.PublishResult(published=True, snapshot=request.snapshot, bytes=10, ms=1)

    def _unpublish_snapshot(self, request: save.CheckpointKey) -> save.UnpublishResult:
        return save.UnpublishResult(published=self.published is not None, snapshot=self.published)

    def _resume_checkpoint(self, request: save.ResumeRequest) -> Any:
        return save.ResumeResult(servers=[], pause_s=0.5, ms=1)

    def _prune_snapshots(self, request: c.PruneInput) -> c.PruneResult:
        return c.PruneResult(removed=["snapshot_000000"], kept=["snapshot_000001"])

    # --- a restore ---

    def _claim_job(self, request: restore.ClaimRequest) -> restore.ClaimResult:
        return restore.ClaimResult(incarnation=4, schedule_was_running=False)

    def _discover_capabilities(self, request: restore.RestoreStep) -> restore.DiscoverResult:
        return restore.DiscoverResult(servers=[], ms=1)

    def _select_snapshot(self, request: restore.SelectRequest) -> restore.SelectResult:
        self.excluded = request.excluded
        left = [s for s in ("snapshot_000002", "snapshot_000001") if s not in request.excluded]
        if not left:
            raise ApplicationError("none is left", type="no_snapshot", non_retryable=True)
        return restore.SelectResult(
            snapshot=left[0],
            source_checkpoint_id="cp",
            source_incarnation=3,
            bytes=10,
            files=[],
            ms=1,
        )

    def _load_data_plane(self, request: restore.LoadRequest) -> restore.LoadResult:
        return restore.LoadResult(rows=1, ms=1)

    def _restore_checkpoint(self, request: restore.PartsRequest) -> Any:
        return restore.ServersResult(servers=[], ms=1)

    def _start_controller(self, request: restore.LoadRequest) -> restore.StartResult:
        rollouts = [
            c.ContinuedRollout(
                rollout_id=f"p0_g{i}", attempt_index=1, last_committed_model_call_id="call-2"
            )
            for i in range(2)
        ]
        return restore.StartResult(unfinished=rollouts, finished=3, ms=1)

    def _discard_continuations(self, request: restore.RestoreStep) -> Any:
        return restore.DiscardResult(
            restarted=[
                c.ContinuedRollout(
                    rollout_id="p0_g1",
                    attempt_index=1,
                    last_committed_model_call_id=None,
                    restarted_because="restart_only: shell",
                )
            ],
            ms=1,
        )

    def _resume_restored(self, request: restore.OpenRequest) -> restore.ServersResult:
        return restore.ServersResult(servers=[], ms=1)

    def _start_pumps(self, request: restore.PumpsRequest) -> restore.PumpsResult:
        return restore.PumpsResult(sent_again=2, ms=1)

    def _drop_restored(self, request: restore.DropRequest) -> restore.ServersResult:
        return restore.ServersResult(servers=[], ms=1)


_REQUESTS: dict[str, type] = {
    "begin_checkpoint": save.BeginRequest,
    "close_admission": save.CheckpointRequest,
    "prepare_checkpoint": save.CheckpointRequest,
    "commit_checkpoint": save.FolderRequest,
    "cut_rl_state": save.FolderRequest,
    "publish_snapshot": save.PublishRequest,
    "unpublish_snapshot": save.CheckpointKey,
    "resume_checkpoint": save.ResumeRequest,
    "prune_snapshots": c.PruneInput,
    "claim_job": restore.ClaimRequest,
    "discover_capabilities": restore.RestoreStep,
    "select_snapshot": restore.SelectRequest,
    "load_data_plane": restore.LoadRequest,
    "restore_checkpoint": restore.PartsRequest,
    "start_controller": restore.LoadRequest,
    "discard_continuations": restore.RestoreStep,
    "resume_restored": restore.OpenRequest,
    "start_pumps": restore.PumpsRequest,
    "drop_restored": restore.DropRequest,
}


class Bench:
    """A worker with fake activities on the real server."""

    def __init__(self, client: Client, fakes: FakeActivities) -> None:
        self.client = client
        self.fakes = fakes

    async def start(self, workflow: str, given: Any = None, **options: Any) -> Any:
        arguments = [] if given is None else [given]
        return await self.client.start_workflow(
            workflow,
            args=arguments,
            id=f"test/{workflow}/{uuid.uuid4()}",
            task_queue=c.TASK_QUEUE,
            **options,
        )


@pytest_asyncio.fixture(loop_scope="session")
async def bench(temporal: Client) -> AsyncIterator[Bench]:
    """The bench of one test."""
    fakes = FakeActivities()
    async with _running(temporal, fakes):
        yield Bench(temporal, fakes)


@asynccontextmanager
async def _running(client: Client, fakes: FakeActivities) -> AsyncIterator[None]:
    async with snapshot_worker(client, fakes.registered()):
        yield
