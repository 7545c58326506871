"""Which Gym servers a start or a restore restarts, and when; looks and restarts are given.

A command can stand still at any point (Ctrl-Z, a query that times out) while the workflow goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from pathlib import Path

import pytest

from activities.contract import PhaseReport, Progress, RestoreInput, RestoreResult
from gym.protocol import Capabilities, Kind, Mode, Phase
from rl.snapshots import incarnations
from workers.config.settings import Settings, load_settings
from workers.errors import StackBusy
from workers.job import commands as job_runs
from workers.job import restarts as restarts
from workers.job.restarts import Restarter
from workers.job.workflows import OnProgress
from workers.stack.record import StackRecord
from workers.stack.stack import Stack

NAMES = ("policy_model", "simple_agent", "counter")
OLD, CLAIMED, NEWER = 1, 2, 3
NAMES_IN_ORDER = tuple(sorted(NAMES))
CLAIMS = Progress(phase="claim_job", done=[])
DISCOVERS = Progress(
    phase="discover_capabilities", done=[PhaseReport(phase="claim_job", ms=1)], incarnation=CLAIMED
)
RESUMED = Progress(
    phase="start_pumps",
    done=[PhaseReport(phase=name, ms=1) for name in ("claim_job", "resume_restored")],
    incarnation=CLAIMED,
)


def server(phase: Phase, incarnation: int | None) -> Capabilities:
    return Capabilities(
        server="counter",
        instance_id="i",
        incarnation=incarnation,
        phase=phase,
        kind=Kind.RESOURCE,
        mode=Mode.EXPORT_RESTORE,
    )


RESTORED = RestoreResult(
    restore_id="r",
    incarnation=CLAIMED,
    snapshot="snapshot_000007",
    finished_rollouts=0,
    continued=[],
)


class Given:
    """A stack of three servers, and a restore whose phases are seen one by one.

    Attributes:
        servers: What they answer; None of one that does not.
        seen: The looks at the workflow that are answered, in order.
        now: Where it stands when it is asked right before a restart; None: no answer.
        restarted: Which servers were, and whether for a restore.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.settings: Settings = load_settings(
            state_dir=folder,
            servers=[
                {
                    "name": name,
                    "kind": "resource",
                    "url": f"http://127.0.0.1:{port}",
                    "command": ["python"],
                }
                for port, name in enumerate(NAMES, start=1)
            ],
            policy_url="http://127.0.0.1:1/v1",
            generation_port=1,
        )
        self._record = StackRecord(
            stack_id="s",
            settings={},
            ports=dict.fromkeys(NAMES, 1),
            ray_folder=folder,
            expect_restore=False,
            ray_address=None,
            temporal_ui=None,
        )
        self.servers: dict[str, Capabilities | None] = {}
        self.all(server(Phase.OPEN, OLD))
        self.seen: list[Progress] = []
        self.now: list[Progress | None] = []
        self.restarted: list[tuple[tuple[str, ...], bool]] = []
        self._asked = asyncio.Event()
        for _ in range(CLAIMED):
            self.claim()
        monkeypatch.setattr(restarts, "gym_capabilities", self._gym_servers)
        monkeypatch.setattr(Restarter, "restart", self._restart)
        monkeypatch.setattr(Stack, "record", lambda _: self._record)
        for name in ("connect", "start", "follow", "progress_of"):
            monkeypatch.setattr(job_runs, name, getattr(self, f"_{name}"))

    def all(self, what: Capabilities | None) -> None:
        self.servers = dict.fromkeys(NAMES, what)

    def claim(self) -> None:
        folder = self.settings.job_config().job_folder
        incarnations.claim(folder, {"run_id": str(incarnations.newest(folder))})

    async def restore(self) -> None:
        given = RestoreInput(job_id=self.settings.job_id, replace=True)
        assert await job_runs.restore(self.settings, given, lambda _: None) is RESTORED

    async def _gym_servers(
        self, *_: object
    ) -> tuple[dict[str, Capabilities | None], dict[str, str]]:
        return self.servers, {}

    async def _restart(self, *names: str, expect_restore: bool) -> None:
        self.restarted += [(names, expect_restore)] if names else []
        self._asked.set()

    async def _connect(self, _: Settings) -> None:
        return None

    async def _start(self, *_: object) -> None:
        return None

    async def _follow(self, _: object, __: object, on_progress: OnProgress) -> RestoreResult:
        for progress in self.seen:
            self._asked.clear()
            on_progress(progress)
            with contextlib.suppress(TimeoutError):  # no request is seen only after a while
                await asyncio.wait_for(self._asked.wait(), 0.3)
        return RESTORED

    async def _progress_of(self, _: object) -> Progress | None:
        self._asked.set()
        return self.now.pop(0) if self.now else self.seen[-1]


@pytest.fixture
async def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Given:
    return Given(tmp_path, monkeypatch)


async def test_servers_of_the_job_that_was_replaced_are_restarted_for_the_restore(
    given: Given,
) -> None:
    given.servers["counter"] = server(Phase.AWAITING_RESTORE, None)
    given.seen = [CLAIMS, DISCOVERS]
    await given.restore()
    assert given.restarted == [(("policy_model", "simple_agent"), True)]


async def test_a_command_that_looks_too_late_leaves_the_restored_job_alone(given: Given) -> None:
    """It was stopped, or its queries timed out, until the job ran again.

    Break: workers/job/commands.py: act as soon as a look shows that the claim is over.
    """
    given.all(server(Phase.OPEN, CLAIMED))
    given.servers["counter"] = None  # it is busy, and does not answer in this instant
    given.seen = [RESUMED]
    await given.restore()
    assert given.restarted == []


async def test_a_command_that_stands_still_between_look_and_restart_leaves_the_job_alone(
    given: Given,
) -> None:
    """Break: workers/job/restarts.py: do not ask again before the restart."""
    given.servers["counter"] = None
    given.seen, given.now = [DISCOVERS], [RESUMED]
    await given.restore()
    assert given.restarted == []


async def test_servers_that_have_joined_the_claimed_incarnation_are_never_restarted(
    given: Given,
) -> None:
    """It stood still after the last question. Break: workers/job/restarts.py.

    Go by the phase alone.
    """
    given.all(server(Phase.OPEN, CLAIMED))
    given.seen = [DISCOVERS]
    await given.restore()
    assert given.restarted == []


async def test_a_workflow_that_does_not_answer_is_looked_at_again(given: Given) -> None:
    """Its worker was killed. Break: workers/job/commands.py: act on one look alone."""
    given.seen, given.now = [DISCOVERS, DISCOVERS], [None]
    await given.restore()
    assert given.restarted == [(NAMES_IN_ORDER, True)]


@pytest.mark.parametrize("phase", [Phase.CLOSED, Phase.AWAITING_RESTORE])
async def test_nothing_is_touched_once_another_incarnation_is_the_newest(
    given: Given, phase: Phase
) -> None:
    """Break: workers/job/restarts.py: leave it to the start to notice that it is superseded."""
    given.all(server(Phase.PREPARING, NEWER))
    given.servers["counter"] = None
    given.claim()
    assert not await Restarter(given.settings).bring_gym_into(phase, CLAIMED)
    assert given.restarted == []


async def test_servers_of_the_line_that_was_left_are_restarted_closed(given: Given) -> None:
    given.servers["counter"] = server(Phase.CLOSED, None)
    assert await Restarter(given.settings).bring_gym_into(Phase.CLOSED, CLAIMED)
    assert given.restarted == [(("policy_model", "simple_agent"), False)]


async def test_of_several_restarts_that_wait_each_is_known_to_be_under_way(
    given: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is being started is never seen as gone, whatever else waits for the stack.

    Break: workers/job/restarts.py: let all that have waited for one begin at once.
    """
    monkeypatch.undo()
    monkeypatch.setattr(Stack, "record", lambda _: given)
    at_once: list[bool] = []
    running = threading.Lock()

    def restart(*_: object, **__: object) -> None:
        if not running.acquire(blocking=False):
            raise StackBusy("another command starts or stops the stack")
        try:
            time.sleep(0.1)
        finally:
            running.release()

    monkeypatch.setattr(Stack, "restart", restart)
    restarter = Restarter(given.settings)

    async def watched() -> None:
        while True:
            at_once.append(running.locked() and not restarter.busy)
            await asyncio.sleep(0.01)

    watching = asyncio.create_task(watched())
    await asyncio.gather(*(restarter.restart(name) for name in NAMES))
    watching.cancel()
    assert not any(at_once)
