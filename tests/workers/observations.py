"""Observations of a job for tests: a controller's status, a look into Ray, a supervisor's view."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gym.protocol import Kind, Mode
from rl.messages import (
    DATA_PLANE_HOST,
    GENERATION,
    NEMO_GYM,
    SINGLE_CONTROLLER,
    ControllerStatus,
    JoinedServer,
)
from workers.job.cluster_view import ClusterView
from workers.supervisor.decide import Observation

GYM = frozenset({"policy_model", "simple_agent", "counter"})
STACK = GYM | {"temporal", "ray", "policy", "worker_1", "worker_2"}
ACTORS = [SINGLE_CONTROLLER, NEMO_GYM, GENERATION, DATA_PLANE_HOST]


def status(state: str = "running", incarnation: int = 3, **more: Any) -> ControllerStatus:
    given = {
        "job_id": "demo",
        "incarnation": incarnation,
        "state": state,
        "admission_open": True,
        "checkpoint_id": None,
        "lease_left_s": None,
        "rollouts": 5,
        "rollouts_total": 10,
        "running": 5,
        "finished": 0,
        "failed": 0,
        "owed": 0,
        "last_snapshot": None,
    }
    return ControllerStatus.model_validate({**given, **more})


def cluster_view(controller: ControllerStatus | None = None, **more: Any) -> ClusterView:
    servers = [
        JoinedServer(
            name=name,
            kind=Kind.RESOURCE,
            mode=Mode.EXPORT_RESTORE,
            url="http://127.0.0.1:1",
            instance_id=f"{name}-1",
        )
        for name in sorted(GYM)
    ]
    given = {"at": 1.0, "reachable": True, "actors": ACTORS, "servers": servers}
    return ClusterView(**{**given, "controller": controller, **more})  # type: ignore[arg-type]


WELL = Observation(
    incarnation=3,
    newest=3,
    job=cluster_view(status()),
    owned=STACK,
    gym=GYM,
    answering={name: f"{name}-1" for name in GYM},
)


def observation(**more: Any) -> Observation:
    return replace(WELL, **{k: frozenset(v) if k == "gone" else v for k, v in more.items()})
