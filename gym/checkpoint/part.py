"""The state behind a participant: what each kind of Gym server saves and restores.

`Phases` owns phase, ids and lease; a `Part` owns the state (design section 6, what each kind
saves).
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from gym.checkpoint.part_files import PartWriter
from gym.protocol import (
    AcknowledgeRequest,
    Blocker,
    CommitRequest,
    Counts,
    Holdings,
    Kind,
    Mode,
    Role,
    WrittenFile,
)


class Export(Protocol):
    """A frozen copy of a part's state, taken on the event loop, written in a thread."""

    def write(self, writer: PartWriter) -> Holdings:
        """Write all files; answers what is in them. Touches nothing that the event loop changes."""


class Part(Protocol):
    """The state behind a participant. Everything but `read` runs on the event loop."""

    kind: Kind
    mode: Mode
    role: Role | None

    def counts(self) -> Counts:
        """Counts of the part's state now; `Save` adds `in_flight`."""

    def blockers(self) -> list[Blocker]:
        """Reasons why the part is not ready, besides calls in flight."""

    def export(self, request: CommitRequest) -> Export:
        """A frozen copy of the state; cheap, as it runs while the rollouts stand still."""

    def read(self, folder: Path, files: list[WrittenFile]) -> Any:
        """Parse and validate the part's files, without any effect. Runs in a thread.

        Args:
            folder: The checkpoint folder; digests have been compared already.
            files: The part's files, paths relative to `folder`.
        """

    def install(self, loaded: Any) -> Holdings:
        """Take over what `read` answered, all or nothing, as runs n+1; fence the older runs."""

    def drop(self) -> None:
        """Drop everything restored, fences too."""

    def discard(self, rollout_ids: Collection[str]) -> None:
        """Drop what was restored of these rollouts; their runs n+1 stay admissible."""

    def forget(self, rollout_ids: Collection[str]) -> None:
        """Drop fences, receipts and records of rollouts that are finished for good."""


@runtime_checkable
class Acknowledging(Protocol):
    """A part that keeps results: an agent's."""

    def acknowledge(self, request: AcknowledgeRequest) -> None:
        """Release a finished result; one that the part no longer has is no error.

        Raises:
            ResultConflict: The digest is another one.
        """
