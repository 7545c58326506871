"""Typed errors: each survives pickle and the wire, and foreign bodies are never quoted."""

from __future__ import annotations

import pickle

import pytest

from gym.protocol import ServerFault, StaleAttempt, TurnpointError, error_from_body
from gym.protocol.errors import ProtocolError


def kinds(kind: type[TurnpointError]) -> list[type[TurnpointError]]:
    below = [sub for sub in kind.__subclasses__() if sub.__module__ == "gym.protocol.errors"]
    return [kind, *(found for sub in below for found in kinds(sub))]


@pytest.mark.parametrize("kind", kinds(TurnpointError))
def test_every_error_survives_pickle_with_its_participant_and_details(
    kind: type[TurnpointError],
) -> None:
    """Break: gym/protocol/errors.py: leave `__reduce__` out."""
    copy = pickle.loads(pickle.dumps(kind("why", participant="counter", details={"a": [1]})))
    assert type(copy) is kind
    assert (copy.message, copy.participant, copy.details) == ("why", "counter", {"a": [1]})
    assert str(copy) == f"{kind.code}: why [counter]"


@pytest.mark.parametrize("kind", kinds(ProtocolError))
def test_every_refusal_survives_the_wire(kind: type[ProtocolError]) -> None:
    sent = kind("why", details={"a": 1})
    found = error_from_body(sent.status, sent.body(), participant="counter")
    assert type(found) is kind
    assert (found.message, found.participant, found.details) == ("why", "counter", {"a": 1})


def test_codes_are_unique() -> None:
    codes = [kind.code for kind in kinds(TurnpointError)]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize(
    "body", [None, "secret words", {"code": "unheard_of", "message": "secret words"}, {"code": 1}]
)
def test_a_foreign_body_is_a_fault_that_does_not_quote_it(body: object) -> None:
    found = error_from_body(500, body, participant="counter")
    assert isinstance(found, ServerFault) and found.message.startswith("HTTP 500")
    assert "secret words" not in str(found)


def test_details_of_another_shape_are_dropped() -> None:
    found = error_from_body(409, {"code": StaleAttempt.code, "details": [1]}, participant="counter")
    assert (type(found), found.message, found.details) == (StaleAttempt, "", {})
