"""Errors of the local stack and the command line.

WorkerRoomError                the next step is in the sentence
├── SettingsError              a key that is missing, unknown or not allowed (no value of a secret)
├── PortInUse                  a fixed port that somebody else holds
├── ProcessFailed              a process of the stack ended or did not get ready in time
├── StackBusy                  another `up` or `down` works on this state folder
├── Stopped                    the stack was ended on purpose; nothing is brought back
├── NotRunning                 nothing answers: the stack is not up
└── Refused                    the job is in a state in which the command makes no sense
"""

from __future__ import annotations

from typing import ClassVar


class WorkerRoomError(Exception):
    """Base: one sentence for the terminal, with the exit code of the command line."""

    exit_code: ClassVar[int] = 1
    code: ClassVar[str] = "failed"


class SettingsError(WorkerRoomError):
    """A configuration key is missing, unknown or has a value that is not allowed."""

    exit_code = 2
    code = "settings"


class PortInUse(WorkerRoomError):
    """A port that the settings fix is held by another process."""

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


class NotRunning(WorkerRoomError):
    """What the command needs does not answer."""

    exit_code = 4
    code = "not_running"


class Stopped(WorkerRoomError):
    """The stack was ended with `turnpoint down` while something still worked on its job."""

    exit_code = 4
    code = "stopped"
