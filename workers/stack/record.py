"""`stack.json`: the record of the started stack, for every other command.

It is replaced as a whole by one rename: a reader sees one state or the next.
"""

from __future__ import annotations

from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict, ValidationError

from gym.durable import write_durably
from workers.config.sources import STACK_FILE
from workers.errors import NotRunning, SettingsError


class RunningProcess(BaseModel):
    """One process as `stack.json` has it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    pid: int
    create_time: float
    """Seconds since the epoch, as the kernel has it: tells a pid's owners apart."""
    log: Path
    url: str | None

    @property
    def lives(self) -> bool:
        """True if this very process runs; processes that it has started may outlive it."""
        try:
            process = psutil.Process(self.pid)
            # Create times hang on the boot time, which moves a little with the clock; a pid
            # is not given away again so soon.
            same = abs(process.create_time() - self.create_time) < 2
            return same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


class StackRecord(BaseModel):
    """The stack of a state folder: its processes, addresses and settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = 1
    stack_id: str
    settings: dict[str, object]
    """As resolved by `up`, without secrets: other commands start from them."""
    ports: dict[str, int]
    ray_folder: Path
    expect_restore: bool
    ray_address: str | None
    temporal_ui: str | None
    processes: list[RunningProcess] = []
    stopped: bool = False
    """`turnpoint down` has ended the stack: a supervisor brings nothing back."""

    def process(self, name: str) -> RunningProcess:
        """The process of a name.

        Raises:
            NotRunning: The stack has none of this name.
        """
        for process in self.processes:
            if process.name == name:
                return process
        known = ", ".join(process.name for process in self.processes) or "none"
        raise NotRunning(f"the stack has no process {name!r}; it has: {known}")

    def with_(self, process: RunningProcess) -> StackRecord:
        """The record with this process in place of an earlier one of its name."""
        others = [known for known in self.processes if known.name != process.name]
        return self.model_copy(update={"processes": [*others, process]})


def read_record(state_dir: Path) -> StackRecord | None:
    """The record of the last `up` in a state folder; None if there was none.

    Raises:
        SettingsError: The file is damaged.
    """
    path = state_dir / STACK_FILE
    try:
        return StackRecord.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError:
        raise SettingsError(
            f"{path} cannot be read as a stack's record; remove it, and `turnpoint up` makes one"
        ) from None


def write_record(state_dir: Path, record: StackRecord) -> None:
    """Replace the record of a state folder."""
    write_durably(state_dir / STACK_FILE, record.model_dump_json(indent=2).encode())
