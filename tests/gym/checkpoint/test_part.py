"""The contract of a part: what the three kinds of servers have in common."""

from __future__ import annotations

import pytest

from examples.weather import Weather
from gym.agent.part import AgentPart
from gym.checkpoint.part import Acknowledging, Part
from gym.checkpoint.phases import Phases
from gym.model.part import ModelPart
from gym.protocol import Kind
from gym.resource.part import ResourcePart

METHODS = {name for name, value in vars(Part).items() if callable(value) and name[0] != "_"}


@pytest.mark.parametrize(
    ("part", "kind"),
    [(ModelPart, Kind.MODEL), (AgentPart, Kind.AGENT), (ResourcePart, Kind.RESOURCE)],
)
def test_every_kind_has_the_methods_of_a_part_and_agents_alone_keep_results(
    part: type[Part], kind: Kind
) -> None:
    assert {"counts", "blockers", "export", "read", "install", "drop"} <= METHODS
    assert set(dir(part)) >= METHODS
    assert part.kind is kind
    assert hasattr(part, "acknowledge") is (kind is Kind.AGENT)


def test_a_part_without_results_is_none_that_acknowledges() -> None:
    """Break: gym/checkpoint/part.py: leave `runtime_checkable` out."""
    assert not isinstance(ResourcePart(Phases("weather"), Weather()), Acknowledging)
