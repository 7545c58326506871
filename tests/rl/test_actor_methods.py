"""Parts of each actor: another incarnation's calls are refused, control calls never queue."""

from __future__ import annotations

import pytest

from gym.protocol import StaleIncarnation
from rl.actor_methods import CONTROL_GROUPS, control, require_incarnation


@pytest.mark.parametrize("given", [1, 3])
def test_a_call_of_another_incarnation_is_refused_with_the_actor_named(given: int) -> None:
    require_incarnation(2, 2, "NemoGym")
    with pytest.raises(StaleIncarnation, match="incarnation 2") as refused:
        require_incarnation(given, 2, "NemoGym")
    assert refused.value.participant == "NemoGym"


def test_a_control_method_has_a_concurrency_group_that_actors_declare() -> None:
    @control
    def method(self: object) -> None: ...

    (group,) = CONTROL_GROUPS
    assert method.__ray_concurrency_group__ == group
