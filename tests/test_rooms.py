"""What each room drags into a process when it is imported (design section 3, rooms).

import-linter reads the source; this looks at `sys.modules` of a fresh interpreter, so it finds
what comes in through a library as well. Break: import httpx in `gym/protocol/records.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = {"ray", "torch", "transfer_queue", "httpx", "fastapi", "uvicorn", "pyarrow", "temporalio"}
ROOMS = {"workflows", "activities", "workers", "gym", "rl"}

PROBE = """
import importlib, json, pkgutil, sys
for name in sys.argv[1:]:
    module = importlib.import_module(name)
    if hasattr(module, "__path__"):
        for found in pkgutil.walk_packages(module.__path__, name + "."):
            importlib.import_module(found.name)
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def modules_after(*names: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *names],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("names", "never"),
    [
        (["gym.protocol"], HEAVY | (ROOMS - {"gym"})),
        (["gym"], {"ray", "torch", "transfer_queue", "temporalio"} | (ROOMS - {"gym"})),
        (["activities.contract"], HEAVY | {"workflows", "workers"}),
        (["workflows"], HEAVY - {"temporalio"} | {"workers"}),
        (["rl.messages"], HEAVY | (ROOMS - {"gym", "rl"})),
        (["rl"], {"temporalio", "activities", "workflows", "workers"}),
        (["rl.job"], {"torch", "transfer_queue"}),
        (["workers.worker", "workers.job.ray_child"], {"torch", "transfer_queue"}),
        (["workers.cli.app"], {"torch", "transfer_queue", "ray"}),
        (["activities"], {"workflows", "workers"}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_a_room_brings_only_what_it_may(names: list[str], never: set[str]) -> None:
    assert modules_after(*names) & never == set()
