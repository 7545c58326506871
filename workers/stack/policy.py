"""A policy that somebody else runs, looked at before a stack is started for it.

Guarantees: an answer that is no model list, or one without the job's model, is told at once and
names the address and the setting; nothing of a foreign answer but model names is shown.
"""

from __future__ import annotations

import httpx

from workers.config.settings import Settings
from workers.errors import NotRunning, SettingsError

ANSWER_S = 5.0
_SHOWN_MODELS = 5


def base_url(policy: str) -> str:
    """The base URL up to `/v1` of a policy given as a URL."""
    base = policy.rstrip("/")
    return base if base.endswith("/v1") else f"{base}/v1"


def demand_policy(settings: Settings) -> None:
    """Refuse a policy URL behind which there is no policy; nothing is asked of the stack's own.

    Raises:
        NotRunning: Nobody answers there, or with an error.
        SettingsError: Who answers serves no models, or not `policy_model`.
    """
    if not settings.policy.startswith("http"):
        return
    url = f"{base_url(settings.policy)}/models"
    try:
        answer = httpx.get(url, timeout=ANSWER_S, trust_env=False)
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
