"""A supervising command's side of `workers.job.ray_child`: it never joins Ray itself.

Guarantees: the death of Ray ends a child, never this process; the children end with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from rl.config import Workload
from workers.config.settings import Settings
from workers.errors import WorkerRoomError
from workers.job.cluster_view import ClusterView, StartLine
from workers.stack.process_specs import child_environment
from workers.stack.python_path import package_folder

Model = TypeVar("Model", bound=BaseModel)

AGAIN_S = 1.0
"""Before a child that has ended is started again: its imports cost seconds of a core."""
CHILD = (sys.executable, "-m", "workers.job.ray_child")


class RayCallFailed(WorkerRoomError):
    """A child's work ended with a typed error.

    Args:
        code: The error's stable code.
        message: Its sentence.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code  # type: ignore[misc]


class JobWatch:
    """Looks at the job twice a second, from a child process.

    Args:
        settings: Of the job and its cluster.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._news = asyncio.Condition()
        self.seen: ClusterView | None = None
        """The newest look; None before the first, and after the child has ended."""
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> JobWatch:
        """Start the child."""
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *error: object) -> None:
        """End the child."""
        await self._stop()

    async def again(self, settings: Settings) -> None:
        """Start a new child for another cluster."""
        await self._stop()
        self.seen, self._settings = None, settings
        self._task = asyncio.create_task(self._watch())

    async def first(self, timeout_s: float) -> ClusterView:
        """The first look.

        Raises:
            TimeoutError: There was none within `timeout_s`.
        """
        async with asyncio.timeout(timeout_s), self._news:
            await self._news.wait_for(lambda: self.seen is not None)
        assert self.seen is not None
        return self.seen

    async def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            async with _child(self._settings, "watch") as child:
                assert child.stdout is not None
                while line := await child.stdout.readline():
                    await self._tell(_parsed(ClusterView, line) or self.seen)
            await self._tell(None)
            await asyncio.sleep(AGAIN_S)

    async def _tell(self, seen: ClusterView | None) -> None:
        async with self._news:
            self.seen = seen
            self._news.notify_all()


async def start_fresh(
    settings: Settings,
    workload: Workload,
    *,
    replace: bool,
    on_claimed: Callable[[int], Awaitable[None]],
) -> int:
    """Start the job at its first prompt, as `rl.job.start_fresh`, from a child.

    Args:
        settings: Of the job.
        workload: Its rollouts.
        replace: End a life of the job that still answers.
        on_claimed: Awaited with the incarnation once that is claimed, before the Gym servers are
            joined.

    Returns:
        The incarnation.

    Raises:
        RayCallFailed: With the code of the error.
    """
    words = ["start-fresh", *(["--replace"] if replace else [])]
    return await _incarnation(settings, words, workload, on_claimed)


async def start_stateless(settings: Settings, incarnation: int) -> None:
    """Start the generation endpoint and NemoGym again under a live job.

    Raises:
        RayCallFailed: With the code of the error.
    """
    await _incarnation(settings, ["start-stateless", str(incarnation)])


async def _incarnation(
    settings: Settings,
    words: list[str],
    workload: Workload | None = None,
    on_claimed: Callable[[int], Awaitable[None]] | None = None,
) -> int:
    """Run a child that starts something, and return the incarnation that it answers."""
    async with _child(settings, *words) as child:
        assert child.stdin is not None and child.stdout is not None
        if workload is not None:
            child.stdin.write(workload.model_dump_json().encode() + b"\n")
            await child.stdin.drain()
        while line := await child.stdout.readline():
            if (answer := _parsed(StartLine, line)) is None:
                continue
            if answer.claimed is not None and on_claimed is not None:
                await on_claimed(answer.claimed)
                child.stdin.write(b"go on\n")
                await child.stdin.drain()
            elif answer.incarnation is not None:
                return answer.incarnation
            else:
                raise RayCallFailed(answer.code or "failed", answer.message or "it failed")
    raise RayCallFailed(
        "ray_unreachable", "the process that spoke to Ray has ended; `turnpoint logs ray_child`"
    )


def _parsed(kind: type[Model], line: bytes) -> Model | None:
    """The line as a model; None for what Ray prints to stdout when it ends a process."""
    try:
        return kind.model_validate_json(line)
    except ValidationError:
        return None


@contextlib.asynccontextmanager
async def _child(settings: Settings, *words: str) -> AsyncIterator[Process]:
    env = child_environment(settings)
    if settings.control_token is not None:
        env["TURNPOINT_CONTROL_TOKEN"] = settings.control_token.get_secret_value()
    log = settings.state_dir / "logs" / "ray_child.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as errors:
        child = await asyncio.create_subprocess_exec(
            *(*CHILD, *words),
            stdin=PIPE,
            stdout=PIPE,
            stderr=errors,
            env=env,
            cwd=package_folder(settings.state_dir),  # not the caller's: see there
            limit=16 * 1024 * 1024,
            start_new_session=True,  # Ctrl-C is for the command, which ends its children
        )
    try:
        yield child
    finally:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
        await child.wait()
