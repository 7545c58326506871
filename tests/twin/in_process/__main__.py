"""`python -m tests.twin.in_process`: one twin run in one process, with `--help` for its flags."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.twin.in_process.twin import Twin
from tests.twin.results import RESULTS, write_results


def main() -> int:
    """Run from the command line; 1 if anything differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.twin.in_process")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("--points", type=int, default=500)
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    began = time.monotonic()
    print(f"seed {given.seed}, {given.points} points", flush=True)
    with tempfile.TemporaryDirectory(prefix="twin-") as folder:
        twin = Twin(Path(folder), seed=given.seed, points=given.points)
        outcome = asyncio.run(twin.run())
    took = time.monotonic() - began
    print("\n".join(outcome.lines(took)))
    if given.write:
        write_results("in_process", **outcome.results(took))
    return 1 if outcome.differences else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # The interpreter's shutdown can abort in the SDK's native threads; there is nothing to lose.
    os._exit(code)
