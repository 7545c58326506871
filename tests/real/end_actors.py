"""`python -m tests.real.end_actors NAME ...`: end actors of the job for good.

Ray starts an actor again whose process dies, but not one ended by `ray.kill`.
"""

from __future__ import annotations

import asyncio
import sys

from rl import living_actors
from rl.actors import attached


async def main(names: set[str]) -> None:
    await attached()
    found = await living_actors.find_all()
    ended = await living_actors.kill([actor for actor in found if actor.name in names])
    assert set(ended) == names, f"there were only {ended}"


if __name__ == "__main__":
    asyncio.run(main(set(sys.argv[1:])))
