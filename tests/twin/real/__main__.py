"""`python -m tests.twin.real`: one twin run on real processes, with `--help` for its flags."""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import signal
import tempfile
import time
from datetime import datetime
from pathlib import Path

from tests.twin.real.twin import Twin
from tests.twin.results import RESULTS, write_results


def main() -> int:
    """Run from the command line; 1 if anything differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.twin.real", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("--points", type=int, default=100)
    parser.add_argument("--port-base", type=int, default=27_600)
    parser.add_argument("--folder", type=Path, help="kept; by default a new one, kept on failure")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="twin-"))
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the stack is ended by either

    def report(line: str) -> None:
        print(f"{datetime.now():%H:%M:%S} {line}", flush=True)

    twin = Twin(
        folder, port_base=given.port_base, seed=given.seed, points=given.points, report=report
    )
    outcome = asyncio.run(twin.run())
    took = time.monotonic() - began
    for line in outcome.lines(took):
        report(line)
    if given.write:
        write_results("real", **outcome.results(took))
    if outcome.differences:
        report(f"logs: {folder / 'logs'}")
        return 1
    if given.folder is None:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
