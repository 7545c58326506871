"""Modules without a test file of their own, and why.

Tests mirror the source, file for file: `rl/records/loader.py` has
`tests/rl/records/test_loader.py`. A module that is best tested elsewhere is named here, with what
tests it. `tests/test_mirrors.py` refuses a module with neither, and an entry that is no longer
needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

ROOMS = ("gym", "rl", "workers")

WITHOUT_A_TEST: dict[str, str] = {
    "rl.controller.collaborators": "a dataclass alone",
    "rl.data_plane.names": "constants alone",
    "workers.demo.__main__": "three lines that `make demo` runs",
    "workers.demo.story": "`make demo` plays it; tests/real/test_demo.py checks its report",
    "workers.job.cluster_view": "pydantic models without code",
}


def modules(root: Path) -> dict[str, Path]:
    """Every module of the mirrored rooms, packages left out, with its test file's path."""
    found = {}
    for room in ROOMS:
        for path in sorted((root / room).rglob("*.py")):
            source = path.relative_to(root)
            if source.name != "__init__.py":
                name = ".".join(source.with_suffix("").parts)
                found[name] = root / "tests" / source.parent / f"test_{source.name}"
    return found


def not_mirrored(root: Path, reasons: Mapping[str, str]) -> list[str]:
    """Sentences about every module or entry that breaks the rule; empty: the tests mirror all."""
    known = modules(root)
    tested = {name for name, test in known.items() if test.is_file()}
    here = "tests/mirrors.py"
    untold = sorted(known.keys() - tested - reasons.keys())
    return [
        *(
            f"{name} has no {known[name].relative_to(root)} and no reason in {here}"
            for name in untold
        ),
        *(f"{name} has a test: remove it from {here}" for name in sorted(tested & reasons.keys())),
        *(
            f"{name} does not exist: remove it from {here}"
            for name in sorted(reasons.keys() - known.keys())
        ),
        *(f"{name} needs a reason" for name, reason in reasons.items() if not reason.strip()),
    ]
