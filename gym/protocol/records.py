"""Records that are written and compared: files, continuations, ledger rows, sessions.

Guarantees: every record refuses unknown fields and hides its input in errors.
"""

from __future__ import annotations

import hashlib
import json
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, NoReturn
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from gym.protocol.identity import RolloutId

SCHEMA_VERSION: Final = 1
INNER_FILES_FOLDER = "gym"
"""Folder in a checkpoint folder, with one folder for each server."""
UNCERTAIN_REVISION = -1
"""Revision written for a session in an uncertain state: its rollout starts over."""

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
OperationId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
ServerName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]


def _base_url(text: str) -> str:
    """Refuse any other text than the base URL of a server; the reason never quotes it."""
    try:
        parts = urlsplit(text)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname)
        fits = fits and (parts.port is None or parts.port > 0)
    except ValueError:
        fits = False
    if not fits or any(character.isspace() for character in text):
        raise ValueError("not the URL of a server; allowed: http(s)://HOST[:PORT][/PATH]")
    if "@" in parts.netloc:
        raise ValueError(
            "a URL with a user name or password is shown in logs and manifests; allowed: "
            "http(s)://HOST[:PORT][/PATH]"
        )
    if parts.query or parts.fragment:
        raise ValueError("a base URL has no `?` or `#`; allowed: http(s)://HOST[:PORT][/PATH]")
    return text


BaseUrl = Annotated[str, AfterValidator(_base_url)]
"""Base URL of a server: it is shown in logs and manifests, so no credential may be in it."""


class Wire(BaseModel):
    """Base of everything that crosses a boundary: frozen, strict about unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Phase(StrEnum):
    """Phase of a participant (design section 6)."""

    CLOSED = "closed"
    OPEN = "open"
    PREPARING = "preparing"
    PREPARED = "prepared"
    COMMITTED = "committed"
    AWAITING_RESTORE = "awaiting_restore"
    RESTORING = "restoring"
    RESTORED = "restored"


class Kind(StrEnum):
    """Sorts of Gym servers."""

    MODEL = "model"
    AGENT = "agent"
    RESOURCE = "resource"


class Mode(StrEnum):
    """Ways in which a server treats its state."""

    EXPORT_RESTORE = "export_restore"
    STATELESS = "stateless"
    RESTART_ONLY = "restart_only"


class Role(StrEnum):
    """Role of a model server; an auxiliary one (a judge) never closes."""

    POLICY = "policy"
    AUXILIARY = "auxiliary"


class WrittenFile(Wire):
    """One file of a checkpoint folder, as its writer saw it. Paths are relative to that folder."""

    path: str = Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._/-]*$")
    bytes: int = Field(ge=0)
    records: int | None = Field(default=None, ge=0)
    sha256: Sha256


class Continuation(Wire):
    """One line of `continuations.jsonl`: exactly the fields of the design's section 6."""

    schema_version: Literal[1] = SCHEMA_VERSION
    rollout_id: RolloutId
    attempt_index: int = Field(ge=0)
    capture_key: str
    last_committed_model_call_id: str | None
    resource_state_revisions: dict[str, int | None]


class SessionEntry(Wire):
    """One session of a resource server, in inventories."""

    rollout_id: RolloutId
    attempt_index: int = Field(ge=0)
    revision: int = Field(ge=UNCERTAIN_REVISION)


class StagingCoordinates(Wire):
    """Place of one model call's tokens; the generation endpoint answers it in their stead."""

    key: str
    prompt_length: int = Field(ge=0)
    generation_length: int = Field(ge=0)
    sha256: Sha256
    weight_version: str
    parent_key: str | None = None


class LedgerRow(Wire):
    """One model call in the policy model server's ledger."""

    rollout_id: RolloutId
    attempt_index: int = Field(ge=0)
    capture_key: str
    incarnation: int = Field(ge=1)
    model_call_id: str
    parent_model_call_id: str | None
    request_sha256: Sha256
    coordinates: StagingCoordinates


class StorageReference(Wire):
    """One row of the token-storage index: a TransferQueue row that a continuation needs."""

    rollout_id: RolloutId
    model_call_id: str
    key: str


class Manifest(Wire):
    """The ledger of one rollout up to a call, oldest call first (NeMo Gym's manifest route)."""

    rollout_id: RolloutId
    records: list[LedgerRow]


def canonical_json(value: Any) -> bytes:
    """The one JSON form that digests are taken of: sorted keys, no spaces, UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def digest_of(value: Any) -> str:
    """sha256 (hex) of a JSON value in its canonical form."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text, key order kept.

    Raises:
        ValueError: It is not JSON, holds NaN or an infinity (Python's own extension), or is nested
            too deeply.
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
