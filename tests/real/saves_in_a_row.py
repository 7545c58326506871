"""Saves one after the other, of a job that goes on meanwhile, and what they cost it.

Guarantees: between two saves the job has made a turn at least, so none is refused as unchanged;
names and memory are looked at while nothing is being saved.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import psutil

from activities.contract import TASK_QUEUE, SaveInput, SaveResult
from gym.protocol import Status
from tests.real.live import AGENT, JOB, MODEL, RESOURCE, Live, published, until

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "hundred_saves.json"
LIMIT_S = 30.0
MIB = 2**20
ACTORS = ("SingleController", "NemoGym")


@dataclass
class SavesInARow:
    """Results of the saves, and what was measured after each."""

    saved: list[SaveResult] = field(default_factory=list)
    folders: list[list[str]] = field(default_factory=list)
    """Names in the job's folder after each save, without the incarnations."""
    memory: list[dict[str, int]] = field(default_factory=list)
    """Resident bytes of servers and actors after each save."""
    statuses: dict[str, Status] = field(default_factory=dict)
    """Of the servers, after the last."""

    def pauses(self, part: slice) -> float:
        """Median pause of some of the saves, in seconds."""
        return statistics.median(one.pause_s for one in self.saved[part] if one.pause_s is not None)

    def slower(self, of: int) -> float:
        """Ratio of the median of the last `of` pauses to that of the first."""
        return self.pauses(slice(-of, None)) / self.pauses(slice(of))

    def phases(self, part: slice) -> dict[str, float]:
        """Median milliseconds of each phase of some of the saves."""
        ms: dict[str, list[float]] = {}
        for one in self.saved[part]:
            for phase in one.phases:
                ms.setdefault(phase.phase, []).append(phase.ms)
        return {phase: round(statistics.median(each), 1) for phase, each in ms.items()}

    def grown(self, since: int) -> dict[str, float]:
        """MiB by which each process has grown since the save with this index."""
        first, last = self.memory[since], self.memory[-1]
        return {name: round((last[name] - first[name]) / MIB, 1) for name in first}

    def write(self, of: int, path: Path = RESULTS) -> None:
        """Leave the dated result."""
        memory_gib = psutil.virtual_memory().total / 2**30
        found = {
            "saves": len(self.saved),
            "published": sum(one.snapshot is not None for one in self.saved),
            "folders_at_most": max(len(names) for names in self.folders),
            "median_pause_s": {
                f"first_{of}": round(self.pauses(slice(of)), 3),
                f"last_{of}": round(self.pauses(slice(-of, None)), 3),
            },
            "slower": round(self.slower(of), 2),
            "median_phase_ms": {
                f"first_{of}": self.phases(slice(of)),
                f"last_{of}": self.phases(slice(-of, None)),
            },
            "snapshot_bytes": {"first": self.saved[0].bytes, "last": self.saved[-1].bytes},
            f"grown_mib_since_save_{of}": self.grown(of - 1),
            "date": datetime.now(UTC).date().isoformat(),
            "command": "pytest tests/real/test_snapshots_over_time.py -k hundred",
            "machine": f"{os.cpu_count()} cores, {memory_gib:.0f} GiB, {platform.system()}",
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{json.dumps(found, indent=2)}\n")


async def saves_in_a_row(live: Live, number: int) -> SavesInARow:
    """Save the running job `number` times, each as a workflow of its own."""
    seen = SavesInARow()
    client = await live.client()
    processes = _processes(live)
    for one in range(number):
        before = live.mutations()

        async def changed(before: int = before) -> bool:
            return live.mutations() >= before + 2

        await until(changed, "a turn", LIMIT_S)
        handle = await client.start_workflow(
            "SaveSnapshot",
            SaveInput(job_id=JOB),
            id=f"{JOB}/save/in-a-row-{one}",
            task_queue=TASK_QUEUE,
        )
        seen.saved.append(await published(handle, LIMIT_S))
        names = await asyncio.to_thread(os.listdir, live.snapshots.path)
        seen.folders.append(sorted(name for name in names if name != "incarnations"))
        seen.memory.append({name: process.memory_info().rss for name, process in processes.items()})
    seen.statuses = await live.statuses()
    return seen


def _processes(live: Live) -> dict[str, psutil.Process]:
    found = {name: _only(live.pids(name)) for name in (AGENT, MODEL, RESOURCE)}
    return found | {name: live.actor(name) for name in ACTORS}


def _only(processes: Sequence[psutil.Process]) -> psutil.Process:
    assert len(processes) == 1, f"{len(processes)} processes"
    return processes[0]
