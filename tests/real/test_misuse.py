"""Mistakes of a user, at the command line and on Temporal, on one live job (issue 3).

Real parts with the scripted policy. Whatever is done here ends in a typed error that names file,
server or next step; the newest snapshot stays as it was, and the job ends with the rows of the
undisturbed one. The tests stand in the order in which they happen to the job.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import TerminatedError

from gym.protocol.control import BASE_PATH
from tests.real.live import AGENT, JOB, MODEL, RESOURCE, TURNPOINT, Live, environment, wait_for
from workers.config.key_files import read_key_file

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
DISK_BYTES = 64 << 20
LEAST_FREE_BYTES = 16 << 20
"""Free space that `begin_checkpoint` requires (`rl.controller`)."""
TURNS = "80"
FAST, SLOW = "0.01", "2.5"
OPTIONS = {
    "policy": {"delay-s": FAST, "turns": TURNS, "turns-spread": "10"},
    AGENT: {"max-steps": "100"},
}
HELD = "held_1"
DAMAGE: dict[str, tuple[str, Callable[[Path], object]]] = {
    "truncated": (
        f"gym/{RESOURCE}/sessions.jsonl",
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
    ),
    "edited": ("rl/loader.json", lambda path: path.write_bytes(b"[" + path.read_bytes()[1:])),
    "missing": (f"gym/{AGENT}/continuations.jsonl", Path.unlink),
    "extra": ("data_plane/extra", Path.touch),
}
"""Damages of a snapshot: the file, and the change."""


@dataclass
class Job:
    """The stack, and everything that was printed to a user."""

    live: Live
    disk: Path | None
    """A small file system below the snapshots; None where none can be mounted."""
    undisturbed: dict[str, dict[str, Any]] = field(default_factory=dict)
    before_any_job: dict[str, tuple[int, dict[str, Any]]] = field(default_factory=dict)
    printed: list[str] = field(default_factory=list)

    def cli(self, *words: str, **env: str) -> tuple[int, Any]:
        """Exit code, and the JSON that a command prints; never a stack trace."""
        done = subprocess.run(
            [str(TURNPOINT), *words, "--state-dir", str(self.live.folder), "--json"],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            cwd=self.live.folder,
            env={**environment(), **env},
        )
        assert "Traceback" not in done.stdout + done.stderr, done.stderr[-2000:]
        self.printed.append(done.stdout + done.stderr)
        return done.returncode, json.loads(done.stdout)

    def refused(self, *words: str, **env: str) -> tuple[int, str, str]:
        """Exit code, error code and sentence of a command that must fail."""
        code, answer = self.cli(*words, **env)
        assert code != 0, answer
        return code, answer["error"]["code"], answer["error"]["message"]

    def controller(self) -> dict[str, Any]:
        """The controller's status; `status` exits with 4 here, as the product's worker is gone."""
        found: dict[str, Any] = self.cli("status")[1]["job"]["controller"]
        return found

    def save(self) -> str:
        """A save that publishes; the name of its snapshot."""
        code, answer = self.cli("save", "--name", f"n-{uuid.uuid4().hex[:8]}")
        assert code == 0, answer
        return str(answer["snapshot"])

    @contextmanager
    def save_held_at(self, point: str) -> Iterator[list[BaseException]]:
        """A save that waits at a point while the block runs.

        Yields:
            Empty; after the block it holds what the save failed with, if it failed.
        """
        failures: list[BaseException] = []
        workflow_id = f"{JOB}/save/{uuid.uuid4().hex[:8]}"
        with self.live.hold(point) as reached:
            self.live.temporal_start("SaveSnapshot", workflow_id, {"job_id": JOB, "name": "held"})
            wait_for(reached.exists, f"{point} to be reached")
            yield failures

        async def end() -> None:
            client = await self.live.client()
            try:
                await the_result(client.get_workflow_handle(workflow_id))
            except WorkflowFailureError as error:
                failures.append(error.cause)

        asyncio.run(end())

    def goes_on(self) -> None:
        """Wait until all servers are open and a mutation is applied."""
        wait_for(lambda: asyncio.run(self.live.all_open()), "the servers to open", 60)
        before = self.live.mutations()
        wait_for(lambda: self.live.mutations() > before, "the rollouts to go on")

    def manifests(self) -> dict[str, bytes]:
        """Every snapshot, by the bytes of its manifest: none may change."""
        folder = self.live.snapshots
        return {
            name: (folder.path / name / "manifest.json").read_bytes() for name in folder.snapshots()
        }

    def policy_delay(self, seconds: str) -> None:
        """Start the policy again with another delay: it holds no state."""
        path = self.live.folder / "stack.json"
        record = json.loads(path.read_text())
        record["settings"]["options"]["policy"]["delay-s"] = seconds
        path.write_text(json.dumps(record))
        self.live.stack.restart("policy", grace_s=0)


async def the_result(handle: Any) -> Any:
    return await asyncio.wait_for(handle.result(), 60)


def typed(failures: list[BaseException]) -> tuple[str, str]:
    """Type and sentence of the one failure."""
    assert len(failures) == 1, failures
    return str(getattr(failures[0], "type", None)), str(getattr(failures[0], "message", ""))


@contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """A file system of its own, where this user may mount one."""
    folder.mkdir()
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=1777", "tmpfs", str(folder)]
    may = not as_root or shutil.which("sudo") is not None
    mounted = may and subprocess.run([*as_root, *mount], capture_output=True).returncode == 0
    try:
        yield folder if mounted else None
    finally:
        if mounted:
            subprocess.run([*as_root, "umount", "-l", str(folder)], check=True)


@contextmanager
def filled(disk: Path, leave: int) -> Iterator[None]:
    """All but `leave` bytes of a file system taken."""
    filler = disk / "filler"
    try:
        with filler.open("wb", buffering=0) as file:
            file.truncate(0)
            os.posix_fallocate(file.fileno(), 0, max(shutil.disk_usage(disk).free - leave, 1))
        yield
    finally:
        filler.unlink()


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    folder = tmp_path_factory.mktemp("misuse")
    with small_disk(folder / "disk") as disk:
        live = Live(
            folder / "state",
            OPTIONS,
            port_base=28_400,
            workers=1,
            lease_s=30,
            snapshot_root=str(folder / "disk" / "snapshots"),
        )
        found = Job(live, disk)
        try:
            live.up()
            rows = folder / "rows.jsonl"
            rows.write_text('{"responses_create_params": {"input": "a"}}\n{"hunter2": 1}\n')
            found.before_any_job = {
                "rows": found.cli("run", "--detach", "--rows", str(rows)),
                "save": found.cli("save"),
                "restore": found.cli("restore"),
            }
            found.cli("run", "--generations", "1")
            found.undisturbed = live.rows()
            found.policy_delay(SLOW)
            # Only now: the supervision of that run would have started it again.
            live.stack.kill("worker_1")
            live.start_held_worker(HELD)
            code, begun = found.cli("run", "--generations", "1", "--fresh", "--detach")
            assert code == 0, begun
            yield found
        finally:
            live.down()


def test_before_any_job_there_is_nothing_to_save_or_restore(job: Job) -> None:
    code, answer = job.before_any_job["rows"]
    assert (code, answer["error"]["code"]) == (2, "dataset_invalid")
    assert "rows.jsonl:2" in answer["error"]["message"]
    assert "hunter2" not in answer["error"]["message"]
    code, answer = job.before_any_job["save"]
    assert (code, answer["error"]["code"]) == (4, "controller_lost")
    assert "turnpoint r" in answer["error"]["message"]
    code, answer = job.before_any_job["restore"]
    assert (code, answer["error"]["code"]) == (1, "no_snapshot")
    assert "turnpoint run" in answer["error"]["message"]


def test_a_live_job_and_its_stack_refuse_what_would_harm_them(job: Job) -> None:
    before = job.controller()["incarnation"]
    for words, code, kind, said in (
        (("run",), 3, "refused", "runs already as incarnation"),
        (("restore",), 3, "refused", "turnpoint restore --replace"),
        (("restore", "--replace"), 1, "no_snapshot", "turnpoint run"),
        (("restore", "--to", "snapshot_000099", "--replace"), 1, "not_found", "snapshot_000099"),
        (("up",), 3, "refused", "turnpoint down"),
        (("save", "--name", "../x"), 2, "usage", "name: "),
        (("restore", "--to", "../x"), 2, "usage", "snapshot: "),
    ):
        refused = job.refused(*words)
        assert refused[:2] == (code, kind), (words, refused)
        assert said in refused[2], (words, refused)
    assert job.controller()["incarnation"] == before
    job.goes_on()


def test_a_restore_into_the_running_job_is_refused_on_temporal_too(job: Job) -> None:
    job.save()
    workflow_id = f"{JOB}/restore/{uuid.uuid4().hex[:8]}"
    job.live.temporal_start("RestoreSnapshot", workflow_id, {"job_id": JOB})

    async def failure() -> Any:
        client = await job.live.client()
        with pytest.raises(WorkflowFailureError) as caught:
            await the_result(client.get_workflow_handle(workflow_id))
        return caught.value.cause

    error = asyncio.run(failure())
    assert error.type == "job_alive" and "--replace" in error.message
    job.goes_on()


def test_a_port_in_use_and_settings_that_are_wrong_start_nothing(job: Job) -> None:
    port = job.live.settings.temporal_address
    assert port is not None
    other = job.live.folder.parent / "other"
    words = ("up", "--policy", "scripted", "--state-dir", str(other))
    taken = json.dumps({"temporal": int(port.rpartition(":")[2])})
    done = subprocess.run(
        [str(TURNPOINT), *words, "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=job.live.folder,
        env={**environment(), "TURNPOINT_PORTS": taken},
    )
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["code"]) == (1, "port_in_use")
    assert "ports.temporal" in error["message"]
    assert not (other / "stack.json").exists()
    code, kind, said = job.refused("status", TURNPOINT_LEASES="1")
    assert (code, kind) == (2, "settings") and "TURNPOINT_LEASE_S" in said
    code, kind, said = job.refused("status", TURNPOINT_CONTROL_TOKEN="hunter2-wrong")
    assert (code, kind) == (2, "settings") and "another value" in said


def test_every_server_refuses_strangers_and_bad_requests(job: Job) -> None:
    settings = job.live.settings
    token = read_key_file(settings.token_file, "control_token").get_secret_value()
    right = {"authorization": f"Bearer {token}"}
    outside = job.live.folder.parent / "outside" / "gym"
    outside.mkdir(parents=True)
    link = settings.snapshots / JOB / "tmp_snapshot_000099-link"
    link.symlink_to(outside.parent)
    assert {server.name for server in settings.servers} == {AGENT, MODEL, RESOURCE}
    for server in settings.servers:
        with httpx.Client(base_url=server.url, trust_env=False, timeout=10) as http:

            def answer(operation: str, headers: dict[str, str] = right, **body: Any) -> Any:
                sent = http.post(f"{BASE_PATH}/{operation}", json=body, headers=headers)
                return sent.status_code, sent.json()["code"], sent.json()

            who = http.get(f"{BASE_PATH}/capabilities", headers=right).json()
            ids = {"incarnation": who["incarnation"], "instance_id": who["instance_id"]}
            save = {**ids, "checkpoint_id": "misuse", "budget_s": 5, "lease_s": 5}
            for headers in ({}, {"authorization": "Bearer hunter2"}):
                assert answer("prepare", headers, **save)[:2] == (401, "unauthorized")
            assert answer("prepare", **{**save, "budget_s": -1})[:2] == (422, "invalid_request")
            unknown = answer("prepare", **save, surprise="hunter2")
            assert unknown[1] == "invalid_request" and unknown[2]["details"]["fields"] == [
                "surprise"
            ]
            older = answer("prepare", **{**save, "incarnation": who["incarnation"] - 1})
            assert older[:2] == (409, "stale_incarnation")
            another = answer("prepare", **{**save, "instance_id": "another"})
            assert another[:2] == (409, "stale_instance")
            early = answer("commit", **ids, checkpoint_id="misuse", budget_s=5, folder=str(outside))
            assert early[0] == 409
            if server.name == RESOURCE:
                assert http.post(f"{BASE_PATH}/prepare", json=save, headers=right).json()["ready"]
                for folder in (outside.parent, link, settings.snapshots / JOB / ".." / "x"):
                    commit = {**ids, "checkpoint_id": "misuse", "budget_s": 5}
                    refused = answer("commit", **commit, folder=str(folder))
                    assert refused[:2] == (409, "folder_outside_root"), folder
                http.post(
                    f"{BASE_PATH}/resume", json={**ids, "checkpoint_id": "misuse"}, headers=right
                )
    link.unlink()
    assert list(outside.iterdir()) == []
    job.goes_on()


def test_a_save_while_one_runs_is_refused_and_the_first_publishes(job: Job) -> None:
    with job.save_held_at("begin_checkpoint.after") as failures:
        code, kind, said = job.refused("save", "--name", "second")
        assert (code, kind) == (3, "checkpoint_running")
        assert "another save" in said and "wait for it" in said
    assert failures == []
    job.goes_on()


def test_a_disk_without_space_is_seen_before_the_pause_and_in_it(job: Job) -> None:
    if job.disk is None:
        pytest.skip("no tmpfs can be mounted by this user; tests/*/test_full_disk.py inject ENOSPC")
    before = job.manifests()
    with filled(job.disk, leave=LEAST_FREE_BYTES // 2):
        code, kind, said = job.refused("save", "--name", "full")
        assert (code, kind) == (3, "no_space") and "bytes are free" in said
    with job.save_held_at("commit_checkpoint.before") as failures:
        wait_for(lambda: bool(job.live.left_over()), "the unpublished folder")
        filling = filled(job.disk, leave=0)
        filling.__enter__()
    kind, said = typed(failures)
    filling.__exit__(None, None, None)
    assert kind == "no_space", said
    assert "No space left on device" in said and "save again" in said
    assert any(name in said for name in (AGENT, MODEL, RESOURCE)), said
    assert job.manifests() == before
    assert job.live.left_over() == []
    job.goes_on()
    job.save()


def test_a_silent_server_fails_the_cut_and_costs_nothing(job: Job) -> None:
    before = job.manifests()
    (counter,) = [p for p in job.live.pids(RESOURCE) if p.parent() not in job.live.pids(RESOURCE)]
    with job.save_held_at("cut_rl_state.before") as failures:
        counter.suspend()
        threading.Timer(12, counter.resume).start()
    kind, said = typed(failures)
    assert kind == "not_held", said
    assert RESOURCE in said
    assert job.manifests() == before
    job.goes_on()


@pytest.mark.parametrize("damage", ["truncated", "extra", "manifest"])
def test_a_damaged_snapshot_is_named_by_file_with_the_next_step(job: Job, damage: str) -> None:
    newest = job.live.snapshots.snapshots()[0]
    folder = job.live.snapshots.path / newest
    path = folder / "gym" / RESOURCE / "sessions.jsonl"
    if damage == "manifest":
        path = folder / "manifest.json"
    if damage == "extra":
        path = folder / "rl" / "extra"
    was = path.read_bytes() if path.exists() else None
    if damage == "truncated" and was is not None:
        path.write_bytes(was[:-1])
    else:
        path.write_bytes(b"x" + (was or b"")[1:])
    try:
        code, answer = job.cli("verify", newest)
        assert (code, answer["intact"]) == (1, False)
        assert answer["file"] == path.relative_to(folder).as_posix()
        assert "turnpoint restore" in answer["next"]
        if damage == "manifest":
            code, kind, said = job.refused("inspect", newest)
            assert (code, kind) == (1, "snapshot_damaged")
            assert "manifest.json" in said and newest in said and "turnpoint restore" in said
            code, rows = job.cli("list")
            assert code == 0 and "manifest.json" in rows[0]["damaged"]
    finally:
        path.unlink(missing_ok=True)
        if was is not None:
            path.write_bytes(was)
    assert job.cli("verify", newest)[0] == 0


def test_a_restarted_server_fails_the_save_and_the_job_and_a_restore_brings_it_back(
    job: Job,
) -> None:
    """Between prepare and commit; the restore skips what is damaged.

    No supervisor watches this job: it learns of the restart by its rollouts, as soon as one of
    them calls the server. Break: gym/agent/run.py: issue such a call again.
    """
    while len(job.live.snapshots.snapshots()) <= len(DAMAGE):
        job.save()
    before = job.manifests()
    with job.save_held_at("commit_checkpoint.before") as failures:
        job.live.stack.restart(RESOURCE, expect_restore=False, grace_s=0)
    kind, said = typed(failures)
    assert (kind, RESOURCE in said) == ("stale_instance", True), said
    assert job.manifests() == before
    wait_for(lambda: job.controller()["state"] == "failed", "the job to learn of it", 30)
    code, kind, said = job.refused("save", "--name", "after-restart")
    assert (code, kind) == (4, "controller_lost")
    assert f"not_joined: {RESOURCE} has not joined" in said and "restore" in said

    *newest, older = job.live.snapshots.snapshots()[: len(DAMAGE) + 1]
    for name, (file, damage) in zip(newest, DAMAGE.values(), strict=True):
        damage(job.live.snapshots.path / name / file)
    with job.live.hold("select_snapshot.before") as reached:
        answers: list[tuple[int, Any]] = []
        restoring = threading.Thread(target=lambda: answers.append(job.cli("restore", "--replace")))
        restoring.start()
        wait_for(reached.exists, "the restore to look for a snapshot", 60)
        code, kind, said = job.refused("save", "--name", "while-restoring")
        assert (code, kind) == (3, "restore_not_finished") and "wait for" in said
    restoring.join(120)
    code, restored = answers[0]
    assert code == 0, restored
    assert restored["snapshot"] == older
    assert len(restored["skipped"]) == len(DAMAGE)
    for name, (file, _), said in zip(newest, DAMAGE.values(), restored["skipped"], strict=True):
        assert said.startswith(f"{name}: snapshot_damaged: {file}: "), said
    job.goes_on()


def test_a_save_of_a_dead_incarnation_is_ended_and_publishes_nothing(job: Job) -> None:
    """Its folder is sealed and about to be renamed when a restore claims the job.

    Break: activities/job.py: end no open workflow after the claim.
    """
    before = job.manifests()
    dead = job.controller()["incarnation"]
    with job.save_held_at("publish_snapshot.inside") as failures:
        [tmp] = job.live.left_over()
        assert (job.live.snapshots.path / tmp / "manifest.json").is_file()
        code, restored = job.cli("restore", "--replace")
        assert (code, restored["incarnation"]) == (0, dead + 1), restored
        assert job.live.left_over() == []
    [ended] = failures
    assert isinstance(ended, TerminatedError)
    assert ended.message.startswith(f"superseded by {JOB}/restore/")
    job.goes_on()
    assert job.manifests() == before
    assert job.live.left_over() == []


def test_the_job_ends_with_the_rows_of_the_undisturbed_one(job: Job) -> None:
    job.policy_delay(FAST)
    wait_for(lambda: job.controller()["state"] == "finished", "the job to finish", 90)
    rows = job.live.rows()
    assert len(rows) == len(job.undisturbed) == 5

    def compared(row: dict[str, Any]) -> dict[str, Any]:
        kept = ("token_ids", "token_mask", "log_probs", "reward")
        return {key: row[key] for key in kept} | {
            key: row["tag"][key] for key in ("mutations", "turns")
        }

    assert {name: compared(row) for name, row in rows.items()} == {
        name: compared(row) for name, row in job.undisturbed.items()
    }


def test_no_secret_was_shown(job: Job) -> None:
    settings = job.live.settings
    secrets = [
        read_key_file(settings.token_file, "control_token").get_secret_value(),
        read_key_file(settings.key_file, "snapshot_key").get_secret_value(),
        "hunter2",
    ]
    logs = [path.read_text(errors="replace") for path in (job.live.folder / "logs").glob("*.log")]
    for text in [*job.printed, *logs]:
        assert not any(secret in text for secret in secrets)


def test_commands_say_at_once_that_temporal_or_ray_is_gone(job: Job) -> None:
    """Last: it ends Temporal, then Ray."""
    job.live.stack.kill("temporal")
    code, kind, said = job.refused("save")
    assert (code, kind) == (4, "not_running") and "turnpoint up" in said
    job.live.stack.kill("ray")
    code, kind, said = job.refused("restore")
    assert (code, kind) == (4, "ray_unreachable") and "turnpoint up" in said
    code, kind, said = job.refused("run")
    assert (code, kind) == (4, "not_running") and "turnpoint up" in said
