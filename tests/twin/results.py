"""`docs/results/twin.json`: results of the last long run of each layer, and the machine."""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import psutil

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "twin.json"


def write_results(
    layer: Literal["real", "in_process"],
    *,
    seed: int,
    points: int,
    differences: int,
    path: Path = RESULTS,
    **more: object,
) -> None:
    """Write the run of one layer into the file; the other layer's last run stays.

    Args:
        layer: Which.
        seed: Of its plan.
        points: Crashes.
        differences: How many.
        path: The file.
        more: Other counts.
    """
    module = f"tests.twin.{layer}"
    memory_gib = psutil.virtual_memory().total / 2**30
    run = {
        "points": points,
        "differences": differences,
        "seed": seed,
        "date": datetime.now(UTC).date().isoformat(),
        "command": f"python -m {module} --seed {seed} --points {points}",
        "machine": f"{os.cpu_count()} cores, {memory_gib:.0f} GiB, {platform.system()}",
        **more,
    }
    runs: dict[str, Any] = {}
    if path.exists():
        runs = json.loads(path.read_text())["runs"]
    runs[layer] = run
    found = {
        "real_points": runs.get("real", {}).get("points", 0),
        "in_process_points": runs.get("in_process", {}).get("points", 0),
        "differences": sum(each["differences"] for each in runs.values()),
        "seeds": [each["seed"] for each in runs.values()],
        "date": run["date"],
        "runs": runs,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{json.dumps(found, indent=2)}\n")
