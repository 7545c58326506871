"""Identity of a call: rollout, run and incarnation travel in headers (design section 3).

Guarantees: an `Identity` built here is well formed; anything else raises `IdentityMismatch`.
An older run is refused elsewhere, by the servers' fences.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gym.protocol.errors import IdentityMismatch

PREFIX = "x-turnpoint-"
HEADER_RESULT_DIGEST = "x-turnpoint-result-digest"
"""On the answer of `/run`: sha256 of the result, computed by the agent, echoed by RL."""
HEADER_LAST_MODEL_CALL_ID = "x-turnpoint-last-model-call-id"
"""On the answer of `/run`: the call that ended the rollout; its chain is the training row."""
HEADER_RESOURCE_REVISION = "x-turnpoint-resource-revision"
"""On answers of resource servers that keep a revision: the session's, after the call."""
HEADER_RESOURCE_REVISIONS = "x-turnpoint-resource-revisions"
"""On the answer of `/run`: JSON object of each resource server's last revision, or null."""
HEADER_COMMITTED_CALL = PREFIX + "model-call-id"
"""On answers of the policy model server: the call's id, if it has a ledger row. Only such a call
may become a continuation's last committed one."""
HEADER_PARENT_KEY = "x-turnpoint-parent-key"
"""From the model server to the generation endpoint: staging key of the call before."""

ROLLOUT_ID = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
RolloutId = Annotated[str, Field(pattern=ROLLOUT_ID)]
_CALL_ID = re.compile(r"^call-(0|[1-9][0-9]*)$")


class CallKind(StrEnum):
    """Sorts of data-plane calls, told apart by their headers."""

    RUN = "run"
    """`/run` and other calls about a run as a whole: the first three headers alone."""
    MODEL = "model"
    """An agent's model call: the first three and a model call id."""
    MUTATION = "mutation"
    """A seed, tool, step or verify: a request id (and the model call id on tools and steps)."""


class Identity(BaseModel):
    """The identity headers of one call.

    A model call made by a resource server inside a step (a judge) carries the request id of
    that step and no model call id: on a model server it is an inner call.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    incarnation: int = Field(ge=1)
    rollout_id: RolloutId
    attempt: int = Field(ge=0)
    model_call_id: str | None = Field(default=None, pattern=_CALL_ID.pattern)
    request_id: str | None = Field(default=None, min_length=1, max_length=512)

    @property
    def capture_key(self) -> str:
        """Gym's key of this run."""
        return capture_key(self.rollout_id, self.attempt)

    def headers(self) -> dict[str, str]:
        """The headers that carry this identity."""
        named = {
            "incarnation": str(self.incarnation),
            "rollout-id": self.rollout_id,
            "attempt": str(self.attempt),
            "model-call-id": self.model_call_id,
            "request-id": self.request_id,
        }
        return {PREFIX + name: value for name, value in named.items() if value is not None}

    @classmethod
    def from_headers(cls, headers: Mapping[str, str]) -> Identity | None:
        """Read the identity of a call.

        Args:
            headers: The call's headers; names in lower case or a case-insensitive mapping.

        Returns:
            The identity, or None if the call carries none of the headers.

        Raises:
            IdentityMismatch: Some are there and some are missing, or one is malformed; the
                field is named, its value is not.
        """
        names = ("incarnation", "rollout_id", "attempt", "model_call_id", "request_id")
        found = {
            name: headers[key]
            for name in names
            if (key := PREFIX + name.replace("_", "-")) in headers
        }
        if not found:
            return None
        try:
            return cls.model_validate(found)
        except ValidationError as error:
            fields = sorted({str(item["loc"][0]) for item in error.errors()})
            raise IdentityMismatch(f"identity headers do not parse: {', '.join(fields)}") from None

    def call(self, index: int) -> Identity:
        """This run's identity on its model call `index`."""
        return self.model_copy(update={"model_call_id": model_call_id(index), "request_id": None})

    def mutation(self, place: str, number: int = 0) -> Identity:
        """This run's identity on a mutation.

        Args:
            place: `seed`, `verify`, or the model call id whose step it is.
            number: Which step of that model call, from 0.
        """
        call = place if _CALL_ID.match(place) else None
        return self.model_copy(
            update={
                "model_call_id": call,
                "request_id": request_id(self.capture_key, place, number),
            }
        )


def capture_key(rollout_id: str, attempt: int) -> str:
    """Gym's key of a run: `rollout_id` for run 0, `<rollout_id>-a<n>` after."""
    return rollout_id if attempt == 0 else f"{rollout_id}-a{attempt}"


def model_call_id(index: int) -> str:
    """Name of the rollout's model call `index`, from 0."""
    return f"call-{index}"


def request_id(key: str, place: str, number: int = 0) -> str:
    """`<capture_key>/seed/0`, `<capture_key>/<model_call_id>/<n>` or `<capture_key>/verify/0`."""
    return f"{key}/{place}/{number}"


def staging_key(incarnation: int, key: str, call_id: str) -> str:
    """TransferQueue key of one model call's row: `<incarnation>/<capture_key>/<model_call_id>`."""
    return f"{incarnation}/{key}/{call_id}"
