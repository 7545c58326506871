"""Ports are free, kept over restarts, and a fixed one in use is an error."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from workers.errors import PortInUse
from workers.stack.ports import HOST, choose, is_free, port_registry

BASE = 26_300


@pytest.fixture
def held() -> int:
    """A port that is in use."""
    with socket.socket() as holder:
        holder.bind((HOST, 0))
        holder.listen()
        yield holder.getsockname()[1]


def test_free_ones_are_taken_upward_and_differ() -> None:
    chosen = choose(["a", "b", "c"], fixed={}, kept={}, base=BASE)
    assert len(set(chosen.values())) == 3
    assert all(port >= BASE and is_free(port) for port in chosen.values())


def test_kept_ones_stay_while_they_are_free(held: int) -> None:
    chosen = choose(["a", "b"], fixed={}, kept={"a": BASE + 50, "b": held}, base=BASE)
    assert chosen["a"] == BASE + 50
    assert chosen["b"] != held


def test_fixed_one_in_use_is_a_clear_error(held: int) -> None:
    with pytest.raises(PortInUse, match=rf"temporal: port {held} is in use.*ports\.temporal"):
        choose(["temporal"], fixed={"temporal": held}, kept={}, base=BASE)


def test_fixed_one_beats_a_kept_one_and_is_given_once() -> None:
    chosen = choose(["a", "b"], fixed={"b": BASE}, kept={"a": BASE + 1}, base=BASE)
    assert chosen == {"a": BASE + 1, "b": BASE}


def test_ports_of_other_stacks_are_left_alone_before_they_are_bound(tmp_path: Path) -> None:
    path = tmp_path / "registry.json"
    with port_registry(path) as registry:
        assert registry.taken == set()
        registry.take("first", {"a": BASE, "b": BASE + 1})  # this process starts it, and lives
    with port_registry(path) as registry:
        chosen = choose(["a"], fixed={}, kept={"a": BASE}, base=BASE, others=registry.taken)
        assert chosen["a"] > BASE + 1
        with pytest.raises(PortInUse):
            choose(["a"], fixed={"a": BASE}, kept={}, base=BASE, others=registry.taken)


def test_note_of_a_dead_stack_counts_no_more(tmp_path: Path) -> None:
    path = tmp_path / "registry.json"
    note = {"stack_id": "gone", "ports": [BASE], "starter": 1, "starter_since": 0.0}
    path.write_text(json.dumps([note]))
    with port_registry(path) as registry:
        assert registry.taken == set()
    assert json.loads(path.read_text()) == []


@pytest.mark.parametrize("content", ["[{", "[][]", "\udcff", "{}", '[{"ports": 1}]', "[" * 100_000])
def test_half_a_registry_keeps_no_stack_from_starting_or_ending(
    tmp_path: Path, content: str
) -> None:
    """A kill in its writing, or a full disk. Break: workers/stack/ports.py: let it rise."""
    path = tmp_path / "registry.json"
    path.write_bytes(content.encode(errors="surrogateescape"))
    with port_registry(path) as registry:
        registry.take("first", {"a": BASE})
    with port_registry(path) as registry:
        assert registry.taken == {BASE}
