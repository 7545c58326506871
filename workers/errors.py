"""Errors of the local stack and the command line.

WorkerRoomError                the next step is in the sentence
├── SettingsError              a key that is missing, unknown or not allowed (no value of a secret)
├── PortInUse                  a fixed port that another process uses
├── ProcessFailed              a process of the stack ended or did not get ready in time
├── StackBusy                  another `up` or `down` works on this state folder
├── Stopped                    the stack was ended with `turnpoint down`; nothing is brought back
├── Interrupted                Ctrl-C of a command whose workflow goes on
├── NotRunning                 nothing answers: the stack is not up
├── TemporalRefused            a connected Temporal refuses a call, or answers no more
└── Refused                    the job is in a state in which the command makes no sense
    └── FinishedAlready        `run` has nothing to do: exit code 0, nothing is touched
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar
from urllib.parse import quote


class WorkerRoomError(Exception):
    """Base: one sentence for the terminal, with the exit code of the command line."""

    exit_code: ClassVar[int] = 1
    code: ClassVar[str] = "failed"


class SettingsError(WorkerRoomError):
    """A configuration key is missing, unknown or has a value that is not allowed."""

    exit_code = 2
    code = "settings"


class PortInUse(WorkerRoomError):
    """A port that the settings fix is used by another process."""

    code = "port_in_use"


class ProcessFailed(WorkerRoomError):
    """A process of the stack ended early or was not ready within its time."""

    code = "process_failed"


class StackBusy(WorkerRoomError):
    """Another command starts or stops the same stack at this moment."""

    exit_code = 3
    code = "stack_busy"


class Refused(WorkerRoomError):
    """The command does not fit the state the job is in."""

    exit_code = 3
    code = "refused"


class FinishedAlready(Refused):
    """The job has come to its end, and its rows are there.

    Args:
        incarnation: The one that has finished.
    """

    exit_code = 0
    code = "job_finished"

    def __init__(self, incarnation: int) -> None:
        super().__init__(
            f"it has finished already, as incarnation {incarnation}: nothing was started; "
            "`turnpoint run --fresh` starts it over, as a new line"
        )


class Interrupted(WorkerRoomError):
    """Ctrl-C ended a command; its workflow goes on.

    Args:
        workflow_id: Id of the workflow.
        ui: Address of the Temporal UI, if it is known.
    """

    exit_code = 130
    code = "interrupted"

    def __init__(self, workflow_id: str, ui: str | None) -> None:
        page = f"{ui}/namespaces/default/workflows/{quote(workflow_id, safe='')}"
        where = page if ui is not None else "look at it, or cancel it, in the Temporal UI"
        super().__init__(f"interrupted; workflow {workflow_id} goes on: {where}")


class NotRunning(WorkerRoomError):
    """A process that the command needs does not answer."""

    exit_code = 4
    code = "not_running"


class TemporalRefused(WorkerRoomError):
    """A call to Temporal has failed, after the SDK's own tries (5 to 10 s).

    Args:
        status: Name of the gRPC status.
    """

    exit_code = 4
    code = "temporal_refused"

    def __init__(self, status: str) -> None:
        super().__init__(
            f"Temporal refuses ({status}): look at its log, at the namespace, and at "
            "TEMPORAL_ADDRESS and TEMPORAL_NAMESPACE if they are set"
        )


def no_stack(folder: Path) -> NotRunning:
    """The error for a state folder without a stack, if the settings name no other fleet."""
    return NotRunning(
        f"no stack in {folder}; start one with `turnpoint up` (for another fleet set "
        "TURNPOINT_SERVERS)"
    )


def stack_is_down(folder: Path) -> NotRunning:
    """The error for a state folder whose stack has no running process."""
    return NotRunning(f"the stack in {folder} is down; `turnpoint up` starts it")


class Stopped(WorkerRoomError):
    """The stack was ended with `turnpoint down` while another command worked on its job."""

    exit_code = 4
    code = "stopped"
