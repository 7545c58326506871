"""What each room imports: nothing in a circle, and only what it may (design section 3, rooms).

import-linter reads the source; this looks at `sys.modules` of a fresh interpreter, so it finds
what comes in through a library as well. Break: import httpx in `gym/protocol/records.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Collection, Mapping
from graphlib import CycleError, TopologicalSorter

import grimp
import pytest

HEAVY = {"ray", "torch", "transfer_queue", "httpx", "fastapi", "uvicorn", "pyarrow", "temporalio"}
ROOMS = {"workflows", "activities", "workers", "gym", "rl"}


def circle(imports: Mapping[str, Collection[str]]) -> list[str]:
    """Modules that import each other in a circle; the first one found, empty if there is none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def test_no_module_imports_itself_through_others() -> None:
    """Imports in functions count, and those for types alone."""
    graph = grimp.build_graph(*ROOMS, cache_dir=None)
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    assert circle(imports) == []


def test_a_circle_of_imports_is_found() -> None:
    imports = {"a": {"b", "d"}, "b": {"c"}, "c": {"a"}, "d": set()}
    assert set(circle(imports)) == {"a", "b", "c"}
    assert circle(imports | {"c": {"d"}}) == []


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
        # Each process of a stack and most commands import these: torch would cost them seconds.
        (["workers.worker", "workers.job.ray_child"], {"torch", "transfer_queue"}),
        (["workers.cli.app"], {"torch", "transfer_queue", "ray"}),
        (["activities"], {"workflows", "workers"}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_a_room_brings_only_what_it_may(names: list[str], never: set[str]) -> None:
    assert modules_after(*names) & never == set()
