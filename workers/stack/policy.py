"""The policy of a stack: flags that the stack's own needs, and a check of one given by its URL.

Guarantees of the check: an answer that is no model list, or one without the job's model, ends `up`
before anything is started, and the error names the address and the setting. Nothing of a foreign
answer but model names is shown.
"""

from __future__ import annotations

from collections.abc import Mapping

import httpx

from workers.config.gym_servers import AGENT, MODEL, OWN
from workers.config.settings import Settings
from workers.errors import NotRunning, SettingsError

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
"""Default flags by policy and process. `docker-compose.yml` has those of `vllm` too."""
ANSWER_TIMEOUT_S = 5.0
_SHOWN_MODELS = 5


def flags_of(
    policy: str, options: Mapping[str, Mapping[str, str]], *, own_servers: bool
) -> dict[str, dict[str, str]]:
    """The flags of each process: `FLAGS`, with `options` over them, flag by flag.

    Args:
        policy: The setting `policy`. One given by its URL has no default flags.
        options: The setting `options`.
        own_servers: True if the Gym servers are the stack's own. Servers of the settings get no
            default flags, though they may have the same names: they may play anything.
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


def base_url(policy: str) -> str:
    """The base URL up to `/v1` of a policy given as a URL."""
    base = policy.rstrip("/")
    return base if base.endswith("/v1") else f"{base}/v1"


def require_policy(settings: Settings) -> None:
    """Check that the policy given by its URL serves the job's model.

    A policy that the stack itself starts is not checked.

    Raises:
        NotRunning: The URL does not answer, or with a server error.
        SettingsError: The answer is no model list, or `policy_model` is not in it.
    """
    if not settings.policy.startswith("http"):
        return
    url = f"{base_url(settings.policy)}/models"
    try:
        answer = httpx.get(url, timeout=ANSWER_TIMEOUT_S, trust_env=False)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise NotRunning(
            f"policy: no answer from {url} ({type(error).__name__}); start it first, or use "
            "--policy vllm or --policy scripted"
        ) from None
    if answer.is_server_error:
        raise NotRunning(f"policy: HTTP {answer.status_code} from {url}; look at its log")
    models = _models(answer)
    if models is None:
        raise SettingsError(
            f"policy: HTTP {answer.status_code} from {url} is no list of models; allowed: the URL "
            "of an OpenAI-compatible vLLM, up to /v1"
        )
    if settings.policy_model not in models:
        there = ", ".join(models[:_SHOWN_MODELS]) or "none"
        raise SettingsError(
            f"policy_model: {settings.policy_model} is not served at {url}; there are: {there}"
        )


def _models(answer: httpx.Response) -> list[str] | None:
    try:
        return [str(model["id"])[:100] for model in answer.json()["data"]]
    except (ValueError, KeyError, TypeError):
        return None
