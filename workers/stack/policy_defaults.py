"""Flags that a stack's own processes get by default, because of the policy it plays.

`options` of the settings wins, flag by flag. A policy given by its URL gets none: what a real
model needs, its owner knows.
"""

from __future__ import annotations

from collections.abc import Mapping

from workers.config.gym_servers import AGENT, MODEL, OWN

MAX_STEPS = 8
FLAGS: dict[str, dict[str, dict[str, str]]] = {
    "vllm": {
        # Random weights act validly only under a grammar, and never end by themselves: each
        # answer is a tool call, of bounded length, and the agent ends the rollout.
        MODEL: {"extra-body": '{"tool_choice": "required", "max_tokens": 256}'},
        AGENT: {"max-steps": str(MAX_STEPS)},
    },
    "scripted": {
        # Rollouts of 12 to 16 s, so that a person can save one by hand.
        "policy": {"delay-s": "1", "turns": "12", "turns-spread": "4"},
    },
}
"""By policy and process. `docker-compose.yml` has those of `vllm` too."""


def flags_of(
    policy: str, options: Mapping[str, Mapping[str, str]], *, own_servers: bool
) -> dict[str, dict[str, str]]:
    """The flags of each process: these, with `options` over them.

    Args:
        policy: As the settings have it.
        options: As the settings have them.
        own_servers: Whether the Gym servers are the stack's own: of those that somebody names,
            nobody here knows what they play.
    """
    defaults = {
        name: flags
        for name, flags in FLAGS.get(policy, {}).items()
        if own_servers or name not in OWN
    }
    return {
        name: {**defaults.get(name, {}), **options.get(name, {})}
        for name in {**defaults, **options}
    }
