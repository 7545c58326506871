"""Counts objects of this process by type: for tests that memory does not grow."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter


def object_counts(*rooms: str) -> Counter[str]:
    """Objects of these rooms and tasks by type, and entries of their containers by attribute.

    Args:
        rooms: Packages, `gym` for one.
    """
    prefixes = tuple(f"{room}." for room in rooms)
    found: Counter[str] = Counter()
    gc.collect()
    for one in gc.get_objects():
        kind = type(one)
        module = f"{kind.__module__}."  # a slot of a class has another thing of that name
        if not module.startswith(prefixes) and kind is not asyncio.Task:
            continue
        found[f"{module}{kind.__qualname__}"] += 1
        for name, value in getattr(one, "__dict__", {}).items():
            if isinstance(value, (dict, set, list)):
                found[f"{module}{kind.__qualname__}.{name}"] += len(value)
    return found


def grown(before: Counter[str], after: Counter[str], by: int, *expected: str) -> dict[str, int]:
    """Types whose count has grown by `by` or more, without the expected ones."""
    more = after - before
    return {name: count for name, count in more.items() if count >= by and name not in expected}
