"""Identity in headers: complete and well formed, or refused by field name."""

from __future__ import annotations

import pytest

from gym.protocol import Identity, IdentityMismatch, capture_key, request_id, staging_key

RUN = Identity(incarnation=2, rollout_id="p0_g0", attempt=1)


@pytest.mark.parametrize(
    "identity", [RUN, RUN.call(3), RUN.mutation("seed"), RUN.mutation("call-3", 1)]
)
def test_an_identity_survives_its_headers(identity: Identity) -> None:
    assert Identity.from_headers(identity.headers()) == identity


def test_a_call_without_any_header_has_no_identity() -> None:
    assert Identity.from_headers({"content-type": "application/json"}) is None


@pytest.mark.parametrize(
    ("header", "value", "field"),
    [
        ("incarnation", "0", "incarnation"),
        ("attempt", "-1", "attempt"),
        ("rollout-id", "../secret", "rollout_id"),
        ("model-call-id", "call-01", "model_call_id"),
        ("request-id", "", "request_id"),
        ("incarnation", None, "incarnation"),
    ],
)
def test_a_missing_or_malformed_header_is_named_and_its_value_hidden(
    header: str, value: str | None, field: str
) -> None:
    headers: dict[str, str] = RUN.headers()
    headers.pop(f"x-turnpoint-{header}", None)
    if value is not None:
        headers[f"x-turnpoint-{header}"] = value
    with pytest.raises(IdentityMismatch, match=field) as refused:
        Identity.from_headers(headers)
    assert "secret" not in str(refused.value)


def test_the_keys_of_a_run_and_its_calls() -> None:
    assert (capture_key("p0_g0", 0), RUN.capture_key) == ("p0_g0", "p0_g0-a1")
    step = RUN.mutation("call-3", 1)
    assert (step.model_call_id, step.request_id) == ("call-3", "p0_g0-a1/call-3/1")
    assert RUN.mutation("verify").model_call_id is None
    assert RUN.mutation("verify").request_id == request_id("p0_g0-a1", "verify", 0)
    assert step.call(4).request_id is None
    assert staging_key(2, RUN.capture_key, "call-3") == "2/p0_g0-a1/call-3"
