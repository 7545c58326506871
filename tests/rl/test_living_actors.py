"""The job's living actors: found in the order of their ends, killed one life at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gym.protocol import DeadlineExceeded
from rl import living_actors
from rl.messages import NEMO_GYM, RAY_NAMESPACE, SINGLE_CONTROLLER
from tests.rl.fakes import config

CONTROLLER = "TransferQueueController"
UNIT = "TransferQueueStorageUnit#0"


class Cluster:
    """Actors by name and namespace; a kill ends the life that its handle is of."""

    def __init__(self) -> None:
        self.actors = {
            (UNIT, RAY_NAMESPACE): "unit",
            (NEMO_GYM, RAY_NAMESPACE): "gym",
            (SINGLE_CONTROLLER, RAY_NAMESPACE): "controller",
            (CONTROLLER, "transfer_queue"): "queue",
            (NEMO_GYM, "another"): "of another project",
            ("Other", RAY_NAMESPACE): "other",
        }
        self.dying: set[str] = set()
        self.stays = False
        self.util = self

    def list_named_actors(self, all_namespaces: bool) -> list[dict[str, str]]:
        assert all_namespaces
        return [{"name": name, "namespace": space} for name, space in self.actors]

    def get_actor(self, name: str, namespace: str) -> str:
        if name in self.dying:
            raise ValueError("dying")
        return self.actors[name, namespace]

    def kill(self, handle: str, no_restart: bool) -> None:
        assert no_restart
        if not self.stays:
            self.actors = {key: life for key, life in self.actors.items() if life != handle}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster()

    async def attached() -> None:
        return None

    monkeypatch.setattr(living_actors, "ray", cluster)
    monkeypatch.setattr(living_actors, "attached", attached)
    return cluster


async def test_a_jobs_actors_are_named_senders_first(cluster: Cluster) -> None:
    assert await living_actors.names() == [SINGLE_CONTROLLER, NEMO_GYM, UNIT, CONTROLLER]


def test_the_data_plane_is_host_controller_and_units(tmp_path: Path) -> None:
    names = living_actors.data_plane_names(config(tmp_path, storage_units=2))
    assert names == ["DataPlaneHost", CONTROLLER, UNIT, "TransferQueueStorageUnit#1"]


async def test_all_of_a_job_are_killed_and_nothing_else(cluster: Cluster) -> None:
    killed = await living_actors.kill()
    assert killed == [SINGLE_CONTROLLER, NEMO_GYM, UNIT, CONTROLLER]
    assert set(cluster.actors.values()) == {"of another project", "other"}
    assert await living_actors.kill() == []


async def test_a_later_life_of_a_name_is_not_waited_for(cluster: Cluster) -> None:
    """Break: rl/living_actors.py: wait for the names alone."""
    old = await living_actors.find_all()
    cluster.actors[NEMO_GYM, RAY_NAMESPACE] = "gym of the next incarnation"
    await living_actors.kill([actor for actor in old if actor.name == NEMO_GYM])
    assert cluster.actors[NEMO_GYM, RAY_NAMESPACE] == "gym of the next incarnation"


async def test_a_name_that_stays_taken_is_told(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(living_actors, "_GONE_TIMEOUT_S", 0.1)
    cluster.dying.add(UNIT)
    cluster.stays = True
    with pytest.raises(DeadlineExceeded) as late:
        await living_actors.kill()
    assert UNIT in late.value.details["actors"]


async def test_an_actor_is_created_once(cluster: Cluster) -> None:
    created: list[str] = []

    def create(name: str) -> Any:
        created.append(name)
        raise ValueError("a repeat on another worker was faster")

    await living_actors.ensure(NEMO_GYM, lambda: create(NEMO_GYM))
    await living_actors.ensure("Generation", lambda: create("Generation"))
    assert created == ["Generation"]
