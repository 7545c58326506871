"""Every error that crosses a boundary of Turnpoint, as one tree.

TurnpointError                 code, status, retryable, participant
├── ProtocolError              a Gym server's typed refusal (design section 6)
│   ├── Unauthorized           401 unauthorized
│   ├── InvalidRequest         422 invalid_request: a field does not parse (named, value hidden)
│   ├── InvalidPhase           409 invalid_phase
│   ├── CheckpointConflict     409 checkpoint_conflict: another id owns the server
│   ├── StaleCheckpoint        409 stale_checkpoint: the id has ended here
│   ├── StaleAttempt           409 stale_attempt: an older run or incarnation
│   ├── StaleInstance          409 stale_instance: an earlier process of the server
│   ├── StaleIncarnation       409 stale_incarnation
│   ├── IdentityMismatch       409 identity_mismatch: headers that do not fit together
│   ├── DeadlineExceeded       409 deadline_exceeded
│   ├── NotReady               409 not_ready
│   ├── FolderOutsideRoot      409 folder_outside_root
│   ├── DigestMismatch         409 digest_mismatch
│   ├── UnsupportedSchema      409 unsupported_schema
│   ├── ExportFailed           409 export_failed: an environment's own code raised over its state
│   ├── NotWritten             409 not_written: the disk refused a file, and why
│   │   └── NoSpace            409 no_space: it is full
│   ├── MoreThanOneProcess     409 more_than_one_process: state lives in one process of a server
│   ├── NotJoined              409 not_joined
│   ├── CheckpointParked       409 checkpoint_parked: come back after a resume
│   ├── SessionUncertain       409 session_uncertain
│   ├── RequestConflict        409 request_conflict: the same id with another body
│   ├── ResultConflict         409 result_conflict: an acknowledge with another digest
│   └── SessionLost            410 session_lost
├── ServerUnreachable          no answer from a server (transport)
├── SecretFileRefused          secret_file: unreadable, empty, or others may read it
├── OtherServer                other_server: another server than the configured one answers there
└── ServerFault                an answer that is not of this protocol (500, a wrong body)

Guarantees: every error survives pickle (Ray and Temporal serialise them); `code` is stable;
no message carries a conversation, a token or a credential.
"""

from __future__ import annotations

from typing import Any, ClassVar


class TurnpointError(Exception):
    """Base of all errors that cross a boundary.

    Args:
        message: One sentence that names the file, server or next step, never a value from a
            conversation or a credential.
        participant: Name of the server, actor or folder concerned, if there is one.
        details: Small JSON values for scripts (ids, counts, blockers); no conversations.
    """

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False
    """True if the same call can succeed later although nothing is changed or repaired."""

    def __init__(
        self,
        message: str,
        *,
        participant: str | None = None,
        details: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.participant = participant
        self.details = details or {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by message, participant and details (Exception alone would lose them)."""
        return (_rebuild, (type(self), self.message, self.participant, self.details))

    def __str__(self) -> str:
        """`code: message (participant)`, as logs and the Temporal UI show it."""
        where = f" [{self.participant}]" if self.participant else ""
        return f"{self.code}: {self.message}{where}"

    def body(self) -> dict[str, Any]:
        """The JSON body that a server answers with."""
        return {"code": self.code, "message": self.message, "details": self.details}


def _rebuild(
    kind: type[TurnpointError],
    message: str,
    participant: str | None,
    details: dict[str, Any],
) -> TurnpointError:
    return kind(message, participant=participant, details=details)


class ProtocolError(TurnpointError):
    """A Gym server's typed refusal."""

    code = "protocol_error"
    status = 409


class Unauthorized(ProtocolError):
    """The bearer token is missing or another one."""

    code = "unauthorized"
    status = 401


class InvalidRequest(ProtocolError):
    """A request that does not parse; the fields are named, their values are not."""

    code = "invalid_request"
    status = 422


class InvalidPhase(ProtocolError):
    """The operation is not allowed in the phase the server is in."""

    code = "invalid_phase"


class CheckpointConflict(ProtocolError):
    """Another checkpoint or restore id owns the server."""

    code = "checkpoint_conflict"


class StaleCheckpoint(ProtocolError):
    """The id was resumed, reset, or its lease has ended: it can no longer do anything here."""

    code = "stale_checkpoint"


class StaleAttempt(ProtocolError):
    """The call belongs to an older run or another incarnation (invariant 7)."""

    code = "stale_attempt"


class StaleInstance(ProtocolError):
    """The request is for an earlier process of this server, whose state is gone."""

    code = "stale_instance"


class StaleIncarnation(ProtocolError):
    """The request carries another incarnation than the one joined."""

    code = "stale_incarnation"


class IdentityMismatch(ProtocolError):
    """Identity headers are missing, malformed or do not fit together."""

    code = "identity_mismatch"


class DeadlineExceeded(ProtocolError):
    """The budget was used up before the operation could end."""

    code = "deadline_exceeded"


class NotReady(ProtocolError):
    """A state that passes: what is in the way is listed in the details."""

    code = "not_ready"
    retryable = True


class FolderOutsideRoot(ProtocolError):
    """The folder is not below the configured snapshot root, or a symlink leads out of it."""

    code = "folder_outside_root"


class DigestMismatch(ProtocolError):
    """A file is not the one whose digest was expected; the file is named."""

    code = "digest_mismatch"


class UnsupportedSchema(ProtocolError):
    """A schema version that this server does not read."""

    code = "unsupported_schema"


class ExportFailed(ProtocolError):
    """`export_state` raised, or answered no bytes: this session cannot be saved."""

    code = "export_failed"


class NotWritten(ProtocolError):
    """The disk refused a file of a checkpoint; the message has its reason, never content."""

    code = "not_written"


class NoSpace(NotWritten):
    """The disk is full (or a quota, or a limit on the size of files is reached)."""

    code = "no_space"


class MoreThanOneProcess(ProtocolError):
    """A second process of a server: it ends at its start, and serves nothing."""

    code = "more_than_one_process"


class NotJoined(ProtocolError):
    """The server has not joined a job yet."""

    code = "not_joined"
    retryable = True


class CheckpointParked(ProtocolError):
    """Admission is closed by a checkpoint: issue the same call again after a resume."""

    code = "checkpoint_parked"
    retryable = True


class SessionUncertain(ProtocolError):
    """A mutation of this session ended in an unknown state; its rollout starts over."""

    code = "session_uncertain"


class RequestConflict(ProtocolError):
    """The same request id came with another body."""

    code = "request_conflict"


class ResultConflict(ProtocolError):
    """An acknowledge named another digest than the result has."""

    code = "result_conflict"


class SessionLost(ProtocolError):
    """The session is unknown to this process; it is never replaced by a fresh one."""

    code = "session_lost"
    status = 410


class ServerUnreachable(TurnpointError):
    """No answer from a server: refused, reset or timed out."""

    code = "server_unreachable"
    status = 503
    retryable = True


class OtherServer(TurnpointError):
    """Another server than the configured one answers at a URL: the URL or the name is wrong."""

    code = "other_server"
    status = 409


class SecretFileRefused(TurnpointError):
    """A file with a secret cannot be read, is empty, or others may read it; the file is named."""

    code = "secret_file"


class ServerFault(TurnpointError):
    """An answer that is not of this protocol: a 5xx, or a body that does not parse."""

    code = "server_fault"
    status = 502


def _tree(kind: type[ProtocolError]) -> dict[str, type[ProtocolError]]:
    found = {kind.code: kind}
    for sub in kind.__subclasses__():
        found |= _tree(sub)
    return found


def error_from_body(status: int, body: object, *, participant: str) -> TurnpointError:
    """The error behind a server's refusal.

    Args:
        status: HTTP status of the answer.
        body: Its parsed JSON body, or anything else the server sent.
        participant: Name of the server that answered.

    Returns:
        The `ProtocolError` whose `code` the body names, else a `ServerFault` that gives the
        status only (a foreign body may hold a conversation).
    """
    if isinstance(body, dict) and isinstance(body.get("code"), str):
        kind = _tree(ProtocolError).get(body["code"])
        if kind is not None:
            details = body.get("details")
            return kind(
                str(body.get("message", "")),
                participant=participant,
                details=details if isinstance(details, dict) else {},
            )
    return ServerFault(f"HTTP {status} without a known error code", participant=participant)
